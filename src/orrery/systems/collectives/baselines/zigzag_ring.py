"""Zigzag ring attention: Ring Attention whose shards share a causal mask's work evenly."""

from __future__ import annotations

from orrery.models.attention import Layout, contiguous, zigzag
from orrery.systems.collectives.baselines.ring_attention import RingAttention
from orrery.systems.collectives.problems.long_attention import AttentionJob
from orrery.world import World


class ZigzagRing(RingAttention):
    """Ring Attention with an early and a late chunk at each rank (Zhu, ring-flash-attention, 2024).

    Each document is cut into 2 n chunks, and rank r has chunks r and 2 n - 1 - r. Under a causal
    mask every rank then has the same number of visible pairs, up to rounding, in the whole and in
    each step. Without the mask there is nothing to even out and shards are contiguous.

    >>> from orrery.world import World
    >>> len(ZigzagRing().layout(AttentionJob(tokens=8), 2, World.lan(2))[0])
    2
    """

    def layout(self, job: AttentionJob, size: int, world: World) -> Layout:
        return zigzag(job.lengths, size) if job.causal else contiguous(job.lengths, size)
