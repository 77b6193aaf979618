"""Ulysses: swap rows for heads by all-to-all, attend to whole sequences, and swap back."""

from __future__ import annotations

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

    async def _to_heads(
        self, tag: str, arrays: tuple[Array, ...], which: tuple[int, ...]
    ) -> list[Array]:
        """My heads of all rows, for my rows of all heads."""
        for shift in range(1, self.size):
            peer = (self.rank + shift) % self.size
            theirs = self._heads(peer)
            parts = [x[:, theirs[w]] for x, w in zip(arrays, which, strict=True)]
            self.post(peer, tag, *(self.wire(part) for part in parts))
        own = self._heads(self.rank)
        counts = [part.stop - part.start for part in own]
        found: list[list[Array]] = [[] for _ in arrays]
        for source, blocks in enumerate(self.shards):
            if source == self.rank:
                came = [x[:, own[w]] for x, w in zip(arrays, which, strict=True)]
            else:
                kinds = [self.rows_kind(blocks, counts[w]) for w in which]
                came = [self.unwire(x) for x in await self.take(source, tag, *kinds)]
            for parts, part in zip(found, came, strict=True):
                parts.append(part)
        return [self.stacked(parts) for parts in found]

    async def _to_rows(
        self, tag: str, arrays: tuple[Array, ...], which: tuple[int, ...], *, precise: bool
    ) -> list[Array]:
        """My rows of all heads, for my heads of all rows; heads that several ranks have add up."""
        ends = [0]
        for blocks in self.shards:
            ends.append(ends[-1] + rows(blocks))

        def cut(rank: int) -> list[Array]:
            return [x[ends[rank] : ends[rank + 1]] for x in arrays]

        for shift in range(1, self.size):
            peer = (self.rank + shift) % self.size
            self.post(peer, tag, *(x if precise else self.wire(x) for x in cut(peer)))
        heads = (self.job.heads, self.job.groups)
        count = ends[self.rank + 1] - ends[self.rank]
        found = [self.zeros((count, heads[w], self.job.head_dim)) for w in which]
        for source in range(self.size):
            theirs = self._heads(source)
            if source == self.rank:
                came = cut(source)
            else:
                sizes = [theirs[w].stop - theirs[w].start for w in which]
                kinds = [self.rows_kind(self.mine, size) for size in sizes]
                if precise:
                    kinds = [Kind(kind.shape) for kind in kinds]
                came = await self.take(source, tag, *kinds)
                came = came if precise else [self.unwire(x) for x in came]
            if not self.job.sized:
                for total, part, w in zip(found, came, which, strict=True):
                    total[:, theirs[w]] += part
        return found
