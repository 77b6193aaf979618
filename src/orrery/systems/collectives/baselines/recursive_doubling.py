"""Recursive doubling: in each step, swap with the rank that is twice as far away."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.parts.collectives import Array, Collective, Combine, Ranks


class RecursiveDoubling(Collective):
    """Swap whole arrays with a partner twice as far away each step (Thakur et al., 2005).

    An all-reduce takes log2 n latencies, the least of all, and sends the array log2 n times. Where
    n is no power of two, the first ranks stand in pairs: one hands its array to the other before
    and gets the result after. In each swap the lower group stands on the left at both partners, so
    all ranks compute the same bits. A scan goes in log2 n steps too (Hillis and Steele, 1986).

    The other kinds are direct.

    >>> RecursiveDoubling().sent_B("all_reduce", rank=0, items=[25, 25, 25, 25], itemsize=4)
    800
    """

    async def all_reduce(self, ranks: Ranks, array: Array, combine: Combine) -> Array:
        fold = Fold(ranks.rank, ranks.size)
        total = await fold_in(fold, ranks, array, combine)
        if fold.place >= 0:
            bit = 1
            while bit < fold.power:
                peer = fold.rank_of(fold.place ^ bit)
                ranks.post(peer, total)
                other = await ranks.take(peer)
                low_first = not fold.place & bit
                total = combine(total, other) if low_first else combine(other, total)
                bit *= 2
        return await fold_out(fold, ranks, total)

    async def scan(self, ranks: Ranks, array: Array, combine: Combine) -> Array:
        total = array
        distance = 1
        while distance < ranks.size:
            if ranks.rank + distance < ranks.size:
                ranks.post(ranks.rank + distance, total)
            if ranks.rank >= distance:
                total = combine(await ranks.take(ranks.rank - distance), total)
            distance *= 2
        return total.copy()

    def sent_B(
        self, kind: str, rank: int, items: Sequence[int], itemsize: int, root: int = 0
    ) -> int | None:
        size, whole_B = len(items), sum(items) * itemsize
        if kind == "all_reduce":
            fold = Fold(rank, size)
            steps = fold.power.bit_length() - 1 if fold.place >= 0 else 0
            return (steps + fold.hands_over) * whole_B
        if kind == "scan":  # once for each power of two below the number of ranks behind
            return (size - 1 - rank).bit_length() * whole_B
        return super().sent_B(kind, rank, items, itemsize, root)


class Fold:
    """How n ranks become a power of two: the first 2 (n - power) of them stand in pairs.

    `place` is the rank's number among the power of two that take part, or -1 for the one of a pair
    that stands aside.

    >>> [Fold(rank, 6).place for rank in range(6)]
    [-1, 0, -1, 1, 2, 3]
    """

    def __init__(self, rank: int, size: int) -> None:
        self.power = 1 << (size.bit_length() - 1)
        self.pairs = size - self.power
        in_pair = rank < 2 * self.pairs
        self.mate = rank ^ 1 if in_pair else -1
        self.hands_over = int(in_pair)  # both of a pair send the whole array once
        if in_pair:
            self.place = rank // 2 if rank % 2 else -1
        else:
            self.place = rank - self.pairs

    def rank_of(self, place: int) -> int:
        """The rank that stands at a place."""
        return 2 * place + 1 if place < self.pairs else place + self.pairs


async def fold_in(fold: Fold, ranks: Ranks, array: Array, combine: Combine) -> Array:
    """The one of a pair that stands aside hands its array to the other."""
    if fold.mate < 0:
        return array
    if fold.place < 0:
        ranks.post(fold.mate, array)
        return array
    return combine(await ranks.take(fold.mate), array)


async def fold_out(fold: Fold, ranks: Ranks, total: Array) -> Array:
    """The one that took part hands the result back."""
    if fold.mate >= 0:
        if fold.place < 0:
            return await ranks.take(fold.mate)
        ranks.post(fold.mate, total)
    return total.copy()
