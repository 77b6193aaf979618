"""The ring: the textbook time, the least bytes, best for large arrays."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.systems.collectives import AllReduce, RecursiveDoubling, Ring

LATENCY_S, BANDWIDTH_BPS = 1e-4, 1e9


def play(part, n, items, **knobs):
    """One all-reduce of float32 on a switch without jitter."""
    world = World.lan(n, latency_s=LATENCY_S, bandwidth_Bps=BANDWIDTH_BPS, jitter=0.0)
    made = run(part, problem=AllReduce(items=items, rounds=1, **knobs), world=world)
    assert made.violations == []
    return made.metrics


@pytest.mark.parametrize("n", [2, 3, 8, 31])
@pytest.mark.parametrize("items", [1_000, 200_000])
@pytest.mark.parametrize("model", ["messages", "flows"])
def test_an_all_reduce_takes_the_textbook_time(n, items, model):
    world = World.lan(n, latency_s=LATENCY_S, bandwidth_Bps=BANDWIDTH_BPS, jitter=0.0, model=model)
    made = run(Ring(), problem=AllReduce(items=items, rounds=1), world=world)
    array_B = 4 * items
    textbook_s = 2 * (n - 1) / n * array_B / BANDWIDTH_BPS + 2 * (n - 1) * LATENCY_S
    assert made.metrics["time_s"] == pytest.approx(textbook_s, rel=0.01)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_no_rank_sends_more_than_it_must(n):
    metrics = play(Ring(), n, 10_007)
    # Parts differ by one element at most, so the bound is met up to two elements.
    assert metrics["sent_B"] <= 2 * (n - 1) / n * 4 * 10_007 + 8
    assert metrics["all_sent_B"] == 2 * (n - 1) * 4 * 10_007


def test_who_wins_depends_on_the_size_of_the_array():
    time_s = {
        (part, items): play(part, 16, items)["time_s"]
        for part in (Ring(), RecursiveDoubling())
        for items in (10, 2_000_000)
    }
    assert time_s[RecursiveDoubling(), 10] < time_s[Ring(), 10]
    assert time_s[Ring(), 2_000_000] < time_s[RecursiveDoubling(), 2_000_000]
