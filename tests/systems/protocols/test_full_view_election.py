"""Leader election by full view: every node needs its eccentricity, floor(n / 2) on a cycle."""

from __future__ import annotations

import pytest

from orrery.base.rand import Stream
from orrery.systems.protocols.baselines.full_view_election import FullViewElection
from orrery.systems.protocols.problems.local_rounds import (
    cycle,
    lockstep,
    random_graph,
    random_ids,
)

nx = pytest.importorskip("networkx")


@pytest.mark.parametrize("n", [3, 4, 9, 16, 31])
def test_all_nodes_of_a_cycle_take_half_of_it(n):
    said = lockstep(FullViewElection(), cycle(n, random_ids(n, n)))
    assert {each[0][1] for each in said} == {n // 2}


def test_elsewhere_each_node_takes_its_eccentricity():
    for seed in range(10):
        graph = random_graph(20, 3.0, Stream(seed, 0, "full view"), random_ids(20, seed))
        other = nx.Graph([(v, u) for v in range(20) for u in graph.neighbours(v)])
        said = lockstep(FullViewElection(), graph)
        assert [each[0][1] for each in said] == [nx.eccentricity(other, v) for v in range(20)]
