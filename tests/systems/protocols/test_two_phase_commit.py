"""The problem `atomic_commit` and two-phase commit: 4 n messages, recovery, blocking."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.base.errors import KnobError, PartError, WorldError
from orrery.systems.protocols import (
    AtomicCommit,
    TwoPhaseCommit,
    TwoPhaseCoordinator,
    TwoPhaseParticipant,
)
from orrery.world import (
    Crash,
    Duplicate,
    Group,
    Network,
    Partition,
    RandomCrashes,
    RandomPartitions,
    Reorder,
    TornWrite,
)


def world_of(participants: int, coordinators: int = 1, **network) -> World:
    groups = (
        Group(name="coordinator", count=coordinators),
        Group(name="participant", count=participants),
    )
    return World(groups=groups, network=Network(**network))


@pytest.mark.parametrize("n", [1, 3, 5, 16])
def test_a_commit_costs_four_messages_for_each_participant(n):
    made = run(TwoPhaseCommit(), problem=AtomicCommit(vote_no=0.0), world=world_of(n), seed=1)
    assert made.violations == []
    assert made.metrics["commit_rate"] == 1.0
    assert made.metrics["messages_per_transaction"] == 4 * n
    assert made.metrics["blocked_s"] == 0.0


def test_an_abort_spares_those_who_voted_no():
    made = run(TwoPhaseCommit(), problem=AtomicCommit(vote_no=1.0), world=world_of(5), seed=1)
    assert made.violations == []
    assert made.metrics["commit_rate"] == 0.0
    assert made.metrics["messages_per_transaction"] == 2 * 5


def test_a_subset_of_participants_and_several_coordinators():
    problem = AtomicCommit(vote_no=0.0, participants=3)
    made = run(TwoPhaseCommit(), problem=problem, world=world_of(9, coordinators=3), seed=2)
    assert made.violations == []
    assert made.metrics["messages_per_transaction"] == 4 * 3
    assert all(len(nodes) == 3 for nodes in made.decisions.values())


def test_two_roles_may_be_given_one_by_one():
    roles = {"coordinator": TwoPhaseCoordinator(), "participant": TwoPhaseParticipant()}
    one = run(roles, problem=AtomicCommit(), seed=4)
    both = run(TwoPhaseCommit(), problem=AtomicCommit(), seed=4)
    assert one.ok and one.digest == both.digest


def test_decisions_depend_on_the_votes_alone():
    slow = world_of(5, latency_s=0.02, jitter=0.5)
    first = run(TwoPhaseCommit(), problem=AtomicCommit(), world=world_of(5), seed=4)
    other = run(TwoPhaseCommit(), problem=AtomicCommit(), world=slow, seed=4)
    assert first.decisions == other.decisions
    words = {word for nodes in first.decisions.values() for said in nodes.values() for word in said}
    assert words == {"commit", "abort"}


@pytest.mark.parametrize("who", [0, 1, (0, 1), (1, 2, 3, 4, 5)])
def test_a_crash_at_any_moment_is_survived(who):
    # The whole exchange takes about 5 ms; the crash falls into every tenth of a millisecond of it.
    problem = AtomicCommit(transactions=4, spread_s=0.0, vote_no=0.05)
    blocked = 0
    for moment in range(0, 60, 2):
        crash = Crash(node=who, at_s=1e-6 + 1e-4 * moment, until_s=2.0)
        made = run(TwoPhaseCommit(), problem=problem, world=world_of(5).with_faults(crash), seed=1)
        assert made.violations == [], f"crash at {crash.at_s}"
        blocked += made.metrics["blocked_s"] > 0
    assert blocked or who != 0, "a coordinator that crashes in the middle leaves somebody in doubt"


ONE = AtomicCommit(transactions=1, spread_s=0.0, vote_no=0.0)


def just_after_the_votes_s() -> float:
    """When the last participant has voted; the coordinator hears of it half a millisecond later."""
    calm = run(TwoPhaseCommit(), problem=ONE, world=world_of(4), seed=1)
    return 1e-4 + max(record.time_s for record in calm.records if "voted" in record.values)


def test_participants_stay_blocked_while_the_coordinator_is_away():
    away = Crash(node=0, at_s=just_after_the_votes_s(), until_s=3.0)
    made = run(TwoPhaseCommit(), problem=ONE, world=world_of(4).with_faults(away), seed=1)
    assert made.violations == []
    assert made.decisions[0] == {node: ["abort"] for node in (1, 2, 3, 4)}
    # Four nodes wait from half a second after their vote until the coordinator is back.
    assert made.metrics["blocked_s"] == pytest.approx(4 * 2.5, rel=0.15)


def test_one_who_knows_ends_the_doubt_of_the_others():
    # Node 4 hears no decision, and the coordinator then goes away for long.
    faults = (
        Partition(node=4, at_s=just_after_the_votes_s(), until_s=0.4),
        Crash(node=0, at_s=0.1, until_s=8.0),
    )
    made = run(TwoPhaseCommit(), problem=ONE, world=world_of(4).with_faults(*faults), seed=1)
    assert made.violations == []
    assert made.decisions[0] == {node: ["commit"] for node in (1, 2, 3, 4)}
    assert 0.0 < made.metrics["blocked_s"] < 1.0


def test_storms_of_everything_at_once():
    storm = (
        RandomCrashes(count=8, between_s=(0.0, 1.5), down_s=(0.05, 0.5)),
        RandomPartitions(count=3, between_s=(0.0, 1.5), down_s=(0.1, 0.5)),
        Duplicate(p=0.1, until_s=2.0),
        Reorder(p=0.1, spread_s=0.05, until_s=2.0),
        TornWrite(node=(0, 1, 2, 3, 4, 5), p=1.0, until_s=3.0),
    )
    world = world_of(5, drop=0.15).with_faults(*storm)
    for seed in range(12):
        made = run(TwoPhaseCommit(), problem=AtomicCommit(transactions=20), world=world, seed=seed)
        assert made.violations == [], f"seed {seed}"


@pytest.mark.slow
def test_three_hundred_storms():
    storm = RandomCrashes(count=12, between_s=(0.0, 1.5), down_s=(0.01, 0.5))
    world = world_of(5, drop=0.1).with_faults(
        storm, RandomPartitions(count=3, between_s=(0.0, 1.5), down_s=(0.1, 0.5))
    )
    for seed in range(300):
        made = run(TwoPhaseCommit(), problem=AtomicCommit(), world=world, seed=seed)
        assert made.violations == [], f"seed {seed}"


def test_same_digest_in_both_kernels_and_right_on_the_wire():
    world = world_of(4, drop=0.05).with_faults(Crash(node=1, at_s=0.3, until_s=0.6))
    first = run(TwoPhaseCommit(), problem=AtomicCommit(), world=world, seed=3)
    again = run(TwoPhaseCommit(), problem=AtomicCommit(), world=world, seed=3, kernel="python")
    assert (first.digest, first.metrics) == (again.digest, again.metrics)
    assert run(TwoPhaseCommit(), problem=AtomicCommit(), world=world, seed=3, wire=True).ok


def test_what_does_not_fit_is_refused_with_the_fix():
    with pytest.raises(PartError, match="AtomicCommit needs a Participant"):
        run({"coordinator": TwoPhaseCoordinator()}, problem=AtomicCommit())
    with pytest.raises(PartError, match="inherit from CommitProtocol"):
        run(TwoPhaseCoordinator(), problem=AtomicCommit())
    with pytest.raises(WorldError, match="participant"):
        run(TwoPhaseCommit(), problem=AtomicCommit(), world=World.lan(5))
    with pytest.raises(KnobError, match=r"AtomicCommit\.participants"):
        run(TwoPhaseCommit(), problem=AtomicCommit(participants=9), world=world_of(5))
    for knobs in ({"transactions": 0}, {"vote_no": 1.5}, {"participants": -1}):
        with pytest.raises(KnobError, match=rf"AtomicCommit\.{next(iter(knobs))}"):
            AtomicCommit(**knobs)
