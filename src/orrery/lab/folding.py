"""Folding: a space-time diagram of any size as a screenful of lanes.

`Index` holds a run's messages as columns, sorted by time of sending, and its nodes in an order in
which those of one role, site or rack stand together. A *view* asks for a stretch of time and a
stretch of that order. Nodes are folded to lanes, messages to counts by (lane, lane, time bin); when
few enough remain, every node has its lane and every message its arrow with its method's name.

Cost: the index is built once in O(M log M) for M messages. A view finds its messages by two binary
searches (the second one reaches back by the longest latency), so it takes O(log M + k) for the k
messages in its time, and its answer has at most `MOST_LANES` lanes, `MOST_CELLS` bundles and
`MOST_SINGLE` arrows, whatever the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from orrery.base.errors import UsageError
from orrery.lab.lanes import Lane, Order, order_of

if TYPE_CHECKING:
    from orrery.lab.run import Run

Ints = npt.NDArray[np.int64]

MOST_LANES = 40
LANES = 28
BINS = 120
MOST_BINS = 400
MOST_SINGLE = 2500
MOST_CELLS = 2400
MOST_MARKS = 600
MOST_PINNED = 12


class Columns(NamedTuple):
    """Messages as columns of one length, in order of sending; a lost one arrives when it left."""

    sent_ns: Ints
    received_ns: Ints
    src: npt.NDArray[np.int32]
    dst: npt.NDArray[np.int32]
    method: npt.NDArray[np.int32]
    size_B: Ints
    reply: npt.NDArray[np.bool_]
    lost: npt.NDArray[np.bool_]


class Mark(NamedTuple):
    """Something on a node's line: a stretch of being down, paused or hit, or a report."""

    kind: str
    name: str
    start_ns: int
    end_ns: int
    node: int
    told: str = ""


class Index:
    """A run made ready for views of any depth; built once, then only read."""

    def __init__(
        self,
        columns: Columns,
        methods: Sequence[str],
        order: Order,
        *,
        end_ns: int,
        marks: Iterable[Mark] = (),
        usual_ns: int | None = None,
    ) -> None:
        by = np.argsort(columns.sent_ns, kind="stable")
        self.columns = Columns(*(column[by] for column in columns))
        self.methods = list(methods)
        self.order = order
        self.end_ns = max(int(end_ns), 1)
        whole = self.columns.received_ns - self.columns.sent_ns
        self.longest_ns = int(whole.max()) if len(whole) else 0
        if usual_ns is None:
            arrived = whole[~self.columns.lost]
            usual_ns = int(np.median(arrived)) if len(arrived) else 1_000_000
        self.usual_ns = max(usual_ns, 1)
        # Where each node stands in the order, so that a lane is a stretch of places.
        self._src = order.place[self.columns.src]
        self._dst = order.place[self.columns.dst]
        self.marks = sorted(marks, key=lambda mark: (mark.start_ns, mark.node))
        self._mark_starts = np.array([m.start_ns for m in self.marks], dtype=np.int64)
        self._mark_ends = np.array([m.end_ns for m in self.marks], dtype=np.int64)
        self._kinds = ["fault", *sorted({m.kind for m in self.marks} - {"fault"})]
        places = {kind: i for i, kind in enumerate(self._kinds)}
        self._mark_kinds = np.array([places[m.kind] for m in self.marks], dtype=np.int64)
        nodes = np.array([m.node for m in self.marks], dtype=np.int64)
        known = (nodes >= 0) & (nodes < len(order.place))
        self._mark_places = np.where(known, order.place[np.where(known, nodes, 0)], -1)

    def __len__(self) -> int:
        return len(self.columns.sent_ns)

    @property
    def nodes(self) -> int:
        return len(self.order.nodes)

    def view(
        self,
        from_s: float = 0.0,
        until_s: float | None = None,
        lo: int = 0,
        hi: int | None = None,
        *,
        lanes: int = LANES,
        bins: int = BINS,
        pin: Sequence[int] = (),
    ) -> dict[str, Any]:
        """What is seen of a stretch of time and of the places [lo, hi) of the order."""
        start, end = self._times(from_s, until_s)
        hi = self.nodes if hi is None else hi
        _whole("lo", lo, 0, self.nodes - 1)
        _whole("hi", hi, lo + 1, self.nodes)
        _whole("lanes", lanes, 1, MOST_LANES)
        _whole("bins", bins, 1, MOST_BINS)
        shown = self.order.lanes(lo, hi, lanes, self._pinned(pin))
        inside, a, b = self._messages(start, end, shown)
        answer: dict[str, Any] = {
            "from_s": start / 1e9, "until_s": end / 1e9, "end_s": self.end_ns / 1e9, "lo": lo,
            "hi": hi, "nodes": self.nodes, "lanes": [lane.to_json() for lane in shown],
            "messages": len(inside), "methods": [], "folded": True, "usual_s": self.usual_ns / 1e9,
        }  # fmt: skip
        if len(inside) <= MOST_SINGLE:
            answer |= self._single(inside, a, b)
        else:
            answer |= self._bundled(inside, a, b, len(shown), start, end, bins)
        answer |= self._told(start, end, shown, bins)
        return answer

    # -- what is asked for

    def _times(self, from_s: Any, until_s: Any) -> tuple[int, int]:
        for name, value in (("from_s", from_s), ("until_s", until_s)):
            if value is None and name == "until_s":
                continue
            wrong = isinstance(value, bool) or not isinstance(value, int | float)
            if wrong or not 0 <= value <= 1e9:
                raise UsageError(f"{name}={str(value)[:30]}: give a number of seconds, 0 to 1e9")
        start = round(from_s * 1e9)
        end = self.end_ns if until_s is None else min(round(until_s * 1e9), self.end_ns)
        if end <= start:
            raise UsageError(f"from_s={from_s:g}, until_s={until_s}: the stretch is empty; "
                             f"the run ends at {self.end_ns / 1e9:g} s")  # fmt: skip
        return start, end

    def _pinned(self, pin: Any) -> list[int]:
        if not isinstance(pin, list | tuple) or len(pin) > MOST_PINNED:
            raise UsageError(f"pin: give at most {MOST_PINNED} node numbers")
        for node in pin:
            _whole("pin", node, 0, len(self.order.place) - 1)
        return sorted({int(self.order.place[node]) for node in pin})

    def _messages(
        self, start: int, end: int, lanes: Sequence[Lane]
    ) -> tuple[Ints, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The messages of a time that touch a lane, and the lanes of their two ends (or -1)."""
        sent, received = self.columns.sent_ns, self.columns.received_ns
        first = int(np.searchsorted(sent, start - self.longest_ns, side="left"))
        last = int(np.searchsorted(sent, end, side="right"))
        table = lane_table(lanes, len(self.order.place))
        a, b = table[self._src[first:last]], table[self._dst[first:last]]
        keep = (received[first:last] >= start) & ((a >= 0) | (b >= 0))
        keep &= (a >= 0) & (b >= 0) if self._covers_all(lanes) else True
        if keep.all():  # nothing is picked, so nothing need be copied
            return np.arange(first, last), a, b
        found = np.flatnonzero(keep)
        return found + first, a[found], b[found]

    def _covers_all(self, lanes: Sequence[Lane]) -> bool:
        return sum(lane.count for lane in lanes) == len(self.order.place)

    # -- answers

    def _single(
        self, inside: Ints, a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]
    ) -> dict[str, Any]:
        """Every message by itself: times, lanes, nodes, method, size."""
        c = self.columns
        used, names = np.unique(c.method[inside], return_inverse=True)
        flags = c.reply[inside].astype(np.int64) + 2 * c.lost[inside]
        rows = zip(
            (c.sent_ns[inside] / 1e9).tolist(), (c.received_ns[inside] / 1e9).tolist(),
            a.tolist(), b.tolist(), c.src[inside].tolist(), c.dst[inside].tolist(),
            names.tolist(), c.size_B[inside].tolist(), flags.tolist(), strict=True,
        )  # fmt: skip
        return {
            "folded": False, "methods": [self.methods[i] for i in used.tolist()],
            "arrows": [list(row) for row in rows],
        }  # fmt: skip

    def _bundled(
        self,
        inside: Ints,
        a: npt.NDArray[np.int32],
        b: npt.NDArray[np.int32],
        lanes: int,
        start: int,
        end: int,
        bins: int,
    ) -> dict[str, Any]:
        """Counts by (lane of sender, lane of receiver, time bin), the largest first to stay."""
        wide = lanes + 1  # the last lane stands for all nodes out of view
        whole = len(inside) == int(inside[-1] - inside[0]) + 1
        picked = slice(int(inside[0]), int(inside[-1]) + 1) if whole else inside
        c = Columns(*(column[picked] for column in self.columns))  # a slice copies nothing
        step = max((end - start) / bins, 1.0)
        bin_of = np.clip((c.sent_ns - start) * (1.0 / step), 0, bins - 1).astype(np.int32)
        here, there = np.where(a < 0, lanes, a), np.where(b < 0, lanes, b)
        key = (here * wide + there) * bins + bin_of
        counts = np.bincount(key, minlength=wide * wide * bins)
        took = np.bincount(key, weights=c.received_ns - c.sent_ns, minlength=len(counts))
        size = np.bincount(key, weights=c.size_B, minlength=len(counts))
        lost = np.bincount(key[c.lost], minlength=len(counts))
        cells = np.flatnonzero(counts)
        left = 0
        if len(cells) > MOST_CELLS:
            keep = np.argpartition(-counts[cells], MOST_CELLS)[:MOST_CELLS]
            left = int(counts[cells].sum() - counts[cells[keep]].sum())
            cells = np.sort(cells[keep])
        n = counts[cells]
        rows = zip(
            (cells // bins // wide).tolist(), (cells // bins % wide).tolist(),
            (cells % bins).tolist(), n.tolist(), np.round(took[cells] / n / 1e9, 9).tolist(),
            np.round(size[cells]).astype(np.int64).tolist(), lost[cells].astype(int).tolist(),
            strict=True,
        )  # fmt: skip
        heat = np.bincount(here * bins + bin_of, minlength=wide * bins).reshape(wide, bins)
        by_name = np.bincount(c.method, minlength=len(self.methods))
        top = np.argsort(-by_name, kind="stable")[:8]
        return {
            "bins": bins, "cells": [list(row) for row in rows], "cells_left_out": left,
            "heat": heat[:lanes].tolist(), "methods": [
                [self.methods[i], int(by_name[i])] for i in top.tolist() if by_name[i]],
        }  # fmt: skip

    def _told(self, start: int, end: int, lanes: Sequence[Lane], bins: int) -> dict[str, Any]:
        """Marks one by one where they are few, else how many of each kind by lane and time."""
        if not self.marks:
            return {"marks": [], "mark_counts": []}
        table = lane_table(lanes, len(self.order.place))
        place = self._mark_places
        lane = np.where(place < 0, -1, table[np.where(place < 0, 0, place)])
        on = (self._mark_starts <= end) & (self._mark_ends >= start) & ((lane >= 0) | (place < 0))
        found = np.flatnonzero(on)
        if len(found) <= MOST_MARKS:
            return {"marks": [self._mark(int(i), int(lane[i])) for i in found], "mark_counts": []}
        wide = self._mark_kinds[found] == self._kinds.index("fault")
        wide &= self._mark_places[found] < 0
        kept = [self._mark(int(i), -1) for i in found[wide][:50]]  # faults of the whole network
        found = found[~wide]
        step = max((end - start) / bins, 1.0)
        first, last = (
            np.clip((at[found] - start) / step, 0, bins - 1).astype(np.int64)
            for at in (self._mark_starts, self._mark_ends)
        )
        key = ((self._mark_kinds[found] * len(lanes) + lane[found]) * bins + first) * bins + last
        keys, counts = np.unique(key, return_counts=True)
        by = np.argsort(-counts, kind="stable")[:MOST_MARKS]
        cells = [
            [self._kinds[k // bins // bins // len(lanes)], k // bins // bins % len(lanes),
             k // bins % bins, k % bins, n]
            for k, n in zip(keys[by].tolist(), counts[by].tolist(), strict=True)
        ]  # fmt: skip
        return {"marks": kept, "mark_counts": cells, "bins": bins}

    def _mark(self, i: int, lane: int) -> list[Any]:
        mark = self.marks[i]
        return [mark.kind, mark.name[:40], mark.start_ns / 1e9, mark.end_ns / 1e9, lane, mark.node,
                mark.told[:120]]  # fmt: skip


def lane_table(lanes: Sequence[Lane], places: int) -> npt.NDArray[np.int32]:
    """The lane of every place of the order; -1 where it is out of view."""
    table = np.full(places, -1, dtype=np.int32)
    for number, lane in enumerate(lanes):
        table[lane.lo : lane.hi] = number
    for number, lane in enumerate(lanes):
        if lane.pinned:
            table[lane.lo : lane.hi] = number
    return table


def _whole(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"{name}={str(value)[:20]}: give a whole number, {least} to {most}")


# -- from a run


def index_of(run: Run) -> Index:
    """The index of a traced run; lost messages too, where the run knows them."""
    from orrery.lab import spans

    # Bulk transfers are no messages, yet they go from node to node, so they are drawn alike.
    bulk = [s for s in run.extra.get("work_spans", ()) if s.kind == "transfer"]
    lost = list(run.extra.get("lost_spans", ()))
    rows = [
        *((r[0], r[1], r[3], r[4], r[5], r[6], bool(r[7])) for r in run.spans),
        *((s.start_ns, s.end_ns, s.node, s.to, "transfer", s.size_B, False) for s in bulk),
        *((s.start_ns, s.start_ns, s.node, s.to, s.name, 0, False) for s in lost),
    ]
    names: dict[str, int] = {}
    columns = Columns(
        sent_ns=np.array([r[0] for r in rows], dtype=np.int64),
        received_ns=np.array([r[1] for r in rows], dtype=np.int64),
        src=np.array([r[2] for r in rows], dtype=np.int32),
        dst=np.array([r[3] for r in rows], dtype=np.int32),
        method=np.array([names.setdefault(r[4], len(names)) for r in rows], dtype=np.int32),
        size_B=np.array([r[5] for r in rows], dtype=np.int64),
        reply=np.array([r[6] for r in rows], dtype=np.bool_),
        lost=np.arange(len(rows)) >= len(rows) - len(lost),
    )
    most = int(max(columns.src.max(initial=0), columns.dst.max(initial=0)))
    order = order_of(run.world, most + 1)
    marks = [mark for span in spans.life(run) for mark in _troubles(span)]
    marks += [
        Mark("emit", ", ".join(values), round(t * 1e9), round(t * 1e9), node, _brief(values))
        for t, node, values in run.records
    ]
    marks += [
        Mark(span.kind, span.name, span.start_ns, span.end_ns, span.node)
        for span in run.extra.get("work_spans", ())
        if span.kind == "compute"
    ]
    end_ns = max(round(run.seconds * 1e9), int(columns.received_ns.max(initial=1)))
    return Index(columns, list(names), order, end_ns=end_ns, marks=marks)


def _troubles(span: Any) -> list[Mark]:
    """The marks of a fault: on its node, on both ends of its link, on each of several nodes."""
    aimed = (span.values or {}).get("link")
    if span.kind == "fault" and aimed:
        told = f"the link {aimed[0]} – {aimed[1]}: {span.name.lower()}"
        return [Mark("link", span.name, span.start_ns, span.end_ns, end, told) for end in aimed]
    several = (span.values or {}).get("node")
    if span.kind == "fault" and isinstance(several, list | tuple):
        return [Mark(span.kind, span.name, span.start_ns, span.end_ns, node) for node in several]
    return [Mark(span.kind, span.name, span.start_ns, span.end_ns, span.node)]


def _brief(values: dict[str, Any]) -> str:
    from orrery.lab.playback import in_words

    return ", ".join(f"{name} {in_words(value)}" for name, value in values.items())[:120]


def depth(nodes: int, lanes: int = LANES) -> int:
    """How often one zooms in at most until every lane is a single node."""
    return max(1, math.ceil(math.log(max(nodes, 2)) / math.log(max(lanes, 2))))
