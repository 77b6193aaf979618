"""Luby's maximal independent set: known shares of the first phase, and logarithmic time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orrery.base.rand import Stream
from orrery.systems.protocols.baselines.luby_mis import LubyMis
from orrery.systems.protocols.problems.local_rounds import (
    check_task,
    cycle,
    random_graph,
    random_ids,
    sorted_ids,
)


def test_a_third_joins_in_the_first_phase_of_a_cycle():
    # A node beats both neighbours with probability 1/3. It leaves in that phase when it does not
    # win but a neighbour does: both neighbours of a node win together with probability 2/15.
    n = 300_000
    _, rounds = LubyMis().arrays(cycle(n, sorted_ids(n), key=5))
    assert (rounds == 1).mean() == pytest.approx(1 / 3, abs=0.003)
    assert (rounds == 2).mean() == pytest.approx(2 / 3 - 2 / 15, abs=0.003)


def test_half_of_the_edges_go_in_a_phase_and_the_time_is_logarithmic():
    # The theorem: at least half of the edges are removed in a phase, in expectation.
    gone, slowest = [], []
    for seed in range(20):
        n = 2000
        rng = Stream(seed, 0, "luby")
        graph = random_graph(n, 8.0, rng, random_ids(n, seed), rng.word())
        outputs, rounds = LubyMis().arrays(graph)
        assert check_task("mis", graph, outputs) == []
        left = (rounds[graph.sources] > 2) & (rounds[graph.targets] > 2)
        gone.append(1 - left.mean())
        slowest.append(rounds.max())
    assert np.mean(gone) >= 0.5
    assert max(slowest) <= 2 * 2 * math.log2(2000)
