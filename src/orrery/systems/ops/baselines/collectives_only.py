"""Replay of the communication alone, as benchmarks of networks do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from orrery.models.taskgraph.executor import replay
from orrery.models.taskgraph.graph import SEND, TaskGraph
from orrery.models.taskgraph.network import Costs
from orrery.models.taskgraph.unroll import unroll
from orrery.parts import Whole
from orrery.systems.ops.chakra.part import Chakra
from orrery.systems.ops.chakra.plain import plain_replay
from orrery.systems.ops.chakra.recording import Recording
from orrery.systems.ops.problems.trace_replay import Replayer
from orrery.world import World

if TYPE_CHECKING:
    from orrery.base.rand import Stream


class CollectivesOnly(Replayer):
    """Replays the messages and collectives of a trace back to back, with no compute between.

    After PARAM's replay of communication traces (Meta, 2020). How it works: what waits for what
    stays, but work takes no time. Where a job only communicates, it is exact; elsewhere it gives
    the least that its communication needs.

    Knobs: `unroll` as in `Chakra`.

    Differs from PARAM: it runs in virtual time on a modelled network, and messages count too.

    >>> from orrery.systems.ops.chakra.part import samples_of_two
    >>> CollectivesOnly()(*samples_of_two()[0])
    0.0
    """

    unroll: Whole = 16

    def __call__(self, recording: Recording, world: World) -> float:
        return replay(_bare(recording.graph), Costs(world), unroll=self.unroll).seconds

    def reference(self, recording: Recording, world: World) -> float:
        return plain_replay(unroll(_bare(recording.graph), self.unroll).graph, world)

    def samples(self, rng: Stream) -> Iterable[tuple[Any, ...]]:
        yield from Chakra().samples(rng)


def _bare(graph: TaskGraph) -> TaskGraph:
    return graph.with_durations(np.where(graph.kind >= SEND, np.nan, 0.0))
