"""Wirings of arbitrary graphs: shortest paths by latency, from one source at a time, when asked."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from orrery.base.errors import WorldError
from orrery.base.rand import Stream
from orrery.world.network import Edge
from orrery.world.wiring import Floats, Wiring

if TYPE_CHECKING:
    from orrery.world.world import World

# The trees of shortest paths that are kept, in nodes over all trees: about 200 MB at 12 bytes.
KEPT_NODES = 16_000_000


def random_edges(n: int, degree: int, seed: int) -> tuple[tuple[int, int], ...]:
    """The cables of a connected random graph: a ring in random order, then random chords.

    It has exactly max(n * degree // 2, n) cables (n - 1 when n < 3), each pair at most once.
    """
    stream = Stream(seed, "topology", f"random/{n}/{degree}")
    order = list(range(n))
    stream.shuffle(order)
    edges: dict[tuple[int, int], None] = {}
    for i in range(n if n > 2 else n - 1):
        a, b = order[i], order[(i + 1) % n]
        edges[(min(a, b), max(a, b))] = None
    wanted = min(n * degree // 2, n * (n - 1) // 2)
    if 2 * wanted > n * (n - 1) // 2:  # dense: draw from the list of the pairs that are left
        left = [(a, b) for a in range(n) for b in range(a + 1, n) if (a, b) not in edges]
        for pair in stream.sample(left, max(wanted - len(edges), 0)):
            edges[pair] = None
    while len(edges) < wanted:
        a, b = stream.below(n), stream.below(n)
        if a != b:
            edges.setdefault((min(a, b), max(a, b)))
    return tuple(edges)


class GraphWiring(Wiring):
    """Cable number e of the graph is link 2n + 2e from its a to its b, and + 1 back.

    Of several shortest paths, the one found first in order of (latency, node) is taken, so that
    the choice does not depend on the machine.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        topology = world.network.topology
        hop_s, cables = self.hop_s, topology.edges
        self.edges = tuple((cable.a, cable.b) for cable in cables)
        self._edge_s = [hop_s if c.latency_s is None else c.latency_s for c in cables]
        self._edge_Bps = [c.bandwidth_Bps or self.link_Bps for c in cables]
        if topology.kind == "random":
            self.edges = random_edges(self.n, topology.degree or 1, topology.seed or 0)
            self._edge_s = [hop_s] * len(self.edges)
            self._edge_Bps = [self.link_Bps] * len(self.edges)
        self._out: list[list[tuple[int, int]]] = [[] for _ in range(self.n)]
        for number, (a, b) in enumerate(self.edges):
            self._out[a].append((b, 2 * number))
            self._out[b].append((a, 2 * number + 1))
        for ways in self._out:
            ways.sort()
        self._trees: OrderedDict[int, tuple[npt.NDArray[np.int32], Floats]] = OrderedDict()

    @property
    def fabric_links(self) -> int:
        return 2 * len(self.edges)

    @property
    def uniform_latency_s(self) -> float | None:
        complete = len(self.edges) == self.n * (self.n - 1) // 2
        same = len(set(self._edge_s)) == 1
        return self._edge_s[0] if complete and same else None

    def _latency(self, src: int, dst: int) -> float:
        return float(self._tree(src)[1][dst])

    def _fabric_path(self, src: int, dst: int) -> tuple[int, ...]:
        parents = self._tree(src)[0]
        path: list[int] = []
        here = dst
        while here != src:
            link = int(parents[here])
            path.append(2 * self.n + link)
            here = self.edges[link >> 1][link & 1]
        return tuple(reversed(path))

    def _neighbours(self, i: int) -> tuple[int, ...]:
        return tuple(node for node, _ in self._out[i])

    def _fabric_capacities(self) -> Floats:
        return np.repeat(np.array(self._edge_Bps, dtype=np.float64), 2)

    def _nic_defaults(self) -> Floats:
        # A node of a direct network can fill all its cables at once, unless its machine says less.
        nics = np.zeros(self.n)
        for (a, b), capacity in zip(self.edges, self._edge_Bps, strict=True):
            nics[a] += capacity
            nics[b] += capacity
        nics[nics == 0] = self.link_Bps
        return nics

    def _tree(self, src: int) -> tuple[npt.NDArray[np.int32], Floats]:
        """For each node the link by which the path from src reaches it, and its latency."""
        if src in self._trees:
            self._trees.move_to_end(src)
            return self._trees[src]
        far = [float("inf")] * self.n
        parents = [-1] * self.n
        done = bytearray(self.n)
        far[src] = 0.0
        heap = [(0.0, src)]
        edge_s, out = self._edge_s, self._out
        while heap:
            at_s, here = heapq.heappop(heap)
            if done[here]:
                continue
            done[here] = 1
            for node, link in out[here]:
                reach_s = at_s + edge_s[link >> 1]
                if reach_s < far[node]:
                    far[node], parents[node] = reach_s, link
                    heapq.heappush(heap, (reach_s, node))
        tree = (np.array(parents, dtype=np.int32), np.array(far))
        self._trees[src] = tree
        while len(self._trees) * self.n > KEPT_NODES and len(self._trees) > 1:
            self._trees.popitem(last=False)
        return tree


def check_connected(n: int, edges: tuple[Edge, ...]) -> None:
    """Refuse a graph that names a missing node or falls apart."""
    out: list[list[int]] = [[] for _ in range(n)]
    for i, edge in enumerate(edges):
        if max(edge.a, edge.b) >= n:
            path = f"network.topology.edges.{i}"
            wrong = max(edge.a, edge.b)
            raise WorldError(path, f"there is no node {wrong}", f"give nodes 0 to {n - 1}")
        out[edge.a].append(edge.b)
        out[edge.b].append(edge.a)
    seen, stack = bytearray(n), [0]
    seen[0] = 1
    while stack:
        for node in out[stack.pop()]:
            if not seen[node]:
                seen[node] = 1
                stack.append(node)
    if not all(seen):
        lost = seen.index(0)
        fix = "join every node to the rest by a cable"
        raise WorldError("network.topology.edges", f"node {lost} cannot be reached", fix)
