"""The star: simple, and slower with every rank."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.base.errors import PartError
from orrery.systems.collectives import AllReduce, Star

LATENCY_S, BANDWIDTH_BPS = 1e-4, 1e9


def play(part, n, items, **knobs):
    """One all-reduce of float32 on a switch without jitter."""
    world = World.lan(n, latency_s=LATENCY_S, bandwidth_Bps=BANDWIDTH_BPS, jitter=0.0)
    made = run(part, problem=AllReduce(items=items, rounds=1, **knobs), world=world)
    assert made.violations == []
    return made.metrics


@pytest.mark.parametrize("n", [2, 8])
def test_the_middle_carries_everything(n):
    items = 100_000
    metrics = play(Star(middle=1), n, items)
    whole_s = 4 * items / BANDWIDTH_BPS
    assert metrics["time_s"] == pytest.approx(2 * ((n - 1) * whole_s + LATENCY_S), rel=0.01)
    assert metrics["sent_B"] == (n - 1) * 4 * items


def test_a_middle_that_is_no_rank_is_named():
    with pytest.raises(PartError, match=r"Star\.middle: 9 is no rank"):
        play(Star(middle=9), 3, 4)
