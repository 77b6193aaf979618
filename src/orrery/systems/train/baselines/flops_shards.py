"""Shard lengths in proportion to peak flops, and nothing else."""

from __future__ import annotations

from orrery.parts import Whole
from orrery.systems.train.hexiseq.execution import SplitAttention
from orrery.systems.train.hexiseq.planner import best_mesh, by_rate, cluster_of, kept
from orrery.systems.train.problems.layer_attention import LayerJob
from orrery.systems.train.problems.splits import Split, even_split
from orrery.world import World


class FlopsShards(SplitAttention):
    """Rows by the peak of each device, even heads in groups of equal size.

    The first thing one does with a mixed cluster: a device that is twice as fast gets a shard twice
    as long. Neither links nor memory have a say. Within a group heads are even, so a group of
    unlike devices waits for its slowest.

    Knobs: `wide`, the devices of a group (0: the fastest that divides the devices and fits, by the
    time model).

    >>> from orrery.world import World
    >>> FlopsShards(wide=1).split(LayerJob(tokens=8), 4, World.lan(4)).rows
    (2, 2, 2, 2)
    """

    wide: Whole = 0

    def split(self, job: LayerJob, size: int, world: World) -> Split:
        cluster = cluster_of(world, job)
        rows = tuple(by_rate(cluster))
        if self.wide:
            even = even_split(job.tokens, job.heads, size, min(self.wide, size))
            return even._replace(rows=rows)
        return kept((world.hash, job, "flops shards"), lambda: best_mesh(cluster, rows))
