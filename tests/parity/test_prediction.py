"""Calibrated virtual time against real processes, on this machine as it is."""

from __future__ import annotations

import msgspec
import pytest

from orrery import World, run
from orrery.lab.calibrate import QUICK, calibrate
from orrery.lab.prediction import (
    BAR,
    KB,
    Commits,
    Point,
    QuietRaft,
    Sums,
    compare_points,
    observe,
    points,
    predict,
)
from orrery.lab.probe import usable_cores
from orrery.parts.collectives import Ring

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world():
    return calibrate(effort=QUICK)[0]


def test_both_engines_send_about_the_same_messages(world):
    """The comparison is one of time only if both do the same work."""
    part, problem = QuietRaft(election_s=0.8, heartbeat_s=0.2), Commits(commits=40)
    virtual = run(part, problem=problem, world=World.lan(5), seed=1)
    real = run(part, problem=problem, world=World.lan(5), seed=1, engine="processes", raw=True)
    assert virtual.violations == [] and real.violations == []
    assert real.messages == pytest.approx(virtual.messages, rel=0.25)


def test_the_ring_moves_the_same_bytes(world):
    problem = Sums(array_B=64 * KB, rounds=3)
    virtual = run(Ring(), problem=problem, world=World.lan(3))
    real = run(Ring(), problem=problem, world=World.lan(3), engine="processes", raw=True)
    assert real.extra["transfer_bytes"] == virtual.extra["transfer_bytes"]


def test_rows_say_noise_error_and_verdict(world):
    """The verdict follows from noise and error; what the error is, the machine decides."""
    for row in compare_points(world, points(quick=True), repeats=3, tries=3, patience_s=0.0):
        assert row.predicted > 0 and row.measured > 0 and len(row.samples) == 3
        expected = "within" if abs(row.error) <= BAR else "outside"
        unsure = row.noise > BAR / 2 or row.others_cores / usable_cores() > BAR / 2
        assert row.verdict == ("inconclusive" if unsure else expected)
        assert msgspec.json.decode(msgspec.json.encode(row))["name"] == row.name


def test_a_world_that_is_wrong_by_much_is_seen(world):
    """Costs a hundred times too high must give a far too long prediction."""
    point, spec = Point("ring", 3, 64 * KB), world.processors
    slow = spec.transfer_in.replace(fixed_s=100 * spec.transfer_in.fixed_s + 0.01)
    wrong = world.replace(processors=spec.replace(transfer_in=slow))
    assert predict(point, wrong) > 3 * observe(point).value
