"""The critical path of a task graph: an independent account of how long it must take.

`longest` knows no clock and no links: it takes a number of seconds for each event and finds the
longest chain, wave by wave in topological order (Kelley, 1961). Where no link is shared a replay
must end exactly then, which is how each checks the other.
"""

from __future__ import annotations

import msgspec
import numpy as np

from orrery.models.taskgraph.graph import Floats, GraphError, Ints, TaskGraph
from orrery.models.taskgraph.matching import Events, match
from orrery.models.taskgraph.network import Costs, price
from orrery.world import World


class Path(msgspec.Struct, frozen=True):
    """The longest chain: its seconds, its tasks from first to last, and their own seconds."""

    seconds: float
    tasks: list[int]
    took_s: Floats


def critical_path(graph: TaskGraph, world: World | Costs | None = None) -> Path:
    """The critical path with the costs that tasks have alone in a world."""
    events = match(graph)
    costs = Costs(world) if isinstance(world, World) else world
    took_s = price(graph, events, costs).alone_s()
    end_s = longest(events, took_s)
    if not len(end_s):
        return Path(0.0, [], np.empty(0))
    chain = _chain(events, end_s)
    chain = chain[chain < len(events.task)]  # helpers are nobody's task
    return Path(float(end_s.max()), events.task[chain].tolist(), took_s[chain])


def longest(events: Events, took_s: Floats) -> Floats:
    """When each event ends at the earliest."""
    size = len(events)
    end_s = np.zeros(size)
    waits = np.diff(events.starts)
    order = np.argsort(events.before, kind="stable")
    after = np.repeat(np.arange(size), waits)[order]
    starts = np.searchsorted(events.before[order], np.arange(size + 1))
    waits = waits.copy()
    begin_s = np.zeros(size)
    wave, seen = np.flatnonzero(waits == 0), 0
    while wave.size:
        end_s[wave] = begin_s[wave] + took_s[wave]
        seen += len(wave)
        counts = starts[wave + 1] - starts[wave]
        from_wave = np.repeat(wave, counts)
        place = np.arange(len(from_wave)) - np.repeat(np.cumsum(counts) - counts, counts)
        to = after[np.repeat(starts[wave], counts) + place]
        np.maximum.at(begin_s, to, end_s[from_wave])
        np.subtract.at(waits, to, 1)
        wave = np.unique(to[waits[to] == 0])
    if seen < size:
        left = np.flatnonzero(waits > 0)
        stuck = int(np.flatnonzero(np.isin(events.gate, left) | np.isin(events.event, left))[0])
        raise GraphError(f"task {stuck}", "waits for itself, through others", "break the cycle")
    return end_s


def _chain(events: Events, end_s: Floats) -> Ints:
    """From the last event back, always to what it waited for longest."""
    at = int(np.argmax(end_s))
    chain = [at]
    while events.starts[at + 1] > events.starts[at]:
        before = events.before[events.starts[at] : events.starts[at + 1]]
        at = int(before[np.argmax(end_s[before])])
        chain.append(at)
    return np.array(chain[::-1], np.int64)
