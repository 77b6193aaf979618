"""`SplitAttention`: attention by any split: heads swapped within groups, K and V round the ring.

Rows become heads by an all-to-all of unequal parts within each group. Every rank then attends for
its heads from the rows of its group to those of all groups, whose K and V come round the ring in
blocks of unequal size; a running log-sum-exp merges the results. Since groups may cut the heads
differently, a rank may hand on its K and V to several of the next group. Backwards the gradients of
K and V follow their blocks and are added to on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from orrery.models.attention import Array, Blocks, Layout, rows
from orrery.systems.collectives import AttentionJob, Ulysses
from orrery.systems.train.problems.layer_attention import LayerAttention, LayerJob
from orrery.systems.train.problems.splits import (
    Route,
    Split,
    group_blocks,
    head_ranges,
    kv_range,
    returns,
    routes,
    split_layout,
)
from orrery.world import World

Router = Callable[..., tuple[Route, ...]]


class SplitAttention(LayerAttention, Ulysses):
    """Runs whatever `split` says; a subclass writes `split(job, size, world)`.

    How heads of Q share those of K and V is that of `Ulysses`; the swaps are within a group only.
    """

    def layout(self, job: AttentionJob, size: int, world: World) -> Layout:
        assert isinstance(job, LayerJob)
        return split_layout(self.split(job, size, world), job.causal)

    # -- who has what

    def _look(self) -> None:
        """What this rank must know of the split."""
        self.plan: Split = self.split(self.layer, self.size, self.world)
        self.place = self.plan.place_of(self.rank)
        self.mates = self.plan.groups[self.place]
        self.blocks: tuple[Blocks, ...] = group_blocks(self.plan, self.job.causal)
        self.ranges = head_ranges(self.plan.groups, self.plan.heads)

    def _mates(self) -> Sequence[int]:
        return self.mates

    @property
    def _share(self) -> int:
        return self.job.heads // self.job.groups

    def _kv_of(self, rank: int) -> slice:
        return kv_range(self.ranges[rank], self._share)

    def _heads(self, rank: int) -> tuple[slice, slice]:
        return self.ranges[rank], self._kv_of(rank)

    def _hops(self, router: Router, *, out: bool) -> list[Route]:
        """The routes that begin (or end) at this rank."""
        every = router(self.plan.groups, self.plan.heads, self._share)
        return [way for way in every if (way.source if out else way.target) == self.rank]

    # -- forwards

    async def forward(self, q: Array, k: Array, v: Array) -> Array:
        self._look()
        q, k, v = await self._to_heads("qkv", (q, k, v), (0, 1, 1))
        self.saved = [q, k, v]
        whole, held, mine = None, (k, v), self.blocks[self.place]
        for step in range(len(self.plan.groups)):
            self._send_on("kv", step, held)
            if q.shape[1]:
                keys = [self._for_each_head(x) for x in held]
                part = await self.attend(q, keys[0], keys[1], mine, self._at(step))
                whole = await self.merge(whole, part)
            held = await self._next("kv", step, held)
        self.result = whole if whole is not None else self.unseen(q.shape)
        (out,) = await self._to_rows("out", (self.result.out,), (0,), precise=False)
        return out

    def _at(self, step: int) -> Blocks:
        """The blocks that this rank's group meets in a step."""
        return self.blocks[(self.place - step) % len(self.blocks)]

    # -- backwards

    async def backward(self, dout: Array) -> tuple[Array, Array, Array]:
        (grown,) = await self._to_heads("dout", (dout,), (0,))
        q, k, v = self.saved
        lse, delta = self.result.lse, await self.delta(grown, self.result.out)
        dq, held, last = self.zeros(q.shape), (k, v), len(self.plan.groups) - 1
        dkv = (self.zeros(k.shape), self.zeros(v.shape))
        for step in range(last + 1):
            self._send_on("kv back", step, held)
            made = None
            if q.shape[1]:
                keys = [self._for_each_head(x) for x in held]
                made = await self.attend_back(q, keys[0], keys[1], grown, lse, delta,
                                              self.blocks[self.place], self._at(step))  # fmt: skip
            more = tuple(self._for_each_group(x) for x in made[1:]) if made else tuple(
                self.zeros(x.shape) for x in held)  # fmt: skip
            dq = self.add(dq, made[0]) if made else dq
            came = await self._gradients(step - 1, self._at(step)) if step else None
            dkv = (more[0], more[1]) if came is None else (
                self.add(came[0], more[0]), self.add(came[1], more[1]))  # fmt: skip
            if last:
                self._send_gradients(step, dkv)
            held = await self._next("kv back", step, held)
        if last:
            dkv = await self._gradients(last, self.blocks[self.place])
        made_rows = await self._to_rows("dqkv", (dq, *dkv), (0, 1, 1), precise=True)
        return made_rows[0], made_rows[1], made_rows[2]

    # -- heads of Q that begin or end within a group that shares a head of K and V

    def _aligned(self) -> bool:
        mine = self.ranges[self.rank]
        return mine.start % self._share == 0 and mine.stop % self._share == 0

    def _for_each_head(self, x: Array) -> Array:
        """K or V with a head for each of Q, where the heads of Q do not fill their groups."""
        return x if self._aligned() else super()._for_each_head(x)

    def _for_each_group(self, x: Array) -> Array:
        """The gradients of such heads, added up for each that they share."""
        return x if self._aligned() else super()._for_each_group(x)

    # -- the ring

    def _send_on(self, tag: str, step: int, held: tuple[Array, Array]) -> None:
        if step < len(self.blocks) - 1:
            first = self._kv_of(self.rank).start
            for way in self._hops(routes, out=True):
                cut = slice(way.first - first, way.last - first)
                arrays = [self.wire(array[:, cut]) for array in held]
                self.post(way.target, f"{tag}{step}.{way.first}", *arrays)

    async def _next(self, tag: str, step: int, held: tuple[Array, Array]) -> tuple[Array, Array]:
        if step == len(self.blocks) - 1:
            return held
        blocks, found = self._at(step + 1), list[tuple[Array, Array]]()
        for way in sorted(self._hops(routes, out=False), key=lambda way: way.first):
            kind = self.rows_kind(blocks, way.heads)
            k, v = await self.take(way.source, f"{tag}{step}.{way.first}", kind, kind)
            found.append((self.unwire(k), self.unwire(v)))
        if not found:
            none = self.zeros((rows(blocks), 0, self.job.head_dim))
            return none, none
        return self._beside([pair[0] for pair in found]), self._beside([p[1] for p in found])

    def _beside(self, parts: Sequence[Array]) -> Array:
        """Heads of several arrays next to each other."""
        if len(parts) == 1:
            return parts[0]
        return self.stacked([part.swapaxes(0, 1) for part in parts]).swapaxes(0, 1)

    def _send_gradients(self, step: int, dkv: tuple[Array, Array]) -> None:
        first = self._kv_of(self.rank).start
        for way in self._hops(returns, out=True):
            cut = slice(way.first - first, way.last - first)
            self.post(way.target, f"dkv{step}.{way.first}", *(array[:, cut] for array in dkv))

    async def _gradients(self, step: int, blocks: Blocks) -> tuple[Array, Array]:
        """What the group before found for some blocks, of all its ranks together."""
        few = self._kv_of(self.rank)
        total = [self.zeros((rows(blocks), few.stop - few.start, self.job.head_dim))
                 for _ in range(2)]  # fmt: skip
        for way in self._hops(returns, out=False):
            kind = self.rows_kind(blocks, way.heads)._replace(dtype=np.float32)
            came = await self.take(way.source, f"dkv{step}.{way.first}", kind, kind)
            if not self.job.sized:
                for whole, part in zip(total, came, strict=True):
                    whole[:, way.first - few.start : way.last - few.start] += part
        return total[0], total[1]


__all__ = ["SplitAttention"]
