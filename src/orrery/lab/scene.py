"""What a space-time picture shows: which nodes get a line, which stretch of time, which arrows."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.base.errors import UsageError
from orrery.lab import story, svg, timeline
from orrery.lab.spans import Span, life, messages
from orrery.lab.timeline import TimeAxis

if TYPE_CHECKING:
    from orrery.lab.run import Run

MOST_ROWS = 40
FOLD_TO = 14  # a larger world shows this many lines and folds the rest into one
MOST_ARROWS = 220
HARD_ARROWS = 3000
WIDTH = 1120.0
ROW_PX = ((6, 52.0), (10, 38.0), (20, 30.0), (MOST_ROWS + 1, 22.0))  # fewer lines, more room
REST = -7  # the row of all nodes that have no line of their own


class Scene(msgspec.Struct, kw_only=True):
    """All that one picture shows, before it is drawn."""

    run: Any
    rows: list[int]
    rest: int
    axis: TimeAxis
    arrows: list[Span]
    left_out: int
    lost: list[Span]
    emits: list[Span]
    computes: list[Span]
    life: list[Span]
    colours: dict[str, int]
    liars: dict[int, tuple[str, ...]]
    bent: set[int]  # the sequence numbers of the arrows that a liar has altered
    repeats: list[tuple[int, int, int]]  # stretches of repeated traffic that are not drawn
    folded: int  # how many messages these hold
    top: float
    row_px: float

    def y(self, node: int) -> float:
        """The height of a node's line."""
        place = self.rows.index(node) if node in self.rows else len(self.rows)
        return self.top + (place + 0.5) * self.row_px

    @property
    def bottom(self) -> float:
        return self.top + (len(self.rows) + (1 if self.rest else 0)) * self.row_px


def compose(
    run: Run, from_s: float | None, until_s: float | None, nodes: Any, lost: list[Span]
) -> Scene:
    """Choose what to show of a run: the window asked for, or the one that tells most."""
    every = arrows_of(run)
    troubles = life(run)
    end_ns = max(round(run.seconds * 1e9), max(span.end_ns for span in every))
    lo, hi = _asked(from_s, until_s, end_ns)
    rows, rest = _rows(run, every, troubles, nodes, lo, hi)
    shown = set(rows)
    # With a row for the rest, one end of an arrow may be off the picture, but not both.
    near = [s for s in every if (s.node in shown) + (s.to in shown) > (0 if rest else 1)]
    size = run.world.size if run.world is not None else end_ns
    # What clients say to nodes without a line would only widen the picture.
    near = [s for s in near if s.node != s.to and not (
        rest and size in (s.node, s.to) and not {s.node, s.to} <= shown)]  # fmt: skip
    marks = [t for s in troubles if s.kind != "fault" and s.node in shown for t in (
        s.start_ns, s.end_ns) if 0 < t < end_ns]  # fmt: skip
    marks += [t for s in troubles if s.name == "Partition" for t in (s.start_ns, s.end_ns)]
    times = [(span.start_ns, span.end_ns) for span in near]
    again: list[tuple[int, int, int]] = []
    folded: list[Span] = []
    if from_s is None and until_s is None:
        again, near, folded = _without_repeats(run, near, shown, marks)
        times = [(span.start_ns, span.end_ns) for span in near]
        lo, hi = timeline.best_window(times, marks, _anchor(run, troubles), end_ns, MOST_ARROWS)
    arrows = [span for span in near if span.start_ns <= hi and span.end_ns >= lo]
    found = len(arrows)
    most = MOST_ARROWS if from_s is None and until_s is None else HARD_ARROWS
    arrows = _thinned(arrows, shown, most)
    left_out = found - len(arrows)
    latency = timeline.usual_latency_ns([(s.start_ns, s.end_ns) for s in arrows] or times)
    lost = [s for s in lost if s.node in shown and s.node != s.to and lo <= s.start_ns <= hi]
    emits = _emits_in(run, shown - {size} if rest else shown, lo, hi)
    computes = [
        span for span in run.extra.get("work_spans", ())
        if span.kind == "compute" and span.node in shown and span.start_ns <= hi
        and span.end_ns >= lo
    ][:HARD_ARROWS]  # fmt: skip
    ends = [t for span in computes for t in (span.start_ns, span.end_ns)]
    points = [(t, t) for t in (*marks, *ends) if lo <= t <= hi] + [
        (s.start_ns, s.start_ns) for s in emits
    ]
    busy = timeline.bursts(
        [*timeline.ends([(s.start_ns, s.end_ns) for s in arrows], latency), *points,
         *((s.start_ns, s.start_ns + latency) for s in lost)], 6 * latency)  # fmt: skip
    if (
        size in rows
        and nodes is None
        and not any(size in (s.node, s.to) for s in (*arrows, *emits))
    ):
        rows.remove(size)  # the clients say nothing in this window
    liars = {node: ways for node, ways in story.liars(run).items() if node in rows}
    left = 34 + max(svg.text_width(label) for label in labels(run, rows, rest, liars))
    used = Counter(span.name for span in (*arrows, *lost))
    colours = {name: i for i, (name, _) in enumerate(
        sorted(used.items(), key=lambda item: (-item[1], item[0])))}  # fmt: skip
    bands = any(is_band(s) and lo <= s.end_ns for s in troubles)
    row_px = next(px for most, px in ROW_PX if len(rows) <= most)
    bent = run.extra.get("bent", frozenset())
    return Scene(
        run=run, rows=rows, rest=rest, axis=TimeAxis((lo, hi), busy, latency, left, WIDTH - 28),
        arrows=arrows, left_out=left_out, lost=lost, emits=emits, computes=computes,
        life=[s for s in troubles if s.start_ns <= hi and s.end_ns >= lo],
        colours=colours, top=122.0 if bands else 104.0, row_px=row_px, liars=liars,
        bent={s.seq for s in arrows if s.seq in bent and s.node in liars},
        repeats=[each for each in again if lo <= each[0] and each[1] <= hi],
        folded=sum(lo <= s.start_ns <= hi for s in folded),
    )  # fmt: skip


def arrows_of(run: Run) -> list[Span]:
    """What goes from one node to another: messages, and bulk transfers where they are known."""
    bulk = [
        span._replace(name="transfer")
        for span in run.extra.get("work_spans", ())
        if span.kind == "transfer"
    ]
    every = list(messages(run))
    return sorted([*every, *bulk], key=lambda span: span.start_ns) if bulk else every


def _asked(from_s: float | None, until_s: float | None, end_ns: int) -> tuple[int, int]:
    for name, value in (("from_s", from_s), ("until_s", until_s)):
        if value is not None and not (isinstance(value, int | float) and 0 <= value < math.inf):
            raise UsageError(f"{name}={value!r}: give a number of seconds >= 0")
    lo = 0 if from_s is None else round(from_s * 1e9)
    hi = end_ns if until_s is None else round(until_s * 1e9)
    if hi <= lo:
        raise UsageError(f"from_s={from_s!r}, until_s={until_s!r}: the window is empty")
    if lo >= end_ns:
        raise UsageError(f"from_s={from_s!r}: the run ended at {end_ns / 1e9:g} s")
    return lo, min(hi, end_ns)


def _rows(
    run: Run, every: list[Span], troubles: list[Span], nodes: Any, lo: int, hi: int
) -> tuple[list[int], int]:
    """The nodes that get a line, clients first, and how many others there are."""
    size = run.world.size if run.world is not None else 1 + max(max(s.node, s.to) for s in every)
    if nodes is not None:
        asked = list(dict.fromkeys(nodes))
        wrong = [n for n in asked if isinstance(n, bool) or not isinstance(n, int)
                 or not 0 <= n <= size]  # fmt: skip
        if wrong or not asked:
            what = f"there is no node {wrong[0]!r}" if wrong else "no node is named"
            raise UsageError(f"nodes: {what}; this world has nodes 0 to {size - 1}")
        if len(asked) > MOST_ROWS:
            raise UsageError(f"nodes: {len(asked)} lines cannot be read; name at most {MOST_ROWS}")
        return asked, size - sum(n < size for n in asked)
    inside = [s for s in every if s.start_ns <= hi and s.end_ns >= lo]
    has_clients = any(size in (span.node, span.to) for span in inside)
    head = [size] if has_clients else []
    if size <= 24:
        return [*head, *range(size)], 0
    wanted: dict[int, None] = {}
    for violation in run.violations:
        if isinstance(violation.node, int) and violation.node < size:
            wanted[violation.node] = None
    for span in troubles:
        if 0 <= span.node < size and span.kind in ("down", "paused", "fault"):
            wanted[span.node] = None
    picked = list(wanted)[: FOLD_TO // 2]
    _add_company(picked, inside, size, _anchor(run, troubles))
    return [*head, *sorted(picked)], size - len(picked)


def _add_company(picked: list[int], inside: list[Span], size: int, anchor_ns: int) -> None:
    """Fill up the lines with those that talk most with the picked ones, near the anchor."""
    around = sorted(inside, key=lambda span: abs(span.start_ns - anchor_ns))[:3000]
    pairs = [(s.node, s.to) for s in around if s.node < size and s.to < size and s.node != s.to]
    busy = Counter(node for pair in pairs for node in pair)
    while len(picked) < FOLD_TO:
        near = Counter[int]()
        for a, b in pairs:
            if (a in picked) != (b in picked):
                near[b if a in picked else a] += 1
        free = [node for node in (near or busy) if node not in picked]
        free = free or [node for node in range(size) if node not in picked][:1]
        picked.append(min(free, key=lambda node: (-near[node], -busy[node], node)))


def _thinned(arrows: list[Span], shown: set[int], most: int) -> list[Span]:
    """No more arrows than can be seen: those between lines of their own come first."""
    if len(arrows) <= 1.2 * most:
        return arrows
    own = [span for span in arrows if span.node in shown and span.to in shown]
    rest = [span for span in arrows if not (span.node in shown and span.to in shown)]
    own = own[:: -(-len(own) // most)] if len(own) > most else own
    room = max(0, most - len(own))
    rest = rest[:: -(-len(rest) // room)] if room and rest else []
    return sorted([*own, *rest], key=lambda span: (span.start_ns, span.seq))


def _anchor(run: Run, troubles: list[Span]) -> int:
    """The moment worth showing: the first violation, else the first trouble, else the beginning."""
    times = [v.time_s for v in run.violations if v.time_s is not None and v.time_s < run.seconds]
    if times:
        return round(min(times) * 1e9)
    starts = [s.start_ns for s in troubles if s.kind != "fault" or s.name == "Partition"]
    return min(starts, default=0)


def _emits_in(run: Run, shown: set[int], lo: int, hi: int) -> list[Span]:
    found = []
    for time_s, node, values in run.records:
        at_ns = round(time_s * 1e9)
        if node in shown and lo <= at_ns <= hi:
            found.append(Span("emit", ", ".join(values), at_ns, at_ns, node, values=values))
    return found[:HARD_ARROWS]


def _without_repeats(
    run: Run, near: list[Span], shown: set[int], marks: list[int]
) -> tuple[list[tuple[int, int, int]], list[Span], list[Span]]:
    """Of a run too long to show whole: where traffic repeats itself, and the arrows without it."""
    times = [(span.start_ns, span.end_ns) for span in near]
    idle_ns = 6 * timeline.usual_latency_ns(times)
    if len(near) <= MOST_ARROWS and len(timeline.bursts(times, idle_ns)) <= timeline.MOST_BURSTS:
        return [], near, []
    told = [round(record.time_s * 1e9) for record in run.records if record.node in shown]
    said = [(s.start_ns, s.end_ns, (s.node, s.to, s.name, s.kind)) for s in near]
    again = timeline.repeats(said, idle_ns, [*marks, *told])
    if not again:
        return [], near, []
    starts = [start for start, _, _ in again]

    def hidden(span: Span) -> bool:
        at = bisect_right(starts, span.start_ns) - 1
        return at >= 0 and span.start_ns <= again[at][1]

    return again, [s for s in near if not hidden(s)], [s for s in near if hidden(s)]


def is_band(span: Span) -> bool:
    """Whether a fault is drawn over all lines; liars are marked on their own."""
    return span.kind == "fault" and span.node < 0 and span.name != "Byzantine"


def labels(
    run: Run, rows: Sequence[int], rest: int, liars: dict[int, tuple[str, ...]]
) -> list[str]:
    """What stands at the left of each line."""
    names = [story.row_name(node, liars, run) for node in rows]
    return names + ([rest_label(rest)] if rest else [])


def rest_label(rest: int) -> str:
    """How the nodes without a line are called."""
    return f"{rest} others" if rest > 1 else "1 other"
