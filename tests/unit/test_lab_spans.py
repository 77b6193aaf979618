"""Spans: what a run recorded, in order, and as files that other tools read."""

from __future__ import annotations

import json
import sys

import pytest

from orrery import Node, World, rpc, run
from orrery.base.errors import PlatformLacks, StoreError, UsageError
from orrery.lab import spans
from orrery.world import Crash, Drop, Partition, Pause, RandomCrashes


class Pair(Node):
    """Asks and tells, and reports."""

    @rpc
    async def ping(self, number: int) -> int:
        self.emit(got=number, who={"b", "a"})
        return number + 1

    async def main(self):
        for number in range(3):
            await self.sleep(0.01)
            peer = (self.id + 1) % 3
            self.tell(peer, Pair.ping, number)
            try:
                async with self.deadline(0.005):
                    await self.ask(peer, Pair.ping, number)
            except TimeoutError:
                pass


WORLD = World.lan(3).with_faults(
    Crash(node=2, at_s=0.015, until_s=0.025), Pause(node=1, at_s=0.012, until_s=0.014),
    Partition(groups=((0,),), at_s=0.02, until_s=0.03), Drop(node=0, p=0.5, at_s=0.001),
)  # fmt: skip


@pytest.fixture(scope="module")
def made():
    return run(Pair(), world=WORLD, seed=3, until_s=0.05, trace=True)


def test_spans_come_in_order_and_hold_all_that_happened(made):
    found = list(spans.of(made))
    assert [s.start_ns for s in found] == sorted(s.start_ns for s in found)
    kinds = {span.kind for span in found}
    assert {"message", "reply", "emit", "down", "paused", "fault"} <= kinds
    assert sum(s.kind in ("message", "reply") for s in found) == len(made.spans)
    assert sum(s.kind == "emit" for s in found) == len(made.records)
    assert all(span.end_ns >= span.start_ns for span in found)


def test_life_follows_the_schedule(made):
    life = {(s.kind, s.name, s.node): (s.start_ns, s.end_ns) for s in spans.life(made)}
    assert life["down", "Crash", 2] == (15_000_000, 25_000_000)
    assert life["paused", "Pause", 1] == (12_000_000, 14_000_000)
    assert life["fault", "Partition", -1] == (20_000_000, 30_000_000)
    assert life["fault", "Drop", 0] == (1_000_000, 50_000_000)  # for ever: to the end of the run


def test_overlapping_crashes_are_one_time_of_being_down():
    world = World.lan(2).with_faults(
        Crash(node=0, at_s=0.01, until_s=0.03), Crash(node=0, at_s=0.02, until_s=0.04),
        Crash(node=0, at_s=0.06), Crash(node=0, at_s=9.0),
    )  # fmt: skip
    made = run(Pair(), world=World.lan(3).with_faults(*world.faults), until_s=0.1, trace=True)
    assert [(s.start_ns, s.end_ns) for s in spans.life(made)] == [
        (10_000_000, 40_000_000), (60_000_000, 100_000_000)]  # fmt: skip


def test_drawn_faults_are_those_of_the_seed():
    world = World.lan(3).with_faults(
        RandomCrashes(count=2, between_s=(0.0, 0.05), down_s=(0.01, 0.02))
    )
    one = run(Pair(), world=world, seed=1, until_s=0.1, trace=True)
    other = run(Pair(), world=world, seed=2, until_s=0.1, trace=True)
    assert spans.life(one) and spans.life(one) != spans.life(other)


def test_perfetto_json_is_a_valid_chrome_trace(made, tmp_path):
    path = spans.write(made, tmp_path / "run.perfetto.json")
    document = json.loads(path.read_bytes())
    events = document["traceEvents"]
    assert document["otherData"]["digest"] == made.digest
    names = {e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    assert {"node 0", "node 1", "node 2"} <= names
    for event in events:
        assert event["ph"] in "MXsfibe" and event["pid"] == 1 and "tid" in event
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) == len(made.spans)
    slices = {(e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    for key, start in starts.items():
        assert start["ts"] <= ends[key]["ts"] and ends[key]["bp"] == "e"
        # Each end of a flow needs a slice to bind to.
        assert (start["tid"], start["ts"]) in slices
        assert (ends[key]["tid"], ends[key]["ts"]) in slices
    opened = [e["id"] for e in events if e["ph"] == "b"]
    assert sorted(opened) == sorted(e["id"] for e in events if e["ph"] == "e")


def test_the_slices_of_a_node_are_apart_or_nested(made, tmp_path):
    document = json.loads(spans.write(made, tmp_path / "run.json").read_bytes())
    slices: dict[int, list[tuple[int, int]]] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            slices.setdefault(event["tid"], []).append((start, start + round(event["dur"] * 1000)))
    for of_node in slices.values():
        for a, b in of_node:
            assert not [1 for c, d in of_node if a < c < b < d]


def test_json_lines(made, tmp_path):
    lines = spans.write(made, tmp_path / "run.jsonl").read_text().splitlines()
    head, *rest = [json.loads(line) for line in lines]
    assert head["run"]["seed"] == 3
    assert len(rest) == len(list(spans.of(made)))
    emit = next(row for row in rest if row["kind"] == "emit")
    assert emit["values"]["who"] == ["a", "b"]  # a set has no order of its own


def test_parquet_holds_the_same(made, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(spans.write(made, tmp_path / "run.parquet"))
    expected = list(spans.of(made))
    assert table.num_rows == len(expected)
    assert table["start_ns"].to_pylist() == [s.start_ns for s in expected]
    assert table["kind"].to_pylist() == [s.kind for s in expected]
    assert table["to"].to_pylist() == [None if s.to < 0 else s.to for s in expected]


def test_parquet_in_several_batches(made, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(spans, "_BATCH", 7)
    table = parquet.read_table(spans.write(made, tmp_path / "run.parquet"))
    assert table["seq"].to_pylist() == [s.seq for s in spans.of(made)]


def test_without_pyarrow_the_extra_is_named_and_nothing_is_written(made, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PlatformLacks, match=r"orrery\[tables\]"):
        spans.write(made, tmp_path / "run.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
def test_the_same_run_gives_the_same_bytes(made, tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    again = run(Pair(), world=WORLD, seed=3, until_s=0.05, trace=True)
    one = spans.write(made, tmp_path / f"a{suffix}").read_bytes()
    assert one == spans.write(again, tmp_path / f"b{suffix}").read_bytes()


def test_bad_targets_are_named(made, tmp_path):
    with pytest.raises(UsageError, match=r"\.json .*\.parquet"):
        spans.write(made, tmp_path / "run.csv")
    with pytest.raises(UsageError, match="trace=True"):
        spans.write(run(Node(), world=World.lan(2)), tmp_path / "run.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        spans.write(made, tmp_path / "file" / "run.json")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failing_writer_leaves_nothing(made, tmp_path, monkeypatch):
    target = tmp_path / "run.json"
    target.write_text("before")

    def broken(run, lost=()):
        yield b"{"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spans, "perfetto", broken)
    with pytest.raises(StoreError, match="No space left"):
        spans.write(made, target)
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_plain_has_no_addresses_and_no_set_order():
    class Thing:
        pass

    assert spans.plain({"a": Thing(), "b": {3, 1, 2}, "c": float("inf")}) == {
        "a": f"<{Thing.__qualname__}>", "b": [1, 2, 3], "c": "inf"}  # fmt: skip
