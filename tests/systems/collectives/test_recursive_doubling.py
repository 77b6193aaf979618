"""Recursive doubling: the fewest latencies."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.systems.collectives import AllReduce, RecursiveDoubling

LATENCY_S, BANDWIDTH_BPS = 1e-4, 1e9


def play(part, n, items, **knobs):
    """One all-reduce of float32 on a switch without jitter."""
    world = World.lan(n, latency_s=LATENCY_S, bandwidth_Bps=BANDWIDTH_BPS, jitter=0.0)
    made = run(part, problem=AllReduce(items=items, rounds=1, **knobs), world=world)
    assert made.violations == []
    return made.metrics


@pytest.mark.parametrize("n, steps", [(1, 0), (2, 1), (4, 2), (16, 4)])
def test_a_power_of_two_takes_one_swap_for_each_bit(n, steps):
    items = 50_000
    step_s = 4 * items / BANDWIDTH_BPS + LATENCY_S
    metrics = play(RecursiveDoubling(), n, items)
    assert metrics["time_s"] == pytest.approx(steps * step_s, rel=0.01)
    assert metrics["sent_B"] == steps * 4 * items


@pytest.mark.parametrize("n, bits", [(3, 1), (5, 2), (7, 2), (9, 3)])
def test_other_sizes_fold_before_and_after(n, bits):
    # A latency to fold and one to unfold; a rank that has no partner may be one ahead.
    latencies = play(RecursiveDoubling(), n, 1)["time_s"] / LATENCY_S
    assert bits + 0.99 <= latencies <= bits + 2.01
    assert play(RecursiveDoubling(), n, 1000)["sent_B"] == (bits + 1) * 4 * 1000
