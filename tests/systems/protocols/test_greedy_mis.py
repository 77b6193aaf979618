"""Greedy maximal independent set: the sequential set, and the jamming density of the line."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orrery.base.rand import Stream
from orrery.systems.protocols.baselines.greedy_mis import GreedyMis
from orrery.systems.protocols.problems.local_rounds import (
    cycle,
    random_graph,
    random_ids,
    sorted_ids,
)


def test_the_set_is_the_sequential_one():
    for seed in range(20):
        ids = random_ids(60, seed)
        graph = random_graph(60, 5.0, Stream(seed, 0, "mis"), ids)
        chosen: set[int] = set()
        for v in np.argsort(-ids).tolist():
            if not chosen & set(graph.neighbours(v)):
                chosen.add(v)
        assert set(np.flatnonzero(GreedyMis().arrays(graph)[0]).tolist()) == chosen


@pytest.mark.parametrize("draw", [False, True])
def test_a_random_order_fills_a_cycle_to_the_jamming_density(draw):
    # Flory (1939): random sequential filling of a line without neighbours, (1 - e^-2) / 2.
    n = 100_000
    ids = sorted_ids(n) if draw else random_ids(n, 7)
    outputs, rounds = GreedyMis(draw=draw).arrays(cycle(n, ids, key=3))
    assert outputs.mean() == pytest.approx((1 - math.exp(-2)) / 2, rel=0.005)
    assert rounds.max() < 4 * math.log2(n)
