"""Direct exchange: two latencies, and the bits of a plain loop."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import Worker, World, run
from orrery.systems.collectives import AllReduce, Direct

LATENCY_S, BANDWIDTH_BPS = 1e-4, 1e9


def play(part, n, items, **knobs):
    """One all-reduce of float32 on a switch without jitter."""
    world = World.lan(n, latency_s=LATENCY_S, bandwidth_Bps=BANDWIDTH_BPS, jitter=0.0)
    made = run(part, problem=AllReduce(items=items, rounds=1, **knobs), world=world)
    assert made.violations == []
    return made.metrics


def test_an_all_reduce_takes_two_latencies_and_the_least_bytes():
    n, items = 16, 100_000
    metrics = play(Direct(), n, items)
    whole_s = 4 * items / BANDWIDTH_BPS
    assert metrics["time_s"] == pytest.approx(2 * (n - 1) / n * whole_s + 2 * LATENCY_S, rel=0.01)
    assert metrics["all_sent_B"] == 2 * (n - 1) * 4 * items


def test_a_sum_equals_a_loop_over_the_ranks_bit_for_bit():
    class Sum(Worker):
        async def main(self):
            x = np.sin(np.arange(100.0) + self.rank).astype(np.float32)
            self.emit(total=await self.sum(x))

    made = run(Sum(collective=Direct()), world=World.lan(7))
    want = np.sin(np.arange(100.0)).astype(np.float32)
    for rank in range(1, 7):
        want = want + np.sin(np.arange(100.0) + rank).astype(np.float32)
    assert len(made.records) == 7
    assert all(record.values["total"].tobytes() == want.tobytes() for record in made.records)
