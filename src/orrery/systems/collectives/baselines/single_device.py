"""Attention on one device, the measure of all ways to spread it."""

from __future__ import annotations

from orrery.models.attention import Array, Layout, Partial, contiguous
from orrery.systems.collectives.problems.long_attention import AttentionJob, SequenceAttention
from orrery.world import World


class SingleDevice(SequenceAttention):
    """Rank 0 has the whole batch and computes alone; the others have nothing to do.

    No byte is sent. Blocks are computed as FlashAttention does (Dao et al., 2022), so memory grows
    with the length and not with its square.

    >>> from orrery.world import World
    >>> [len(blocks) for blocks in SingleDevice().layout(AttentionJob(tokens=9), 3, World.lan(3))]
    [1, 0, 0]
    """

    def layout(self, job: AttentionJob, size: int, world: World) -> Layout:
        return (contiguous(job.lengths, 1)[0], *[()] * (size - 1))

    async def forward(self, q: Array, k: Array, v: Array) -> Array:
        made = await self.attend(q, k, v, self.mine, self.mine)
        self.saved = [q, k, v]
        self.result = made if made is not None else self.unseen(q.shape)
        return self.result.out

    async def backward(self, dout: Array) -> tuple[Array, Array, Array]:
        q, k, v = self.saved
        whole: Partial = self.result
        delta = await self.delta(dout, whole.out)
        made = await self.attend_back(q, k, v, dout, whole.lse, delta, self.mine, self.mine)
        if made is None:
            return self.zeros(q.shape), self.zeros(k.shape), self.zeros(v.shape)
        return made
