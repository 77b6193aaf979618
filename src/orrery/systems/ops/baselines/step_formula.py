"""The step time by formula: bubbles, tensor-parallel calls and one all-reduce of gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from orrery.models.taskgraph.executor import replay
from orrery.models.taskgraph.graph import COLLECTIVE, OPS, SEND
from orrery.models.taskgraph.network import Costs
from orrery.models.taskgraph.transformer import TransformerJob, transformer_step
from orrery.systems.ops.chakra.part import Chakra
from orrery.systems.ops.chakra.recording import Recording
from orrery.systems.ops.problems.trace_replay import Replayer
from orrery.world import World

if TYPE_CHECKING:
    from orrery.base.rand import Stream


class StepFormula(Replayer):
    """The step time of a pipelined job by the formula of its bubble.

    After Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM" (SC 2021): with m micro-batches, p stages and v chunks a step takes
    m (t_f + t_b) (1 + (p - 1) / (v m)), where t_f + t_b is the mean time of a micro-batch at the
    busiest stage, calls of tensor-parallel ranks included; then the gradients are reduced. What a
    job's description does not tell (no description, uneven stages) it cannot know: without one, it
    adds up the busiest rank.

    Knobs: none.

    Differs from the paper: the time of a micro-batch is the mean of the recording, and what
    communication costs comes from the world's links, alone and without contention.

    >>> from orrery.systems.ops.chakra.part import samples_of_two
    >>> StepFormula()(*samples_of_two()[0])
    1.5
    """

    def __call__(self, recording: Recording, world: World) -> float:
        graph, costs = recording.graph, Costs(world)
        inside = np.zeros(graph.ranks)  # of the pipeline
        behind = np.zeros(graph.ranks)  # after it: gradients
        np.add.at(inside, graph.rank, np.where(graph.kind < SEND, graph.duration_s, 0.0))
        for task in np.flatnonzero(graph.kind == COLLECTIVE).tolist():
            members = graph.groups[int(graph.group[task])]
            load = costs.collective(OPS[graph.op[task]], tuple(members),
                                    float(graph.size_B[task]))  # fmt: skip
            alone_s = load.alone_s(costs.capacity_Bps)
            grads = graph.names[graph.name[task]].endswith("grads")
            (behind if grads else inside)[graph.rank[task]] += alone_s
        return _formula(recording.job, inside, behind)

    def reference(self, recording: Recording, world: World) -> float:
        graph, costs = recording.graph, Costs(world)
        inside, behind = [0.0] * graph.ranks, [0.0] * graph.ranks
        for task in range(len(graph)):
            rank = int(graph.rank[task])
            if graph.kind[task] < SEND:
                inside[rank] += float(graph.duration_s[task])
            elif graph.kind[task] == COLLECTIVE:
                members = tuple(graph.groups[int(graph.group[task])])
                size_B = float(graph.size_B[task])
                load = costs.collective(OPS[graph.op[task]], members, size_B)
                where = behind if "grads" in graph.names[graph.name[task]] else inside
                where[rank] += load.alone_s(costs.capacity_Bps)
        return _formula(recording.job, np.array(inside), np.array(behind))

    def samples(self, rng: Stream) -> Iterable[tuple[Any, ...]]:
        yield from Chakra().samples(rng)
        job = TransformerJob(layers=4, hidden=64, sequence=8, vocabulary=8, dp=2, tp=2, pp=2,
                             micro_batches=4, layer_s=0.001)  # fmt: skip
        graph, world = transformer_step(job), World.lan(8, jitter=0.0)
        yield Recording(graph, replay(graph, world), world, job), world


def _formula(job: TransformerJob | None, inside: Any, behind: Any) -> float:
    busiest, last = float(inside.max(initial=0.0)), float(behind.max(initial=0.0))
    if job is None or job.pp == 1:
        return busiest + last
    return busiest * (1 + (job.pp - 1) / (job.chunks * job.micro_batches)) + last
