"""The same parts on real processes and sockets: same verdict, and the same decisions.

Where the problem says that its outcome is unique, the decisions must be equal in both engines. The
worlds are small and slow enough that a loaded machine keeps up with them.
"""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.systems.protocols import (
    AtomicCommit,
    Broadcast,
    Chord,
    Flood,
    Lookup,
    PushGossip,
    TwoPhaseCommit,
)
from orrery.world import Crash, Group

pytestmark = pytest.mark.slow

CAST = World(groups=(Group(name="coordinator", count=1), Group(name="participant", count=3)))
# Timeouts that a busy machine does not run into by itself.
PATIENT = TwoPhaseCommit(vote_s=4.0, work_s=6.0, decision_s=1.0, retry_s=1.0)
LOOKUP = Lookup(keys=20, lookups=30, final=10, join_s=1.0, spread_s=1.0, settle_s=3.0)
CALM_CHORD = Chord(timeout_s=0.3, find_s=1.5, stabilise_s=0.3, fix_s=0.5)


def both(part, problem, world, seed=7):
    """The run of a part in each engine."""
    virtual = run(part, problem=problem, world=world, seed=seed)
    real = run(part, problem=problem, world=world, seed=seed, engine="processes")
    assert virtual.violations == []
    assert real.violations == []
    return virtual, real


@pytest.mark.parametrize("part", [PushGossip(), Flood()], ids=["gossip", "flood"])
def test_broadcast_delivers_the_same_sets(part):
    virtual, real = both(part, Broadcast(values=6, settle_s=1.5), World.lan(6))
    assert real.decisions == virtual.decisions
    assert real.metrics["coverage"] == 1.0


def test_gossip_with_loss_and_a_real_kill():
    world = World.lan(6, drop=0.1).with_faults(Crash(node=3, at_s=0.4, until_s=0.9))
    problem = Broadcast(values=6, settle_s=2.5)
    virtual, real = both(PushGossip(), problem, world)
    assert set(real.decisions) == set(virtual.decisions) == set(range(6))


@pytest.mark.parametrize("style", ["recursive", "iterative"])
def test_chord_names_the_same_owners(style):
    virtual, real = both(CALM_CHORD.with_knobs(style=style), LOOKUP, World.lan(8))
    assert real.decisions == virtual.decisions
    assert real.metrics["success_rate"] == 1.0


def test_chord_with_a_real_kill_mends_its_ring():
    world = World.lan(8).with_faults(Crash(node=3, at_s=1.2, until_s=2.5))
    both(CALM_CHORD, LOOKUP.with_knobs(settle_s=6.0), world)


def test_two_phase_commit_decides_the_same():
    problem = AtomicCommit(transactions=12, vote_no=0.15, settle_s=2.0)
    virtual, real = both(PATIENT, problem, CAST)
    assert real.decisions == virtual.decisions
    assert real.metrics["commit_rate"] == virtual.metrics["commit_rate"]


@pytest.mark.parametrize("node", [0, 2], ids=["coordinator", "participant"])
def test_two_phase_commit_recovers_from_its_real_log(node):
    world = CAST.with_faults(Crash(node=node, at_s=0.5, until_s=1.2))
    problem = AtomicCommit(transactions=30, vote_no=0.1, settle_s=8.0)
    both(PATIENT, problem, world)
