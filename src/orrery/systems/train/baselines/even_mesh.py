"""A mesh of context and head parallelism in even shares."""

from __future__ import annotations

from orrery.parts import Whole
from orrery.systems.train.hexiseq.execution import SplitAttention
from orrery.systems.train.hexiseq.planner import best_mesh, cluster_of, kept
from orrery.systems.train.problems.layer_attention import LayerJob
from orrery.systems.train.problems.splits import Split, even_split
from orrery.world import World


class EvenMesh(SplitAttention):
    """Groups of equal size swap heads, and the groups form a ring (Fang and Zhao, USP, 2024).

    "USP: A Unified Sequence Parallelism Approach for Long Context Generative AI". Every device has
    the same rows and every member of a group the same heads. A width of 1 is a zigzag ring, that
    of all devices is Ulysses.

    Knobs: `wide`, the devices of a group (0: the fastest that divides the devices and fits, by the
    time model, as whoever runs it would tune it).

    >>> from orrery.world import World
    >>> EvenMesh(wide=2).split(LayerJob(tokens=8), 4, World.lan(4)).groups
    ((0, 1), (2, 3))
    """

    wide: Whole = 0

    def split(self, job: LayerJob, size: int, world: World) -> Split:
        if self.wide:
            return even_split(job.tokens, job.heads, size, min(self.wide, size))
        return kept((world.hash, job, "even mesh"), lambda: best_mesh(cluster_of(world, job)))
