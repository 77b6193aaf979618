"""Context parallelism in even shares: a zigzag ring of all devices, whatever they are."""

from __future__ import annotations

from orrery.systems.collectives import ZigzagRing
from orrery.systems.train.problems.layer_attention import LayerAttention, LayerJob
from orrery.systems.train.problems.splits import Split, even_split
from orrery.world import World


class EvenContext(LayerAttention, ZigzagRing):
    """Equal shards on every device, K and V round a ring of all (Zhu, ring-flash-attention, 2024).

    The attention is that of `ZigzagRing`; around it stands the layer. A slow device makes all wait.

    >>> from orrery.world import World
    >>> EvenContext().split(LayerJob(tokens=8), 4, World.lan(4)).rows
    (2, 2, 2, 2)
    """

    def split(self, job: LayerJob, size: int, world: World) -> Split:
        return even_split(job.tokens, job.heads, size, 1)
