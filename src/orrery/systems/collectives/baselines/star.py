"""The star: one rank reduces for all, as a single parameter server does."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.base.errors import PartError
from orrery.parts import Whole
from orrery.parts.collectives import Array, Collective, Combine, Ranks


class Star(Collective):
    """All send to one rank, which reduces in rank order and sends the result to all.

    Two latencies, but the link of the middle carries 2 (n - 1) times the array, so the time grows
    with the number of ranks. It is what one parameter server does (Li et al., "Scaling distributed
    machine learning with the parameter server", OSDI 2014, with one server).

    Knobs: `middle`, the rank that reduces.
    Differs from the paper: synchronous, one server, and the server is a worker too.

    >>> Star().sent_B("all_reduce", rank=0, items=[25, 25, 25, 25], itemsize=4)
    1200
    """

    middle: Whole = 0

    async def all_reduce(self, ranks: Ranks, array: Array, combine: Combine) -> Array:
        middle = self._middle(ranks.size)
        total = await self.reduce(ranks, array, combine, middle)
        return await self.broadcast(ranks, total, middle)

    def _middle(self, size: int) -> int:
        if self.middle >= size:
            raise PartError(f"Star.middle: {self.middle} is no rank; ranks are 0..{size - 1}")
        return self.middle

    def sent_B(
        self, kind: str, rank: int, items: Sequence[int], itemsize: int, root: int = 0
    ) -> int | None:
        if kind == "all_reduce":
            copies = len(items) - 1 if rank == self._middle(len(items)) else 1
            return copies * sum(items) * itemsize
        return super().sent_B(kind, rank, items, itemsize, root)
