"""Topologies as arithmetic: latency and path of a pair of nodes, computed when asked for.

Directed links are numbered. Every node i has a NIC with two links, up = 2i and down = 2i + 1; the
links of the fabric come after them. No wiring ever builds all pairs: a lan of 100,000 nodes costs
two floats a node, and only once someone asks for the capacities.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from orrery.base.errors import WorldError

if TYPE_CHECKING:
    from orrery.world.world import World

Floats = npt.NDArray[np.float64]


class Wiring:
    """The lan, and what all wirings share: a switch that never blocks between the NICs."""

    site_of: npt.NDArray[np.int64] | None = None
    site_latency_s: Floats | None = None

    def __init__(self, world: World) -> None:
        network = world.network
        self.n = world.size
        self.hop_s = network.latency_s
        self.link_Bps = network.topology.link_Bps or network.bandwidth_Bps
        self._groups = [(group.count, world.machines[group.machine]) for group in world.groups]
        self._default_nic_Bps = network.bandwidth_Bps
        self._flows = network.model == "flows"

    # -- what an engine asks

    @property
    def links(self) -> int:
        """How many directed links there are."""
        return 2 * self.n + self.fabric_links

    @property
    def fabric_links(self) -> int:
        return 0

    @property
    def uniform_latency_s(self) -> float | None:
        """The latency of every pair of distinct nodes, where it is the same for all."""
        return self.hop_s

    @functools.cached_property
    def capacity_Bps(self) -> Floats:
        """The capacity of each directed link, by its number."""
        nics = np.repeat(self._nics(), 2)
        capacities = np.concatenate([nics, self._fabric_capacities()])
        capacities.setflags(write=False)
        return capacities

    def latency(self, src: int, dst: int) -> float:
        """One-way seconds from src to dst, without jitter and queueing; 0 to oneself."""
        self._inside(src, dst)
        return 0.0 if src == dst else self._latency(src, dst)

    def path(self, src: int, dst: int) -> tuple[int, ...]:
        """The directed links from src to dst, NICs included; empty to oneself."""
        self._inside(src, dst)
        if src == dst:
            return ()
        return (2 * src, *self._fabric_path(src, dst), 2 * dst + 1)

    def bulk_path(self, src: int, dst: int) -> tuple[int, ...]:
        """The links that a bulk transfer shares: the whole path under "flows", else the NICs."""
        path = self.path(src, dst)
        return path if self._flows or not path else (path[0], path[-1])

    def neighbours(self, i: int) -> tuple[int, ...]:
        """The nodes one cable away; behind a switch, all others."""
        self._inside(i, i)
        return self._neighbours(i)

    def hops(self, src: int, dst: int) -> int:
        """How many cables of the fabric a message passes."""
        return 0 if src == dst else len(self.path(src, dst)) - 2

    # -- what a kind of wiring says for itself

    def _latency(self, src: int, dst: int) -> float:
        return self.hop_s

    def _fabric_path(self, src: int, dst: int) -> tuple[int, ...]:
        return ()

    def _neighbours(self, i: int) -> tuple[int, ...]:
        return (*range(i), *range(i + 1, self.n))

    def _fabric_capacities(self) -> Floats:
        return np.full(self.fabric_links, self.link_Bps)

    def _nic_defaults(self) -> Floats:
        """What a NIC carries where its machine does not say."""
        return np.full(self.n, self._default_nic_Bps)

    # -- shared

    def _nics(self) -> Floats:
        nics, start = self._nic_defaults(), 0
        for count, machine in self._groups:
            if machine.nic_Bps is not None:
                nics[start : start + count] = machine.nic_Bps
            start += count
        return nics

    def _inside(self, src: int, dst: int) -> None:
        if not (0 <= src < self.n and 0 <= dst < self.n):
            wrong = dst if 0 <= src < self.n else src
            raise WorldError("wiring", f"there is no node {wrong}", f"give 0 to {self.n - 1}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, links={self.links})"


class WanWiring(Wiring):
    """Sites: the latency depends on the pair of sites only; one trunk for each ordered pair."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        topology = world.network.topology
        place = {name: i for i, name in enumerate(topology.sites)}
        counts = [group.count for group in world.groups]
        sites = [place[group.site] for group in world.groups]
        self.site_of = np.repeat(np.array(sites, dtype=np.int64), counts)
        self.site_latency_s = np.array(topology.site_latency_s, dtype=np.float64)
        self._sites = len(topology.sites)
        self._table = topology.site_latency_s
        self._place: list[int] = self.site_of.tolist()

    @property
    def fabric_links(self) -> int:
        return self._sites * self._sites

    @property
    def uniform_latency_s(self) -> float | None:
        values = {value for row in self._table for value in row}
        return values.pop() if len(values) == 1 else None

    def _latency(self, src: int, dst: int) -> float:
        return self._table[self._place[src]][self._place[dst]]

    def _fabric_path(self, src: int, dst: int) -> tuple[int, ...]:
        a, b = self._place[src], self._place[dst]
        return () if a == b else (2 * self.n + a * self._sites + b,)


class IslandWiring(Wiring):
    """Islands of neighbours with fast links (NVLink); between them, one NIC each and no blocking.

    Node i has also an island link up, 2n + 2i, and down, 2n + 2i + 1.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        topology = world.network.topology
        self.island = topology.island or 1
        self._island_Bps = topology.island_Bps or self.link_Bps
        near_s = topology.island_latency_s
        self._near_s = self.hop_s if near_s is None else near_s

    @property
    def fabric_links(self) -> int:
        return 2 * self.n

    @property
    def uniform_latency_s(self) -> float | None:
        return self.hop_s if self._near_s == self.hop_s or self.island == 1 else None

    def same_island(self, src: int, dst: int) -> bool:
        return src // self.island == dst // self.island

    def _latency(self, src: int, dst: int) -> float:
        return self._near_s if self.same_island(src, dst) else self.hop_s

    def path(self, src: int, dst: int) -> tuple[int, ...]:
        self._inside(src, dst)
        if src == dst:
            return ()
        if self.same_island(src, dst):
            return (2 * self.n + 2 * src, 2 * self.n + 2 * dst + 1)
        return (2 * src, 2 * dst + 1)

    def _fabric_capacities(self) -> Floats:
        return np.full(self.fabric_links, self._island_Bps)


class FatTreeWiring(Wiring):
    """A k-ary fat tree (Al-Fares et al., 2008) with D-mod-k routing: the destination picks the way.

    With h = k/2, host i sits at port i mod h of edge switch (i div h) mod h of pod i div h**2.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.k = world.network.topology.k or 2
        self.h = self.k // 2
        self._edge_first = 2 * self.n
        self._core_first = self._edge_first + 2 * self.k * self.h * self.h

    @property
    def fabric_links(self) -> int:
        return 4 * self.k * self.h * self.h

    @property
    def uniform_latency_s(self) -> float | None:
        return 2 * self.hop_s if self.n <= self.h else None

    def _latency(self, src: int, dst: int) -> float:
        if src // self.h == dst // self.h:
            return 2 * self.hop_s
        return (4 if src // self.h**2 == dst // self.h**2 else 6) * self.hop_s

    def _fabric_path(self, src: int, dst: int) -> tuple[int, ...]:
        h = self.h
        edge_src, edge_dst = src // h, dst // h  # numbered over all pods
        if edge_src == edge_dst:
            return ()
        agg, core = dst % h, edge_dst % h
        up = self._edge_first + 2 * (edge_src * h + agg)
        down = self._edge_first + 2 * (edge_dst * h + agg) + 1
        pod_src, pod_dst = edge_src // h, edge_dst // h
        if pod_src == pod_dst:
            return (up, down)
        rise = self._core_first + 2 * ((pod_src * h + agg) * h + core)
        fall = self._core_first + 2 * ((pod_dst * h + agg) * h + core) + 1
        return (up, rise, fall, down)


class TorusWiring(Wiring):
    """A torus of any number of axes (a ring has one), routed axis by axis, the short way round.

    The cable of node i along axis a is link 2n + 2(i * axes + a) forwards, and + 1 backwards. Of
    two equally short ways the forward one is taken.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        topology = world.network.topology
        self.dims = topology.dims if topology.kind == "torus" else (self.n,)
        axes = len(self.dims)
        self._axis_s = topology.axis_latency_s or (self.hop_s,) * axes
        strides, step = [], 1
        for dim in reversed(self.dims):
            strides.append(step)
            step *= dim
        self._strides = tuple(reversed(strides))

    @property
    def fabric_links(self) -> int:
        return 2 * self.n * len(self.dims)

    @property
    def uniform_latency_s(self) -> float | None:
        same = len(set(self._axis_s)) == 1
        small = len([dim for dim in self.dims if dim > 1]) <= 1 and max(self.dims) <= 3
        return self._axis_s[0] if same and small else None

    def coordinates(self, i: int) -> tuple[int, ...]:
        """Where node i sits: the last axis runs fastest."""
        return tuple(
            i // stride % dim for stride, dim in zip(self._strides, self.dims, strict=True)
        )

    def _moves(self, src: int, dst: int) -> list[int]:
        """Signed steps along each axis, the short way."""
        moves = []
        here_there = zip(self.coordinates(src), self.coordinates(dst), self.dims, strict=True)
        for here, there, dim in here_there:
            forward = (there - here) % dim
            moves.append(forward if 2 * forward <= dim else forward - dim)
        return moves

    def _latency(self, src: int, dst: int) -> float:
        steps = zip(self._moves(src, dst), self._axis_s, strict=True)
        return float(sum(abs(move) * axis_s for move, axis_s in steps))

    def _fabric_path(self, src: int, dst: int) -> tuple[int, ...]:
        path, here, axes = [], list(self.coordinates(src)), len(self.dims)
        for axis, move in enumerate(self._moves(src, dst)):
            sign = 1 if move > 0 else -1
            for _ in range(abs(move)):
                at = self._index(here)
                path.append(2 * self.n + 2 * (at * axes + axis) + (sign < 0))
                here[axis] = (here[axis] + sign) % self.dims[axis]
        return tuple(path)

    def _index(self, place: list[int]) -> int:
        return sum(at * stride for at, stride in zip(place, self._strides, strict=True))

    def _neighbours(self, i: int) -> tuple[int, ...]:
        found, place = set(), self.coordinates(i)
        for axis, dim in enumerate(self.dims):
            for sign in (1, -1):
                near = list(place)
                near[axis] = (near[axis] + sign) % dim
                found.add(self._index(near))
        return tuple(sorted(found - {i}))

    def _nic_defaults(self) -> Floats:
        # A node of a direct network can fill all its cables at once, unless its machine says less.
        cables = sum(min(dim - 1, 2) for dim in self.dims)
        return np.full(self.n, self.link_Bps * max(cables, 1))


class StarWiring(Wiring):
    """Node 0 is the hub; leaf i reaches it by link 2n + 2(i-1), and is reached by the next."""

    @property
    def fabric_links(self) -> int:
        return 2 * (self.n - 1)

    @property
    def uniform_latency_s(self) -> float | None:
        return self.hop_s if self.n <= 2 or self.hop_s == 0 else None

    def _latency(self, src: int, dst: int) -> float:
        return self.hop_s if src == 0 or dst == 0 else 2 * self.hop_s

    def _fabric_path(self, src: int, dst: int) -> tuple[int, ...]:
        first = 2 * self.n
        inward = (first + 2 * (src - 1),) if src else ()
        outward = (first + 2 * (dst - 1) + 1,) if dst else ()
        return inward + outward

    def _neighbours(self, i: int) -> tuple[int, ...]:
        return tuple(range(1, self.n)) if i == 0 else (0,)

    def _nic_defaults(self) -> Floats:
        nics = np.full(self.n, self.link_Bps)
        nics[0] *= max(self.n - 1, 1)
        return nics


def wire(world: World) -> Wiring:
    """The wiring of a world's topology."""
    from orrery.world.graphs import GraphWiring

    kinds: dict[str, Any] = {
        "lan": Wiring, "wan": WanWiring, "islands": IslandWiring, "fat_tree": FatTreeWiring,
        "torus": TorusWiring, "ring": TorusWiring, "star": StarWiring,
        "random": GraphWiring, "graph": GraphWiring,
    }  # fmt: skip
    wiring: Wiring = kinds[world.network.topology.kind](world)
    return wiring
