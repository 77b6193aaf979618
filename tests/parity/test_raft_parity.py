"""Raft in virtual time and on real processes: the same verdict, and equal answers to one client."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.systems.protocols.baselines.raft import Raft
from orrery.systems.protocols.problems.replicated_store import ReplicatedStore
from orrery.world import Crash, Partition

pytestmark = pytest.mark.slow

# Real processes share few cores with other work, so timeouts are generous.
PATIENT = {"election_s": 0.4, "heartbeat_s": 0.1, "snapshot_entries": 12}
ONE = ReplicatedStore(clients=1, ops=30, think_s=0.02, op_s=8.0, attempt_s=1.0, recover_s=10.0)
MANY = ReplicatedStore(clients=4, ops=12, think_s=0.15, op_s=8.0, attempt_s=1.0, recover_s=15.0)


def test_one_client_gets_the_same_answers() -> None:
    virtual = run(Raft(**PATIENT), problem=ONE, world=World.lan(3), seed=5)
    real = run(Raft(**PATIENT), problem=ONE, world=World.lan(3), seed=5, engine="processes")
    assert virtual.violations == [] and real.violations == []
    assert virtual.decisions == real.decisions
    assert len(virtual.decisions) == 30 + 2 * ONE.keys


def test_kills_and_a_cut_are_survived_for_real() -> None:
    world = World.lan(3).with_faults(
        Crash(node=0, at_s=1.5, until_s=2.5),
        Crash(node=1, at_s=3.0, until_s=3.5),
        Partition(node=2, at_s=4.0, until_s=5.0),
    )
    for engine in ("virtual", "processes"):
        result = run(Raft(**PATIENT), problem=MANY, world=world, seed=3, engine=engine)
        assert result.violations == [], engine
        assert result.metrics["elections"] >= 1
