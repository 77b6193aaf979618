"""Raft: its pieces, its promises in sixty storms, and what its problem refuses and finds."""

from __future__ import annotations

import pytest
from tests.negative.raft_storms import storm, verdict

from orrery import Node, World, run
from orrery.base.errors import KnobError, PartError
from orrery.parts import Outcome, Record
from orrery.systems.protocols.baselines.raft import Raft
from orrery.systems.protocols.baselines.raft.log import Entry, Log, Snapshot
from orrery.systems.protocols.baselines.raft.machine import Machine
from orrery.systems.protocols.baselines.raft.storage import Base, Put, Vote, frame, replay, unframe
from orrery.systems.protocols.problems.replicated_store import Op, ReplicatedStore
from orrery.world import Crash, Partition

SMALL = ReplicatedStore(clients=3, ops=8, think_s=0.05, settle_s=0.5)

# -- storms


@pytest.mark.parametrize("kind", range(6))
def test_linearizable_and_live_in_storms(kind: int) -> None:
    for seed in range(kind, 60, 6):
        assert verdict(Raft, seed) == [], f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_linearizable_and_live_in_a_thousand_storms(part: int) -> None:
    for seed in range(100 * part, 100 * part + 100):
        assert verdict(Raft, seed) == [], f"seed {seed}"


def test_storms_reach_what_they_are_for() -> None:
    """Elections, restarts, snapshots sent to laggards and changes of members all take place."""
    elections = restarts = installed = changes = 0
    for seed in range(12):
        world, problem, knobs = storm(seed)
        result = run(Raft(**knobs), problem=problem, world=world, seed=seed)
        elections += int(result.metrics["elections"])
        restarts += sum(result.extra["incarnations"].values())
        restored = [record for record in result.records if record.values.get("restored", 0) > 0]
        begun = {(fault.node, fault.until_s) for fault in world.faults if fault.kind == "Crash"}
        installed += len(restored) > len(begun)
        changes += any(r.values["applied"][1].members for r in result.records
                       if "applied" in r.values)  # fmt: skip
    assert elections > 24 and restarts > 40 and installed >= 1 and changes >= 2


def test_same_seed_same_run_on_both_kernels_and_on_the_wire() -> None:
    world, problem, knobs = storm(0)
    runs = [
        run(Raft(**knobs), problem=problem, world=world, seed=0, kernel=kernel)
        for kernel in ("python", "python", None)
    ]
    assert len({result.digest for result in runs}) == 1
    wired = run(Raft(**knobs), problem=problem, world=world, seed=0, wire=True)
    assert wired.violations == []


# -- behaviour


def test_one_node_is_a_cluster() -> None:
    result = run(Raft(), problem=SMALL, world=World.lan(1), seed=1)
    assert result.violations == [] and result.metrics["elections"] == 1


def test_quiet_cluster_keeps_its_leader() -> None:
    result = run(Raft(), problem=SMALL, world=World.lan(5), seed=2)
    assert result.violations == []
    assert result.metrics["elections"] == 1 and result.metrics["unknown"] == 0


def test_a_node_that_was_cut_off_does_not_depose_the_leader() -> None:
    calm = run(Raft(), problem=SMALL, world=World.lan(5), seed=4)
    leader = next(record.node for record in calm.records if "leads" in record.values)
    other = (leader + 1) % 5
    world = World.lan(5).with_faults(Partition(node=other, at_s=0.6, until_s=1.8))
    result = run(Raft(), problem=SMALL, world=world, seed=4)
    assert result.violations == [] and result.metrics["elections"] == 1


def test_a_lost_leader_is_replaced_in_about_two_timeouts() -> None:
    calm = run(Raft(), problem=SMALL, world=World.lan(5), seed=4)
    leader = next(record.node for record in calm.records if "leads" in record.values)
    world = World.lan(5).with_faults(Crash(node=leader, at_s=0.7))
    result = run(Raft(), problem=SMALL, world=world, seed=4)
    terms = [(time_s, node) for time_s, node, values in result.records if "leads" in values]
    assert result.violations == []
    # The longest timeout is twice election_s; a split vote may cost one more.
    assert 0.7 + 0.10 < terms[1][0] < 0.7 + 0.65 and terms[1][1] != leader


def test_no_majority_no_answers_and_the_checker_says_so() -> None:
    world = World.lan(5).with_faults(Crash(node=(0, 1, 2), at_s=0.0))
    problem = ReplicatedStore(clients=2, ops=2, op_s=0.5, recover_s=1.0)
    result = run(Raft(), problem=problem, world=world, seed=1)
    assert [violation.kind for violation in result.violations] == ["not_live"]
    assert result.metrics["unknown"] == 2 * 2 + 1


def test_a_spare_node_is_taken_in_when_members_change() -> None:
    problem = ReplicatedStore(clients=2, ops=10, changes=1)
    result = run(Raft(voters=3), problem=problem, world=World.lan(4), seed=3)
    memberships = {
        record.values["applied"][1].members for record in result.records
        if "applied" in record.values
    }  # fmt: skip
    assert result.violations == [] and (0, 1, 2, 3) in memberships


def test_all_the_metrics_are_there() -> None:
    result = run(Raft(), problem=SMALL, world=World.lan(3), seed=1)
    assert set(result.metrics) == set(ReplicatedStore.metrics)
    assert 0 < result.metrics["latency_p50_s"] <= result.metrics["latency_p99_s"]


# -- the log


def entries(*terms: int) -> list[Entry]:
    return [Entry(term) for term in terms]


def test_conflict_names_the_first_index_of_the_term_that_stands_there() -> None:
    log = Log(Snapshot(2, 1, (0, 1, 2)), entries(1, 4, 4, 4))
    assert log.conflict(6, 4) is None and log.conflict(2, 1) is None and log.conflict(1, 1) is None
    assert log.conflict(9, 5) == (7, -1)
    assert log.conflict(6, 5) == (4, 4)
    assert log.after_term(4, 7) == 7 and log.after_term(4, 6) == 6
    assert log.after_term(1, 7) == 4 and log.after_term(3, 7) is None


def test_an_old_message_cuts_nothing_off() -> None:
    log = Log(Snapshot(), entries(1, 1, 2))
    assert log.news(1, entries(1, 1)) == (3, ())
    assert log.news(2, entries(1, 3)) == (3, entries(3))
    assert log.news(3, entries(2, 2)) == (4, entries(2))


def test_a_membership_that_is_cut_off_no_longer_counts() -> None:
    log = Log(Snapshot(0, 0, (0, 1, 2)), [Entry(1), Entry(1, members=(0, 1))])
    assert log.members == (0, 1) and log.members_at(1) == (0, 1, 2)
    log.put(2, entries(2))
    assert log.members == (0, 1, 2)


def test_compacting_keeps_what_matches_and_drops_what_does_not() -> None:
    log = Log(Snapshot(), entries(1, 1, 2, 2))
    log.compact(Snapshot(3, 2))
    assert (log.last_index, log.last_term, len(log.entries)) == (4, 2, 1)
    log.compact(Snapshot(4, 3))
    assert (log.last_index, log.last_term, log.entries) == (4, 3, [])


# -- the disk


def test_a_file_cut_anywhere_gives_a_prefix_of_its_records() -> None:
    records = [Base(), Vote(1, 2), Put(1, (Entry(1, 7, 1, Op("write", "k", 5)),)), Vote(2, -1)]
    frames = [frame(record) for record in records]
    data = b"".join(frames)
    for end in range(len(data) + 1):
        found, whole = unframe(data[:end])
        assert found == records[: len(found)]
        assert len(b"".join(frames[: len(found)])) <= end
        assert whole == (end == len(b"".join(frames[: len(found)])))


def test_a_flipped_bit_ends_the_file_there() -> None:
    records = [Base(), Vote(1, 2), Vote(2, 0)]
    data = bytearray(b"".join(frame(record) for record in records))
    data[len(frame(records[0])) + 9] ^= 4
    assert unframe(bytes(data)) == (records[:1], False)


def test_replay_follows_truncations() -> None:
    one, two = (Entry(1), Entry(1), Entry(1)), (Entry(2),)
    state = replay([Base(entries=one[:1]), Put(2, one[:2]), Vote(2, 1), Put(2, two)])
    assert state == Base(2, 1, Snapshot(), (Entry(1), Entry(2)))


def test_replay_begins_anew_at_an_installed_snapshot() -> None:
    installed = Base(3, 1, Snapshot(100, 2), ())
    state = replay([Base(), Put(1, (Entry(1),)), installed, Put(101, (Entry(3),))])
    assert state == Base(3, 1, Snapshot(100, 2), (Entry(3),))


# -- the machine


def test_an_operation_acts_once() -> None:
    machine = Machine()
    assert machine.apply(1, 1, Op("cas", "k", 5, None)) is True
    assert machine.apply(1, 1, Op("cas", "k", 5, None)) is True
    assert machine.apply(2, 1, Op("cas", "k", 6, None)) is False
    machine.apply(1, 3, Op("write", "k", 7))
    machine.apply(1, 2, Op("write", "k", 8))
    assert machine.read("k") == 7
    again = Machine(machine.dump())
    assert again.dump() == machine.dump() and again.fingerprint() == machine.fingerprint()


# -- what the problem refuses, and what its checker finds


def test_bad_knobs_and_parts_are_refused_by_name() -> None:
    with pytest.raises(KnobError, match=r"Raft\.batch"):
        Raft(batch=0)
    with pytest.raises(KnobError, match=r"ReplicatedStore\.reads"):
        run(Raft(), problem=ReplicatedStore(reads=0.8, swaps=0.8))
    with pytest.raises(PartError, match="StoreNode"):
        run(Node(), problem=ReplicatedStore())


def found(*records: tuple[int, dict[str, object]]) -> list[str]:
    """The kinds that the checker finds in hand-made records of a run that did not end."""
    made = [Record(0.1 * place, node, values) for place, (node, values) in enumerate(records)]
    outcome = Outcome(
        part=Raft(), world=World.lan(3), seed=0, engine="virtual", seconds=1.0, ended="until",
        records=made, alive=[True] * 3,
    )  # fmt: skip
    kinds = [violation.kind for violation in ReplicatedStore().check(outcome)]
    assert kinds.pop() == "unfinished" or "unfinished" in kinds
    return [kind for kind in kinds if kind != "unfinished"]


@pytest.mark.parametrize(
    ("records", "kind"),
    [
        ([(0, {"leads": 3}), (1, {"leads": 3})], "two_leaders"),
        ([(0, {"applied": (1, "a")}), (1, {"applied": (1, "b")})], "unsafe_apply"),
        ([(0, {"restored": 0}), (0, {"applied": (2, "a")})], "gap"),
        ([(0, {"applied": (1, "a")}), (0, {"applied": (1, "a")})], "applied_again"),
        ([(0, {"state": (4, 77)}), (2, {"state": (4, 78)})], "state_fork"),
    ],
)
def test_the_checker_sees_a_broken_promise(records: list, kind: str) -> None:
    assert kind in found(*records)
    assert found(*records[:1]) == []
