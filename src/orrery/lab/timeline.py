"""The time axis of a space-time picture: which stretch is shown, and where an instant stands.

Messages take microseconds and rounds take milliseconds, so on an even axis every arrow would be
upright. Where most of the window is idle, idle stretches are folded: each becomes a narrow gap that
says how long it is, and all the rest keeps one scale.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

Interval = tuple[int, int]

MOST_BURSTS = 10
FOLD_PX = 46.0
_IDLE_LATENCIES = 6  # a pause of so many usual latencies is idle time
_BUSY_ENOUGH = 0.35  # with this share of the window busy, an even axis is fine


class Stretch(NamedTuple):
    """A part of the axis: from when to when, and where it stands."""

    start_ns: int
    end_ns: int
    x0: float
    x1: float
    folded: bool


def bursts(intervals: Sequence[Interval], idle_ns: int) -> list[Interval]:
    """Stretches in which something is under way, with no idle time inside."""
    found: list[list[int]] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1] + idle_ns:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return [(start, end) for start, end in found]


def repeats(
    messages: Sequence[tuple[int, int, Hashable]], idle_ns: int, keep: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Where bursts of the same messages follow each other: (from, to, how many bursts).

    `messages` are (start, end, what), in order of sending. The first burst of a series is not in
    it, as it shows what the others repeat; nor is one in which an instant of `keep` lies.
    """
    busy = bursts([(start, end) for start, end, _ in messages], idle_ns)
    starts = [start for start, _ in busy]
    says: list[Counter[Hashable]] = [Counter() for _ in busy]
    for start, _, what in messages:
        says[bisect_right(starts, start) - 1][what] += 1
    kept = sorted(keep)
    plain = [bisect_left(kept, start) == bisect_right(kept, end) for start, end in busy]
    found: list[tuple[int, int, int]] = []
    for i in range(1, len(busy)):
        if not plain[i] or says[i] != says[i - 1]:
            continue
        if found and found[-1][1] == busy[i - 1][1]:
            found[-1] = (found[-1][0], busy[i][1], found[-1][2] + 1)
        else:
            found.append((*busy[i], 1))
    return [each for each in found if each[2] > 1]


def ends(intervals: Sequence[Interval], latency_ns: int) -> list[Interval]:
    """Only the two ends of what took very long: a message that waits for a paused node is idle."""
    found: list[Interval] = []
    for start, end in intervals:
        if end - start > 3 * _IDLE_LATENCIES * latency_ns:
            found += [(start, start + latency_ns), (end - latency_ns, end)]
        else:
            found.append((start, end))
    return found


def usual_latency_ns(intervals: Sequence[Interval]) -> int:
    """The median time that a message takes; 1 ms where nothing says."""
    times = sorted(end - start for start, end in intervals if end > start)
    return times[len(times) // 2] if times else 1_000_000


def best_window(
    messages: Sequence[Interval], marks: Sequence[int], anchor_ns: int, end_ns: int, most: int
) -> Interval:
    """The stretch around an instant that can be read: so many arrows, so many bursts.

    `messages` are in order of sending.
    """
    if len(messages) <= most and end_ns > 0:
        latency = usual_latency_ns(messages)
        busy = bursts(
            [*ends(messages, latency), *((m, m) for m in marks)], _IDLE_LATENCIES * latency
        )
        if len(busy) <= MOST_BURSTS or _share(busy, 0, end_ns) >= _BUSY_ENOUGH:
            return 0, end_ns
    if not messages:
        return 0, max(end_ns, 1)
    latency = usual_latency_ns(messages)
    busy = bursts(ends(messages, latency), _IDLE_LATENCIES * latency)
    at = next((i for i, (_, end) in enumerate(busy) if end >= anchor_ns), len(busy) - 1)
    first = max(0, at - 2)
    starts = [start for start, _ in messages]
    before = bisect_right(starts, busy[first][0] - 1)
    last = first
    while last + 1 < min(len(busy), first + MOST_BURSTS):
        if bisect_right(starts, busy[last + 1][1]) - before > most:
            break
        last += 1
    lo = busy[first][0]
    if last == first and bisect_right(starts, busy[first][1]) - before > most:
        # One burst is too much by itself: begin a little before the anchor and stop in time.
        lo = max(lo, min(anchor_ns, busy[first][1]) - 2 * latency)
        before = bisect_right(starts, lo - 1)
        hi = messages[min(before + most, len(messages)) - 1][1]
    else:
        hi = busy[last][1]
    margin = max(latency // 2, 1)
    near = [mark for mark in marks if lo - 60 * latency <= mark <= hi + 60 * latency]
    lo, hi = min([lo, *near]), max([hi, *near])
    return max(0, lo - margin), min(max(end_ns, 1), hi + margin)


def _share(busy: Sequence[Interval], lo: int, hi: int) -> float:
    return sum(end - start for start, end in busy) / max(1, hi - lo)


class TimeAxis:
    """Where each instant of a window stands between two edges."""

    def __init__(
        self, window: Interval, busy: Sequence[Interval], latency_ns: int, x0: float, x1: float
    ) -> None:
        self.lo, self.hi = window
        self.hi = max(self.hi, self.lo + 1)
        padded = bursts(
            [
                (max(self.lo, start - latency_ns // 2), min(self.hi, end + latency_ns // 2))
                for start, end in busy
                if end >= self.lo and start <= self.hi
            ],
            _IDLE_LATENCIES * latency_ns,
        )
        self.folds = (
            bool(padded)
            and len(padded) <= 3 * MOST_BURSTS
            and _share(padded, self.lo, self.hi) < _BUSY_ENOUGH
        )
        self.stretches = (
            self._fold(padded, _IDLE_LATENCIES * latency_ns, x0, x1)
            if self.folds
            else [Stretch(self.lo, self.hi, x0, x1, False)]
        )
        self._starts = [stretch.start_ns for stretch in self.stretches]

    def _fold(self, busy: Sequence[Interval], idle_ns: int, x0: float, x1: float) -> list[Stretch]:
        edges: list[tuple[int, int, bool]] = []
        at = self.lo
        if 0 < busy[0][0] - at <= idle_ns:
            busy = [(at, busy[0][1]), *busy[1:]]  # too short a stretch to be worth a fold
        if 0 < self.hi - busy[-1][1] <= idle_ns:
            busy = [*busy[:-1], (busy[-1][0], self.hi)]
        for start, end in busy:
            if start > at:
                edges.append((at, start, True))
            edges.append((start, max(end, start + 1), False))
            at = max(end, start + 1)
        if at < self.hi:
            edges.append((at, self.hi, True))
        gaps = sum(folded for *_, folded in edges)
        fold = min(FOLD_PX, (x1 - x0) * 0.5 / max(1, gaps))
        shown = sum(end - start for start, end, folded in edges if not folded)
        scale = (x1 - x0 - gaps * fold) / max(1, shown)
        found: list[Stretch] = []
        x = x0
        for start, end, folded in edges:
            wide = fold if folded else (end - start) * scale
            found.append(Stretch(start, end, x, x + wide, folded))
            x += wide
        return found

    def x(self, at_ns: float) -> float:
        """The place of an instant; outside the window the axis goes on at the edge's scale."""
        i = max(0, bisect_right(self._starts, at_ns) - 1)
        start, end, x0, x1, _ = self.stretches[i]
        return x0 + (at_ns - start) / max(1, end - start) * (x1 - x0)

    @property
    def ns_per_px(self) -> float:
        """The scale of what is not folded."""
        shown = [stretch for stretch in self.stretches if not stretch.folded]
        wide = sum(stretch.x1 - stretch.x0 for stretch in shown)
        return sum(stretch.end_ns - stretch.start_ns for stretch in shown) / max(wide, 1e-9)
