"""`orrery sweep` as people call it."""

from __future__ import annotations

import pytest
from tests.unit.test_cli_kit import cli, refused

PLAN, BILL = "tests.unit.when_toys:Plan", "tests.unit.when_toys:Bill"
WORDS = ("sweep", PLAN, "load=10,100", "part.fixed=5..50:3", "--problem", BILL)
SPEC = f"""
system = "{PLAN}"
problem = "{BILL}"
by = "cost"
seeds = [1, 2]

[over]
load = [10, 100]
part.fixed = {{low = 5, high = 50, steps = 3}}
network.latency_s = 0.01
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(SPEC)
    return tmp_path


def test_json_has_the_ids_of_the_runs(place):
    told = cli(*WORDS, "--json")
    assert told.code == 0, told.err
    found = told.json
    assert len(found["runs"]) == len(found["trials"]) == 6
    assert all((place / "home" / "runs" / id).is_dir() for id in found["runs"])
    best = {"system": PLAN, "problem.load": 10.0, "part.fixed": 5.0}
    assert found["best"]["values"] == best
    assert [t["values"]["part.fixed"] for t in found["trials"]] == [5.0, 27.5, 50.0] * 2
    again = cli(*WORDS, "--json").json
    assert again == found | {"made": 0}


def test_people_get_a_table():
    told = cli(*WORDS, "--seeds", "3")
    assert told.code == 0, told.err
    assert "(lower is better) with problem.load = 10, part.fixed = 5" in told.out
    assert len(told.out.splitlines()) == 8
    assert "journal: " in told.err


def test_a_file_says_it_all_and_words_go_before_it():
    found = cli("sweep", "sweep.toml", "--json").json
    assert (found["seeds"], len(found["trials"]), found["by"]) == ([1, 2], 6, "cost")
    assert all(t["values"]["world.network.latency_s"] == 0.01 for t in found["trials"])
    changed = cli("sweep", "sweep.toml", "load=7", "--seeds", "1", "--better", "higher", "--json")
    assert changed.json["seeds"] == [0]
    assert {t["values"]["problem.load"] for t in changed.json["trials"]} == {7.0}
    assert changed.json["best"]["values"]["part.fixed"] == 50.0


def test_searches_and_named_seeds():
    words = ("sweep", PLAN, "load=1..100:log", "--problem", BILL, "--trials", "3", "seeds=4,9")
    one = cli(*words, "--search", "tpe", "--json").json
    assert (one["seeds"], len(one["runs"]), one["total"]) == ([4, 9], 6, 3)
    for other in (("--search", "random"), ("--search", "tpe", "--seed", "1")):
        assert cli(*words, *other, "--json").json["runs"] != one["runs"]


def test_a_problem_alone_means_all_its_systems():
    told = cli("sweep", "--problem", "broadcast:values=2", "--world", "lan:4", "network.drop=0",
               "--by", "messages_per_value", "--json")  # fmt: skip
    assert told.code == 0, told.err
    assert {"flood", "push-gossip"} <= {t["values"]["system"] for t in told.json["trials"]}


def test_where_every_trial_breaks_a_rule_the_code_says_so():
    told = cli("sweep", "tests.unit.lab_toys:Cheat", "rounds=1,2", "--problem",
               "tests.unit.lab_toys:Race", "--world", "lan:2", "--by", "time_s")  # fmt: skip
    assert told.code == 1
    assert "no trial of 2 is sound" in told.out
    assert "an answer was wrong" in told.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no system and no problem"),
        ((PLAN,), "no system and no problem"),
        ((PLAN, "--problem", BILL), "varies nothing"),
        ((PLAN, "load=", "--problem", BILL), "no value"),
        ((PLAN, "load=1,1", "--problem", BILL), "twice"),
        ((PLAN, "load=1", "load=2", "--problem", BILL), "twice"),
        ((PLAN, "laod=1", "--problem", BILL), 'did you mean "load"'),
        ((PLAN, "load=nan", "--problem", BILL), "nan"),
        ((PLAN, "load=nan..3", "--problem", BILL), "not a number"),
        ((PLAN, "load=x", "--problem", BILL), "Bill.load"),
        ((PLAN, "load=1..2:1000", "price=1..2:1000", "--problem", BILL), "1000000 trials"),
        ((PLAN, "load=1", "--problem", BILL, "--search", "magic"), "magic"),
        ((PLAN, "load=1", "--problem", BILL, "--on", "cloud"), "no such workers"),
        ((PLAN, "load=1", "--problem", BILL, "--by", "joy"), "joy"),
        ((PLAN, "load=1", "--problem", BILL, "--trials", "0", "--search", "tpe"), "trials 0"),
        ((PLAN, "load=1", "seeds=a", "--problem", BILL), "seeds"),
        (("nope-nope", "load=1"), "no system"),
        (("push-gossip", "load=1"), "load"),
        (("push-gossip,", "fanout=1"), "empty"),
        (("none.toml",), "cannot be read"),
        (("sweep.toml", "other.toml"), "one file"),
    ],
)
def test_what_cannot_be_swept_is_refused(place, words, says):
    assert says in refused("sweep", *words)
    assert not (place / "home" / "runs").exists()


def test_a_sweep_that_runs_already_is_refused(place):
    from orrery.lab.sweep.journal import Journal

    key = cli(*WORDS, "--json").json["key"]
    held = Journal({})
    held.folder = place / "home" / "sweeps" / key
    held.path = held.folder / "journal"
    with held:
        assert "another sweep of this question" in refused(*WORDS)
    assert cli(*WORDS).code == 0
