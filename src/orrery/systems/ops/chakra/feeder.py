"""`Feeder`: hands out nodes of a trace whose dependencies are met, to whoever replays it."""

from __future__ import annotations

import heapq

import numpy as np

from orrery.inputs.chakra import EtColumns, check_order
from orrery.inputs.chakra.order import Deps
from orrery.inputs.chakra.schema import TraceError


class Feeder:
    """Nodes in an order that never runs ahead of their dependencies.

    `take` gives the ready node that stands first in the file, or None while all that is left
    waits; `finish` says that a node is done. Both take O(log n + children).

    >>> from orrery.inputs.chakra import EtNode, Metadata, columns_of
    >>> feeder = Feeder(columns_of(Metadata(), [EtNode(id=7), EtNode(id=8, data_deps=[7])]))
    >>> feeder.take(), feeder.take()
    (7, None)
    >>> feeder.finish(7)
    >>> feeder.take()
    8
    """

    def __init__(self, columns: EtColumns, deps: Deps = "auto") -> None:
        owner, before, self.missing = check_order(columns, deps)
        size = len(columns)
        self._ids: list[int] = columns.id.tolist()
        self._place = {id: i for i, id in enumerate(self._ids)}
        order = np.argsort(before, kind="stable")
        self._after: list[int] = owner[order].tolist()
        self._starts: list[int] = np.searchsorted(before[order], np.arange(size + 1)).tolist()
        self._waits: list[int] = np.bincount(owner, minlength=size).tolist()
        self._ready = [i for i in range(size) if not self._waits[i]]
        self._out: set[int] = set()
        self.left = size

    def take(self) -> int | None:
        """The id of a node that may run now, or None."""
        if not self._ready:
            return None
        place = heapq.heappop(self._ready)
        self._out.add(place)
        return self._ids[place]

    def finish(self, id: int) -> None:
        """A node that was taken is done; what waited for it alone becomes ready."""
        place = self._place.get(id, -1)
        if place not in self._out:
            raise TraceError(f"node {id} was not taken, so it cannot be finished", id)
        self._out.discard(place)
        self.left -= 1
        for k in range(self._starts[place], self._starts[place + 1]):
            other = self._after[k]
            self._waits[other] -= 1
            if not self._waits[other]:
                heapq.heappush(self._ready, other)
