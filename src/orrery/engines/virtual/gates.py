"""What faults do to bulk transfers: NICs that carry less, and gates on the ways between nodes.

A flow is limited by links. A fault of a machine changes its NIC's two links. A fault of pairs of
nodes (a partition, a clogged link) has no link of its own, so the wiring is given extra ones, the
gates, which only the ways between those pairs pass; an open gate is too wide to limit anybody.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from orrery.base.units import to_ns
from orrery.engines.virtual.traffic import Flapping
from orrery.world import Clog, Fault, NicFlap, Partition
from orrery.world.schedule import sides

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine

OPEN_Bps = 1e18


class GatedWiring:
    """The world's wiring with gates; everything else is asked of the wiring itself."""

    def __init__(self, wiring: Any, gates: Gates) -> None:
        self._wiring = wiring
        self._gates = gates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wiring, name)

    @property
    def capacity_Bps(self) -> npt.NDArray[np.float64]:
        return self._gates.capacities()

    def bulk_path(self, src: int, dst: int) -> tuple[int, ...]:
        path: tuple[int, ...] = self._wiring.bulk_path(src, dst)
        return path + self._gates.on_the_way(src, dst) if path else path


class Gates:
    """The links that faults narrow, and by how much now."""

    def __init__(self, engine: Engine, faults: tuple[Fault, ...]) -> None:
        self._engine = engine
        self._wiring: Any = engine.wiring
        # place -> (fault, its number of sides, its first gate)
        self._cuts: dict[int, tuple[Partition, int, int]] = {}
        self._sides: dict[int, npt.NDArray[np.int32]] = {}
        self._pairs: dict[tuple[int, int], list[tuple[Clog, int]]] = {}
        self._nics: dict[int, list[float]] = {}
        self._closed: dict[int, float] = {}  # gate -> what it carries now
        self._flaps: dict[int, list[_Flap]] = {}
        self._count = 0
        needed = False
        for place, fault in enumerate(faults):
            if isinstance(fault, Partition):
                groups = len(fault.groups or ((),)) + 1
                self._cuts[place] = (fault, groups, self._count)
                self._count += groups * groups
            elif isinstance(fault, Clog) and fault.link is not None:
                for way in (fault.link, fault.link[::-1]):
                    self._pairs.setdefault(way, []).append((fault, self._count))
                    self._count += 1
            needed = needed or isinstance(fault, Partition | Clog | NicFlap)
        if needed:
            wired: Any = GatedWiring(self._wiring, self)
            engine.wiring = wired

    # -- what the wiring asks

    def capacities(self) -> npt.NDArray[np.float64]:
        """Every link as it is now, the gates last."""
        now = np.concatenate([self._wiring.capacity_Bps, np.full(self._count, OPEN_Bps)])
        for node in self._nics:
            now[2 * node : 2 * node + 2] *= math.prod(self._nics[node])
        for gate, capacity_Bps in self._closed.items():
            now[self._wiring.links + gate] = capacity_Bps
        return now

    def on_the_way(self, src: int, dst: int) -> tuple[int, ...]:
        """The gates between two nodes of faults that are on or still to come."""
        now_ns = self._engine.kernel.now
        found = []
        for place, (fault, groups, first) in self._cuts.items():
            if fault.until_s is not None and to_ns(fault.until_s) <= now_ns:
                continue
            if place not in self._sides:  # made at the first flow, as most runs have none
                self._sides[place] = sides(fault, self._engine.size)
            a, b = int(self._sides[place][src]), int(self._sides[place][dst])
            if a != b and not (fault.one_way and a > b):
                found.append(first + a * groups + b)
        found += [gate for _, gate in self._pairs.get((src, dst), ())]
        for node in (src, dst):
            for flap in self._flaps.get(node, ()):
                flap.wake()
        return tuple(self._wiring.links + gate for gate in found)

    # -- what faults do

    def partition(self, place: int, begins: bool) -> None:
        fault, groups, first = self._cuts[place]
        for a in range(groups):
            for b in range(groups):
                if a != b and not (fault.one_way and a > b):
                    self._set_gate(first + a * groups + b, 0.0 if begins else None)

    def clog_link(self, fault: Clog, begins: bool) -> None:
        assert fault.link is not None
        for way in (fault.link, fault.link[::-1]):
            narrowest = min(self._wiring.capacity_Bps[link] for link in self._wiring.path(*way))
            for each, gate in self._pairs[way]:
                if each is fault:
                    self._set_gate(gate, float(narrowest) * fault.fraction if begins else None)

    def scale_nic(self, node: int, fraction: float, begins: bool) -> None:
        """The NIC of a node carries this fraction; overlapping faults multiply."""
        scales = self._nics.setdefault(node, [])
        if begins:
            scales.append(fraction)
        else:
            scales.remove(fraction)
        if self._engine.flows.count:
            for link in (2 * node, 2 * node + 1):
                base_Bps = float(self._wiring.capacity_Bps[link])
                self._engine.flows.set_link(link, base_Bps * math.prod(scales))
        if not scales:
            del self._nics[node]

    def _set_gate(self, gate: int, capacity_Bps: float | None) -> None:
        if capacity_Bps is None:
            self._closed.pop(gate, None)
        else:
            self._closed[gate] = capacity_Bps
        if self._engine.flows.count:
            now_Bps = OPEN_Bps if capacity_Bps is None else capacity_Bps
            self._engine.flows.set_link(self._wiring.links + gate, now_Bps)

    def flap(self, node: int, one: Flapping) -> _Flap:
        made = _Flap(self._engine, self, node, one)
        self._flaps.setdefault(node, []).append(made)
        made.wake()
        return made

    def unflap(self, flap: _Flap) -> None:
        flap.end()
        self._flaps[flap.node].remove(flap)


class _Flap:
    """Follows a flapping NIC for flows, but only while there are flows.

    Without that limit a NIC that flaps for ever would keep a run going for ever.
    """

    def __init__(self, engine: Engine, gates: Gates, node: int, one: Flapping) -> None:
        self._engine = engine
        self._gates = gates
        self.node = node
        self._one = one
        self._down = False
        self._timer: Any = None

    def wake(self) -> None:
        if self._timer is None:
            self._set(self._one.down())
            if self._engine.flows.count:
                self._timer = self._engine.kernel.call_at(self._one.edge()[1], self._turn)

    def _turn(self) -> None:
        self._timer = None
        self._set(self._one.down())
        if len(self._engine.flows.net):
            self._timer = self._engine.kernel.call_at(self._one.edge()[1], self._turn)

    def _set(self, down: bool) -> None:
        if down != self._down:
            self._down = down
            self._gates.scale_nic(self.node, 0.0, down)

    def end(self) -> None:
        self._set(False)
        if self._timer is not None:
            self._timer.cancel()
