"""The binomial tree: up to the root in log n steps, and down again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orrery.parts.collectives import Array, Collective, Combine, Ranks


class Tree(Collective):
    """Reduce up a binomial tree and broadcast down it (Thakur, Rabenseifner and Gropp, 2005).

    "Optimization of collective communication operations in MPICH". An all-reduce takes
    at most 2 ceil(log2 n) latencies and moves the whole array in each step: good for small arrays
    on many ranks, and far from the best for large ones. At each node of the tree the lower ranks
    stand on the left, so the order of the reduction is fixed by n.

    Gather, scatter, all-to-all and scan are direct.

    >>> Tree().sent_B("all_reduce", rank=0, items=[25, 25, 25, 25], itemsize=4)
    800
    """

    async def all_reduce(self, ranks: Ranks, array: Array, combine: Combine) -> Array:
        total = await self.reduce(ranks, array, combine, 0)
        return await self.broadcast(ranks, total, 0)

    async def reduce(self, ranks: Ranks, array: Array, combine: Combine, root: int) -> Array | None:
        place = (ranks.rank - root) % ranks.size
        total = array
        for child in children(place, ranks.size):
            total = combine(total, await ranks.take((child + root) % ranks.size))
        if place:
            ranks.post((parent(place) + root) % ranks.size, total)
            return None
        return total.copy()

    async def broadcast(self, ranks: Ranks, array: Array | None, root: int) -> Array:
        place = (ranks.rank - root) % ranks.size
        if place:
            array = await ranks.take((parent(place) + root) % ranks.size)
        assert array is not None
        # The child with the largest subtree first, since it has the longest way to go on.
        for child in reversed(list(children(place, ranks.size))):
            ranks.post((child + root) % ranks.size, array)
        return array.copy()

    def sent_B(
        self, kind: str, rank: int, items: Sequence[int], itemsize: int, root: int = 0
    ) -> int | None:
        size, whole_B = len(items), sum(items) * itemsize
        place = (rank - (root if kind != "all_reduce" else 0)) % size
        down_B = len(list(children(place, size))) * whole_B
        up_B = whole_B if place else 0
        sent_B = {"all_reduce": up_B + down_B, "reduce": up_B, "broadcast": down_B}
        if kind in sent_B:
            return sent_B[kind]
        return super().sent_B(kind, rank, items, itemsize, root)


def parent(place: int) -> int:
    """The place without its lowest bit.

    >>> [parent(place) for place in range(1, 8)]
    [0, 0, 2, 0, 4, 4, 6]
    """
    return place & (place - 1)


def children(place: int, size: int) -> Iterator[int]:
    """The places whose parent this is, the smallest subtree first.

    >>> list(children(0, 6)), list(children(4, 6))
    ([1, 2, 4], [5])
    """
    bit = 1
    while place + bit < size and not place & bit:
        yield place + bit
        bit *= 2
