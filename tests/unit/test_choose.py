"""Choosing: the ranking, the reason, and where the answer flips."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from orrery import World
from orrery.base.errors import UsageError
from orrery.cli.app import app
from orrery.lab.choose import choose
from orrery.lab.store import Store
from orrery.parts import Metric, Node, Policy, Positive, Problem


class Line(Policy):
    """Costs something to begin with, and something for each unit of load."""

    fixed: float = 0.0
    slope: float = 1.0


class Cost(Problem):
    """What does a load cost? A straight line for each part, with a little noise."""

    load: Positive = 10.0

    port: ClassVar[type] = Line
    engines: ClassVar[tuple[str, ...]] = ("virtual",)
    metrics: ClassVar = {
        "cost": Metric("s", "lower", "of the load"),
        "slope": Metric("", "lower", "for each unit"),
    }

    def world(self):
        return World.lan(1)

    def host(self, part, world):
        return {"node": Node()}

    async def drive(self, driver):
        part = driver.part
        return part.fixed + part.slope * self.load + driver.rng.uniform(0.0, 0.01)

    def measure(self, outcome):
        return {"cost": outcome.driven, "slope": outcome.part.slope}

    def axes(self, by):
        return {"load": [1.0, 5.0, 20.0, 100.0]} if by == "cost" else {}


PARTS = {"flat": Line(fixed=20.0, slope=0.1), "steep": Line(fixed=0.0, slope=1.0),
         "worse": Line(fixed=50.0, slope=2.0)}  # fmt: skip


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_the_best_comes_first_with_its_reason(store):
    found = choose(Cost(), PARTS, store=store)
    assert [each.system for each in found.ranking] == ["steep", "flat", "worse"]
    first = found.ranking[0]
    assert first.score == pytest.approx(10.0, abs=0.02) and first.lo <= first.score <= first.hi
    assert "against" in first.why and "flat" in first.why
    assert "slope" in found.ranking[1].why, "the other figure in which they differ"


def test_the_flip_is_found_where_the_lines_cross(store):
    """20 + 0.1 x = x at 22.2; nothing flips below."""
    (flip,) = choose(Cost(), PARTS, store=store).flips
    assert (flip.parameter, flip.to, flip.side) == ("load", "flat", "above")
    assert 22.2 <= flip.at <= 30


def test_from_the_other_side_it_flips_back(store):
    (flip,) = choose(Cost(load=60.0), PARTS, store=store).flips
    assert (flip.to, flip.side) == ("steep", "below") and 15 <= flip.at <= 22.3


def test_what_is_within_chance_flips_nothing(store):
    twins = {"one": Line(), "other": Line()}
    found = choose(Cost(), twins, store=store)
    assert found.flips == [] and "chance" in found.ranking[0].why


def test_no_flips_if_not_wanted_or_not_by_that_metric(store):
    assert choose(Cost(), PARTS, store=store, flips=False).tried == {}
    assert choose(Cost(), PARTS, store=store, by="slope").tried == {}


def test_bad_questions_are_named(store):
    with pytest.raises(UsageError, match="no such metric"):
        choose(Cost(), PARTS, by="speed", store=store)


def test_the_command_ranks_routers(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path))
    told = CliRunner().invoke(app, [
        "choose", "llm_routing:requests=60,rate_per_s=30", "--world", "h100_pod:2", "--seeds", "2",
        "--systems", "round-robin,shortest-queue", "--no-flips", "--jobs", "1", "--json",
    ])  # fmt: skip
    assert told.exit_code == 0, told.output
    document = json.loads(told.stdout)
    assert {each["system"] for each in document["ranking"]} == {"round-robin", "shortest-queue"}
    assert document["flips"] == []
    report = (tmp_path / "choose" / "llm_routing.html").read_text()
    assert "Why" in report and len(report) < 2_000_000
