"""`FCP`: attention over a batch whose blocks stand anywhere."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Annotated

import msgspec
import numpy as np

from orrery.models.attention import Array, Block, Blocks, Layout, Partial, rows, zigzag
from orrery.parts import Count, Whole
from orrery.systems.collectives import AttentionJob, SequenceAttention
from orrery.systems.train.fcp.packing import Limits
from orrery.systems.train.fcp.rounds import Parcel, Plan, plan, plan_for
from orrery.world import World

Cap = Annotated[float, msgspec.Meta(ge=1)]


class FCP(SequenceAttention):
    """Cut sequences into blocks, pack them for equal work, and fetch keys from wherever they are.

    "Unleashing Scalable Context Parallelism for Foundation Models Pre-Training via FCP", 2026.

    A causal query block costs all keys before it and half its own square. Documents with little
    work stay whole; the blocks of the others go, longest first, to the workers with least work,
    within a limit of tokens a worker and over as few workers as balance allows; swaps then save
    bytes. What each worker must fetch is cut into parcels, and these are coloured into rounds in
    which a worker sends one parcel and receives one at most. A worker attends to its own keys
    while the first parcel comes, and to each parcel while the next comes; a running log-sum-exp
    merges the results. Backwards K and V take the same edges, and dK and dV the reversed ones.

    It gains where several sequences of unlike length compete. Where one has most of the work, a
    zigzag ring of all workers is as good; where all fit on a worker, data parallelism is. The
    packing knows work and tokens, not links: groups that stay within a machine can beat it.

    Knobs: `block_tokens`; `cap`, the most tokens of a worker over the mean; `capacity_tokens`,
    what a worker's memory holds (0: any number); `parcel_tokens`, from which a parcel is full;
    `window`, parcels that a worker has under way at once; `swaps`, how many exchanges are tried;
    `anywhere`, whether blocks may stand anywhere (off: each sequence is cut in zigzag over all
    workers, as a ring needs it).

    **Differs from the paper**: its cost model, packing, colouring and swaps are our design, as are
    the group of workers that a long document is dealt to and `parcel_tokens`. Rounds order the
    parcels of a worker; no barrier separates them. K and V are fetched again backwards rather than
    kept; gradients travel in fp32.

    >>> from orrery.world import World
    >>> job = AttentionJob(documents=(4096, 700, 30))
    >>> [len(blocks) for blocks in FCP().layout(job, 2, World.lan(2))]
    [3, 3]
    """

    block_tokens: Count = 1024
    cap: Cap = 1.25
    capacity_tokens: Whole = 0
    parcel_tokens: Count = 4096
    window: Count = 4
    swaps: Whole = 4000
    anywhere: bool = True

    def plan(self, job: AttentionJob, size: int) -> Plan:
        """Where the blocks of a batch stand, and the rounds of their exchange."""
        if not self.anywhere:
            shards = zigzag(job.lengths, size)
            return plan_for(shards, job.lengths, job.causal, self.parcel_tokens)
        limits = Limits(self.block_tokens, self.cap, self.capacity_tokens, self.swaps)
        return plan(job.lengths, size, job.causal, limits, self.parcel_tokens)

    def layout(self, job: AttentionJob, size: int, world: World) -> Layout:
        return self.plan(job, size).layout

    async def forward(self, q: Array, k: Array, v: Array) -> Array:
        self.saved = [q, k, v]
        self.planned = self.plan(self.job, self.size)
        _, gathered = await self.all(self._send("kv"), self._gather())
        self.result: Partial = gathered
        return self.result.out

    async def backward(self, dout: Array) -> tuple[Array, Array, Array]:
        self.grown = [self.zeros(x.shape) for x in self.saved]
        self.dout, self.rowsum = dout, await self.delta(dout, self.result.out)
        await self.all(self._send("kv back"), self._give_back(), self._collect())
        dq, dk, dv = self.grown
        return dq, dk, dv

    # -- rows of blocks

    def _rows(self, blocks: Blocks) -> slice | Array:
        """Where rows of some own blocks stand in this rank's arrays; if sized, only how many."""
        if self.job.sized:
            return slice(0, rows(blocks))
        return _places(self.mine, blocks)

    def _asking(self, parcel: Parcel) -> Blocks:
        """The own blocks whose queries see something of a parcel."""
        return _asking(self.mine, parcel.blocks, self.job.causal)

    def _add(self, which: int, blocks: Blocks, more: Array) -> None:
        """Add to some rows of dQ, dK or dV; in sized mode there is nothing to add."""
        if not self.job.sized:
            self.grown[which][self._rows(blocks)] += more

    # -- the exchange

    async def _send(self, tag: str) -> None:
        """Parcels in the order of the rounds, so many under way at once as the window allows."""
        lanes = range(min(self.window, len(self.planned.sends(self.rank))))
        queue = iter(self.planned.sends(self.rank))
        await self.all(*(self._send_lane(tag, queue) for _ in lanes))

    async def _send_lane(self, tag: str, queue: Iterator[Parcel]) -> None:
        _, k, v = self.saved
        for parcel in queue:
            here = self._rows(parcel.blocks)
            arrays = (self.wire(k[here]), self.wire(v[here]))
            await self.deliver(parcel.target, f"{tag}{parcel.round}", *arrays)

    async def _take(self, tag: str, parcel: Parcel) -> tuple[Array, Array]:
        kind = self.rows_kind(parcel.blocks, self.job.groups)
        k, v = await self.take(parcel.source, f"{tag}{parcel.round}", kind, kind)
        return self.unwire(k), self.unwire(v)

    async def _gather(self) -> Partial:
        """Attend to the own keys, then to each parcel as it comes, and merge."""
        q, k, v = self.saved
        own = await self.attend(q, k, v, self.mine, self.mine)
        if own is None:
            return self.unseen(q.shape)
        out, lse = own
        for parcel in self.planned.takes(self.rank):
            keys, values = await self._take("kv", parcel)
            asking = self._asking(parcel)
            here = self._rows(asking)
            part = await self.attend(q[here], keys, values, asking, parcel.blocks)
            whole = await self.merge(Partial(out[here], lse[here]), part)
            if whole is not None and not self.job.sized:
                out[here], lse[here] = whole
        return Partial(out, lse)

    async def _give_back(self) -> None:
        """The own gradients, then what each parcel adds, whose dK and dV go back to its sender."""
        q, k, v = self.saved
        lse = self.result.lse
        made = await self.attend_back(
            q, k, v, self.dout, lse, self.rowsum, self.mine, self.mine
        )  # fmt: skip
        for which, more in enumerate(made or ()):
            self._add(which, self.mine, more)
        for parcel in self.planned.takes(self.rank):
            keys, values = await self._take("kv back", parcel)
            asking = self._asking(parcel)
            here = self._rows(asking)
            made = await self.attend_back(
                q[here], keys, values, self.dout[here], lse[here], self.rowsum[here],
                asking, parcel.blocks,
            )  # fmt: skip
            dq, dk, dv = made or (q[here], self.zeros(keys.shape), self.zeros(values.shape))
            if made:
                self._add(0, asking, dq)
            self.post(parcel.source, f"dkv{parcel.round}", dk, dv)

    async def _collect(self) -> None:
        """Add what the others found for the own keys, along the reversed edges."""
        for parcel in self.planned.sends(self.rank):
            kind = self.rows_kind(parcel.blocks, self.job.groups)._replace(dtype=np.float32)
            dk, dv = await self.take(parcel.target, f"dkv{parcel.round}", kind, kind)
            self._add(1, parcel.blocks, dk)
            self._add(2, parcel.blocks, dv)


@functools.lru_cache(maxsize=4096)
def _offsets(mine: Blocks) -> dict[Block, tuple[int, int]]:
    found: dict[Block, tuple[int, int]] = {}
    at = 0
    for block in mine:
        found[block] = (at, at + block.stop - block.start)
        at = found[block][1]
    return found


@functools.lru_cache(maxsize=1 << 16)
def _places(mine: Blocks, blocks: Blocks) -> slice | Array:
    """A slice where the rows follow each other, else their numbers."""
    spans = [_offsets(mine)[block] for block in blocks]
    if all(a[1] == b[0] for a, b in itertools.pairwise(spans)):
        return slice(spans[0][0], spans[-1][1]) if spans else slice(0, 0)
    return np.concatenate([np.arange(lo, hi) for lo, hi in spans])


def _asking(mine: Blocks, keys: Blocks, causal: bool) -> Blocks:
    first: dict[int, int] = {}
    for block in keys:
        first[block.document] = min(block.start, first.get(block.document, block.start))
    return tuple(
        block for block in mine
        if block.document in first and (not causal or block.stop > first[block.document])
    )  # fmt: skip


__all__ = ["FCP"]
