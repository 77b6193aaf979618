"""What a coding collective needs of its rank: compute at a price, tasks, the link, a tally."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from orrery.parts import cost
from orrery.parts.collectives import Array
from orrery.parts.groups import WINDOW, Line
from orrery.systems.collectives.ncclz.selector import Speeds
from orrery.systems.collectives.problems.compressed_all_reduce import tally_of
from orrery.world import World

T = TypeVar("T")

# A line has so many lanes to a neighbour.
MOST_SLOTS = WINDOW


class Desk:
    """One rank during one call of a collective.

    `Ranks` has no arithmetic, as other collectives need none; a coder's time must be the device's,
    so the desk goes to the line behind them, and to the rank that the call belongs to.
    """

    def __init__(
        self, ranks: Line, speeds: Speeds, inside: bool, link_Bps: float = 0.0, slots: int = 0
    ) -> None:
        group = ranks.group
        worker: Any = group.worker
        machine = worker.world.machine_of(worker.id)
        self.ranks = ranks
        self.worker = worker
        self.size, self.me = ranks.size, ranks.rank
        self.left, self.right = (self.me - 1) % self.size, (self.me + 1) % self.size
        self.speeds = speeds.on(machine, inside)
        device = machine.accelerators[0] if machine.accelerators else machine
        self._memory_Bps = device.memory_Bps
        self._scale = worker.training.scale
        self.nodes = group.nodes
        pair = group.nodes[self.me], group.nodes[self.right]
        found_Bps, self._latency_s = link_between(worker.world, *pair)
        self.link_Bps = link_Bps or found_Bps
        self.narrow_Bps = link_Bps or narrowest(worker.world, group.nodes)
        self._slots = slots
        self._flying: deque[Any] = deque()
        self.tally = tally_of(worker)

    async def spend(self, seconds: float, made: Callable[[], T]) -> T:
        """The value of `made()`, at the price of so many seconds of this rank's device."""
        self.tally.coding_s += seconds * self._scale

        # Devices are priced by flops and bytes: as bytes of its memory, time is what was measured,
        # and is shared, slowed and billed like all other work.
        @cost(bytes=seconds * self._scale * self._memory_Bps)
        def priced() -> T:
            return made()

        return await self.worker.compute(priced)

    def count(self, frame: Array, coder: str, raw_B: int) -> None:
        """Count a frame that is sent."""
        tally = self.tally
        tally.raw_B += raw_B
        tally.coded_B += int(frame.nbytes)
        tally.frames[coder] = tally.frames.get(coder, 0) + 1

    def post(self, array: Array) -> None:
        """Send an array to the next rank."""
        self._flying.append(self.ranks.post(self.right, array))

    async def slot(self, size_B: int) -> None:
        """Wait until the next array, of so many bytes, has a slot on the wire.

        Transfers that are under way together share the link, so all of them arrive late; but one is
        over only when it has arrived. Two keep the link busy, or as many as it takes to cover
        the latency there and back; the first array of a call decides.
        """
        if not self._slots:
            chunk_s = max(size_B, 1) * self._scale / self.link_Bps
            cover = 2 * self._latency_s / chunk_s if chunk_s > 0 else MOST_SLOTS
            self._slots = 1 + math.ceil(min(cover + 0.5, MOST_SLOTS))
        slots = min(self._slots, MOST_SLOTS)
        while len(self._flying) >= slots:
            await self.ranks.arrival(self.right, self._flying.popleft())

    def take(self) -> Awaitable[Array]:
        """The next array from the rank before."""
        return self.ranks.take(self.left)


@functools.lru_cache(maxsize=256)
def narrowest(world: World, nodes: tuple[int, ...] | range) -> float:
    """The bytes a second of the slowest link of a ring of nodes; every rank finds the same."""
    return min(
        link_between(world, node, nodes[(place + 1) % len(nodes)])[0]
        for place, node in enumerate(nodes)
    )


@functools.lru_cache(maxsize=4096)
def link_between(world: World, source: int, target: int) -> tuple[float, float]:
    """(the bytes a second of the narrowest link between two nodes, the latency in seconds)."""
    wiring = world.wiring()
    path = wiring.path(source, target)
    narrow = min((float(wiring.capacity_Bps[link]) for link in path), default=math.inf)
    return narrow, float(wiring.latency(source, target))


__all__ = ["Desk", "link_between", "narrowest"]
