"""Recursive halving and doubling: few steps and few bytes."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.systems.collectives import AllReduce, RecursiveHalving

LATENCY_S, BANDWIDTH_BPS = 1e-4, 1e9


def play(part, n, items, **knobs):
    """One all-reduce of float32 on a switch without jitter."""
    world = World.lan(n, latency_s=LATENCY_S, bandwidth_Bps=BANDWIDTH_BPS, jitter=0.0)
    made = run(part, problem=AllReduce(items=items, rounds=1, **knobs), world=world)
    assert made.violations == []
    return made.metrics


@pytest.mark.parametrize("n, bits", [(2, 1), (4, 2), (16, 4)])
def test_a_power_of_two_sends_the_bytes_of_a_ring_in_few_steps(n, bits):
    items = 64_000
    metrics = play(RecursiveHalving(), n, items)
    whole_s = 4 * items / BANDWIDTH_BPS
    textbook_s = 2 * (n - 1) / n * whole_s + 2 * bits * LATENCY_S
    assert metrics["time_s"] == pytest.approx(textbook_s, rel=0.01)
    assert metrics["sent_B"] == 2 * (n - 1) / n * 4 * items


def test_other_sizes_pay_a_whole_array_more():
    items = 64_000
    metrics = play(RecursiveHalving(), 5, items)
    # Four take part; the one that was folded with gets and gives back a whole array.
    assert metrics["sent_B"] == 2 * 3 / 4 * 4 * items + 4 * items
