"""Bidirectional ring attention: half of each block of K and V goes each way round."""

from __future__ import annotations

from typing import ClassVar

from orrery.models.attention import Blocks, halves
from orrery.systems.collectives.baselines.zigzag_ring import ZigzagRing


class BidirectionalRing(ZigzagRing):
    """Zigzag ring attention in which half of each K/V block travels each way round the ring.

    Both directions of every cable of the ring work, so each carries half of what Ring Attention
    puts on one: n - 1 blocks forwards. Nothing else changes; a step attends to two half blocks.

    >>> BidirectionalRing().ways
    (1, -1)
    """

    ways: ClassVar[tuple[int, ...]] = (1, -1)

    def lanes(self, rank: int) -> tuple[Blocks, ...]:
        return halves(self.shards[rank])
