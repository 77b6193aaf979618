"""`GroupRing`: Ring Attention within a group of ranks, beside rows that stay at home.

What the classics share that shard some sequences over some workers: which ranks form a ring is
theirs to say, and so is which blocks travel. Blocks that travel come first in a rank's shard.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orrery.base.errors import PartError
from orrery.models.attention import Array, Block, Blocks, Partial, rows
from orrery.systems.collectives import SequenceAttention


class GroupRing(SequenceAttention):
    """A rank attends to its home rows, then passes K and V round the ring of its group.

    A subclass writes `ring(rank, size)`, the ranks of its ring in order, and `travelling(rank)`,
    how many blocks at the head of the shard go round.
    """

    def ring(self, rank: int, size: int) -> Sequence[int]:
        """The ranks among which the blocks of a rank travel."""
        raise PartError(f"{type(self).__name__} has no ring(rank, size)")

    def travelling(self, rank: int) -> int:
        """How many of a rank's blocks travel; the others stay."""
        return len(self.shards[rank])

    def _roving(self, rank: int) -> Blocks:
        return self.shards[rank][: self.travelling(rank)]

    def _staying(self) -> Blocks:
        return self.mine[self.travelling(self.rank) :]

    async def forward(self, q: Array, k: Array, v: Array) -> Array:
        self.saved = [q, k, v]
        cut = rows(self._roving(self.rank))
        home = await self._part(q[cut:], k[cut:], v[cut:], self._staying())
        away = await self._round(q[:cut], k[:cut], v[:cut])
        lse = self.stacked([away.lse, home.lse])
        self.result = Partial(self.stacked([away.out, home.out]), lse)
        return self.result.out

    async def _part(self, q: Array, k: Array, v: Array, blocks: Blocks) -> Partial:
        made = await self.attend(q, k, v, blocks, blocks)
        return made if made is not None else self.unseen(q.shape)

    async def _round(self, q: Array, k: Array, v: Array) -> Partial:
        members, place = self._ring_now()
        whole, held = None, (k, v)
        for step in range(len(members)):
            blocks = self._roving(members[(place - step) % len(members)])
            self._send_on("kv", step, held)
            part = await self.attend(q, *held, self._roving(self.rank), blocks)
            whole = await self.merge(whole, part)
            held = await self._next("kv", step, held)
        return whole if whole is not None else self.unseen(q.shape)

    async def backward(self, dout: Array) -> tuple[Array, Array, Array]:
        q, k, v = self.saved
        lse, delta = self.result.lse, await self.delta(dout, self.result.out)
        cut = rows(self._roving(self.rank))
        staying = self._staying()
        made = await self.attend_back(
            q[cut:], k[cut:], v[cut:], dout[cut:], lse[cut:], delta[cut:], staying, staying
        )
        home = made or tuple(self.zeros(x[cut:].shape) for x in (q, k, v))
        away = await self._round_back(
            (q[:cut], k[:cut], v[:cut]), (dout[:cut], lse[:cut], delta[:cut])
        )
        dq, dk, dv = (self.stacked([a, b]) for a, b in zip(away, home, strict=True))
        return dq, dk, dv

    async def _round_back(
        self, own: tuple[Array, Array, Array], grads: tuple[Array, Array, Array]
    ) -> tuple[Array, Array, Array]:
        """The gradients of K and V travel one step behind their blocks and come home last."""
        q, k, v = own
        members, place = self._ring_now()
        dq, held = self.zeros(q.shape), (k, v)
        mine, grown = self._roving(self.rank), (self.zeros(k.shape), self.zeros(v.shape))
        for step in range(len(members)):
            blocks = self._roving(members[(place - step) % len(members)])
            self._send_on("kv back", step, held)
            made = await self.attend_back(q, *held, *grads, mine, blocks)
            more = made[1:] if made else tuple(self.zeros(x.shape) for x in held)
            dq = self.add(dq, made[0]) if made else dq
            if step:
                came = await self._gradients(step - 1, blocks)
                more = (self.add(came[0], more[0]), self.add(came[1], more[1]))
            grown = (more[0], more[1])
            if len(members) > 1:
                self.post(members[(place + 1) % len(members)], f"dkv{step}", *grown)
            held = await self._next("kv back", step, held)
        if len(members) > 1:
            grown = await self._gradients(len(members) - 1, mine)
        return (dq, *grown)

    # -- what travels

    def _ring_now(self) -> tuple[Sequence[int], int]:
        members = self.ring(self.rank, self.size)
        return members, members.index(self.rank)

    def _send_on(self, tag: str, step: int, held: tuple[Array, Array]) -> None:
        members, place = self._ring_now()
        if step < len(members) - 1:
            arrays = [self.wire(array) for array in held]
            self.post(members[(place + 1) % len(members)], f"{tag}{step}", *arrays)

    async def _next(self, tag: str, step: int, held: tuple[Array, Array]) -> tuple[Array, Array]:
        members, place = self._ring_now()
        if step == len(members) - 1:
            return held
        blocks = self._roving(members[(place - step - 1) % len(members)])
        kind = self.rows_kind(blocks, self.job.groups)
        k, v = await self.take(members[place - 1], f"{tag}{step}", kind, kind)
        return self.unwire(k), self.unwire(v)

    async def _gradients(self, step: int, blocks: Blocks) -> tuple[Array, Array]:
        members, place = self._ring_now()
        kind = self.rows_kind(blocks, self.job.groups)._replace(dtype=np.float32)
        dk, dv = await self.take(members[place - 1], f"dkv{step}", kind, kind)
        return dk, dv


def lightest_first(sizes: Sequence[tuple[int, int]], bins: int, cap: float) -> list[list[int]]:
    """Deal (work, tokens) to bins: most work first, to the bin with least that has room.

    Where none has room within `cap` tokens, the bin with the fewest tokens takes it.

    >>> lightest_first([(9, 3), (5, 2), (4, 2)], 2, 10.0)
    [[0], [1, 2]]
    """
    load, held = np.zeros(bins), np.zeros(bins)
    found: list[list[int]] = [[] for _ in range(bins)]
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i][0], i)):
        work, tokens = sizes[item]
        fits = held + tokens <= cap
        at = int(np.where(fits, load, np.inf).argmin()) if fits.any() else int(held.argmin())
        load[at] += work
        held[at] += tokens
        found[at].append(item)
    return found


def whole(document: int, length: int) -> Block:
    """A document as one block."""
    return Block(document, 0, length)


__all__ = ["GroupRing", "lightest_first", "whole"]
