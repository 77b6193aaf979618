"""Push-pull gossip: right on its problem, found by its id, quicker than without the pull."""

from __future__ import annotations

from orrery_pushpull.push_pull import PushPull

from orrery import World, run
from orrery.lab import find
from orrery.systems.protocols import Broadcast


def run_it(part, seed=0):
    return run(part, problem=Broadcast(), world=World.lan(40), seed=seed)


def test_it_is_installed():
    assert find("push-pull").module == "orrery_pushpull.push_pull"


def test_nothing_goes_wrong():
    made = run_it(PushPull())
    assert made.violations == []
    assert made.metrics["coverage"] == 1.0


def test_pulling_saves_time():
    slow = run_it(PushPull(pull=False)).metrics["time_to_100_s"]
    assert run_it(PushPull()).metrics["time_to_100_s"] < slow
