"""`orrery when` as people call it."""

from __future__ import annotations

import pytest
from tests.unit.test_cli_kit import cli, refused
from tests.unit.test_lab_feed_match import entry
from tests.unit.when_toys import CLAIM, Plan

WORDS = ("when", "toy", "--x", "load=10:1000:log", "--y", "price=0.05:5:log", "--points", "16",
         "--grid", "4", "--depth", "2")  # fmt: skip


@pytest.fixture(autouse=True)
def toy(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    from orrery.lab import discover

    made = entry("toy", "Toy", "Toy", claims=[CLAIM], problem="tests.unit.when_toys:Bill")
    real = discover.find
    monkeypatch.setattr(discover, "find", lambda id, *a, **k: made if id == "toy" else real(id))
    load = discover.load
    monkeypatch.setattr(discover, "load", lambda id, **k: Plan if id == "toy" else load(id, **k))
    return tmp_path


def test_json_has_grid_values_and_break_even(toy):
    told = cli(*WORDS, "-o", "map.svg", "--json")
    assert told.code == 0, told.err
    found = told.json
    assert found["grid"]["x"] == {"parameter": "problem.load", "lo": 10.0, "hi": 1000.0,
                                  "scale": "log", "whole": False}  # fmt: skip
    assert len(found["values"]) == 16
    assert {"x", "y", "verdict", "measured", "lo", "hi", "holds"} <= set(found["values"][0])
    ((line),) = found["break_even"]
    assert all(len(spot) == 2 for spot in line)
    assert found["picture"] == "map.svg"
    assert (toy / "map.svg").read_text().startswith("<svg ")
    again = cli(*WORDS, "-o", "map.svg", "--json").json
    assert (again["made"], again["values"]) == (0, found["values"])


def test_people_get_a_map_and_a_picture(toy):
    told = cli("when", "toy", "load=10..1000", "problem.price=0.05..5:log", *WORDS[6:])
    assert told.code == 0, told.err
    assert "# holds   . does not   ? open   * break-even" in told.out
    assert "#" in told.out and "*" in told.out
    assert "holds on" in told.out
    assert "give more --points" in told.out
    picture = told.out.split("picture: ")[1].strip()
    assert picture.startswith(str(toy / "home" / "when"))


def test_parameters_may_be_fixed():
    found = cli(*WORDS, "--set", "ours.fixed=1e9", "--json")
    assert found.code == 0
    assert found.json["share"]["holds"] == 0.0


def test_where_nothing_is_decided_the_code_says_so():
    found = cli(*WORDS[:2], "--x", "load=10:11", "--y", "price=2.1:2.1001", *WORDS[6:],
                "--seeds", "1", "--json")  # fmt: skip
    assert found.code == 2
    assert all(point["holds"] is None for point in found.json["values"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("when", "toy"), "two axes, not 0"), (("when", "toy", "a=1:2"), "two axes, not 1"),
        (("when", "toy", "a=1:2", "b=1:2", "--x", "c=1:2"), "not 3"),
        (("when", "toy", "load=1:2", "price"), "PARAM=low:high"),
        (("when", "nope", "a=1:2", "b=1:2"), "no system 'nope'"),
        ((*WORDS, "--claim", "7"), "no such claim"), ((*WORDS, "-o", "map.png"), ".svg"),
        ((*WORDS, "--set", "x"), "knob=value"), ((*WORDS, "--points", "3"), "points 3"),
        (("when", "toy", "lod=1:2", "price=1:2"), 'did you mean "load"'),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(words, says):
    assert says in refused(*words)


def test_a_planned_system_is_refused():
    from orrery.lab import discover

    planned = next(each.id for each in discover.entries() if not each.built)
    assert "planned" in refused("when", planned, "a=1:2", "b=1:2")
