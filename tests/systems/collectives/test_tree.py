"""The binomial tree: few steps up and down."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.systems.collectives import AllReduce, Tree

LATENCY_S, BANDWIDTH_BPS = 1e-4, 1e9


def play(part, n, items, **knobs):
    """One all-reduce of float32 on a switch without jitter."""
    world = World.lan(n, latency_s=LATENCY_S, bandwidth_Bps=BANDWIDTH_BPS, jitter=0.0)
    made = run(part, problem=AllReduce(items=items, rounds=1, **knobs), world=world)
    assert made.violations == []
    return made.metrics


@pytest.mark.parametrize("n, depth", [(1, 0), (2, 1), (3, 1), (8, 3), (9, 3), (16, 4)])
def test_a_small_array_takes_two_latencies_for_each_level(n, depth):
    # The deepest place below n is the one with the most bits; 8 itself hangs on the root.
    assert play(Tree(), n, 1)["time_s"] == pytest.approx(2 * depth * LATENCY_S, rel=0.01)


def test_the_root_sends_one_array_to_each_child():
    assert play(Tree(), 16, 1000)["sent_B"] == 4 * 4 * 1000
    assert play(Tree(), 9, 1000)["sent_B"] == 4 * 4 * 1000
