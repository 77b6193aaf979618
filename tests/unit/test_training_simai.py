"""A 9,216-GPU step with one NIC at half rate, against a critical path that is priced by hand.

Nothing of the network model is used for that path: rings, exchanges and messages are priced here
from the rates of the links, so that a network model that forgets the slow NIC cannot pass.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from orrery.inputs.aicb import AicbWorkload, read_aicb
from orrery.models.taskgraph import Costs, critical_path, from_aicb, replay
from orrery.models.taskgraph.graph import COLLECTIVE, OPS, SEND
from orrery.models.taskgraph.longest import longest
from orrery.models.taskgraph.matching import match
from orrery.models.training import slow_nic
from orrery.world import worlds

FILE = Path(os.environ.get("ORRERY_DATA", "/nowhere")) / "training" / "simai_9216gpu_workload.txt"
needs_file = pytest.mark.skipif(
    not FILE.is_file(), reason="ORRERY_DATA has no training/simai_9216gpu_workload.txt"
)
ISLAND, NIC_BPS, NVLINK_BPS, FAR_S, NEAR_S = 8, 50e9, 450e9, 5e-6, 2e-6


class ByHand:
    """Prices of messages between H100s, from the rates of their links alone."""

    def __init__(self, slow=()):
        self.slow = frozenset(slow)

    def nic_Bps(self, nodes):
        return NIC_BPS / 2 if self.slow & set(nodes) else NIC_BPS

    def send_s(self, a, b, size_B):
        if a // ISLAND == b // ISLAND:
            return NEAR_S + size_B / NVLINK_BPS
        return FAR_S + size_B / self.nic_Bps((a, b))

    def collective_s(self, op, nodes, size_B):
        n = len(nodes)
        if n == 1:
            return 0.0
        islands = {node // ISLAND for node in nodes}
        inside = n // len(islands)  # members on each island; the same on all, in this workload
        if op == "all_to_all":
            far_B, near_B = size_B * (n - inside) / n, size_B * (inside - 1) / n
            steps = 1
        else:
            # As many rings as an island has members, each leaving by another's NIC.
            passes = 2 if op == "all_reduce" else 1
            around_B = passes * (n - 1) / n * size_B / inside
            far_B, near_B = around_B, around_B * (inside - 1)
            steps = passes * (n - 1)
            if len(islands) == 1:
                far_B, near_B = 0.0, passes * (n - 1) / n * size_B
        latency_s = NEAR_S if len(islands) == 1 else FAR_S
        return steps * latency_s + max(far_B / self.nic_Bps(nodes), near_B / NVLINK_BPS)

    def price_s(self, graph, sends, one, other, size_B):
        if sends:
            return self.send_s(int(graph.node[int(one)]), int(graph.node[int(other)]), size_B)
        return self.collective_s(OPS[int(one)], graph.group_nodes[int(other)], size_B)

    def path_s(self, graph):
        """The longest chain of a folded graph."""
        events = match(graph)
        tasks = events.task
        sends = graph.kind[tasks] == SEND
        rows = np.stack([
            sends, np.where(sends, graph.rank[tasks], graph.op[tasks]),
            np.where(sends, graph.peer[tasks], graph.group[tasks]), graph.size_B[tasks],
        ], axis=1)  # fmt: skip
        took_s = graph.duration_s[tasks].copy()
        unknown = np.flatnonzero(np.isnan(took_s))
        assert np.isin(graph.kind[tasks][unknown], (SEND, COLLECTIVE)).all()
        # Calls that are alike cost alike; there are few kinds of them.
        kinds, which = np.unique(rows[unknown], axis=0, return_inverse=True)
        prices = [self.price_s(graph, *row) for row in kinds.tolist()]
        took_s[unknown] = np.array(prices)[which.reshape(-1)]
        helpers = np.zeros(len(events) - len(took_s))
        return float(longest(events, np.concatenate([took_s, helpers])).max())


def small_step():
    """64 ranks: tensor parallel 2, experts over 4, 2 stages, with heavy gradients."""
    rows = [("grads", (0, 0, 900), (0, 0, 400_000_000), ("", "", "all_reduce"), ("", "", "dp"))]
    for _ in range(4):
        rows.append(("embedding_layer", (5000, 0, 0), (64_000, 0, 0), ("all_reduce", "", ""),
                     ("tp", "", "")))  # fmt: skip
        for _ in range(4):
            rows.append(("attention", (9000, 8000, 7000), (96_000, 96_000, 0),
                         ("all_gather", "reduce_scatter", ""), ("tp", "tp", "")))  # fmt: skip
            rows.append(("moe", (20_000, 20_000, 0), (25_600_000, 25_600_000, 0),
                         ("all_to_all", "all_to_all", ""), ("ep", "ep", "")))  # fmt: skip
    names, compute, sizes, ops, groups = zip(*rows, strict=True)
    return AicbWorkload("HYBRID", 2, 8, 2, 2, 4, 64, 12_800_000, list(names), np.array(compute),
                        np.array(sizes), list(ops), list(groups))  # fmt: skip


def change_s(workload, even, slow, **knobs):
    graphs = [from_aicb(workload, world) for world in (even, slow)]
    told = [replay(g, w, contention=False, **knobs).seconds
            for g, w in zip(graphs, (even, slow), strict=True)]  # fmt: skip
    return graphs, told


def test_half_a_nic_changes_the_step_as_the_path_by_hand_says():
    even = worlds.h100_pod(8, rank_per_gpu=True)
    slow = slow_nic(even, 13)
    graphs, told = change_s(small_step(), even, slow)
    hand = [ByHand(nodes).path_s(g) for g, nodes in zip(graphs, ((), (13,)), strict=True)]
    assert told == pytest.approx(hand, rel=1e-12)
    assert told[1] > 1.3 * told[0]
    assert told == [critical_path(g, w).seconds
                    for g, w in zip(graphs, (even, slow), strict=True)]  # fmt: skip


def test_a_network_model_that_forgets_the_slow_nic_is_found_out(monkeypatch):
    even = worlds.h100_pod(8, rank_per_gpu=True)
    slow = slow_nic(even, 13)
    graph = from_aicb(small_step(), slow)
    made = Costs.__init__

    def forgetful(self, world, **knobs):
        made(self, world, **knobs)
        self.capacity_Bps = even.wiring().capacity_Bps

    monkeypatch.setattr(Costs, "__init__", forgetful)
    told = replay(graph, slow, contention=False).seconds
    assert told < 0.8 * ByHand((13,)).path_s(graph)


@needs_file
def test_the_9216_gpu_step_with_half_a_nic():
    workload = read_aicb(FILE)
    even = worlds.h100_pod(1152, rank_per_gpu=True)
    slow = slow_nic(even, 1000)
    graphs, told = change_s(workload, even, slow)
    assert graphs[0].weight.sum() == graphs[1].weight.sum() == 9216
    hand = [ByHand(nodes).path_s(g) for g, nodes in zip(graphs, ((), (1000,)), strict=True)]
    assert told == pytest.approx(hand, rel=1e-12)
    assert told[1] - told[0] == pytest.approx(hand[1] - hand[0], rel=1e-9)
    assert told[1] > 1.1 * told[0]
