"""Orrery's own runs as task graphs: from the spans of a run to what waited for what.

A span tells when something ran, not why. In virtual time a node acts in the very instant in which
something reaches it, so what ended at a node at the instant when the next thing begins there is
taken for its cause; where nothing did, the node slept, and the sleep becomes a task of its own
after the last thing that had ended. With the recorded durations the graph ends exactly when the run
did. What a node did for a reason that lies further back is thereby tied to a later event: a guess
on the safe side, which may keep a replay on faster links from gaining all that a fresh run would.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from orrery.models.taskgraph.executor import Times
from orrery.models.taskgraph.graph import FREE, Builder, GraphError, TaskGraph

MOVES = ("message", "reply", "transfer")


class _Point(NamedTuple):
    """A beginning or an end, in an order in which causes come before effects."""

    time_ns: int
    later: int  # 0 for the end of something that began before this instant
    place: int
    is_end: int


def from_spans(
    spans: Iterable[Any], *, until_ns: int | None = None, ranks: int | None = None
) -> tuple[TaskGraph, Times]:
    """(graph with recorded durations, when its tasks ran) of the spans of a run.

    Spans have `kind`, `name`, `start_ns`, `end_ns`, `node`, and `to` and `size_B` where something
    moved; messages, replies, transfers and compute count, other kinds are left out. `until_ns`, the
    end of the run, adds the time after the last of them.
    """
    rows = [
        span for span in spans
        if span.kind in (*MOVES, "compute") and span.end_ns >= span.start_ns >= 0
    ]  # fmt: skip
    if not rows:
        raise GraphError("spans", "hold no message, transfer or compute",
                         "run with trace=True, or replay the run")  # fmt: skip
    count = 1 + max(max(span.node, span.to if span.kind in MOVES else 0) for span in rows)
    made = _Maker(max(count, ranks or 0))
    points = []
    for place, span in enumerate(rows):
        points.append(_Point(span.start_ns, 1, place, 0))
        points.append(_Point(span.end_ns, int(span.start_ns == span.end_ns), place, 1))
    for point in sorted(points):
        made.see(point, rows[point.place])
    return made.finish(max(span.end_ns for span in rows), until_ns)


class _Maker:
    """Adds tasks in the order of points, and knows what ended last at each node."""

    def __init__(self, ranks: int) -> None:
        self.make = Builder(ranks, source="spans of a run")
        self.last_ns = [0] * ranks
        self.last: list[list[int]] = [[] for _ in range(ranks)]
        self.task: dict[int, int] = {}
        self.start_ns: list[int] = []
        self.end_ns: list[int] = []

    def _note(self, start_ns: int, end_ns: int) -> None:
        self.start_ns.append(start_ns)
        self.end_ns.append(end_ns)

    def _causes(self, node: int, now_ns: int) -> list[int]:
        """What the node waited for: what has just ended, or a sleep since then."""
        gap_ns = now_ns - self.last_ns[node]
        if not gap_ns:
            return list(self.last[node])
        slept = self.make.compute(node, gap_ns / 1e9, name="wait", stream=FREE,
                                  after=self.last[node])  # fmt: skip
        self._note(self.last_ns[node], now_ns)
        return [slept]

    def _ended(self, node: int, now_ns: int, task: int) -> None:
        if self.last_ns[node] != now_ns:
            self.last_ns[node], self.last[node] = now_ns, []
        self.last[node].append(task)

    def see(self, point: _Point, span: Any) -> None:
        node, seconds = span.node, (span.end_ns - span.start_ns) / 1e9
        moves = span.kind in MOVES and span.to != node
        if not point.is_end:
            after = self._causes(node, span.start_ns)
            if moves:
                self.task[point.place] = self.make.send(
                    node, span.to, span.size_B, tag=point.place, duration_s=seconds,
                    name=span.name, after=after)  # fmt: skip
            else:
                self.task[point.place] = self.make.compute(
                    node, seconds, name=span.name, stream=FREE, after=after)  # fmt: skip
            self._note(span.start_ns, span.end_ns)
            return
        if moves:
            got = self.make.recv(span.to, node, span.size_B, tag=point.place, name=span.name)
            self._note(span.end_ns, span.end_ns)
            self._ended(span.to, span.end_ns, got)
        if span.kind in ("compute", "transfer") or not moves:
            # Whoever tells a message does not learn that it came; a transfer and work do end.
            self._ended(node, span.end_ns, self.task[point.place])

    def finish(self, end_ns: int, until_ns: int | None) -> tuple[TaskGraph, Times]:
        if until_ns is not None and until_ns > end_ns:
            node = int(np.argmax(self.last_ns))
            self._causes(node, until_ns)
            end_ns = until_ns
        start, end = np.array(self.start_ns) / 1e9, np.array(self.end_ns) / 1e9
        return self.make.graph(), Times(start, end, end_ns / 1e9)
