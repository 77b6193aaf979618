"""Two-phase commit is safe but blocks: participants in doubt wait for a dead coordinator."""

from orrery import World, run
from orrery.systems.protocols import AtomicCommit, TwoPhaseCommit
from orrery.world import Crash


def main() -> None:
    # Slow links, so that the crash finds many votes under way.
    calm = World.lan({"coordinator": 1, "participant": 4}, latency_s=0.02)
    question = AtomicCommit(transactions=300, vote_no=0.05)
    print("the coordinator dies after 0.5 s and stays away for so long:")
    print(f"{'away':>6} {'committed':>10} {'time in doubt':>14}  violations")
    for away_s in (0.0, 0.5, 1.0, 2.0, 4.0):
        crash = Crash(node=0, at_s=0.5, until_s=0.5 + away_s) if away_s else None
        world = calm.with_faults(crash) if crash else calm
        result = run(TwoPhaseCommit(), problem=question, world=world, seed=4)
        found = result.metrics
        print(
            f"{away_s:>4.1f} s {found['commit_rate']:>10.0%} {found['blocked_s']:>12.2f} s"
            f"  {len(result.violations)}"
        )


if __name__ == "__main__":
    main()
