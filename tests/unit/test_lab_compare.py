"""`compare`: the order, seeds that are added, resuming, failures as rows."""

from __future__ import annotations

import json
import sys

import pytest
from tests.unit.lab_toys import Broken, Cheat, Plain, Race, Racer

from orrery import World
from orrery.base.errors import StoreError, UsageError
from orrery.lab import cells, compare
from orrery.lab.compare import Comparison, Row, settle
from orrery.lab.store import Store
from orrery.parts import Metric


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def count_runs(monkeypatch):
    made = []
    real = cells.attempt

    def counted(cell):
        made.append((cell.name, cell.seed))
        return real(cell)

    monkeypatch.setattr(cells, "attempt", counted)
    return made


def test_the_better_comes_first(store):
    found = compare(Race(), {"plain": Plain(), "trick": Racer()}, world=World.lan(2), store=store)
    assert [row.system for row in found.rows] == ["trick", "plain"]
    assert found.decided
    assert found.by == "time_s"
    # Pairs decide what the two intervals, which overlap, would leave open.
    assert found.interval("trick", "time_s").mean < found.interval("plain", "time_s").mean


def test_higher_may_be_better(store):
    found = compare(Race(), [Plain, Racer], world=World.lan(2), store=store, by="rate", seeds=3)
    assert [row.system for row in found.rows] == ["Racer()", "Plain()"]


def test_json_is_the_contracts(store):
    found = compare(Race(), [Plain(), Racer()], world="lan:2", store=store, seeds=2).to_json()
    assert json.loads(json.dumps(found)) == found
    assert found["problem"] == "race"
    assert found["world"] == "lan:2"
    metric = found["rows"][0]["metrics"]["time_s"]
    assert set(metric) == {"mean", "lo", "hi", "unit", "kind"}
    assert metric["unit"] == "s"
    assert metric["kind"] == "modelled"
    assert metric["lo"] <= metric["mean"] <= metric["hi"]


def test_what_is_the_same_is_shown_apart(store):
    found = compare(Race(), [Plain(), Racer()], world=World.lan(2), store=store, seeds=3)
    assert found.same == {"nodes": 2.0, "wrong": 0.0}
    heads, lines = found.table()
    assert "nodes" not in heads
    assert "time_s" in heads
    assert len(lines) == 2
    assert "The same for all" in found._repr_html_()


def test_a_run_that_fails_is_a_row(store):
    parts = {"good": Racer(), "broken": Broken(), "cheat": Cheat()}
    found = compare(Race(), parts, world=World.lan(2), store=store, seeds=2)
    # The cheat is quickest, yet it comes after what is right; what never ran comes last.
    assert [row.system for row in found.rows] == ["good", "cheat", "broken"]
    assert found.rows[1].violations[0]["kind"] == "wrong"
    assert "broken on purpose" in found.rows[2].violations[0]["message"]
    assert found.to_json()["rows"][2]["metrics"] == {}
    assert found.same["nodes"] == 2.0


def test_a_part_that_does_not_fit_is_a_row(store):
    from orrery.parts import Node

    class Other(Node):
        pass

    found = compare(Race(), {"other": Other()}, world=World.lan(2), store=store, seeds=1)
    assert "does not fit" in found.rows[0].violations[0]["message"]


def test_seeds_are_added_until_decided(store, monkeypatch):
    made = count_runs(monkeypatch)
    far = {"a": Racer(cost=1.0), "b": Racer(cost=4.0)}
    assert compare(Race(noise=0.05), far, world=World.lan(2), store=store).decided
    few = len(made)
    near = {"a": Racer(cost=1.0), "b": Racer(cost=1.03)}
    found = compare(Race(noise=3.0), near, world=World.lan(2), store=store, most_seeds=9)
    assert few == 6
    assert len(found.rows[0].seeds) == 9 or found.decided


def test_equal_systems_are_a_tie(store):
    found = compare(Race(), {"a": Racer(), "b": Racer(polish=False)}, world=World.lan(2),
                    store=store)  # fmt: skip
    assert found.decided
    assert found.ties == [("a", "b")]


def test_settle_leaves_noise_open():
    def row(name, *values):
        return Row(system=name, values={"m": dict(enumerate(values))}, seeds=[*range(len(values))])

    def asked(*rows):
        found = Comparison(
            problem="p", world="w", world_hash="", by="m", rows=list(rows),
            units={"m": Metric("", "lower")},
        )  # fmt: skip
        return settle(found, 0.95)

    assert not asked(row("a", 1.0, 9.0, 4.0), row("b", 5.0, 2.0, 8.0))
    assert asked(row("a", 1.0, 1.1, 1.05), row("b", 5.0, 5.4, 5.2))
    assert not asked(row("a", 1.0), row("b", 5.0))
    assert not asked(row("a", 1.0, float("nan")), row("b", 5.0, 5.0))
    # Values at or below zero are compared by difference.
    assert asked(row("a", 0.0, 0.0, 0.0), row("b", 5.0, 5.1, 5.2))


def test_the_same_command_runs_nothing_again(store, monkeypatch):
    made = count_runs(monkeypatch)
    parts = {"a": Racer(), "b": Plain(), "broken": Broken()}
    one = compare(Race(), parts, world=World.lan(2), store=store, seeds=3)
    assert len(made) == 9
    two = compare(Race(), parts, world=World.lan(2), store=store, seeds=3)
    assert len(made) == 9
    assert one.to_json() == two.to_json()
    compare(Race(), parts, world=World.lan(2), store=store, seeds=4)
    assert made[9:] == [("a", 3), ("b", 3), ("broken", 3)]


def test_a_stop_gives_what_is_finished(store, monkeypatch):
    made = count_runs(monkeypatch)
    told = []

    def stop(cell, stored):
        told.append(stored.id)
        if len(told) == 3:
            raise KeyboardInterrupt

    parts = {"a": Racer(), "b": Plain()}
    found = compare(Race(), parts, world=World.lan(2), store=store, seeds=4, progress=stop)
    assert found.partial
    assert sum(len(row.seeds) for row in found.rows) == 3
    assert found.to_json()["partial"]
    again = compare(Race(), parts, world=World.lan(2), store=store, seeds=4)
    assert not again.partial
    assert len(made) == 8
    assert set(told) <= set(store.ids())


def test_several_processes_give_the_same(tmp_path):
    parts = {"a": Racer(), "b": Plain()}
    alone = compare(Race(), parts, world=World.lan(2), store=Store(tmp_path / "1"), seeds=3)
    pooled = compare(
        Race(), parts, world=World.lan(2), store=Store(tmp_path / "2"), seeds=3, jobs=2
    )
    told = [
        {row["system"]: (row["metrics"], sorted(row["runs"])) for row in each.to_json()["rows"]}
        for each in (alone, pooled)
    ]
    assert told[0] == told[1]


def test_parts_that_cannot_travel_run_here(tmp_path):
    class Local(Racer):
        pass

    found = compare(Race(), {"a": Local()}, world=World.lan(2), store=Store(tmp_path), seeds=2,
                    jobs=2)  # fmt: skip
    assert len(found.rows[0].seeds) == 2


def test_an_edited_part_is_run_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    made = count_runs(monkeypatch)
    text = "from tests.unit.lab_toys import Racer\nclass P(Racer):\n    cost: float = 1.0\n"
    for body in (text, text, text + "    # edited\n"):
        (tmp_path / "edited_part.py").write_text(body)
        sys.modules.pop("edited_part", None)
        sys.path_importer_cache.clear()
        part = __import__("edited_part").P()
        compare(Race(), {"p": part}, world=World.lan(2), store=Store(tmp_path / "s"), seeds=2)
    assert len(made) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"seeds": 0}, {"seeds": -1}, {"seeds": True}, {"seeds": []}, {"seeds": ["a"]},
        {"seeds": "3"}, {"most_seeds": 0}, {"jobs": 0}, {"by": "tmie_s"}, {"world": 7},
        {"systems": []}, {"systems": [7]}, {"systems": [Racer(), Racer()]},
        {"systems": ["no-such-system"]}, {"problem": "no_such_problem"}, {"problem": 7},
    ],
)  # fmt: skip
def test_bad_calls_are_named_and_write_nothing(tmp_path, wrong):
    call = {"problem": Race(), "systems": [Racer()], "world": World.lan(2), **wrong}
    with pytest.raises(UsageError):
        compare(call.pop("problem"), call.pop("systems"), store=Store(tmp_path / "s"), **call)
    assert not (tmp_path / "s").exists()


def test_a_full_store_is_an_error_and_not_a_row(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        compare(Race(), [Racer()], world=World.lan(2), store=Store(tmp_path / "file"), seeds=1)
