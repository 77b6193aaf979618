"""The map of a claim from real runs: the line, the budget, a kill in the middle, refusals."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.unit.when_toys import CLAIM, Bill, Plan, price_of

import orrery
from orrery.base.errors import ClaimError, OrreryError, UsageError
from orrery.lab.claims import Claim
from orrery.lab.store import Store
from orrery.lab.when import map_claim, pick_claim
from orrery.lab.when.book import Book

SOURCE = Path(orrery.__file__).resolve().parents[1]
LOAD, PRICE = "load=10:1000:log", "price=0.05:5:log"


def mapped(folder, claim=CLAIM, x=LOAD, y=PRICE, **options):
    options = {
        "points": 22,
        "grid": 4,
        "depth": 2,
        "problem": "tests.unit.when_toys:Bill",
        **options,
    }
    return map_claim(claim, Plan, x, y, store=Store(folder), folder=folder / "when", **options)


def test_the_line_from_runs_is_the_closed_form(tmp_path):
    found = mapped(tmp_path, points=40)
    assert len(found.points) <= 40
    (line,) = found.break_even
    finest, coarsest = found.survey.finest()
    price = found.survey.y
    for x, y in line:
        assert abs(price.share(y) - price.share(price_of(x))) < coarsest
    # Where cells are as fine as they get, the line is as near as they are.
    near = [abs(price.share(y) - price.share(price_of(x))) for x, y in line]
    assert sorted(near)[len(near) // 2] < finest
    for point in found.points:
        if abs(math.log(point.y / price_of(point.x))) > 0.05:
            assert (point.state == "yes") == (point.y > price_of(point.x))
            assert point.lo <= point.measured <= point.hi


def test_the_same_map_again_makes_no_run(tmp_path):
    first = mapped(tmp_path)
    again = mapped(tmp_path)
    assert (first.made, again.made) == (len(first.points), 0)
    assert again.to_json() | {"made": 0} == first.to_json() | {"made": 0}
    # Without the points, the stored runs give the same map.
    for path in (tmp_path / "when").iterdir():
        path.unlink()
    third = mapped(tmp_path)
    assert third.to_json() == first.to_json()


def test_another_question_has_another_book(tmp_path):
    keys = {
        mapped(tmp_path, points=4, grid=2, **more).key
        for more in ({}, {"y": "ours.fixed=1:50"}, {"fixed": {"noise": 0.01}}, {"seeds": 2},
                     {"fixed": {"network.latency_s": 0.01}})
    }  # fmt: skip
    assert len(keys) == 5
    # The ends of the axes are not part of the question: a wider map keeps the points it shares.
    wide = mapped(tmp_path, points=4, grid=2, x="load=10:2000:log")
    assert wide.made == 2


def test_a_stop_in_the_middle_loses_nothing(tmp_path, monkeypatch):
    whole = mapped(tmp_path / "a")
    put, count = Book.put, []

    def stop(self, point):
        put(self, point)
        count.append(point)
        if len(count) == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(Book, "put", stop)
    with pytest.raises(KeyboardInterrupt):
        mapped(tmp_path / "b")
    monkeypatch.undo()
    rest = mapped(tmp_path / "b")
    assert rest.made == len(whole.points) - 9
    assert rest.to_json() | {"made": 0} == whole.to_json() | {"made": 0}


CHILD = """
import sys
from pathlib import Path
from tests.unit.when_toys import CLAIM, Plan
from orrery.lab.store import Store
from orrery.lab.when import map_claim
home = Path(sys.argv[1])
map_claim(CLAIM, Plan, "load=10:1000:log", "price=0.05:5:log", store=Store(home), points=22, grid=4,
          folder=home / "when", depth=2, problem="tests.unit.when_toys:Bill")
"""


def test_after_kill_9_the_same_map_goes_on(tmp_path):
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{root}", "OMP_NUM_THREADS": "1"}
    killed = tmp_path / "killed"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(killed)], env=env, cwd=root)
    books = killed / "when"
    for _ in range(2400):
        lines = [p.read_bytes().count(b"\n") for p in books.iterdir()] if books.is_dir() else []
        if sum(lines) >= 5 or child.poll() is not None:
            break
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=60)
    kept = sum(p.read_bytes().count(b"\n") for p in books.iterdir())
    assert kept >= 5
    rest, whole = mapped(killed), mapped(tmp_path / "whole")
    assert rest.made == len(whole.points) - kept
    assert rest.to_json() | {"made": 0} == whole.to_json() | {"made": 0}


@pytest.mark.slow
def test_workers_change_nothing(tmp_path):
    one, two = mapped(tmp_path / "a"), mapped(tmp_path / "b", jobs=2)
    assert one.to_json() == two.to_json()


def test_a_rule_that_is_broken_bounds_the_region(tmp_path):
    """Planted: above a load of 200 the trick is cheap and wrong."""
    found = mapped(tmp_path, y="price=1:5", x="load=50:400", fixed={"broken": 200.0}, points=16,
                   grid=3)  # fmt: skip
    (line,) = found.break_even
    finest, _ = found.survey.finest()
    assert all(abs(x - 200) / 350 <= finest for x, _ in line)
    assert any("too late" in point.note for point in found.points)


def test_world_parameters_and_whole_ones(tmp_path):
    found = mapped(tmp_path, x="units=1:9", y="network.latency_s=1e-4:1e-2", points=16)
    assert found.survey.x.whole and found.survey.y.parameter == "world.network.latency_s"
    assert {point.x for point in found.points} <= {float(n) for n in range(1, 10)}
    assert found.to_json()["break_even"] == []


def test_other_forms_are_mapped_too(tmp_path):
    bound = Claim(metric="cost", form="absolute", says_hi=50.0, better="lower", tolerance=0.0,
                  seeds=2, most_seeds=2)  # fmt: skip
    found = mapped(tmp_path, bound, x="load=10:1000:lin", y="fixed=1:40", points=9, grid=3)
    (line,) = found.break_even
    # fixed + 0.1 x load = 50
    assert all(abs(y + 0.1 * x - 50) < 3.0 for x, y in line)
    sound = Claim(metric="rule", form="property", seeds=20, most_seeds=20)
    found = mapped(tmp_path, sound, x="load=50:400", y="price=1:5", fixed={"broken": 200.0},
                   points=4, grid=2)  # fmt: skip
    assert [point.state for point in found.points] == ["yes", "no", "yes", "no"]
    (line,) = found.break_even
    assert all(x == pytest.approx(225) for x, _ in line), "the middle: no figure says more"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"points": 8}, "the grid alone has 16"), ({"grid": 1}, "grid 1"),
        ({"depth": 99}, "depth 99"), ({"points": True}, "points True"), ({"seeds": 0}, "seeds 0"),
        ({"y": "load=1:2"}, "both axes"), ({"x": "load=0:5:lin"}, r"Bill\.load"),
        ({"x": "network.drop=0:2"}, "drop"), ({"fixed": {"nope": 1}}, "no such knob"),
        ({"fixed": {"load": "x"}}, r"Bill\.load"),
        ({"jobs": 0}, "jobs"), ({"world": "nope:3"}, "nope"),
    ],
)  # fmt: skip
def test_what_cannot_be_mapped_is_refused_before_any_run(tmp_path, options, says):
    with pytest.raises(OrreryError, match=says):
        mapped(tmp_path, **options)
    assert not (tmp_path / "when").exists()


def test_a_claim_that_cannot_be_tested_is_refused(tmp_path):
    with pytest.raises(ClaimError, match="nobody measures joy"):
        mapped(tmp_path, Claim(metric="joy", form="none", untestable="nobody measures joy"))


def test_claims_are_picked_by_number_or_metric():
    from tests.unit.test_lab_feed_match import entry

    other = Claim(metric="joy", form="none", untestable="no")
    twice = msgspec.structs.replace(CLAIM, metric="cost")
    toy = entry("toy", "Toy", "T", claims=[other, CLAIM, twice])
    assert pick_claim(toy, None)[0] == 1
    assert pick_claim(toy, "2")[0] == 2
    assert pick_claim(toy, "joy")[0] == 0
    for wanted, says in (("9", "no such claim"), ("nope", "testable are 1 'cost'"),
                         ("cost", "give a number"), ("-1", "no such claim")):  # fmt: skip
        with pytest.raises(UsageError, match=says):
            pick_claim(toy, wanted)
    with pytest.raises(UsageError, match="no claim that can be tested"):
        pick_claim(entry("toy", "Toy", "T", claims=[other]), None)


def test_the_toy_is_what_it_says():
    assert price_of(100.0) == pytest.approx(0.3)
    assert Bill().price > price_of(Bill().load)
