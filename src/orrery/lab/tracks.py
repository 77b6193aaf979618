"""The timeline of a run: what took time on each node, nested, ready for views of any depth.

A run records messages, reports, faults, computations and transfers. What a node *did* is read from
these: `ask` (from a question to its answer, on the asking node), `serve` (from a question's arrival
to its answer's leaving, on the other), computing, sending bulk data, standing still, being down. An
answer is paired with the earliest open question of the same name between the same two nodes; where
answers overtake each other, two spans of one name may have swapped their ends.

Spans of one node that lie in each other stand below each other; `Tracks.view` gives those of a
stretch of time and of lanes, the longest first to stay, and counts the rest by time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from orrery.base.errors import UsageError
from orrery.lab.folding import MOST_LANES, _brief, _whole, lane_table
from orrery.lab.lanes import Lane, order_of
from orrery.lab.spans import Span, life

if TYPE_CHECKING:
    from orrery.lab.run import Run

MOST_SPANS = 2500
MOST_HITS = 200
MOST_NAMES = 200
MOST_DEPTH = 12
BINS = 200
MOST_QUERY = 60
KINDS = ("down", "paused", "fault", "ask", "serve", "compute", "transfer", "emit", "lost")


class Tracks:
    """The spans of a run as columns, in order of their beginning, with their depth of nesting."""

    def __init__(self, run: Run) -> None:
        found = sorted(spans_of(run), key=lambda s: (s.start_ns, -s.end_ns, s.node))
        most = max([s.node for s in found] + [s.to for s in found], default=0)
        self.order = order_of(run.world, most + 1)
        self.end_ns = max(round(run.seconds * 1e9), max((s.end_ns for s in found), default=1), 1)
        names: dict[str, int] = {}
        self.start = np.array([s.start_ns for s in found], dtype=np.int64)
        self.end = np.array([s.end_ns for s in found], dtype=np.int64)
        self.node = np.array([s.node for s in found], dtype=np.int64)
        self.to = np.array([s.to for s in found], dtype=np.int64)
        self.size_B = np.array([s.size_B for s in found], dtype=np.int64)
        self.kind = np.array([KINDS.index(s.kind) for s in found], dtype=np.int64)
        self.name = np.array([names.setdefault(_label(s), len(names)) for s in found],
                             dtype=np.int64)  # fmt: skip
        self.names = list(names)
        self.told = {i: _brief(s.values) for i, s in enumerate(found) if s.values}
        self.depth = np.array(depths(found), dtype=np.int64)
        self.longest = int((self.end - self.start).max(initial=0))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def places(self) -> int:
        return len(self.order.nodes)

    def totals(self) -> list[dict[str, Any]]:
        """By kind and name: how many, how long in all, the mean and the longest."""
        took = self.end - self.start
        key = self.kind * len(self.names) + self.name if self.names else self.kind
        found = []
        for each in np.unique(key).tolist():
            mine = took[key == each]
            found.append({
                "kind": KINDS[each // len(self.names)], "name": self.names[each % len(self.names)],
                "count": len(mine), "total_s": float(mine.sum()) / 1e9,
                "mean_s": float(mine.mean()) / 1e9, "longest_s": int(mine.max()) / 1e9,
            })  # fmt: skip
        found.sort(key=lambda row: (-row["total_s"], -row["count"], row["name"]))
        return found[:MOST_NAMES]

    def view(
        self,
        from_s: float = 0.0,
        until_s: float | None = None,
        lo: int = 0,
        hi: int | None = None,
        *,
        lanes: int = 24,
        find: str = "",
    ) -> dict[str, Any]:
        """The spans of a stretch of time on a stretch of lanes; `find` marks names that have it."""
        start, end = self._times(from_s, until_s)
        hi = self.places if hi is None else hi
        _whole("lo", lo, 0, self.places - 1)
        _whole("hi", hi, lo + 1, self.places)
        _whole("lanes", lanes, 1, MOST_LANES)
        shown = self.order.lanes(lo, hi, lanes)
        last = int(np.searchsorted(self.start, end, side="right"))
        first = int(np.searchsorted(self.start, start - self.longest, side="left"))
        lane = self._lanes_of(shown, first, last)
        found = np.flatnonzero((lane >= -1) & (self.end[first:last] >= start)) + first
        lane = lane[found - first]
        answer: dict[str, Any] = {
            "from_s": start / 1e9, "until_s": end / 1e9, "end_s": self.end_ns / 1e9, "lo": lo,
            "hi": hi, "places": self.places, "lanes": [each.to_json() for each in shown],
            "kinds": list(KINDS), "found": len(found),
        }  # fmt: skip
        kept, dropped = self._thinned(found, find)
        answer |= self._rows(found[kept], lane[kept])
        answer |= {"left_out": len(dropped), "heat": [], "bins": BINS}
        if len(dropped):
            step = max((end - start) / BINS, 1.0)
            bins = np.clip((self.start[found[dropped]] - start) / step, 0, BINS - 1).astype(int)
            own = np.maximum(lane[dropped], 0)
            heat = np.bincount(own * BINS + bins, minlength=len(shown) * BINS)
            answer["heat"] = heat.reshape(len(shown), BINS).tolist()
        return answer

    def _lanes_of(self, shown: list[Lane], first: int, last: int) -> Any:
        """The lane of each span; -1 where it is the whole network's, -2 where it is out of view."""
        nodes = self.node[first:last]
        table = lane_table(shown, self.places)
        place = self.order.place[np.maximum(nodes, 0)]
        lane = np.where(table[place] >= 0, table[place], -2)
        return np.where(nodes < 0, -1, lane)

    def _thinned(self, found: Any, find: str) -> tuple[Any, Any]:
        """Which spans are shown: the hits of a search and the longest; in order of time."""
        if len(found) <= MOST_SPANS:
            return np.arange(len(found)), np.arange(0)
        weight = (self.end[found] - self.start[found]).astype(np.float64)
        if find:
            weight += np.isin(self.name[found], self._named(find)) * 1e18
        # A stable sort, so that of equal spans the earlier stays.
        by = np.argsort(-weight, kind="stable")
        return np.sort(by[:MOST_SPANS]), np.sort(by[MOST_SPANS:])

    def _rows(self, found: Any, lane: Any) -> dict[str, Any]:
        used, names = np.unique(self.name[found], return_inverse=True)
        rows = zip(
            (self.start[found] / 1e9).tolist(), (self.end[found] / 1e9).tolist(), lane.tolist(),
            self.depth[found].tolist(), self.kind[found].tolist(), names.tolist(),
            self.node[found].tolist(), self.to[found].tolist(), self.size_B[found].tolist(),
            (self.told.get(i, "") for i in found.tolist()), strict=True,
        )  # fmt: skip
        return {"names": [self.names[i] for i in used.tolist()], "spans": [list(r) for r in rows]}

    def search(self, words: str) -> dict[str, Any]:
        """Where spans of a name (or a part of it) are, the first ones one by one."""
        wanted = self._named(words)
        hits = np.flatnonzero(np.isin(self.name, wanted))
        rows = [
            {"start_s": int(self.start[i]) / 1e9, "end_s": int(self.end[i]) / 1e9,
             "node": int(self.node[i]), "kind": KINDS[int(self.kind[i])],
             "name": self.names[int(self.name[i])]}
            for i in hits[:MOST_HITS].tolist()
        ]  # fmt: skip
        return {"count": len(hits), "hits": rows}

    def _named(self, words: Any) -> list[int]:
        if not isinstance(words, str) or len(words) > MOST_QUERY:
            raise UsageError(f"find: give at most {MOST_QUERY} letters")
        asked = words.strip().lower()
        return [i for i, name in enumerate(self.names) if asked and asked in name.lower()]

    def _times(self, from_s: Any, until_s: Any) -> tuple[int, int]:
        for name, value in (("from_s", from_s), ("until_s", until_s)):
            wrong = isinstance(value, bool) or not isinstance(value, int | float)
            if not (value is None and name == "until_s") and (wrong or not 0 <= value <= 1e9):
                raise UsageError(f"{name}={str(value)[:30]}: give a number of seconds, 0 to 1e9")
        start = round(from_s * 1e9)
        end = self.end_ns if until_s is None else min(round(until_s * 1e9), self.end_ns)
        if end <= start:
            raise UsageError(f"from_s={from_s:g}: the stretch is empty; the run ends at "
                             f"{self.end_ns / 1e9:g} s")  # fmt: skip
        return start, end


def _label(span: Span) -> str:
    """The name of a span; the tag of a collective begins with its hash, which tells nobody much."""
    return re.sub(r"^[0-9a-f]{10,}/", "", span.name or span.kind)[:60]


def spans_of(run: Run) -> Iterator[Span]:
    """What took time on nodes: faults, questions and their answers, work, reports, losses."""
    yield from life(run)
    yield from _asks(run)
    yield from (s for s in run.extra.get("work_spans", ()) if s.kind in KINDS)
    yield from run.extra.get("lost_spans", ())
    for time_s, node, values in run.records:
        at_ns = round(time_s * 1e9)
        yield Span("emit", ", ".join(values), at_ns, at_ns, node, values=values)


def _asks(run: Run) -> Iterator[Span]:
    """Questions joined to their answers, in order of arrival."""
    questions: dict[tuple[int, int, str], deque[Any]] = {}
    asked_at_all = {row[5] for row in run.spans if row[7]}
    answers = sorted((row for row in run.spans if row[7]), key=lambda row: row[0])
    arrivals = sorted((row for row in run.spans if not row[7]), key=lambda row: row[1])
    at = 0
    for reply in answers:
        while at < len(arrivals) and arrivals[at][1] <= reply[0]:
            row = arrivals[at]
            questions.setdefault((row[3], row[4], row[5]), deque()).append(row)
            at += 1
        waiting = questions.get((reply[4], reply[3], reply[5]))
        if waiting:
            row = waiting.popleft()
            yield Span("ask", row[5], row[0], reply[1], row[3], row[4], row[6] + reply[6], row[2])
            yield Span("serve", row[5], row[1], reply[0], row[4], row[3], row[6], row[2])
    for row in run.spans:
        if not row[7] and row[5] not in asked_at_all:  # told, not asked: a moment at the receiver
            yield Span("serve", row[5], row[1], row[1], row[4], row[3], row[6], row[2])


def depths(found: list[Span]) -> list[int]:
    """How deep each span lies in others of its node; what only overlaps goes one deeper too.

    `found` is in order of beginning, the longer first. A moment takes no room for later ones, and
    a report never stands in the first row. Questions of clients may be many at once, so
    the depth has a limit, and what lies deeper shares the last row.
    """
    free: dict[int, list[int]] = {}  # by node: when each row is free again
    rows: list[int] = []
    for span in found:
        taken = free.setdefault(span.node, [])
        depth = next((i for i, until in enumerate(taken) if until <= span.start_ns), len(taken))
        if span.end_ns == span.start_ns:
            rows.append(min(max(depth, int(span.kind == "emit")), MOST_DEPTH - 1))
            continue
        depth = min(depth, MOST_DEPTH - 1)
        if depth == len(taken):
            taken.append(span.end_ns)
        else:
            taken[depth] = max(taken[depth], span.end_ns)
        rows.append(depth)
    return rows
