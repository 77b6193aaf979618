"""A simulator in the manner of ASTRA-sim: fed by traces, one operation at a time on each unit."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from orrery.base.errors import InternalError
from orrery.models.taskgraph.graph import COLLECTIVE, FREE, RECV, SEND, TaskGraph
from orrery.models.taskgraph.matching import match, refuse_faults
from orrery.models.taskgraph.network import Costs, price
from orrery.models.taskgraph.traces import from_traces, to_traces
from orrery.systems.ops.chakra.part import Chakra
from orrery.systems.ops.chakra.recording import Recording
from orrery.systems.ops.problems.trace_replay import Replayer
from orrery.world import World

if TYPE_CHECKING:
    from orrery.base.rand import Stream

WORK, TALK = 0, 1


class AstraStyle(Replayer):
    """Simulates execution traces as ASTRA-sim does: first ready, first issued, costs by formula.

    After Won et al., "ASTRA-sim2.0" (ISPASS 2023), whose analytical network it follows. How it
    works: the traces are written in the public format and read again; a feeder hands out nodes
    whose dependencies are met; each rank has one unit for work and one for communication, which
    take nodes in the order in which they became ready; a collective starts when all have issued it
    and takes its latencies and bytes over the links' speed. Links are never shared.

    Knobs: none.

    Differs from ASTRA-sim: collectives are not cut into chunks, there is no memory system, and
    the topology is the world's.

    >>> from orrery.systems.ops.chakra.part import samples_of_two
    >>> AstraStyle()(*samples_of_two()[0])
    1.5
    """

    def __call__(self, recording: Recording, world: World) -> float:
        graph = recording.graph.without_communication_times()
        if not len(graph):
            return 0.0
        return _Machine(from_traces(to_traces(graph)), world).run()

    def reference(self, recording: Recording, world: World) -> float:
        graph = recording.graph.without_communication_times()
        if not len(graph):
            return 0.0
        return _slowly(from_traces(to_traces(graph)), world)

    def samples(self, rng: Stream) -> Iterable[tuple[Any, ...]]:
        yield from Chakra().samples(rng)


class _Plan:
    """Events with their costs, what each waits for, and the units that each needs."""

    def __init__(self, graph: TaskGraph, world: World) -> None:
        refuse_faults(graph)
        events = match(graph)
        self.size = len(events)
        self.took = price(graph, events, Costs(world)).alone_s().tolist()
        self.waits = np.diff(events.starts).tolist()
        self.before = [
            events.before[events.starts[e] : events.starts[e + 1]].tolist()
            for e in range(self.size)
        ]
        self.after: list[list[int]] = [[] for _ in range(self.size)]
        for event, before in enumerate(self.before):
            for each in before:
                self.after[each].append(event)
        self.units: list[list[tuple[int, int]]] = [[] for _ in range(self.size)]
        for task in range(len(graph)):
            kind = int(graph.kind[task])
            # A receive only waits; a message is on the sender's unit.
            if kind != RECV and not (kind < SEND and graph.stream[task] != FREE):
                unit = TALK if kind in (SEND, COLLECTIVE) else WORK
                self.units[events.event[task]].append((int(graph.rank[task]), unit))


class _Machine:
    """The event loop: a queue for each unit, a heap of ends."""

    def __init__(self, graph: TaskGraph, world: World) -> None:
        self.plan = _Plan(graph, world)
        self.queues: dict[tuple[int, int], list[int]] = {}
        self.heap: list[tuple[float, int]] = []
        self.begun: set[int] = set()
        self.now = 0.0

    def run(self) -> float:
        plan = self.plan
        waits = list(plan.waits)
        self._queue([event for event in range(plan.size) if not waits[event]])
        left = plan.size
        while self.heap:
            self.now, event = heapq.heappop(self.heap)
            left -= 1
            ready = []
            for other in plan.after[event]:
                waits[other] -= 1
                if not waits[other]:
                    ready.append(other)
            freed = [self.queues[unit] for unit in plan.units[event]]
            for queue in freed:
                queue.pop(0)
            self._queue(sorted(ready))
            for queue in freed:
                if queue:
                    self._issue(queue[0])
        if left:
            raise InternalError(f"{left} events of the trace were never issued")
        return self.now

    def _queue(self, ready: list[int]) -> None:
        """Put ready events at the ends of the queues of their units."""
        for event in ready:
            for unit in self.plan.units[event]:
                self.queues.setdefault(unit, []).append(event)
        for event in ready:
            self._issue(event)

    def _issue(self, event: int) -> None:
        """Begin an event that is first in all its queues, once."""
        queues = [self.queues[unit] for unit in self.plan.units[event]]
        if all(queue[0] == event for queue in queues) and event not in self.begun:
            self.begun.add(event)
            heapq.heappush(self.heap, (self.now + self.plan.took[event], event))


def _slowly(graph: TaskGraph, world: World) -> float:
    """The same, looking at everything at every step."""
    plan = _Plan(graph, world)
    queues: dict[tuple[int, int], list[int]] = {}
    done: set[int] = set()
    queued: set[int] = set()
    ends: dict[int, float] = {}
    now = 0.0
    while len(done) < plan.size:
        for event in range(plan.size):
            if event not in queued and all(each in done for each in plan.before[event]):
                queued.add(event)
                for unit in plan.units[event]:
                    queues.setdefault(unit, []).append(event)
        for event in sorted(queued - done - ends.keys()):
            if all(queues[unit][0] == event for unit in plan.units[event]):
                ends[event] = now + plan.took[event]
        # Of several that end at once, the first goes first, as in a heap.
        now, event = min((end, event) for event, end in ends.items())
        del ends[event]
        done.add(event)
        for unit in plan.units[event]:
            queues[unit].remove(event)
    return now
