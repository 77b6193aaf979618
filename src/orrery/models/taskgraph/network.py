"""What tasks cost in a world: rooflines for compute, alpha and beta of the links for the rest.

A communication is a latency (alpha) and bytes on links. Alone it takes alpha + max(bytes /
capacity); where several share a link, the executor shares it max-min fairly. The collectives are
those that a `Worker` runs by default: rings for all-reduce, all-gather and reduce-scatter, direct
exchange for the others. On islands (NVLink inside, a NIC each outside) a ring group with k members
on each island runs k rings, each leaving an island by another member's NIC, as NCCL does;
`multi_rail=False` keeps one ring in the order of the group.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from orrery.models.taskgraph.graph import (
    COMPUTE,
    MEMORY,
    OPS,
    RECV,
    SEND,
    Floats,
    GraphError,
    Ints,
    TaskGraph,
)
from orrery.models.taskgraph.matching import Events
from orrery.world import World
from orrery.world.wiring import IslandWiring, Wiring

RING_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "reduce_scatter_block": 1}
# Which of the classes' links a real link is: a NIC's two directions, an island's two.
LINK_SIDES = 4


class Load(msgspec.Struct, frozen=True):
    """A communication on the network: a latency, and bytes on each link that it uses."""

    alpha_s: float
    links: Ints
    bytes: Floats

    def alone_s(self, capacity_Bps: Floats) -> float:
        """How long it takes when nothing else uses its links."""
        if not len(self.links):
            return self.alpha_s
        return self.alpha_s + float(np.max(self.bytes / capacity_Bps[self.links]))


class Costs:
    """The costs of a graph's tasks in a world; loads are made once for each kind of call.

    `dtype` is that of compute given by flops; `efficiency` the share of peak that it reaches.
    """

    def __init__(
        self, world: World, *, dtype: str = "bf16", efficiency: float = 1.0,
        multi_rail: bool = True,
    ) -> None:  # fmt: skip
        if not 0 < efficiency <= 1:
            raise GraphError(
                "efficiency", f"{efficiency!r} is refused", "give more than 0, up to 1"
            )
        self.world = world
        self.wiring: Wiring = world.wiring()
        self.capacity_Bps = self.wiring.capacity_Bps
        self.dtype = dtype
        self.efficiency = efficiency
        self.multi_rail = multi_rail
        self._loads: dict[tuple[Any, ...], Load] = {}

    # -- compute

    def work_s(self, graph: TaskGraph) -> Floats:
        """Seconds of each compute and memory task that has no duration; NaN for the others."""
        found = np.full(len(graph), np.nan)
        todo = np.isnan(graph.duration_s) & (graph.kind <= MEMORY)
        for rank in np.unique(graph.rank[todo]):
            mine = todo & (graph.rank == rank)
            flops, memory = self._device(int(graph.node[rank]), bool(graph.flops[mine].any()))
            work = mine & (graph.kind == COMPUTE)
            found[work] = np.maximum(graph.flops[work] / flops, graph.bytes[work] / memory)
            move = mine & (graph.kind == MEMORY)
            found[move] = graph.bytes[move] / memory
        return found

    def _device(self, node: int, computes: bool) -> tuple[float, float]:
        machine = self.world.machine_of(node)
        if not machine.accelerators:
            return machine.cpu_flops * self.efficiency, machine.memory_Bps
        device = machine.accelerators[0]
        peak = device.flops(self.dtype) if computes else 1.0
        return peak * self.efficiency, device.memory_Bps

    # -- communication

    def message(self, source: int, target: int, size_B: float) -> Load:
        """A bulk message between two nodes."""
        links = np.array(self.wiring.bulk_path(source, target), np.int64)
        if not size_B:
            links = links[:0]
        alpha_s = self.wiring.latency(source, target)
        return Load(alpha_s, links, np.full(len(links), float(size_B)))

    def collective(self, op: str, nodes: tuple[int, ...], size_B: float, root: int = 0) -> Load:
        """A collective of these nodes, in ring order; `size_B` as in `TaskGraph`."""
        key = (op, nodes, size_B, root)
        load = self._loads.get(key)
        if load is None:
            shape = self._shape(op, nodes, root)
            load = Load(shape.alpha_s, shape.links if size_B else shape.links[:0],
                        shape.bytes * size_B if size_B else shape.bytes[:0])  # fmt: skip
            self._loads[key] = load
        return load

    def _shape(self, op: str, nodes: tuple[int, ...], root: int) -> Load:
        """The load of one byte: everything but the size, which alone differs between calls."""
        key = (op, nodes, root)
        shape = self._loads.get(key)
        if shape is not None:
            return shape
        count = len(nodes)
        if count == 1:
            shape = Load(0.0, np.empty(0, np.int64), np.empty(0))
        elif op in RING_STEPS:
            share = RING_STEPS[op] * (count - 1) / count
            wiring = self.wiring
            rails = self._rails(nodes) if isinstance(wiring, IslandWiring) else 1
            hops = self._rings(nodes, rails)
            steps = RING_STEPS[op] * (count - 1)
            shape = self._spread([(a, b, share / rails) for a, b in hops], steps)
        elif op == "barrier":
            worst_s = max(self.wiring.latency(nodes[0], other) for other in nodes[1:])
            steps = (count - 1).bit_length()
            shape = Load(steps * worst_s, np.empty(0, np.int64), np.empty(0))
        else:
            shape = self._spread(_direct(op, nodes, root), 1)
        self._loads[key] = shape
        return shape

    def _rails(self, nodes: tuple[int, ...]) -> int:
        """How many rings run side by side: one for each member on an island, where all have k."""
        assert isinstance(self.wiring, IslandWiring)
        if not self.multi_rail:
            return 1
        islands, counts = np.unique(np.array(nodes) // self.wiring.island, return_counts=True)
        return int(counts[0]) if len(islands) > 1 and (counts == counts[0]).all() else 1

    def _rings(self, nodes: tuple[int, ...], rails: int) -> list[tuple[int, int]]:
        """The hops of all rings: ring r enters every island at its r-th member."""
        if rails == 1:
            return [(a, nodes[(i + 1) % len(nodes)]) for i, a in enumerate(nodes)]
        assert isinstance(self.wiring, IslandWiring)
        by_island: dict[int, list[int]] = {}
        for node in nodes:
            by_island.setdefault(node // self.wiring.island, []).append(node)
        hops = []
        for rail in range(rails):
            ring = [each[(rail + i) % rails] for each in by_island.values() for i in range(rails)]
            hops += [(a, ring[(i + 1) % len(ring)]) for i, a in enumerate(ring)]
        return hops

    def _spread(self, flows: list[tuple[int, int, float]], steps: int) -> Load:
        """Flows between nodes as bytes on links; each step waits for its slowest latency."""
        on: dict[int, float] = {}
        worst_s = 0.0
        for source, target, share in flows:
            worst_s = max(worst_s, self.wiring.latency(source, target))
            for link in self.wiring.bulk_path(source, target):
                on[link] = on.get(link, 0.0) + share
        links = np.array(sorted(on), np.int64)
        return Load(steps * worst_s, links, np.array([on[link] for link in links.tolist()]))


def _direct(op: str, nodes: tuple[int, ...], root: int) -> list[tuple[int, int, float]]:
    """Who sends which share of the array to whom, without a middleman."""
    count, head = len(nodes), nodes[root % len(nodes)]
    others = [node for node in nodes if node != head]
    if op == "all_to_all":
        return [(a, b, 1 / count) for a in nodes for b in nodes if a != b]
    if op == "broadcast":
        return [(head, node, 1.0) for node in others]
    if op == "reduce":
        return [(node, head, 1.0) for node in others]
    share = 1 / count
    if op == "scatter":
        return [(head, node, share) for node in others]
    return [(node, head, share) for node in others]


# -- the loads of a graph's events


class Priced(msgspec.Struct, frozen=True):
    """The events of a graph with their costs.

    `fixed_s` holds seconds, NaN for events on the network, whose load is `loads[load[e]]`.
    """

    fixed_s: Floats
    load: Ints
    loads: list[Load]
    capacity_Bps: Floats

    def alone_s(self) -> Floats:
        """Seconds of each event when no link is shared."""
        each = np.array([load.alone_s(self.capacity_Bps) for load in self.loads] or [0.0])
        return np.where(np.isnan(self.fixed_s), each[np.maximum(self.load, 0)], self.fixed_s)


def price(graph: TaskGraph, events: Events, costs: Costs | None) -> Priced:
    """The cost of every event; without a world every task needs a duration."""
    lead = events.task
    fixed = graph.duration_s[lead].copy()
    fixed[graph.kind[lead] == RECV] = 0.0
    open_events = np.flatnonzero(np.isnan(fixed))
    load = np.full(len(events), -1, np.int64)
    helpers = np.zeros(len(events) - len(lead))
    if not open_events.size:
        return Priced(np.concatenate([fixed, helpers]), load, [], np.empty(0))
    if costs is None:
        raise GraphError("costs", f"{graph.label(int(lead[open_events[0]]))} has no duration",
                         "give a world, or durations for all tasks")  # fmt: skip
    if graph.node.max() >= costs.world.size:
        raise GraphError("world", f"has {costs.world.size} nodes for {graph.node.max() + 1}",
                         "give a larger world")  # fmt: skip
    work = costs.work_s(graph)[lead]
    fixed = np.where(np.isnan(fixed), work, fixed)
    fold = _Fold(graph, costs) if graph.folded else None
    network = np.flatnonzero(np.isnan(fixed))
    rows = lead[network]
    sends = graph.kind[rows] == SEND
    # Calls that are alike share one load; there are few kinds of them, however many calls.
    keys = np.stack([
        graph.kind[rows].astype(np.float64), np.where(sends, graph.rank[rows], graph.op[rows]),
        np.where(sends, graph.peer[rows], graph.group[rows]), graph.size_B[rows],
        np.where(sends, -1, graph.tag[rows]),
    ], axis=1)  # fmt: skip
    kinds, place = np.unique(keys, axis=0, return_inverse=True)
    load[network] = place.reshape(-1)
    loads = [_load(graph, costs, row, fold) for row in kinds.tolist()]
    capacity = costs.capacity_Bps if fold is None else fold.capacity_Bps
    return Priced(np.concatenate([fixed, helpers]), load, loads, capacity)


def _load(graph: TaskGraph, costs: Costs, key: list[float], fold: _Fold | None) -> Load:
    size_B = key[3]
    if key[0] == SEND:
        source, target = int(key[1]), int(key[2])
        load = costs.message(int(graph.node[source]), int(graph.node[target]), size_B)
        return load if fold is None else fold.message(load, source, target)
    op, group, root = OPS[int(key[1])], int(key[2]), int(key[4])
    if fold is None:
        nodes = tuple(graph.node[list(graph.groups[group])].tolist())
        return costs.collective(op, nodes, size_B, root)
    assert graph.group_nodes is not None
    return fold.collective(costs.collective(op, graph.group_nodes[group], size_B, root))


class _Fold:
    """Links of classes in place of links of nodes: the same four for every node of a class."""

    def __init__(self, graph: TaskGraph, costs: Costs) -> None:
        if type(costs.wiring) not in (Wiring, IslandWiring):
            kind = costs.world.network.topology.kind
            raise GraphError("world", f"a folded graph cannot run on a {kind}",
                             "give a lan or islands, or an unfolded graph")  # fmt: skip
        self.nodes = costs.world.size
        assert graph.node_class is not None
        self.class_of = graph.node_class
        size = LINK_SIDES * graph.ranks
        self.capacity_Bps = np.full(size, np.inf)
        for rank, node in enumerate(graph.node.tolist()):
            for side in range(LINK_SIDES):
                link = 2 * node + side if side < 2 else 2 * self.nodes + 2 * node + side - 2
                if link < len(costs.capacity_Bps):
                    self.capacity_Bps[LINK_SIDES * rank + side] = costs.capacity_Bps[link]

    def _side(self, links: Ints) -> tuple[Ints, Ints]:
        """(node, which of its four links)."""
        near = links >= 2 * self.nodes
        inner = np.where(near, links - 2 * self.nodes, links)
        return inner // 2, inner % 2 + 2 * near

    def message(self, load: Load, source: int, target: int) -> Load:
        _, side = self._side(load.links)
        owner = np.where(side % 2 == 0, source, target)
        return Load(load.alpha_s, LINK_SIDES * owner + side, load.bytes)

    def collective(self, load: Load) -> Load:
        node, side = self._side(load.links)
        link = LINK_SIDES * self.class_of[node] + side
        links, where = np.unique(link, return_inverse=True)
        most = np.zeros(len(links))
        np.maximum.at(most, where, load.bytes)
        return Load(load.alpha_s, links, most)
