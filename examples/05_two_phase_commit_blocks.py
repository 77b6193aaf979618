"""Two-phase commit is safe but blocks: participants in doubt wait for a dead coordinator."""

from orrery import World, run
from orrery.systems.protocols import AtomicCommit, TwoPhaseCommit
from orrery.world import Crash, Group, Network


def main() -> None:
    groups = (Group(name="coordinator", count=1), Group(name="participant", count=4))
    network = Network(latency_s=0.02)  # slow links, so that the crash finds many votes under way
    question = AtomicCommit(transactions=300, vote_no=0.05)
    print("the coordinator dies after 0.5 s and stays away for so long:")
    print(f"{'away':>6} {'committed':>10} {'time in doubt':>14}  violations")
    for away_s in (0.0, 0.5, 1.0, 2.0, 4.0):
        faults = (Crash(node=0, at_s=0.5, until_s=0.5 + away_s),) if away_s else ()
        world = World(groups=groups, network=network, faults=faults)
        result = run(TwoPhaseCommit(), problem=question, world=world, seed=4)
        found = result.metrics
        print(
            f"{away_s:>4.1f} s {found['commit_rate']:>10.0%} {found['blocked_s']:>12.2f} s"
            f"  {len(result.violations)}"
        )


if __name__ == "__main__":
    main()
