"""Recursive halving and doubling: Rabenseifner's all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orrery.parts.collectives import Array, Collective, Combine, Ranks, part_items, split
from orrery.systems.collectives.baselines.recursive_doubling import Fold, fold_in, fold_out


class RecursiveHalving(Collective):
    """Halve what is still to reduce in each step, then double it back (Rabenseifner, 2004).

    "Optimization of collective reduction operations". A reduce-scatter with partners half as far
    away each step is followed by an all-gather the other way. An all-reduce takes 2 log2 n
    latencies and, for a power of two, no more bytes than a ring: the usual choice for middling
    arrays. Other sizes fold as in `RecursiveDoubling`, at the price of one or two whole arrays.

    Only all-reduce goes this way; the other kinds are direct.

    >>> RecursiveHalving().sent_B("all_reduce", rank=0, items=[25, 25, 25, 25], itemsize=4)
    600
    """

    async def all_reduce(self, ranks: Ranks, array: Array, combine: Combine) -> Array:
        fold = Fold(ranks.rank, ranks.size)
        total = await fold_in(fold, ranks, array, combine)
        if fold.place >= 0 and fold.power > 1:
            parts = split(total, fold.power)
            await self._halve(fold, ranks, parts, combine)
            await self._double(fold, ranks, parts)
            total = np.concatenate(parts).reshape(array.shape)
        return await fold_out(fold, ranks, total)

    async def _halve(self, fold: Fold, ranks: Ranks, parts: list[Array], combine: Combine) -> None:
        """Reduce-scatter: afterwards part `place` is reduced over all."""
        for peer, kept, given in swaps(fold):
            ranks.post(fold.rank_of(peer), joined(parts, given))
            coming = await ranks.take(fold.rank_of(peer))
            mine = joined(parts, kept)
            reduced = combine(mine, coming) if fold.place < peer else combine(coming, mine)
            put_back(parts, kept, reduced)

    async def _double(self, fold: Fold, ranks: Ranks, parts: list[Array]) -> None:
        """All-gather: the same swaps backwards, with what is reduced."""
        for peer, kept, given in reversed(list(swaps(fold))):
            ranks.post(fold.rank_of(peer), joined(parts, kept))
            put_back(parts, given, await ranks.take(fold.rank_of(peer)))

    def sent_B(
        self, kind: str, rank: int, items: Sequence[int], itemsize: int, root: int = 0
    ) -> int | None:
        if kind != "all_reduce":
            return super().sent_B(kind, rank, items, itemsize, root)
        fold = Fold(rank, len(items))
        sent = fold.hands_over * sum(items)
        if fold.place >= 0:
            parts = part_items(sum(items), fold.power)
            for _, kept, given in swaps(fold):
                sent += sum(parts[place] for place in (*kept, *given))
        return sent * itemsize


def swaps(fold: Fold) -> list[tuple[int, range, range]]:
    """The steps of one place: (partner, the parts that it keeps, those that it gives away).

    >>> swaps(Fold(0, 4))
    [(2, range(0, 2), range(2, 4)), (1, range(0, 1), range(1, 2))]
    """
    steps = []
    low, width = 0, fold.power
    while width > 1:
        width //= 2
        upper = fold.place >= low + width
        halves = range(low, low + width), range(low + width, low + 2 * width)
        low += width if upper else 0
        steps.append((fold.place ^ width, halves[upper], halves[not upper]))
    return steps


def joined(parts: list[Array], which: range) -> Array:
    """Some neighbouring parts as one array."""
    return np.concatenate([parts[place] for place in which])


def put_back(parts: list[Array], which: range, array: Array) -> None:
    """Replace neighbouring parts by an array of their joint length."""
    ends = np.cumsum([0, *(parts[place].size for place in which)])
    for i, place in enumerate(which):
        parts[place] = array[ends[i] : ends[i + 1]]
