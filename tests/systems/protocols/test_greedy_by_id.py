"""Greedy colouring by identifier: a library's colours, and the times of known chains."""

from __future__ import annotations

import numpy as np
import pytest

from orrery.base.rand import Stream
from orrery.systems.protocols.baselines.greedy_by_id import GreedyById
from orrery.systems.protocols.problems.local_rounds import (
    cycle,
    random_graph,
    random_ids,
    sorted_ids,
)

nx = pytest.importorskip("networkx")


def test_colours_are_those_of_networkx_in_the_same_order():
    for seed in range(20):
        ids = random_ids(60, seed)
        graph = random_graph(60, 6.0, Stream(seed, 0, "greedy"), ids)
        other = nx.Graph([(v, u) for v in range(60) for u in graph.neighbours(v)])
        order = np.argsort(-ids).tolist()
        theirs = nx.greedy_color(other, strategy=lambda g, c, order=order: order)
        outputs, _ = GreedyById().arrays(graph)
        assert outputs.tolist() == [theirs[v] for v in range(60)]


def test_a_sorted_cycle_takes_n_rounds_and_a_random_one_few():
    n = 2000
    _, rounds = GreedyById().arrays(cycle(n, sorted_ids(n)))
    assert rounds.tolist() == [n - v for v in range(n)]
    _, rounds = GreedyById().arrays(cycle(n, random_ids(n, 1)))
    assert rounds.max() < 12
    # A third of the nodes are larger than both neighbours and speak in round 1.
    n = 100_000
    _, rounds = GreedyById().arrays(cycle(n, random_ids(n, 2)))
    assert abs((rounds == 1).mean() - 1 / 3) < 0.005
