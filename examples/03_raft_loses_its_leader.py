"""Raft loses its leader, elects another and stays linearizable; the picture goes to out/."""

from pathlib import Path

from orrery import World, run
from orrery.lab import draw
from orrery.systems.protocols import Raft, ReplicatedStore
from orrery.world import Crash


def leaders(result) -> list[tuple[float, int]]:
    """Who became leader, and when."""
    return [(r.time_s, r.node) for r in result.records if "leads" in r.values]


def main() -> None:
    world, question = World.lan(5), ReplicatedStore(clients=4, ops=20)
    calm = run(Raft(), problem=question, world=world, seed=3)
    elected_s, leader = leaders(calm)[0]
    # The same seed elects the same leader, so we know whom to hit, and when.
    crash_s = elected_s + 0.5
    faults = Crash(node=leader, at_s=crash_s, until_s=crash_s + 1.5)
    rough = run(Raft(), problem=question, world=world.with_faults(faults), seed=3, trace=True)
    for name, result in (("calm", calm), ("rough", rough)):
        found = result.metrics
        print(
            f"{name:>5}: elections {found['elections']:.0f}, "
            f"longest gap {found['unavailable_s'] * 1e3:.0f} ms, "
            f"p99 {found['latency_p99_s'] * 1e3:.0f} ms, violations {len(result.violations)}"
        )
    print(f"node {leader} crashed at {crash_s:.3f} s; leaders:", leaders(rough))
    path = Path("out/raft_loses_its_leader.svg")
    path.parent.mkdir(exist_ok=True)
    path.write_text(draw.space_time(rough, from_s=crash_s - 0.02, until_s=crash_s + 0.6))
    print("space-time picture:", path)


if __name__ == "__main__":
    main()
