"""Sweeps from real runs: the grid is brute force, workers change nothing, bad input is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from tests.unit.lab_toys import Cheat, Race, Racer
from tests.unit.when_toys import Bill, Plan

from orrery import World, run
from orrery.base.errors import KnobError, OrreryError, StoreError, UsageError
from orrery.lab.store import Store
from orrery.lab.sweep import make_question, sweep
from orrery.lab.sweep.search import MOST_TRIALS
from orrery.lab.sweep.space import Range, Span, Written, from_data, parse_setting
from orrery.lab.sweep.spec_file import read_spec
from orrery.lab.sweep.workers import KINDS
from orrery.parts import Metric, Outcome

OVER = {"load": [10.0, 100.0, 1000.0], "part.fixed": [5.0, 50.0], "network.latency_s": [1e-3, 1e-2]}


def swept(folder, over=OVER, systems=None, problem=Bill, **options):
    systems = {"plan": Plan()} if systems is None else systems
    return sweep(systems, over, problem=problem, store=Store(folder), **options)


def plain(found):
    """What was found, without where and how often it was made."""
    return found.to_json() | {"made": 0, "torn": 0, "journal": ""}


class Nothing(Bill):
    """A metric that is no number for some loads, missing for others."""

    metrics: ClassVar[Mapping[str, Metric]] = {"cost": Metric("s", "lower")}

    def measure(self, outcome: Outcome) -> dict[str, float]:
        if self.load > 500:
            return {}
        return {"cost": math.nan if self.load > 50 else 1.0}


# -- the grid


def test_the_grid_is_brute_force(tmp_path):
    found = swept(tmp_path, seeds=2)
    wanted = {}
    for load in OVER["load"]:
        for fixed in OVER["part.fixed"]:
            for latency_s in OVER["network.latency_s"]:
                world = World.lan(1).with_param("network.latency_s", latency_s)
                wanted[load, fixed, latency_s] = [
                    run(Plan(fixed=fixed), problem=Bill(load=load), world=world, seed=seed).metrics[
                        "cost"
                    ]
                    for seed in (0, 1)
                ]
    names = ("problem.load", "part.fixed", "world.network.latency_s")
    got = {tuple(t.values[name] for name in names): t.scores for t in found.trials}
    assert got == wanted
    lowest = min(wanted, key=lambda key: sum(wanted[key]))
    assert tuple(found.best.values[name] for name in names) == lowest
    assert [trial.n for trial in found.trials] == list(range(12))
    stored = Store(tmp_path)
    assert len(set(found.runs)) == 24
    assert all(stored.load(id).ok for id in found.runs)
    row = found.row(found.best)
    assert row["lo"] <= row["score"] <= row["hi"]


def test_the_direction_may_be_turned(tmp_path):
    up = swept(tmp_path, better="higher")
    assert up.best.values["problem.load"] == 1000.0
    assert up.best.values["part.fixed"] == 50.0
    assert up.key != swept(tmp_path).key


def test_systems_are_a_dimension_and_cheats_do_not_win(tmp_path):
    parts = {"cheat": Cheat(), "racer": Racer()}
    found = swept(tmp_path, {"cost": [0.5, 1.0]}, parts, Race, world="lan:2", by="time_s")
    assert [trial.values["system"] for trial in found.trials] == ["cheat"] * 2 + ["racer"] * 2
    assert found.best.values == {"system": "racer", "part.cost": 0.5}
    assert [trial.violations for trial in found.trials] == [1, 1, 0, 0]
    only = swept(tmp_path, {"cost": [0.5]}, {"cheat": Cheat()}, Race, world="lan:2", by="time_s")
    assert only.best is None
    assert only.trials[0].note == "an answer was wrong"


def test_ties_are_those_that_the_seeds_cannot_tell(tmp_path):
    over = {"network.latency_s": [1e-3, 1e-2], "fixed": [5.0, 50.0]}
    found = swept(tmp_path, over, seeds=4)
    same = [t.n for t in found.trials if t.values["part.fixed"] == 5.0 and t.n != found.best.n]
    assert found.ties == same
    assert swept(tmp_path, over).ties is None


def test_the_same_sweep_again_makes_nothing(tmp_path):
    first, again = swept(tmp_path), swept(tmp_path)
    assert (first.made, again.made) == (12, 0)
    assert plain(again) == plain(first)
    # Without the journal, the stored runs give the same trials and are not made again.
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "runs").iterdir()}
    (tmp_path / "sweeps" / first.key / "journal").unlink()
    third = swept(tmp_path)
    assert plain(third) == plain(first)
    assert before == {p.name: p.stat().st_mtime_ns for p in (tmp_path / "runs").iterdir()}


def test_a_larger_budget_goes_on_with_the_same_journal(tmp_path):
    over = {"load": Span(1.0, 100.0), "fixed": [5.0, 50.0]}
    for search in ("random", "tpe"):
        few = swept(tmp_path, over, search=search, trials=14)
        more = swept(tmp_path, over, search=search, trials=18)
        assert (few.key, few.made, more.made) == (more.key, 14, 4)
        assert more.trials[:14] == few.trials
        assert swept(tmp_path, over, search=search, trials=2, seed=1).trials != few.trials[:2]


@pytest.mark.parametrize("search", ["tpe", pytest.param("grid", marks=pytest.mark.slow)])
def test_workers_change_nothing(tmp_path, search):
    over = {"load": Span(1.0, 100.0), "fixed": [5.0, 50.0]}
    trials = None if search == "grid" else 18
    one = swept(tmp_path / "a", over, search=search, trials=trials)
    two = swept(tmp_path / "b", over, search=search, trials=trials, jobs=2)
    assert plain(one) == plain(two)


def test_other_workers_may_be_added(tmp_path, monkeypatch):
    class Backwards:
        """Gives the cells in the opposite order."""

        def __init__(self, store, jobs):
            self.inner = KINDS["processes"](store, 1)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def run(self, cells):
            yield from reversed(list(self.inner.run(cells)))

    few = {"load": [10.0, 100.0, 1000.0]}
    reference = swept(tmp_path / "a", few, seeds=2)
    monkeypatch.setitem(KINDS, "backwards", Backwards)
    assert plain(swept(tmp_path / "b", few, seeds=2, on="backwards")) == plain(reference)
    with pytest.raises(UsageError, match="no such workers"):
        swept(tmp_path, on="cloud")


def test_runs_of_other_code_are_refused(tmp_path, monkeypatch):
    """Planted: workers that started after the code was edited."""

    class Edited(type(KINDS["processes"](Store(tmp_path), 1))):
        def run(self, cells):
            for cell, stored in super().run(cells):
                stored.id = "ab" * 10
                yield cell, stored

    monkeypatch.setitem(KINDS, "edited", Edited)
    with pytest.raises(StoreError, match="the code changed"):
        swept(tmp_path, on="edited")
    assert swept(tmp_path).made == 12


# -- trials that fail


def test_a_figure_that_is_no_number_is_never_the_best(tmp_path):
    found = swept(tmp_path, {"load": [10.0, 100.0, 1000.0]}, problem=Nothing)
    assert [trial.scores for trial in found.trials] == [[1.0], ["nan"], [None]]
    assert found.best.n == 0
    assert found.trials[2].note == "a run gave no cost"
    assert [t["score"] for t in found.to_json()["trials"]] == [1.0, None, None]
    assert plain(swept(tmp_path, {"load": [10.0, 100.0, 1000.0]}, problem=Nothing)) == plain(found)
    none = swept(tmp_path, {"load": [100.0, 1000.0]}, problem=Nothing)
    assert none.best is None


def test_values_that_do_not_fit_together_are_a_failed_trial(tmp_path):
    class Picky(Bill):
        def accept(self, part: Any) -> None:
            if self.load > 50 and part.fixed > 20:
                raise KnobError("Picky.load", "too much for this part", "lower it")

    found = swept(tmp_path, {"load": [10.0, 100.0], "fixed": [5.0, 50.0]}, problem=Picky)
    assert [bool(trial.note) for trial in found.trials] == [False, False, False, True]
    assert "too much" in found.trials[3].note
    assert found.trials[3].runs == []


# -- words


def test_settings_are_read():
    assert parse_setting("a=1,2") == ("a", Written(("1", "2")))
    assert parse_setting('a=[1,2],"x,y"') == ("a", Written(("[1,2]", '"x,y"')))
    assert parse_setting("a=1..5") == ("a", Span(1.0, 5.0))
    assert parse_setting("a=1..5:log:7") == ("a", Span(1.0, 5.0, "log", 7))
    assert parse_setting("a=1..5:3") == ("a", Span(1.0, 5.0, "", 3))
    assert from_data("network", {"drop": [0.1]}) == [("network.drop", [0.1])]
    assert from_data("a", {"low": 1, "high": 9, "log": True}) == [("a", Span(1.0, 9.0, "log"))]
    assert from_data("a", "1..9:lin") == [("a", Span(1.0, 9.0, "linear"))]


def test_ranges_visit_their_ends_and_whole_numbers_evenly():
    over = {"units": Span(1.0, 4.0), "load": Span(1.0, 100.0, "log", 3)}
    asked = make_question({"plan": Plan()}, over, problem=Bill)
    _, units, load = asked.space.dims
    assert isinstance(units, Range) and isinstance(load, Range)
    assert units.points() == (1, 2, 3, 4) and load.points() == (1.0, 10.0, 100.0)
    drawn = [units.at((i + 0.5) / 400) for i in range(400)]
    assert [drawn.count(n) for n in (1, 2, 3, 4)] == [100] * 4
    assert asked.space.size is None and units.size == 4


@pytest.mark.parametrize(
    ("over", "options", "says"),
    [
        ({}, {}, "varies nothing"),
        ({"load": []}, {}, "no value"),
        ({"load": [math.nan]}, {}, "not a finite"),
        ({"load": [math.inf]}, {}, "not a finite"),
        ({"load": Written(("nan",))}, {}, "nan"),
        ({"load": Written(("inf",))}, {}, "not a finite"),
        ({"load": [-1.0]}, {}, r"Bill\.load"),
        ({"load": ["much"]}, {}, r"Bill\.load"),
        ({"load": [1.0, 1.0]}, {}, "twice"),
        ({"load": [1.0], "problem.load": [2.0]}, {}, "given twice"),
        ({"laod": [1.0]}, {}, "no such knob.*load"),
        ({"network.latncy_s": [1.0]}, {}, "latncy_s"),
        ({"network.latency_s": [-1.0]}, {}, "latency_s"),
        ({"network.drop": Span(0.0, 2.0)}, {}, "drop"),
        ({"rival.fixed": [1.0]}, {}, "no rival"),
        ({"label": Span(1.0, 2.0)}, {}, "no number"),
        ({"load": Span(0.0, 2.0)}, {}, r"Bill\.load"),
        ({"load": Span(-1.0, 2.0, "log")}, {}, "above 0"),
        ({"load": Span(1.0, 2.0, "", 1)}, {}, "steps 1"),
        ({"load": Span(1.0, 2.0, "", 10**9)}, {}, "steps"),
        ({"load": Span(1.0, 2.0, "", 1000), "price": Span(1.0, 2.0, "", 1000)}, {},
         f"1000000 trials, more than {MOST_TRIALS}"),
        ({"load": [1.0, 2.0]}, {"trials": 1}, "the grid has 2"),
        ({"load": [1.0]}, {"search": "random", "trials": 0}, "trials 0"),
        ({"load": [1.0]}, {"search": "random", "trials": True}, "trials True"),
        ({"load": [1.0]}, {"search": "tpe", "trials": 10**9}, "trials 1000000000"),
        ({"load": [1.0]}, {"search": "magic"}, "search 'magic'"),
        ({"load": [1.0]}, {"seed": 1.5}, "seed 1.5"),
        ({"load": [1.0]}, {"seeds": 0}, "seeds 0"),
        ({"load": [1.0]}, {"seeds": [1, 1]}, "twice"),
        ({"load": [1.0]}, {"seeds": [-1]}, "seeds"),
        ({"load": [1.0]}, {"by": "joy"}, "no such metric"),
        ({"load": [1.0]}, {"better": "nicer"}, "better 'nicer'"),
        ({"load": [1.0]}, {"jobs": 0}, "jobs"),
        ({"load": [1.0]}, {"world": "nope:3"}, "nope"),
        ({"load": [1.0]}, {"systems": {"pair": {"a": Plan()}}}, "single parts"),
        ({"load": [1.0]}, {"problem": None, "systems": [Plan()]}, "names no problem"),
    ],
)  # fmt: skip
def test_bad_input_is_named_before_anything_is_written(tmp_path, over, options, says):
    with pytest.raises(OrreryError, match=says):
        swept(tmp_path / "home", over, **options)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("word", ["a", "=1", "a=", "a=1,,2", "a=1..x", "a=nan..2", "a=2..1",
                                  "a=1..2:lag"])  # fmt: skip
def test_bad_words_are_named(word):
    with pytest.raises(UsageError):
        parse_setting(word)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"), ("x = [", "not TOML"), ("sistem = 'a'", 'did you mean "system'),
        ("trials = 'many'", "trials='many'"), ("trials = true", "trials=True"),
        ("[over]\na = {low = 1}", r"over\.a\.high"), ("[over]\na = {}", "empty"),
        ("[over]\na = {low = 1, high = 2, stps = 3}", "stps"),
        ("[over]\na = {low = 1, high = nan}", "nan"),
        ("[over]\na = {low = 1, high = 2, log = 1}", "log=1"),
        ("[over]\n'a.b' = 1\na = {b = 2}", "twice"),
    ],
)  # fmt: skip
def test_a_bad_file_is_named(tmp_path, text, says):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        read_spec(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_spec(tmp_path / "none.toml")
    (tmp_path / "raw.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not TOML"):
        read_spec(tmp_path / "raw.toml")
    (tmp_path / "big.toml").write_bytes(b"#" * 1_000_001)
    with pytest.raises(UsageError, match="larger"):
        read_spec(tmp_path / "big.toml")
