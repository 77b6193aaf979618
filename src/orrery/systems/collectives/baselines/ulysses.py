"""Ulysses: swap rows for heads by all-to-all, attend to whole sequences, and swap back."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.attention import Array, Blocks, Partial, rows
from orrery.parts.collectives import part_items
from orrery.systems.collectives.problems.long_attention import SequenceAttention
from orrery.systems.collectives.problems.sequence_worker import Kind, blank


class Ulysses(SequenceAttention):
    """Each rank attends for some heads over all rows (Jacobs et al., DeepSpeed-Ulysses, 2023).

    An all-to-all turns shards of rows with all heads into all rows of a share of the heads; the
    rank attends to whole sequences, and a second all-to-all turns the output back. A rank sends
    about (2 heads + 2 kv_heads) x rows x dim / n numbers forwards, less the more ranks there are,
    but no more than `heads` ranks find work, and nothing overlaps with the compute.

    Where there are fewer heads of K and V than ranks, those who share one each get it. **Differs
    from the paper**: heads need not be divisible by the ranks; gradients travel in fp32.

    >>> Ulysses().heads_of(1, size=3, heads=4, groups=2)
    (slice(2, 3, None), slice(1, 2, None))
    """

    def heads_of(self, rank: int, size: int, heads: int, groups: int) -> tuple[slice, slice]:
        """Which heads of Q a rank attends for, and which of K and V serve them."""
        counts = part_items(heads, size)
        first = sum(counts[:rank])
        last, share = first + counts[rank], heads // groups
        return slice(first, last), slice(first // share, -(-last // share) if counts[rank] else
                                         first // share)  # fmt: skip

    def _heads(self, rank: int) -> tuple[slice, slice]:
        return self.heads_of(rank, self.size, self.job.heads, self.job.groups)

    @property
    def _all_rows(self) -> Blocks:
        return tuple(block for blocks in self.shards for block in blocks)

    async def forward(self, q: Array, k: Array, v: Array) -> Array:
        q, k, v = await self._to_heads("qkv", (q, k, v), (0, 1, 1))
        k, v = self._for_each_head(k), self._for_each_head(v)
        self.saved = [q, k, v]
        whole = None
        if q.shape[1]:
            whole = await self.attend(q, k, v, self._all_rows, self._all_rows)
        self.result = whole if whole is not None else self.unseen(self.saved[0].shape)
        (out,) = await self._to_rows("out", (self.result.out,), (0,), precise=False)
        return out

    async def backward(self, dout: Array) -> tuple[Array, Array, Array]:
        (grown,) = await self._to_heads("dout", (dout,), (0,))
        q, k, v = self.saved
        result: Partial = self.result
        made = None
        if q.shape[1]:
            delta = await self.delta(grown, result.out)
            every = self._all_rows
            made = await self.attend_back(q, k, v, grown, result.lse, delta, every, every)
        parts = made or tuple(self.zeros(x.shape) for x in (q, k, v))
        parts = (parts[0], self._for_each_group(parts[1]), self._for_each_group(parts[2]))
        dq, dk, dv = await self._to_rows("dqkv", parts, (0, 1, 1), precise=True)
        return dq, dk, dv

    # -- a rank's heads of Q may begin or end within a group that shares a head of K and V

    def _served(self) -> list[int]:
        """Which of the own heads of K and V serves each of the own heads of Q."""
        share = self.job.heads // self.job.groups
        mine, few = self._heads(self.rank)
        return [head // share - few.start for head in range(mine.start, mine.stop)]

    def _for_each_head(self, x: Array) -> Array:
        groups = self._served()
        return blank((len(x), len(groups), x.shape[2])) if self.job.sized else x[:, groups]

    def _for_each_group(self, x: Array) -> Array:
        _, few = self._heads(self.rank)
        total = self.zeros((len(x), few.stop - few.start, x.shape[2]))
        if not self.job.sized:
            for head, group in enumerate(self._served()):
                total[:, group] += x[:, head]
        return total

    # -- the two swaps; `which` says of each array whether its heads are those of Q or of K and V

    def _mates(self) -> Sequence[int]:
        """The ranks that swap with each other, in the order of their rows: here all of them."""
        return range(self.size)

    def _others(self) -> list[int]:
        """The other mates, beginning with the next, so that no one waits first."""
        mates = self._mates()
        here = mates.index(self.rank)
        return [*mates[here + 1 :], *mates[:here]]

    async def _to_heads(
        self, tag: str, arrays: tuple[Array, ...], which: tuple[int, ...]
    ) -> list[Array]:
        """My heads of my mates' rows, for my rows of all heads."""
        for peer in self._others():
            theirs = self._heads(peer)
            parts = [x[:, theirs[w]] for x, w in zip(arrays, which, strict=True)]
            if _anything(parts):
                self.post(peer, tag, *(self.wire(part) for part in parts))
        own = self._heads(self.rank)
        found: list[list[Array]] = [[] for _ in arrays]
        for mate in self._mates():
            if mate == self.rank:
                came = [x[:, own[w]] for x, w in zip(arrays, which, strict=True)]
            else:
                kinds = [self.rows_kind(self.shards[mate], own[w].stop - own[w].start)
                         for w in which]  # fmt: skip
                came = [self.zeros(kind.shape) for kind in kinds]
                if any(kind.nbytes for kind in kinds):
                    came = [self.unwire(x) for x in await self.take(mate, tag, *kinds)]
            for parts, part in zip(found, came, strict=True):
                parts.append(part)
        return [self.stacked(parts) for parts in found]

    async def _to_rows(
        self, tag: str, arrays: tuple[Array, ...], which: tuple[int, ...], *, precise: bool
    ) -> list[Array]:
        """My rows of all heads, for my heads of my mates' rows; heads that several have add up."""
        at, places = 0, dict[int, slice]()
        for mate in self._mates():
            places[mate] = slice(at, at + rows(self.shards[mate]))
            at = places[mate].stop
        for peer in self._others():
            parts = [x[places[peer]] for x in arrays]
            if _anything(parts):
                self.post(peer, tag, *(x if precise else self.wire(x) for x in parts))
        heads = (self.job.heads, self.job.groups)
        found = [self.zeros((rows(self.mine), heads[w], self.job.head_dim)) for w in which]
        for mate in self._mates():
            theirs = self._heads(mate)
            if mate == self.rank:
                came = [x[places[mate]] for x in arrays]
            else:
                kinds = [self.rows_kind(self.mine, theirs[w].stop - theirs[w].start)
                         for w in which]  # fmt: skip
                if not any(kind.nbytes for kind in kinds):
                    continue
                if precise:
                    kinds = [Kind(kind.shape) for kind in kinds]
                came = await self.take(mate, tag, *kinds)
                came = came if precise else [self.unwire(x) for x in came]
            if not self.job.sized:
                for total, part, w in zip(found, came, which, strict=True):
                    total[:, theirs[w]] += part
        return found


def _anything(parts: Sequence[Array]) -> bool:
    """Whether there is anything to send: ranks without heads or rows have no part in it."""
    return any(part.size for part in parts)
