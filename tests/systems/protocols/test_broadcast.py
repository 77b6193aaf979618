"""The problem `broadcast`: its port, its workload, its checker, its metrics."""

from __future__ import annotations

import pytest

from orrery import Node, World, rpc, run
from orrery.base.errors import KnobError, PartError
from orrery.systems.protocols import Broadcast, Broadcaster, Flood, PushGossip
from orrery.world import Crash, RandomCrashes


class SetGossip(Node):
    """A plain node, as a newcomer writes it: no port, only a set that grows."""

    fanout: int = 3
    period_s: float = 0.05

    def start(self):
        self.seen: set[int] = set()

    @rpc
    async def learn(self, values: frozenset[int]) -> None:
        self.seen |= values

    async def main(self):
        while True:
            await self.sleep(self.period_s)
            for peer in self.rng.sample(self.peers, self.fanout):
                self.tell(peer, SetGossip.learn, frozenset(self.seen))


def test_the_first_example_of_the_design_runs():
    world = World.lan(200, drop=0.1).with_faults(Crash(node=3, at_s=0.1, until_s=0.3))
    made = run(PushGossip(), problem=Broadcast(values=20), world=world, seed=7)
    assert made.violations == []
    assert made.metrics["coverage"] == 1.0
    assert made.decisions == {node: list(range(20)) for node in range(200)}
    assert 0 < made.metrics["time_to_50_s"] < made.metrics["time_to_99_s"]
    assert made.metrics["time_to_99_s"] <= made.metrics["time_to_100_s"]


def test_a_plain_node_that_gossips_a_set_needs_no_port():
    world = World.lan(30, drop=0.1).with_faults(Crash(node=3, at_s=0.1, until_s=0.3))
    plain = run(SetGossip(fanout=2), problem=Broadcast(), world=world, seed=7)
    shipped = run(PushGossip(fanout=2), problem=Broadcast(), world=world, seed=7)
    assert plain.violations == []
    assert plain.metrics == shipped.metrics
    assert plain.digest == shipped.digest


def test_a_part_without_the_port_is_refused_with_the_fix():
    class Silent(Node):
        pass

    with pytest.raises(PartError, match="inherit from Broadcaster"):
        run(Silent(), problem=Broadcast(), world=World.lan(3))

    class Hollow(Broadcaster):
        pass

    with pytest.raises(PartError, match=r"has no broadcast\(value\)"):
        run(Hollow(), problem=Broadcast(), world=World.lan(3))


@pytest.mark.parametrize(
    "knobs", [{"values": 0}, {"values": 1.5}, {"settle_s": 0.0}, {"spread_s": -1.0}, {"value": 3}]
)
def test_bad_knobs_are_named(knobs):
    with pytest.raises(KnobError, match=rf"Broadcast\.{next(iter(knobs))}"):
        Broadcast(**knobs)


def test_a_value_whose_node_fell_at_once_may_be_lost():
    # Every node falls right after the values were handed out, and all memory is gone.
    world = World.lan(4).with_faults(Crash(node=(0, 1, 2, 3), at_s=0.02, until_s=0.1))
    made = run(PushGossip(), problem=Broadcast(values=3, spread_s=0.01), world=world)
    assert made.violations == []
    assert made.metrics["coverage"] == 0.0
    assert made.metrics["time_to_100_s"] >= 2.0


def test_a_dead_node_owes_nothing():
    world = World.lan(20).with_faults(Crash(node=3, at_s=0.001))
    made = run(PushGossip(), problem=Broadcast(values=5), world=world)
    assert made.violations == []
    assert 3 not in made.decisions
    assert len(made.decisions) == 19


def test_a_run_cut_short_is_judged_only_for_what_it_did():
    made = run(PushGossip(), problem=Broadcast(), world=World.lan(50), until_s=0.15)
    assert made.ended == "until"
    assert made.violations == []
    assert made.metrics["coverage"] < 1.0


def test_flood_is_exact_and_costs_one_message_for_each_pair():
    n = 12
    made = run(Flood(), problem=Broadcast(values=4), world=World.lan(n), seed=1)
    assert made.violations == []
    # One message from the client, then everybody to everybody else.
    assert made.metrics["messages_per_value"] == 1 + n * (n - 1)
    ring = run(Flood(), problem=Broadcast(values=4), world=World.ring(n), seed=1)
    assert ring.violations == []
    assert ring.metrics["messages_per_value"] == 1 + 2 * n


def test_flood_survives_crashes_and_gossip_survives_storms():
    stops = World.lan(20).with_faults(Crash(node=(1, 2, 3), at_s=0.1))
    for seed in range(5):
        assert run(Flood(), problem=Broadcast(), world=stops, seed=seed).ok
    storm = World.lan(20, drop=0.2).with_faults(
        RandomCrashes(count=10, between_s=(0.0, 0.5), down_s=(0.05, 0.3), at_most=5)
    )
    for seed in range(5):
        made = run(PushGossip(), problem=Broadcast(), world=storm, seed=seed)
        assert made.violations == []


def test_one_node_alone_has_all_at_once():
    made = run(PushGossip(), problem=Broadcast(values=2), world=World.lan(1))
    assert made.ok and made.decisions == {0: [0, 1]}
    assert made.metrics["time_to_100_s"] == 0.0
