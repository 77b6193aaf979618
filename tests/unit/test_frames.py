"""Runs and comparisons as columns and data frames: whole, of stable types, safe with odd values."""

from __future__ import annotations

import enum
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from docs.snippets import blocks_of, namespace, run_python
from tests.unit.lab_toys import Broken, Cheat, Plain, Race, Racer

from orrery import World, compare, run
from orrery.base.errors import PlatformLacks, UsageError
from orrery.lab import frames
from orrery.lab.compare import Comparison, Row
from orrery.lab.store import Store
from orrery.parts import Record, Violation

ROOT = Path(__file__).resolve().parents[2]


class Colour(enum.IntEnum):
    """A number with a name."""

    RED = 1


ODD = [
    {"n": 1, "x": 1.5, "flag": True, "word": "a"},
    {"n": np.int64(2), "x": math.nan, "flag": np.bool_(False), "word": "ü\ud800", "node": 5},
    {"n": Colour.RED, "x": 3, "mixed": 1, "set": frozenset({3, 1, 2}), "time_s": "late"},
    {"mixed": "two", "array": np.array([1.0, math.nan]), "huge": 1 << 70, "none": None},
    {"x": np.float32(0.5), "mixed": True, "thing": object(), "deep": {"b": 1, "a": [None]}},
]


def made(values=ODD):
    found = run(Racer(), problem=Race(), world=World.lan(2), seed=7)
    found.records = [Record(0.1 * i, i, each) for i, each in enumerate(values)]
    return found


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("runs"))
    parts = {"racer": Racer(), "plain": Plain(), "cheat": Cheat(), "broken": Broken()}
    return compare(Race(), parts, world=World.lan(2), store=store, seeds=[3, 1])


# -- columns, which need no library


def test_the_metrics_of_a_run():
    found = made()
    table = found.to_columns()
    assert list(table) == ["metric", "value", "unit", "better", "says"]
    assert dict(zip(table["metric"], table["value"], strict=True)) == found.metrics
    assert table["unit"][table["metric"].index("time_s")] == "s"


def test_the_records_of_a_run():
    columns = {column.name: column for column in frames.run_columns(made(), "records")}
    kinds = {name: column.kind for name, column in columns.items()}
    assert kinds == {
        "time_s": "float", "node": "int", "n": "int", "x": "float", "flag": "bool",
        "word": "text", "node_": "int", "mixed": "text", "set": "text", "time_s_": "text",
        "array": "text", "huge": "text", "none": "text", "thing": "text", "deep": "text",
    }  # fmt: skip
    assert columns["n"].values == [1, 2, 1, None, None]
    assert [type(value) for value in columns["n"].values[:3]] == [int] * 3
    assert columns["node_"].values == [None, 5, None, None, None]
    assert columns["mixed"].values == [None, None, "1", "two", "true"]
    assert columns["set"].values[2] == "[1,2,3]"
    assert columns["array"].values[3] == "[1.0,null]"
    assert columns["huge"].values[3] == str(1 << 70)
    assert columns["deep"].values[4] == '{"a":[null],"b":1}'
    assert columns["word"].values[1] == "ü\\ud800"
    assert "object" in columns["thing"].values[4]


def test_the_violations_of_a_run():
    found = made()
    found.violations = [Violation("late", "too late", {"b": 1}, 0.5, 3), Violation("odd", "odd")]
    table = found.to_columns("violations")
    assert table == {
        "kind": ["late", "odd"], "message": ["too late", "odd"], "time_s": [0.5, None],
        "node": [3, None], "evidence": ['{"b":1}', None],
    }  # fmt: skip


def test_a_comparison_has_a_row_for_each_cell(compared):
    table = compared.to_columns()
    assert list(table)[:6] == ["problem", "world", "system", "seed", "run", "violations"]
    assert list(table)[6:] == compared.metrics
    cells = set(zip(table["system"], table["seed"], strict=True))
    assert len(cells) == len(table["seed"]) == 8
    for row in compared.rows:
        for i, system in enumerate(table["system"]):
            if system == row.system:
                value = row.values.get("time_s", {}).get(table["seed"][i])
                assert table["time_s"][i] == value
                assert table["run"][i] in row.runs
                assert table["violations"][i] == (system in ("cheat", "broken"))
                assert (value is None) == (system == "broken")


def test_a_metric_that_is_called_as_a_column_is():
    rows = [Row(system="a", values={"seed": {4: 1.0}, "seed_": {4: math.nan}}, seeds=[4])]
    found = Comparison(problem="p", world="w", world_hash="", by="seed", rows=rows).to_columns()
    assert found["seed"] == [4]
    assert found["seed_"] == [1.0]
    assert math.isnan(found["seed__"][0])
    assert found["run"] == [None]


@pytest.mark.parametrize("table", ["metric", "", None, 3])
def test_a_table_that_is_not_there_is_named(table):
    with pytest.raises(UsageError, match="no such table"):
        made().to_columns(table)


def test_a_metric_that_is_no_number_is_named():
    found = made()
    found.metrics = {"x": "many"}
    with pytest.raises(UsageError, match="'many' is not a number"):
        found.to_columns()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_without_the_library_the_extra_is_named(library, monkeypatch, compared):
    monkeypatch.setitem(sys.modules, library, None)
    for thing in (made(), compared):
        with pytest.raises(PlatformLacks, match=rf"{library} .*orrery\[frames\]"):
            getattr(thing, f"to_{library}")()


# -- frames


PANDAS = {"float": "float64", "int": "Int64", "bool": "boolean", "text": "string"}
POLARS = {"float": "Float64", "int": "Int64", "bool": "Boolean", "text": "String"}


def every_table(compared):
    for table in frames.TABLES:
        yield frames.run_columns(made(), table)
        empty = made([])
        empty.metrics, empty.violations = {}, []
        yield frames.run_columns(empty, table)
    yield frames.comparison_columns(compared)
    yield frames.comparison_columns(
        Comparison(problem="p", world="w", world_hash="", by="", rows=[])
    )


def test_pandas(compared):
    pandas = pytest.importorskip("pandas")
    for columns in every_table(compared):
        frame = frames.to_pandas(columns)
        assert list(frame.columns) == [column.name for column in columns]
        assert len(frame) == len(columns[0].values)
        for column in columns:
            assert str(frame[column.name].dtype) in (PANDAS[column.kind], "str"), column.name
            for have, want in zip(frame[column.name], column.values, strict=True):
                missing = want is None or (column.kind == "float" and math.isnan(want))
                assert pandas.isna(have) if missing else have == want
    assert made().to_pandas("records")["n"].sum() == 4
    assert compared.to_pandas().groupby("system")["time_s"].mean()["racer"] > 0


def test_polars(compared):
    pytest.importorskip("polars")
    for columns in every_table(compared):
        frame = frames.to_polars(columns)
        assert frame.columns == [column.name for column in columns]
        for column in columns:
            assert str(frame[column.name].dtype) == POLARS[column.kind]
            for have, want in zip(frame[column.name].to_list(), column.values, strict=True):
                # NaN stays NaN and what is missing stays missing.
                assert have == want or (math.isnan(have) and math.isnan(want))
    assert made().to_polars("records")["x"].null_count() == 1
    assert compared.to_polars().height == 8


def test_the_frames_of_the_page_are_what_it_shows(tmp_path, monkeypatch):
    """The page's `py` blocks want the extra; the rest of it is run with the other pages."""
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path))
    path = ROOT / "docs" / "notebooks.md"
    module, ran = namespace(), 0
    for block in blocks_of(path.read_text(encoding="utf-8")):
        if block.language in ("python", "py"):
            run_python(block, module, path)
            ran += block.language == "py"
    assert ran >= 1
    assert list(module.means.columns) == ["coverage", "time_to_100_s"]
    assert module.late.columns == ["time_s", "node", "delivered"]
