"""`replay`: runs a task graph in virtual time, on a world's links or with recorded durations.

Events whose time is known are settled as soon as all that they wait for is; only communications go
through the clock, since they may share links. Rates are max-min fair: progressive filling
(Bertsekas and Gallager, "Data Networks", 1992), solved again for the flows that share links with
the one that came or went. A flow alone on its links costs one heap entry. Time and memory grow with
tasks + dependencies + flows x links of a flow.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import Any

import msgspec
import numpy as np

from orrery.models.taskgraph.graph import Floats, GraphError, TaskGraph
from orrery.models.taskgraph.matching import Events, match, refuse_faults
from orrery.models.taskgraph.network import Costs, Priced, price
from orrery.models.taskgraph.unroll import unroll as unrolled
from orrery.world import World


class Times(msgspec.Struct, frozen=True):
    """When each task of a graph ran: `start_s` and `end_s` by task, and the end of all."""

    start_s: Floats
    end_s: Floats
    seconds: float
    shared: int = 0  # how many communications had to share a link

    def rank_ends(self, graph: TaskGraph) -> Floats:
        """When each rank was done."""
        found = np.zeros(graph.ranks)
        np.maximum.at(found, graph.rank, self.end_s)
        return found


def replay(
    graph: TaskGraph, world: World | Costs | None = None, *, contention: bool = True,
    unroll: int = 0,
) -> Times:  # fmt: skip
    """Run a graph; without a world every task takes its recorded duration.

    With `contention=False` every communication takes the time that it takes alone. Collectives of
    up to `unroll` members go message by message, larger ones as one. A graph whose traces do not
    agree is refused before anything runs.

    >>> from orrery.models.taskgraph import Builder
    >>> make = Builder(1)
    >>> first = make.compute(0, 2.0)
    >>> replay(make.graph()).seconds
    2.0
    """
    refuse_faults(graph)
    if unroll > 1:
        longer = unrolled(graph, unroll)
        if longer.graph is not graph:
            times = _run(longer.graph, world, contention)
            start, end = times.start_s[longer.enter], times.end_s[longer.leave]
            return Times(start, end, times.seconds, times.shared)
    return _run(graph, world, contention)


def _run(graph: TaskGraph, world: World | Costs | None, contention: bool) -> Times:
    events = match(graph)
    costs = Costs(world) if isinstance(world, World) else world
    priced = price(graph, events, costs)
    if not len(events):
        return Times(np.empty(0), np.empty(0), 0.0)
    shared = contention and bool((priced.load >= 0).any())
    run = _Fluid(events, priced) if shared else _Still(events, priced.alone_s())
    run.go()
    if run.settled < len(events):
        raise _stuck(graph, events, run)
    start, end = np.asarray(run.start), np.asarray(run.end)
    # A member of a collective has started when its event has; the wait before is its own.
    return Times(start[events.event], end[events.event], float(end.max()), run.shared)


def _stuck(graph: TaskGraph, events: Events, run: _Still) -> GraphError:
    waits = np.asarray(run.waits)
    stuck = np.flatnonzero(waits > 0)
    task = int(np.flatnonzero(np.isin(events.gate, stuck) | np.isin(events.event, stuck))[0])
    return GraphError(f"task {task}", f"{graph.label(task)} waits for itself, through others",
                      "a task graph has no cycle")  # fmt: skip


class _Still:
    """Events of known length: each starts when the last thing that it waits for has ended."""

    def __init__(self, events: Events, seconds: Floats) -> None:
        size = len(events)
        after = np.repeat(np.arange(size, dtype=np.int32), np.diff(events.starts))
        order = np.argsort(events.before, kind="stable")
        # Views of arrays give plain numbers faster than arrays do, and need no second copy.
        self.after = memoryview(after[order])
        self.starts = memoryview(
            np.searchsorted(events.before[order], np.arange(size + 1)).astype(np.int64)
        )
        self.waits = memoryview(np.diff(events.starts).astype(np.int32))
        self.start = memoryview(np.zeros(size))
        self.end = memoryview(np.zeros(size))
        self.seconds = memoryview(np.ascontiguousarray(seconds))
        self.ready: deque[int] = deque(np.flatnonzero(np.asarray(self.waits) == 0).tolist())
        self.settled = 0
        self.shared = 0

    def go(self) -> None:
        """Settle all that is ready, and what that makes ready, until nothing is."""
        ready, seconds, start, end = self.ready, self.seconds, self.start, self.end
        starts, after, waits = self.starts, self.after, self.waits
        take, give = ready.popleft, ready.append
        settled = 0
        while ready:
            event = take()
            took = seconds[event]
            if took != took:
                self.begin(event)
                continue
            done = start[event] + took
            end[event] = done
            settled += 1
            for k in range(starts[event], starts[event + 1]):
                other = after[k]
                if done > start[other]:
                    start[other] = done
                waits[other] -= 1
                if not waits[other]:
                    give(other)
        self.settled += settled

    def begin(self, event: int) -> None:
        """An event of unknown length is ready."""
        raise GraphError(f"event {event}", "has no length", "give a world")


class _Flow:
    """A communication under way: `left` of 1 is still to do, at `rate` a second."""

    __slots__ = ("alpha_s", "event", "left", "links", "rate", "since", "top", "use", "version")

    def __init__(self, event: int, shape: _Shape, now: float) -> None:
        self.event = event
        self.alpha_s = shape.alpha_s
        self.links = shape.links
        self.use = shape.use
        self.top = shape.top
        self.left = 1.0
        self.rate = 0.0
        self.since = now
        self.version = 0


class _Shape:
    """A load as the executor wants it: plain lists, and its rate when it is alone."""

    __slots__ = ("alone", "alone_s", "alpha_s", "links", "top", "use")

    def __init__(self, load: Any, capacity_Bps: Floats) -> None:
        self.links: list[int] = load.links.tolist()
        self.use: list[float] = load.bytes.tolist()
        self.alpha_s: float = load.alpha_s
        # Fairness is by bytes on the fullest link, so that flows of any form can be compared.
        self.top = max(self.use, default=0.0)
        busy_s = float(np.max(load.bytes / capacity_Bps[load.links])) if self.links else 0.0
        self.alone_s = load.alone_s(capacity_Bps)
        self.alone = math.inf if busy_s == 0 else 1.0 / busy_s


class _Fluid(_Still):
    """Events with communications that share links."""

    def __init__(self, events: Events, priced: Priced) -> None:
        super().__init__(events, priced.fixed_s)
        self.load = memoryview(np.ascontiguousarray(priced.load))
        self.shapes = [_Shape(load, priced.capacity_Bps) for load in priced.loads]
        self.capacity = priced.capacity_Bps.tolist()
        # (time, order, event or -1, flow, version): a start, or the end of a flow.
        self.heap: list[tuple[float, int, int, _Flow | None, int]] = []
        self.users: dict[int, dict[_Flow, None]] = {}
        self.order = 0

    def begin(self, event: int) -> None:
        self.order += 1
        heapq.heappush(self.heap, (self.start[event], self.order, event, None, 0))

    def go(self) -> None:
        super().go()
        heap = self.heap
        while heap:
            now, _, event, flow, version = heapq.heappop(heap)
            if flow is None:
                self._start(event, now)
            elif version == flow.version:
                self._end(flow, now)
            else:
                continue
            super().go()

    def _start(self, event: int, now: float) -> None:
        shape = self.shapes[self.load[event]]
        if shape.alone == math.inf:
            self._settle(event, now + shape.alpha_s)
            return
        flow = _Flow(event, shape, now)
        alone = True
        for link in shape.links:
            users = self.users.get(link)
            if users is None:
                self.users[link] = {flow: None}
            else:
                alone = alone and not users
                users[flow] = None
        if alone:
            flow.rate = shape.alone
            self.order += 1
            # Alone to the end, it takes exactly what the critical path counts for it.
            due = now + (shape.alone_s - shape.alpha_s)
            heapq.heappush(self.heap, (due, self.order, -1, flow, 0))
        else:
            self.shared += 1
            self._share(self._near(flow), now)

    def _end(self, flow: _Flow, now: float) -> None:
        touched: dict[_Flow, None] = {}
        for link in flow.links:
            users = self.users[link]
            del users[flow]
            if users:
                touched.update(users)
        if flow.version == 0:
            # The same sum in the same order as `alone_s`, so that the two agree to the bit.
            self._settle(flow.event, self.start[flow.event] + self._alone_s(flow))
        else:
            self._settle(flow.event, now + flow.alpha_s)
        if touched:
            near: dict[_Flow, None] = {}
            for each in touched:
                if each not in near:
                    near.update(self._near(each))
            self._share(near, now)

    def _alone_s(self, flow: _Flow) -> float:
        return self.shapes[self.load[flow.event]].alone_s

    def _settle(self, event: int, end: float) -> None:
        self.end[event] = end
        self.settled += 1
        for k in range(self.starts[event], self.starts[event + 1]):
            other = self.after[k]
            if end > self.start[other]:
                self.start[other] = end
            self.waits[other] -= 1
            if not self.waits[other]:
                self.ready.append(other)

    def _near(self, flow: _Flow) -> dict[_Flow, None]:
        """All flows that share links with this one, directly or through others."""
        found = {flow: None}
        todo, seen = [flow], set()
        while todo:
            for link in todo.pop().links:
                if link in seen:
                    continue
                seen.add(link)
                for other in self.users[link]:
                    if other not in found:
                        found[other] = None
                        todo.append(other)
        return found

    def _share(self, flows: dict[_Flow, None], now: float) -> None:
        """New rates for these flows, and when each would end with them."""
        for flow in flows:
            flow.left = max(flow.left - flow.rate * (now - flow.since), 0.0)
            flow.since = now
        for flow, rate in fill(flows, self.capacity).items():
            if rate == flow.rate and flow.version:
                # Its end does not move.
                continue
            flow.rate = rate
            flow.version += 1
            self.order += 1
            due = now + flow.left / rate
            heapq.heappush(self.heap, (due, self.order, -1, flow, flow.version))


def fill(flows: Any, capacity: Any) -> dict[Any, float]:
    """Max-min fair rates, as parts of each flow a second, by progressive filling.

    All flows grow alike in bytes a second on their fullest link until a link is full; its flows
    stop there, and the others grow on.
    """
    use: dict[int, float] = {}
    on: dict[int, list[Any]] = {}
    for flow in flows:
        for link, size in zip(flow.links, flow.use, strict=True):
            use[link] = use.get(link, 0.0) + size / flow.top
            on.setdefault(link, []).append(flow)
    left = {link: capacity[link] for link in use}
    waiting = {link: len(on[link]) for link in use}
    rates: dict[Any, float] = {}
    # A link's fair share only grows while others stop, so a stored one is a lower bound.
    heap = [(left[link] / use[link], link) for link in use]
    heapq.heapify(heap)
    while heap:
        level, tight = heap[0]
        if not waiting[tight]:
            heapq.heappop(heap)
            continue
        share = left[tight] / use[tight] if use[tight] > 0 else level
        if share > level:
            heapq.heapreplace(heap, (share, tight))
            continue
        heapq.heappop(heap)
        for flow in on[tight]:
            if flow in rates:
                continue
            rates[flow] = level / flow.top
            for link, size in zip(flow.links, flow.use, strict=True):
                part = size / flow.top
                left[link] -= level * part
                use[link] -= part
                waiting[link] -= 1
    return rates
