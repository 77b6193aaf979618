"""`Chakra`: replays an execution trace in any modelled cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from orrery.models.taskgraph.executor import replay
from orrery.models.taskgraph.graph import Builder, TaskGraph
from orrery.models.taskgraph.network import Costs
from orrery.models.taskgraph.unroll import unroll
from orrery.parts import Whole
from orrery.systems.ops.chakra.plain import plain_replay
from orrery.systems.ops.chakra.recording import Recording
from orrery.systems.ops.problems.trace_replay import Replayer
from orrery.world import World

if TYPE_CHECKING:
    from orrery.base.rand import Stream


class Chakra(Replayer):
    """Replays a traced job in a world: recorded compute, communication by the world's links.

    After "MLCommons Chakra: Advancing Performance Benchmarking and Co-design using Standardized
    Execution Traces" (2026). How it works: an execution trace holds the operations of one rank with
    what they wait for. `orrery.inputs.chakra` reads and writes the public format; `from_profile`
    and `from_spans` make traces from profiles of PyTorch and from Orrery's own runs; `analysis`
    finds critical path, overlap, exposed communication and stragglers; `transformer_step` and
    `statistical_clone` generate traces from a description or from statistics; `Feeder` hands out
    nodes in a legal order. This part drops the recorded times of communication, keeps those of
    compute, and runs the graph on the links of the world, which flows share max-min fairly.
    `TraceRank` does the same for real. It takes O(tasks + dependencies + flows x links).

    Knobs: `contention`, whether communications that share a link slow each other down; `unroll`,
    up to which size of group collectives go message by message (larger ones are one transfer with
    the latencies and bytes of their algorithm); `recorded_times`, whether communication takes its
    recorded time after all.

    Differs from the paper: it says what the format is for, not how replay must time it, so the
    network is Orrery's; collection, matching, statistics and replay are our design. Compute takes
    its recorded time on any machine: a trace does not tell what another device would need.

    >>> from orrery.systems.ops.chakra.part import samples_of_two
    >>> Chakra()(*samples_of_two()[0])
    1.5
    """

    contention: bool = True
    unroll: Whole = 16
    recorded_times: bool = False

    def __call__(self, recording: Recording, world: World) -> float:
        graph = recording.graph
        if self.recorded_times:
            return replay(graph).seconds
        bare = graph.without_communication_times()
        times = replay(bare, Costs(world), contention=self.contention, unroll=self.unroll)
        return times.seconds

    def reference(self, recording: Recording, world: World) -> float:
        if self.recorded_times:
            return plain_replay(recording.graph, None)
        bare = recording.graph.without_communication_times()
        return plain_replay(unroll(bare, self.unroll).graph, world, self.contention)

    def samples(self, rng: Stream) -> Iterable[tuple[Any, ...]]:
        yield from samples_of_two()
        for size in (2, 3, 5):
            graph = random_graph(rng, size, 12)
            world = World.star(size, latency_s=1e-3, bandwidth_Bps=1e6, jitter=0.0, model="flows")
            yield Recording(graph, replay(graph, world), world), world


def samples_of_two() -> list[tuple[Recording, World]]:
    """Two small jobs: compute alone, and nothing at all."""
    world = World.lan(2)
    make = Builder(2)
    make.compute(0, 0.5)
    make.compute(0, 1.0)
    graphs = (make.graph(), Builder(2).graph())
    return [(Recording(graph, replay(graph), world), world) for graph in graphs]


def random_graph(rng: Stream, ranks: int, steps: int) -> TaskGraph:
    """A job of random compute, messages and collectives whose traces agree."""
    make = Builder(ranks)
    everyone = make.group(range(ranks), "all")
    last: list[list[int]] = [[] for _ in range(ranks)]
    for step in range(steps):
        kind = rng.below(3)
        if kind == 0:
            rank = rng.below(ranks)
            after = last[rank] if rng.random() < 0.7 else []
            last[rank] = [make.compute(rank, round(rng.uniform(0.001, 0.05), 9), after=after)]
        elif kind == 1:
            source, target = rng.sample(range(ranks), 2)
            size = float(rng.randint(0, 60_000))
            make.send(source, target, size, tag=step, after=last[source])
            last[target] = [make.recv(target, source, size, tag=step, after=last[target])]
        else:
            op = rng.choice(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
            size = float(rng.randint(1, 60_000))
            last = [[make.collective(r, op, everyone, size, after=last[r])] for r in range(ranks)]
    return make.graph()
