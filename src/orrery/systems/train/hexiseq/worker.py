"""`HexiSeq`: rows and heads by what each device can compute, store and send."""

from __future__ import annotations

from orrery.parts import Whole
from orrery.systems.train.hexiseq.execution import SplitAttention
from orrery.systems.train.hexiseq.planner import best_mesh, cluster_of, kept, plan
from orrery.systems.train.problems.layer_attention import LayerJob
from orrery.systems.train.problems.splits import Split
from orrery.world import World


class HexiSeq(SplitAttention):
    """Cut a long sequence over unlike devices, unevenly in rows and in heads at once.

    "HexiSeq: Accommodating Long Context Training of LLMs over Heterogeneous Hardware", 2026.

    Devices form groups, which swap rows for heads by all-to-all, and the groups a ring, round which
    K and V travel. The outer level of the scheduler takes groups from the tree of bandwidths, cut
    to several widths, orders each ring so that every group reaches the next well, and then splits,
    joins and changes the best of them. The inner level deals whole heads so that a group's slowest
    member is as fast as possible, finds by bisection on the step time how many rows each group can
    take within its memory, rounds to units, and moves single units and heads while that helps. All
    of it asks one time model. Even splits are among the candidates, so no plan is slower than the
    best of these by that model. What fits on no device is refused with what each one lacks.

    Under a causal mask a group has an early and a late run of rows, so that its work is in
    proportion to its rows however the others are cut. The loss of a rank counts by its share of
    the rows, so that the summed gradients are those of one process.

    It gains what the slowest device costs an even split. Shards in proportion to peak flops gain
    the same where nodes are alike inside and neither links nor memory bind; see the tests.

    Knobs: `unit_tokens`, of which a shard is a multiple (0: a 64th of the mean shard); `tries`,
    how many groupings are tried beyond the first; `uneven`, whether splits may be uneven (off: the
    best even mesh).

    **Differs from the paper**: only its abstract was at hand, so scheduler, time model and memory
    model are our design, as are the zigzag runs. Weights and optimiser state are spread evenly, and
    gathering them is taken to be hidden. A plan solves the first groupings and at most `tries`
    more; each costs O(n x g) for n devices in groups of g.

    >>> from orrery.systems.train.problems.mixed_cluster_attention import MixedClusterAttention
    >>> asked = MixedClusterAttention(cluster=("H100-SXM", "A100-80-SXM"), gpus=2, tokens=131072,
    ...                               model="Llama-3.2-3B", dtype="bf16", sized=True)
    >>> HexiSeq(unit_tokens=4096, tries=0).split(asked.batch(), 4, asked.world()).rows
    (49152, 49152, 16384, 16384)
    """

    unit_tokens: Whole = 0
    tries: Whole = 60
    uneven: bool = True

    def split(self, job: LayerJob, size: int, world: World) -> Split:
        key = (world.hash, job, self.unit_tokens, self.tries, self.uneven)
        return kept(key, lambda: self._plan(job, world))

    def _plan(self, job: LayerJob, world: World) -> Split:
        cluster = cluster_of(world, job)
        if not self.uneven:
            return best_mesh(cluster)
        return plan(cluster, unit_tokens=self.unit_tokens, tries=self.tries)


__all__ = ["HexiSeq"]
