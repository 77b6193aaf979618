"""A profiler's timeline: what was measured where, without what waited for what."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from orrery.models.taskgraph.graph import SEND
from orrery.systems.ops.chakra.part import Chakra
from orrery.systems.ops.chakra.recording import Recording
from orrery.systems.ops.problems.trace_replay import Replayer
from orrery.world import World

if TYPE_CHECKING:
    from orrery.base.rand import Stream


class ProfilerTimeline(Replayer):
    """Scales the exposed communication of a vendor's timeline (Kineto, Nsight) to other links.

    How it works: a timeline shows when each operation of a rank ran. At each rank, the time in
    which communication ran and compute did not is stretched by the ratio of the links' speeds; the
    slowest rank is the answer. On the links of the recording it gives the recorded time exactly.
    That is all that can be had without dependencies: overlap stays as it was.

    Knobs: none.

    Differs from the tools: they show the timeline and predict nothing; scaling it is what their
    users do by hand.

    >>> from orrery.systems.ops.chakra.part import samples_of_two
    >>> ProfilerTimeline()(*samples_of_two()[0])
    1.5
    """

    def __call__(self, recording: Recording, world: World) -> float:
        graph, times = recording.graph, recording.times
        ratio = link_Bps(recording.world) / link_Bps(world)
        found = 0.0
        for rank in np.unique(graph.rank).tolist():
            mine = graph.rank == rank
            edges = np.unique(np.concatenate([times.start_s[mine], times.end_s[mine]]))
            work = _covered(times, mine & (graph.kind < SEND), edges)
            talk = _covered(times, mine & (graph.kind >= SEND), edges)
            lengths = np.diff(edges)
            exposed = float(lengths[talk & ~work].sum())
            end = float(times.end_s[mine].max())
            found = max(found, end + exposed * (ratio - 1))
        return found

    def reference(self, recording: Recording, world: World) -> float:
        graph, times = recording.graph, recording.times
        ratio = link_Bps(recording.world) / link_Bps(world)
        answers = [0.0]
        for rank in sorted(set(graph.rank.tolist())):
            spans = [(float(times.start_s[t]), float(times.end_s[t]), bool(graph.kind[t] >= SEND))
                     for t in range(len(graph)) if graph.rank[t] == rank]  # fmt: skip
            cuts = sorted({edge for a, b, _ in spans for edge in (a, b)})
            exposed = 0.0
            for low, high in itertools.pairwise(cuts):
                over = [talk for a, b, talk in spans if a <= low and b >= high]
                if over and all(over):
                    exposed += high - low
            answers.append(max(b for _, b, _ in spans) + exposed * (ratio - 1))
        return max(answers)

    def samples(self, rng: Stream) -> Iterable[tuple[Any, ...]]:
        yield from Chakra().samples(rng)


def link_Bps(world: World) -> float:
    """The speed of a node's link, as a data sheet gives it: the slowest NIC."""
    return float(world.wiring().capacity_Bps[: 2 * world.size].min())


def _covered(times: Any, mine: Any, edges: Any) -> Any:
    """Which of the intervals between edges some task of these covers."""
    count = np.zeros(len(edges), np.int64)
    starts, ends = np.searchsorted(edges, times.start_s[mine]), np.searchsorted(
        edges, times.end_s[mine])  # fmt: skip
    np.add.at(count, starts, 1)
    np.add.at(count, ends, -1)
    return np.cumsum(count)[:-1] > 0
