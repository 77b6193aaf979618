"""Head parallelism in even shares: rows for heads by all-to-all, over all devices."""

from __future__ import annotations

from orrery.systems.collectives import Ulysses
from orrery.systems.train.problems.layer_attention import LayerAttention, LayerJob
from orrery.systems.train.problems.splits import Split, even_split
from orrery.world import World


class EvenHeads(LayerAttention, Ulysses):
    """As many heads for every device as for any other (Jacobs et al., DeepSpeed-Ulysses, 2023).

    The attention is that of `Ulysses`; around it stands the layer. Devices beyond the number of
    heads have rows but no heads.

    >>> from orrery.world import World
    >>> EvenHeads().split(LayerJob(tokens=8), 4, World.lan(4)).heads
    (1, 1, 1, 1)
    """

    def split(self, job: LayerJob, size: int, world: World) -> Split:
        return even_split(job.tokens, job.heads, size, size)
