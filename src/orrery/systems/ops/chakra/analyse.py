"""Analysis of a replayed or recorded job: where its time goes.

Critical path, how far compute and communication overlap, how much communication is exposed (nothing
else runs at its rank meanwhile), bytes of each group, and ranks that others wait for.
"""

from __future__ import annotations

import msgspec
import numpy as np

from orrery.models.taskgraph.executor import Times
from orrery.models.taskgraph.graph import COLLECTIVE, KINDS, OPS, SEND, Floats, TaskGraph
from orrery.models.taskgraph.matching import match


class Analysis(msgspec.Struct, frozen=True):
    """What was found; seconds by rank are arrays.

    `exposed_s` is communication while the rank computes nothing, `overlapped_s` the rest of it;
    `waited_s` is how long each rank waited at collectives for others to come, and `caused_s` how
    long the others waited for this one, as the last to come. `stragglers` are the ranks that caused
    far more than their share.
    """

    seconds: float
    path: list[int]
    path_by_kind_s: dict[str, float]
    compute_s: Floats
    communication_s: Floats
    exposed_s: Floats
    overlapped_s: Floats
    group_bytes: dict[str, float]
    waited_s: Floats
    caused_s: Floats
    stragglers: list[int]


def analysis(graph: TaskGraph, times: Times) -> Analysis:
    """The analysis of a graph with the times of a replay, or of a recording."""
    path = _path(graph, times)
    took = times.end_s - times.start_s
    by_kind: dict[str, float] = {}
    for task in path:
        kind = KINDS[graph.kind[task]]
        by_kind[kind] = by_kind.get(kind, 0.0) + float(took[task])
    busy = np.zeros((graph.ranks, 3))
    for rank in range(graph.ranks):
        mine = graph.rank == rank
        work = _spans(times, mine & (graph.kind < SEND))
        talk = _spans(times, mine & (graph.kind >= SEND))
        both = _length(work) + _length(talk) - _length(np.concatenate([work, talk]))
        busy[rank] = _length(work), _length(talk), both
    waited, caused = _waits(graph, times)
    share = caused.sum() / max(graph.ranks, 1)
    # A rank that causes twice its share, and more than a hundredth of the step, holds others up.
    late = (caused > 2 * share) & (caused > 0.01 * times.seconds)
    return Analysis(
        seconds=times.seconds, path=path, path_by_kind_s=by_kind, compute_s=busy[:, 0],
        communication_s=busy[:, 1], exposed_s=busy[:, 1] - busy[:, 2], overlapped_s=busy[:, 2],
        group_bytes=_group_bytes(graph), waited_s=waited, caused_s=caused,
        stragglers=np.flatnonzero(late).tolist(),
    )  # fmt: skip


def _spans(times: Times, mine: np.ndarray) -> np.ndarray:
    return np.stack([times.start_s[mine], times.end_s[mine]], axis=1)


def _length(spans: np.ndarray) -> float:
    """The length of the union of some intervals."""
    if not len(spans):
        return 0.0
    order = np.argsort(spans[:, 0], kind="stable")
    start, end = spans[order, 0], np.maximum.accumulate(spans[order, 1])
    new = np.concatenate(([True], start[1:] > end[:-1]))
    first = np.flatnonzero(new)
    last = np.concatenate((first[1:] - 1, [len(end) - 1]))
    return float((end[last] - start[first]).sum())


def _path(graph: TaskGraph, times: Times) -> list[int]:
    """From the last task back: what ended last of all that it waited for."""
    if not len(graph):
        return []
    events = match(graph)
    size = len(events)
    end = np.zeros(size)
    np.maximum.at(end, events.event, times.end_s)
    lead = np.full(size, -1, np.int64)
    # Of a collective that is one event, the member that came last stands for it.
    order = np.argsort(times.start_s, kind="stable")
    lead[events.event[order]] = order
    for helper in range(len(events.task), size):
        before = events.before[events.starts[helper] : events.starts[helper + 1]]
        end[helper] = end[before].max() if len(before) else 0.0
    at = int(np.argmax(end[: len(events.task)]))
    chain = []
    while True:
        if lead[at] >= 0:
            chain.append(int(lead[at]))
        before = events.before[events.starts[at] : events.starts[at + 1]]
        if not len(before):
            return chain[::-1]
        at = int(before[np.argmax(end[before])])


def _group_bytes(graph: TaskGraph) -> dict[str, float]:
    """Bytes of the calls of each kind of group (the first word of its name) and collective."""
    found: dict[str, float] = {}
    for group, members in enumerate(graph.groups):
        mine = (graph.group == group) & (graph.rank == members[0]) & (graph.kind == COLLECTIVE)
        label = (graph.group_names[group] or "all").split()[0]
        for op in np.unique(graph.op[mine]).tolist():
            key = f"{label} {OPS[op]}"
            size = float(graph.size_B[mine & (graph.op == op)].sum())
            found[key] = found.get(key, 0.0) + size
    return found


def _waits(graph: TaskGraph, times: Times) -> tuple[Floats, Floats]:
    """(how long each rank waited at collectives, how long it made the others wait)."""
    waited, caused = np.zeros(graph.ranks), np.zeros(graph.ranks)
    came = _arrivals(graph, times)
    for group, members in enumerate(graph.groups):
        rows = [np.flatnonzero((graph.group == group) & (graph.rank == rank)) for rank in members]
        if len(members) < 2 or not all(len(row) == len(rows[0]) for row in rows):
            continue
        table = came[np.stack(rows)]
        last = table.max(axis=0)
        lost = last - table
        for place, rank in enumerate(members):
            waited[rank] += float(lost[place].sum())
            first = table.argmax(axis=0) == place
            # What the others lose by the last to come, beyond the last but one.
            second = np.sort(table, axis=0)[-2]
            caused[rank] += float((last - second)[first].sum())
    return waited, caused


def _arrivals(graph: TaskGraph, times: Times) -> Floats:
    """When each task was ready: the end of the last thing that its own rank had before it."""
    ready = np.zeros(len(graph))
    owner = np.repeat(np.arange(len(graph)), np.diff(graph.dep_starts))
    np.maximum.at(ready, owner, times.end_s[graph.deps])
    tasks = np.flatnonzero(graph.stream >= 0)
    lane = graph.rank[tasks].astype(np.int64) * 256 + graph.stream[tasks]
    order = np.argsort(lane, kind="stable")
    tasks, lane = tasks[order], lane[order]
    same = np.flatnonzero(lane[1:] == lane[:-1])
    np.maximum.at(ready, tasks[same + 1], times.end_s[tasks[same]])
    return ready
