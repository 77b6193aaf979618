"""Replay: the same run again, verified, with what was lost on the way."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from orrery import Node, World, run
from orrery.base.errors import StoreError, UsageError
from orrery.lab import replay as replays
from orrery.lab.cells import Cell, run_cell
from orrery.lab.replay import make, replay
from orrery.lab.spec import describe, spec_of
from orrery.lab.store import Store
from orrery.systems.protocols import Broadcast, Flood, PushGossip
from orrery.world import Crash, Drop, Duplicate, Partition, Reorder

ROUGH = World.lan(6, drop=0.1).with_faults(
    Crash(node=3, at_s=0.1, until_s=0.3), Duplicate(p=0.2, at_s=0.05, until_s=0.2),
    Reorder(p=0.2, spread_s=0.01), Drop(node=2, p=0.5, at_s=0.1, until_s=0.3),
    Partition(node=1, at_s=0.15, until_s=0.25),
)  # fmt: skip
PROBLEM = Broadcast(values=3, settle_s=0.3)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture
def id(store):
    cell = Cell(name="gossip", part=PushGossip(fanout=2), problem=PROBLEM, world=ROUGH, seed=4)
    return run_cell(cell, store).id


def test_a_stored_run_replays_to_the_same_digest(store, id):
    found = replay(id, store=store, world=ROUGH)
    assert found.same and found.digest == store.load(id).digest
    assert found.changed == [] and found.divergence is None
    kinds = {event.kind for event in found.events}
    assert {"message", "emit", "down", "lost", "fault"} <= kinds


def test_every_message_arrived_or_is_told_as_lost(store, id):
    # No copy is made of a message, so that sendings and arrivals can be counted one by one.
    world = World.lan(6, drop=0.2).with_faults(
        Crash(node=3, at_s=0.1), Drop(node=2, p=0.5, at_s=0.1, until_s=0.3),
        Partition(node=1, at_s=0.15, until_s=0.25),
    )  # fmt: skip
    for seed in range(3):
        made = run(PushGossip(), problem=PROBLEM, world=world, seed=seed, trace=True)
        found = replay(made)
        assert found.same
        stopped = found.run.messages - len(found.run.spans)
        assert len(found.lost) >= stopped > 0
        # What the fault's hook swallowed is not counted as sent by the kernel, but is told.
        assert len(found.lost) - stopped == made.extra["faults_fired"].get("Drop", 0)


def test_nothing_is_lost_on_a_perfect_network():
    made = run(Flood(), problem=PROBLEM, world=World.lan(5), seed=1, trace=True)
    assert replay(made).lost == []


def test_the_world_is_read_from_the_folder(store, id):
    assert World.load(store.runs / id / replays.WORLD_FILE).hash == ROUGH.hash
    assert replay(id, store=store).same


def test_the_problems_own_world_needs_no_file(store):
    cell = Cell(name="flood", part=Flood(), problem=PROBLEM, world=PROBLEM.world(), seed=0)
    assert replay(run_cell(cell, store).id, store=store).same


def test_another_world_is_named(store, id):
    with pytest.raises(StoreError, match=rf"{ROUGH.hash}.*{World.lan(6).hash}"):
        replay(id, store=store, world=World.lan(6))


def test_until_and_node_filter_the_events(store, id):
    every = replay(id, store=store, world=ROUGH)
    some = replay(id, store=store, world=ROUGH, until_s=0.2, node=3)
    assert 0 < len(some.events) < len(every.events)
    assert all(event.start_ns <= 200_000_000 for event in some.events)
    assert all(3 in (event.node, event.to) or event.node < 0 for event in some.events)
    assert some.digest == every.digest  # the whole run was made all the same
    ET.fromstring(some.picture())
    document = json.loads(json.dumps(some.to_json()))
    assert document["same"] and len(document["events"]) == len(some.events)


@pytest.mark.parametrize("options", [{"until_s": -1}, {"until_s": float("nan")}, {"node": 99},
                                     {"node": -1}, {"node": True}])  # fmt: skip
def test_bad_filters_are_named(store, id, options):
    with pytest.raises(UsageError, match=next(iter(options))):
        replay(id, store=store, world=ROUGH, **options)


def test_another_digest_is_noticed_and_the_event_named(store):
    honest = run(PushGossip(), problem=PROBLEM, world=World.lan(5), seed=1, trace=True)
    spec = spec_of(PushGossip(), problem=PROBLEM, world=World.lan(5), seed=1)
    changed = [list(row) for row in honest.spans]
    changed[7][1] += 1
    honest.spans, honest.digest = changed, "0" * 32
    id = store.save(honest, spec, spans=True)
    found = replay(id, store=store, world=World.lan(5))
    assert not found.same
    assert found.divergence["event"] == 7
    assert found.divergence["here"]["time_s"] != found.divergence["there"]["time_s"]


def test_changed_code_is_named(store, id):
    spec = store.load(id).spec
    assert replays.changes(spec) == []
    module = next(name for name in spec["sources"] if name.endswith("push_gossip"))
    spec["sources"][module] = "0" * 16
    assert replays.changes({**spec, "core": "x", "version": "0"}) == [
        "orrery 0 is now " + __import__("orrery").__version__, "the core of orrery",
        f"the module {module}"]  # fmt: skip


class Nested(Node):
    """A part with knobs of many kinds."""

    inner: PushGossip = PushGossip(fanout=2)
    names: tuple[str, ...] = ("a",)
    limit_s: float = 1.0
    word: str = ""


class Loaded(Node):
    """A part with a knob that a spec keeps only as a checksum."""

    payload: bytes = b""


@pytest.mark.parametrize("part", [
    PushGossip(fanout=7), Nested(), Nested(inner=PushGossip(period_s=0.1), names=("x", "y")),
    Nested(limit_s=float("inf"), word="inf"),
], ids=repr)  # fmt: skip
def test_parts_are_made_again_from_their_description(part):
    assert make(json.loads(json.dumps(describe(part))), "part") == part
    roles = make(json.loads(json.dumps(describe({"one": part, "two": PushGossip()}))), "part")
    assert roles == {"one": part, "two": PushGossip()}


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (describe(Loaded(payload=b"xyz")), r"part: .*Loaded cannot be made again: .*payload"),
        (
            {"class": "nowhere.at_all:Gone", "knobs": {}},
            r"nowhere\.at_all:Gone cannot be made again",
        ),
        ({**describe(PushGossip()), "knobs": {"fanout": 3, "gone": 1}}, r"PushGossip.*gone"),
        ({**describe(PushGossip()), "knobs": {"fanout": 3}}, r"period_s"),
    ],
)
def test_what_cannot_be_made_again_is_named(told, says):
    with pytest.raises(StoreError, match=says):
        make(told, "part")


def test_computations_and_transfers_are_told_and_drawn():
    from orrery.lab.trials import Hauler

    made = run(Hauler(), world=World.lan(3), seed=1, trace=True)
    found = replay(made)
    assert found.same
    work = found.run.extra["work_spans"]
    moved = [span for span in work if span.kind == "transfer"]
    assert len(moved) == made.extra["transfers"]
    assert sum(span.size_B for span in moved) == made.extra["transfer_bytes"]
    assert {span.kind for span in work} == {"compute", "transfer"}
    assert all(span.end_ns > span.start_ns for span in work)
    assert {"compute", "transfer"} <= {event.kind for event in found.events}
    drawn = found.picture()
    ET.fromstring(drawn)
    assert ">transfer<" in drawn and ">computes<" in drawn


def test_a_swarm_is_replayed_without_messages():
    from orrery.lab.trials import Rumour

    made = run(Rumour(), world=World.lan(40), seed=2)
    found = replay(made)
    assert found.same and found.lost == []
    assert {event.kind for event in found.events} == {"emit"}


def test_real_runs_are_not_replayed(store, id):
    stored = store.load(id)
    stored.spec["engine"] = "processes"
    with pytest.raises(UsageError, match="real time comes only once"):
        replay(stored, store=store, world=ROUGH)


def test_an_unknown_id_is_named(store):
    with pytest.raises(StoreError, match="no run"):
        replay("abc123", store=store)
