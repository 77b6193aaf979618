"""The data path: pieces over several connections, round a ring, twice.

An array of n parts goes round in 2 (n - 1) steps: in the first half each part gathers its sum on
its way to its owner, in the second the sums go to everybody. Parts are cut into pieces, which are
passed on as soon as they are there; piece i goes over connection i modulo their number, so the
order at the far end is known without a word.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.parts.collectives import Array, part_items
from orrery.systems.collectives.problems.elastic_peer import is_hollow


class Lanes:
    """The connections of one tag: to the right neighbour and from the left one.

    A connection carries one piece at a time, in order. Both ends number the pieces alike.
    """

    def __init__(self, node: Any, name: str, left: int, right: int, count: int) -> None:
        self._node = node
        self._scale = node.work.scale
        self._left = left
        self._right = right
        self._names = [f"{name}#{lane}" for lane in range(count)]
        self._queues = [node.queue() for _ in range(count)]
        self._tasks = [node.spawn(self._carry(lane)) for lane in range(count)]
        self._sent = self._got = 0

    def post(self, piece: Array) -> None:
        """Send a piece to the right; it must not change until the operation is over."""
        self._node.sent_B += round(piece.nbytes * self._scale)
        self._queues[self._sent % len(self._queues)].put(piece)
        self._sent += 1

    async def take(self, into: Array | None = None, fold: Any = None) -> Array:
        """The next piece from the left, in the memory that is given for it, and folded."""
        name = self._names[self._got % len(self._names)]
        self._got += 1
        return await self._node.receive(self._left, name, into, fold=fold)

    async def _carry(self, lane: int) -> None:
        queue, name = self._queues[lane], self._names[lane]
        while True:
            piece = await queue.get()
            await self._node.transfer(self._right, piece, name, self._scale, owned=True)

    def close(self) -> None:
        """Give up what is still on its way."""
        for task in self._tasks:
            task.cancel()


class Cut:
    """Where the parts and pieces of an array begin and end; the same at all members."""

    def __init__(
        self, items: int, itemsize: int, size: int, connections: int, piece_B: int, least_B: int
    ) -> None:
        self._parts: list[list[tuple[int, int]]] = []
        at = 0
        for length in part_items(items, size):
            part_B = length * itemsize
            spread = min(connections, max(1, part_B // least_B))
            count = max(1, spread, -(-part_B // piece_B))
            pieces, start = [], at
            for share in part_items(length, count):
                pieces.append((start, start + share))
                start += share
            self._parts.append(pieces)
            at += length

    def pieces(self, part: int) -> list[tuple[int, int]]:
        """The (begin, end) of each piece of a part, counted round the ring."""
        return self._parts[part % len(self._parts)]


def joined(combine: np.ufunc, coming: Array, own: Array) -> Array:
    """The reduction of two pieces, in the memory of the first where that is free."""
    if is_hollow(coming) and is_hollow(own):
        return np.broadcast_to(combine(coming[:1], own[:1]), own.shape)
    return combine(coming, own, out=coming if coming.flags.writeable else None)


async def all_reduce(
    lanes: Lanes, data: Array, place: int, size: int, combine: np.ufunc, coder: Any, cut: Cut,
    out: Array | None = None,
) -> Array:  # fmt: skip
    """One all-reduce of a flat array at the member in `place` of a ring of `size`.

    The order of adding is fixed by the ring: part r begins at place r + 1 and ends at place r.
    """
    hollow = is_hollow(data)
    kind = data.dtype
    total = np.empty(0 if hollow else data.size, kind) if out is None else out
    ends: list[Array] = []
    # Numbers that travel as they are go from the socket to where they belong.
    straight = coder.exact and not hollow

    def keep(begin: int, end: int, value: Array) -> None:
        if hollow:
            ends.append(value[:1])
        else:
            total[begin:end] = value

    for begin, end in cut.pieces(place - 1):
        lanes.post(coder.pack(data[begin:end]))
    for step in range(size - 1):
        last = step == size - 2
        for begin, end in cut.pieces(place - step - 2):
            own = data[begin:end]
            if straight:
                # The sum on its way lies where the finished one will: that comes only when the
                # neighbour has this one.
                lanes.post(await lanes.take(total[begin:end], fold=(combine, own)))
                continue
            coming = coder.unpack(await lanes.take(), end - begin, kind)
            wire = coder.pack(joined(combine, coming, own))
            lanes.post(wire)
            if last:
                keep(begin, end, coder.unpack(wire, end - begin, kind))
    for step in range(size - 1):
        last = step == size - 2
        for begin, end in cut.pieces(place - step - 1):
            wire = await lanes.take(total[begin:end] if straight else None)
            if not last:
                lanes.post(wire)
            if not straight:
                keep(begin, end, coder.unpack(wire, end - begin, kind))
    if hollow:
        first = ends[0] if ends else data[:1]
        return np.broadcast_to(first, data.shape)
    return total


__all__ = ["Cut", "Lanes", "all_reduce", "joined"]
