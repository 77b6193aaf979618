"""The pieces of the command line: a helper for the other tests, tables, JSON, words to values."""

from __future__ import annotations

import contextlib
import io
import json
import math
from typing import Any, NamedTuple

import pytest

from orrery.base.errors import KnobError, OrreryError, UsageError
from orrery.cli import asking, common, table
from orrery.cli.app import run_command
from orrery.cli.runs import seconds_of


class Told(NamedTuple):
    """What a command line gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout; anything beside it fails the test."""
        return json.loads(self.out)


def cli(*words: str) -> Told:
    """Run a command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command([str(word) for word in words])
    assert "Traceback" not in out.getvalue() + err.getvalue()
    return Told(code, out.getvalue(), err.getvalue())


def refused(*words: str) -> str:
    """Run a command line that must be refused; gives what it said."""
    told = cli(*words)
    assert told.code == 64, told
    assert told.out == ""
    assert told.err.startswith("orrery: ")
    assert len(told.err.splitlines()) <= 3
    again = cli(*words, "--json")
    assert again.code == 64, again
    assert again.json["error"]["exit"] == 64
    assert again.json["error"]["message"]
    return told.err


# -- tables


def test_a_table_never_exceeds_its_room():
    rows = [("push-gossip", "a long text " * 9, 12), ("flood", "short", 3)]
    for room in range(20, 140, 7):
        for line in table.table_lines(("id", "text", "n"), rows, right=("n",), room=room):
            assert table.cells_wide(line) <= room


def test_a_table_without_a_terminal_is_not_cut():
    lines = table.table_lines(("id", "text"), [("a", "x" * 500)])
    assert lines[1].endswith("x" * 500)


def test_columns_are_aligned_also_with_wide_letters():
    lines = table.table_lines(("id", "n"), [("日本", 1), ("ab", 22)], right=("n",))
    assert lines == ["id     n", "日本   1", "ab    22"]


def test_a_cell_cannot_steer_the_terminal():
    assert table.clean("a\x1b[31mb\nc") == "a [31mb c"


# -- JSON


def test_json_has_no_nan_and_no_odd_types():
    text = common.to_json({"a": math.nan, "b": [math.inf, 1.5], "c": frozenset({2, 1}), 3: object})
    found = json.loads(text)
    assert found["a"] is None
    assert found["b"] == [None, 1.5]
    assert found["c"] == [1, 2]


# -- words to values


@pytest.mark.parametrize("word", ["fanout", "=3", "", " =", "fanout:3"])
def test_a_setting_without_name_or_value_is_refused(word):
    with pytest.raises(UsageError, match="knob=value"):
        asking.split_settings([word])


def test_a_setting_given_twice_is_refused():
    with pytest.raises(UsageError, match="twice"):
        asking.split_settings(["a=1", "a=2"])


def test_knobs_come_from_text():
    problem, part = asking.find_part("push-gossip", {"fanout": "4", "period_s": "0.1"})
    assert problem == "broadcast"
    assert (part.fanout, part.period_s) == (4, 0.1)


@pytest.mark.parametrize("value", ["0", "x", "1.5", "-1", "", "nan", "[1]", "null"])
def test_a_bad_knob_value_is_named(value):
    with pytest.raises(KnobError, match=r"PushGossip\.fanout"):
        asking.find_part("push-gossip", {"fanout": value})


def test_a_problem_takes_knobs_in_its_name():
    problem = asking.find_problem("broadcast:values=5,settle_s=0.5")
    assert (problem.values, problem.settle_s) == (5, 0.5)
    with pytest.raises(OrreryError, match="values"):
        asking.find_problem("broadcast:valuess=5")
    with pytest.raises(OrreryError):
        asking.find_problem("broadcast:values=0")


def test_commas_inside_brackets_do_not_split():
    assert asking._commas("a=1,b=[2,3],c={x,y}") == ["a=1", "b=[2,3]", "c={x,y}"]


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("2h", 7200), ("1.5d", 129600)])
def test_ages(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "d", "-1d", "nan s", "1y", "1e9d"])
def test_bad_ages_are_refused(text):
    with pytest.raises(UsageError, match="older-than"):
        seconds_of(text)


def test_a_number_out_of_bounds_is_refused():
    asking.check_number("--scale", 1.0, 0.001, 100)
    asking.check_number("--scale", None, 0.001, 100)
    for value in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="--scale"):
            asking.check_number("--scale", value, 0.001, 100)
