"""Worlds that inject more than is tolerated: the checker must notice, or the run is at fault."""

from __future__ import annotations

from orrery import World, run
from orrery.systems.protocols import Broadcast, PushGossip
from orrery.world import Drop

LOST = Drop(p=1.0, at_s=0.0)


def test_a_noticed_excess_is_what_was_expected():
    world = World.lan(10).with_faults(LOST, over_budget=True)
    done = run(PushGossip(), problem=Broadcast(values=2), world=world)
    assert done.ok
    assert {v.kind for v in done.extra["noticed"]}


def test_the_same_excess_is_a_violation_where_nobody_expected_it():
    done = run(PushGossip(), problem=Broadcast(values=2), world=World.lan(10).with_faults(LOST))
    assert not done.ok and "noticed" not in done.extra


def test_an_excess_that_nobody_notices_is_a_violation():
    world = World.lan(10).with_faults(Drop(p=0.01, at_s=0.0), over_budget=True)
    done = run(PushGossip(), problem=Broadcast(values=2), world=world)
    assert [v.kind for v in done.violations] == ["unnoticed"]
