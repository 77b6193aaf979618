"""Push gossip while the network loses more and more messages: it gets slower, never wrong."""

from orrery import World, run
from orrery.systems.protocols import Broadcast, PushGossip
from orrery.world import Crash


def main() -> None:
    print("200 nodes, 20 values, node 3 crashes and comes back")
    print(f"{'loss':>5} {'coverage':>9} {'99 % of nodes after':>20} {'messages/value':>15}")
    for drop in (0.0, 0.1, 0.3, 0.5, 0.7):
        world = World.lan(200, drop=drop).with_faults(Crash(node=3, at_s=0.1, until_s=0.3))
        result = run(PushGossip(), problem=Broadcast(values=20), world=world, seed=7)
        assert result.ok, result.violations
        found = result.metrics
        print(
            f"{drop:>5.0%} {found['coverage']:>9.3f} {found['time_to_99_s'] * 1e3:>17.0f} ms"
            f" {found['messages_per_value']:>15.0f}"
        )
    again = run(PushGossip(), problem=Broadcast(values=20), world=world, seed=7)
    print("the last run again has the same digest:", again.digest == result.digest)


if __name__ == "__main__":
    main()
