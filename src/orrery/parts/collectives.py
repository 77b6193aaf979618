"""`Collective`: how a group of ranks moves arrays; and `Ring`, the one that a `Worker` starts with.

A collective is a port: training code calls `self.mean(weights)` and does not change with the
algorithm behind it. A subclass overrides one method or many; the base class has a plain direct
algorithm for each, so that a new all-reduce needs only its all-reduce.

Every algorithm here fixes the order in which it reduces, and reduces each element on one path
only, so all ranks get the same bits. The methods see nothing but `Ranks`: who am I, post, take.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from orrery.base.errors import PartError, did_you_mean
from orrery.parts.knobs import Part

Array = npt.NDArray[Any]
Combine = Callable[[Array, Array], Array]

KINDS = (
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter",
    "all_to_all", "scan", "barrier",
)  # fmt: skip
OPS: dict[str, Combine] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


class Ranks(Protocol):
    """What a collective sees of its group during one call."""

    rank: int
    size: int

    def post(self, rank: int, array: Array) -> object:
        """Send an array to a rank without waiting; leave it unchanged until the call ends."""

    def take(self, rank: int) -> Awaitable[Array]:
        """The next array that a rank posted to this one, in the order of its posts."""
        ...


def combiner(op: str | Combine) -> Combine:
    """The function of an operation: a name of `OPS`, or any associative `f(a, b) -> array`."""
    if callable(op):
        plain = op
    else:
        found = OPS.get(op) if isinstance(op, str) else None
        if found is None:
            raise PartError(f"op={op!r:.60}: no such operation; {did_you_mean(str(op), OPS)}")
        plain = found

    def combine(a: Array, b: Array) -> Array:
        if a.shape != b.shape or a.dtype != b.dtype:
            raise PartError(
                f"ranks disagree: one gave {a.dtype}{a.shape}, another {b.dtype}{b.shape}; "
                "all ranks must reduce arrays of one shape and dtype"
            )
        # An overflow to infinity is a value that the caller sees, not a warning on a rank.
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(plain(a, b))

    return combine


def split(array: Array, size: int) -> list[Array]:
    """An array as `size` flat parts whose lengths differ by at most one.

    >>> [part.tolist() for part in split(np.arange(5), 3)]
    [[0, 1], [2, 3], [4]]
    """
    flat = array.reshape(-1)
    ends = np.cumsum([0, *part_items(flat.size, size)])
    return [flat[ends[i] : ends[i + 1]] for i in range(size)]


def part_items(items: int, size: int) -> list[int]:
    """How many of `items` elements each part of `split` has.

    >>> part_items(5, 3), part_items(1, 3)
    ([2, 2, 1], [1, 0, 0])
    """
    least, more = divmod(items, size)
    return [least + (i < more) for i in range(size)]


class Collective(Part):
    """The port of collectives, with a direct algorithm for each: everyone sends to everyone.

    Direct is best for small arrays on a switch that never blocks: an all-reduce takes two
    latencies. Reductions go in rank order, so the result equals a plain loop over the ranks.

    `combine` joins two arrays and is associative. What a method gets it must not change, and what
    it gives back shares no memory with what it got.
    """

    async def all_reduce(self, ranks: Ranks, array: Array, combine: Combine) -> Array:
        """Every rank gets the reduction of all arrays: reduce-scatter, then all-gather."""
        if ranks.size == 1:
            return array.copy()
        mine = await self.reduce_scatter(ranks, split(array, ranks.size), combine)
        parts = await self.all_gather(ranks, mine)
        return np.concatenate(parts).reshape(array.shape)

    async def reduce_scatter(self, ranks: Ranks, parts: Sequence[Array], combine: Combine) -> Array:
        """Rank r gets the reduction of everybody's part r."""
        me = ranks.rank
        for peer in others(ranks):
            ranks.post(peer, parts[peer])
        total: Array | None = None
        for source in range(ranks.size):
            part = parts[me] if source == me else await ranks.take(source)
            total = part if total is None else combine(total, part)
        assert total is not None
        return total.copy()

    async def all_gather(self, ranks: Ranks, array: Array) -> list[Array]:
        """Every rank gets the arrays of all, in rank order; their shapes may differ."""
        for peer in others(ranks):
            ranks.post(peer, array)
        me = ranks.rank
        return [array.copy() if r == me else await ranks.take(r) for r in range(ranks.size)]

    async def broadcast(self, ranks: Ranks, array: Array | None, root: int) -> Array:
        """Every rank gets the array of the root."""
        if ranks.rank != root:
            return await ranks.take(root)
        assert array is not None
        for peer in others(ranks):
            ranks.post(peer, array)
        return array.copy()

    async def reduce(self, ranks: Ranks, array: Array, combine: Combine, root: int) -> Array | None:
        """The root gets the reduction of all arrays, in rank order; the others None."""
        if ranks.rank != root:
            ranks.post(root, array)
            return None
        total: Array | None = None
        for source in range(ranks.size):
            part = array if source == root else await ranks.take(source)
            total = part if total is None else combine(total, part)
        assert total is not None
        return total.copy()

    async def gather(self, ranks: Ranks, array: Array, root: int) -> list[Array] | None:
        """The root gets the arrays of all, in rank order; the others None."""
        if ranks.rank != root:
            ranks.post(root, array)
            return None
        return [array.copy() if r == root else await ranks.take(r) for r in range(ranks.size)]

    async def scatter(self, ranks: Ranks, parts: Sequence[Array] | None, root: int) -> Array:
        """Rank r gets part r of the root's parts."""
        if ranks.rank != root:
            return await ranks.take(root)
        assert parts is not None
        for peer in others(ranks):
            ranks.post(peer, parts[peer])
        return parts[root].copy()

    async def all_to_all(self, ranks: Ranks, parts: Sequence[Array]) -> list[Array]:
        """Rank r gets everybody's part r, in rank order."""
        me = ranks.rank
        for peer in others(ranks):
            ranks.post(peer, parts[peer])
        return [parts[me].copy() if r == me else await ranks.take(r) for r in range(ranks.size)]

    async def scan(self, ranks: Ranks, array: Array, combine: Combine) -> Array:
        """Rank r gets the reduction of the arrays of ranks 0 to r, by a chain."""
        total = array
        if ranks.rank > 0:
            total = combine(await ranks.take(ranks.rank - 1), array)
        if ranks.rank < ranks.size - 1:
            ranks.post(ranks.rank + 1, total)
        return total.copy()

    async def barrier(self, ranks: Ranks) -> None:
        """Nobody leaves before all have come: dissemination (Hensgen et al., 1988)."""
        nothing = np.empty(0, np.uint8)
        distance = 1
        while distance < ranks.size:
            ranks.post((ranks.rank + distance) % ranks.size, nothing)
            await ranks.take((ranks.rank - distance) % ranks.size)
            distance *= 2

    def sent_B(
        self, kind: str, rank: int, items: Sequence[int], itemsize: int, root: int = 0
    ) -> int | None:
        """The bytes that a rank sends, in closed form; the laws compare it with what was counted.

        `items[j]` is the number of elements in part j (reduce-scatter, scatter, all-to-all), in the
        block of rank j (gather, all-gather), or in part j of the whole array by `split` (the rest).
        A subclass that overrides an algorithm overrides its figure, or gives None for a kind whose
        bytes depend on the data, as with compression.
        """
        size, total = len(items), sum(items)
        at_root = rank == root
        match kind:
            case "all_reduce":
                halves = [
                    self.sent_B(half, rank, items, itemsize)
                    for half in ("reduce_scatter", "all_gather")
                ]
                known = [half for half in halves if half is not None]
                return sum(known) if len(known) == 2 else None
            case "reduce_scatter" | "all_to_all":
                count = total - items[rank]
            case "all_gather":
                count = (size - 1) * items[rank]
            case "broadcast":
                count = (size - 1) * total if at_root else 0
            case "reduce":
                count = 0 if at_root else total
            case "gather":
                count = 0 if at_root else items[rank]
            case "scatter":
                count = total - items[root] if at_root else 0
            case "scan":
                count = total if rank < size - 1 else 0
            case "barrier":
                count = 0
            case _:
                raise PartError(f"kind={kind!r}: no such collective; {did_you_mean(kind, KINDS)}")
        return count * itemsize


class Ring(Collective):
    """Pass parts around a ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce", JPDC 2009).

    An all-reduce is a reduce-scatter and an all-gather of n - 1 steps each. Every rank sends about
    2 (n - 1) / n times the array, which no algorithm can beat; the price is 2 (n - 1) latencies.
    The reduction of part r begins at rank r + 1 and ends at rank r, so the order is fixed by n.

    Only reduce-scatter and all-gather (and with them all-reduce) go by the ring; the others are
    direct. Parts are not cut into smaller pieces, as each step already keeps every link busy.

    >>> Ring().sent_B("all_reduce", rank=0, items=[25, 25, 25, 25], itemsize=4)
    600
    """

    async def reduce_scatter(self, ranks: Ranks, parts: Sequence[Array], combine: Combine) -> Array:
        n, me = ranks.size, ranks.rank
        if n == 1:
            return parts[0].copy()
        held = parts[(me - 1) % n]
        for step in range(n - 1):
            ranks.post((me + 1) % n, held)
            coming = await ranks.take((me - 1) % n)
            held = combine(coming, parts[(me - step - 2) % n])
        return held

    async def all_gather(self, ranks: Ranks, array: Array) -> list[Array]:
        n, me = ranks.size, ranks.rank
        got = {me: array.copy()}
        held = array
        for step in range(n - 1):
            ranks.post((me + 1) % n, held)
            held = await ranks.take((me - 1) % n)
            got[(me - step - 1) % n] = held
        return [got[r] for r in range(n)]

    def sent_B(
        self, kind: str, rank: int, items: Sequence[int], itemsize: int, root: int = 0
    ) -> int | None:
        if kind == "all_gather":  # every block but that of the next rank, which ends its way there
            return (sum(items) - items[(rank + 1) % len(items)]) * itemsize
        return super().sent_B(kind, rank, items, itemsize, root)


def others(ranks: Ranks) -> list[int]:
    """The other ranks, the next one first, so that not all begin with rank 0."""
    return [(ranks.rank + shift) % ranks.size for shift in range(1, ranks.size)]


__all__ = [
    "KINDS", "OPS", "Array", "Collective", "Combine", "Ranks", "Ring", "combiner", "others",
    "part_items", "split",
]  # fmt: skip
