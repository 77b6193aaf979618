"""Plots of findings in SVG: claims beside what was found, a run's activity, points on a map."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from orrery.base.errors import UsageError
from orrery.lab import svg
from orrery.lab.charts import NARROW, WIDE, axis_words, whisker

Points = Sequence[tuple[float, float]]
BINS = 96
MOST_LANES = 8
MOST_CLAIMS = 40
MOST_DOTS = 1500
_SIGNS = {
    "dot": '<circle r="4.5" class="o-f0"/>',
    "yes": '<circle r="5" class="o-good"/>',
    "no": '<path class="o-bad" d="M-4.5-4.5L4.5 4.5M-4.5 4.5L4.5-4.5" stroke-width="2.4"/>',
    "open": '<circle r="4.5" fill="none" class="o-axis" stroke-width="2"/>',
    "best": '<path class="o-f1" d="M0-9L2.6-3.2L8.8-2.6L4.1 1.5L5.5 7.7L0 4.4L-5.5 7.7L-4.1 1.5'
    'L-8.8-2.6L-2.6-3.2Z"/>',
}


class Lane(NamedTuple):
    """Something that lasted from one time to another, with its name."""

    words: str
    start_s: float
    end_s: float


class Gain(NamedTuple):
    """A claim of a gain: what was published, what was found, and without the mechanism."""

    name: str
    says: tuple[float, float] | None
    found: float | None
    lo: float | None
    hi: float | None
    off: float | None


class _Scale:
    """From values to places along an axis, linear or logarithmic."""

    def __init__(self, lo: float, hi: float, start: float, end: float, log: bool) -> None:
        self.log = log and lo > 0
        self.lo, self.hi = lo, hi
        self.a, self.b = (math.log(lo), math.log(hi)) if self.log else (lo, hi)
        if self.b <= self.a:
            self.b = self.a + 1.0
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        at = math.log(max(value, 1e-300)) if self.log else value
        return self.start + (at - self.a) / (self.b - self.a) * (self.end - self.start)

    def ticks(self, about: int) -> list[float]:
        """Round values along the axis."""
        if not self.log:
            return svg.ticks(self.lo, self.hi, about)
        first, last = math.floor(math.log10(self.lo)), math.ceil(math.log10(self.hi))
        steps = (1, 2, 5) if last - first <= 3 else (1,)
        made = [float(f"{m}e{k}") for k in range(first, last + 1) for m in steps]
        found = [x for x in made if self.lo * (1 - 1e-9) <= x <= self.hi * (1 + 1e-9)]
        return found if len(found) > 1 else [self.lo, self.hi]


# -- claims beside what was found


def gain_chart(gains: Sequence[Gain], *, title: str) -> str:
    """One row for each claim: what was published, what was found, and without the mechanism."""
    kept = [gain for gain in gains if _numbers(gain)][:MOST_CLAIMS]
    if not kept:
        raise UsageError("a chart of gains needs at least one figure above zero")
    row, top, left, right = 46.0, 84.0, 16.0, 20.0
    height = top + row * len(kept) + 40
    every = [value for gain in kept for value in _numbers(gain)]
    lo, hi = min(1.0, *every) / 1.12, max(1.0, *every) * 1.12
    at = _Scale(lo, hi, left, NARROW - right, log=True)
    body = [svg.text(left, 26, svg.shorten(title, 44), "h", "ink")]
    body.append(svg.text(left, 44, "ours / theirs, logarithmic; 1 is no difference", "soft"))
    body += _gain_legend(left)
    for tick in at.ticks(4):
        body.append(svg.line(at(tick), top, at(tick), height - 34, "grid"))
    body += _tick_words(at, at.ticks(4), height - 16, lambda x: f"{svg.number(x)}x")
    body.append(svg.line(at(1.0), top, at(1.0), height - 34, "axis", 'stroke-width="1.6"'))
    for i, gain in enumerate(kept):
        body += _gain_row(gain, top + row * i, at)
    told = "; ".join(_gain_words(gain) for gain in kept)
    return svg.picture(NARROW, height, title, told + ".", body)


def _numbers(gain: Gain) -> list[float]:
    says = gain.says or ()
    found = [*says, gain.found, gain.lo, gain.hi, gain.off]
    return [x for x in found if x is not None and math.isfinite(x) and x > 0]


def _gain_legend(left: float) -> list[str]:
    body, x = [], left + 6
    for sign, words in (("says", "published"), ("found", "found here"), ("off", "mechanism off")):
        body.append(f'<g transform="translate({x:.1f} 62)">{_GAIN_SIGNS[sign]}</g>')
        body.append(svg.text(x + 10, 66, words, "soft"))
        x += 30 + svg.text_width(words)
    return body


_GAIN_SIGNS = {
    "says": '<path class="o-f1" d="M0-6L6 0L0 6L-6 0Z"/>',
    "found": '<circle r="5" class="o-f0"/>',
    "off": '<circle r="4.5" fill="none" class="o-inks" stroke-width="1.8"/>',
}


def _gain_row(gain: Gain, y: float, at: _Scale) -> list[str]:
    middle = y + 30
    body = [svg.text(16, y + 14, svg.shorten(gain.name, 54), "ink")]
    if gain.says is not None and min(gain.says) > 0:
        a, b = at(min(gain.says)), at(max(gain.says))
        if b - a > 8:
            body.append(f'<rect class="o-f1" opacity="0.35" x="{a:.1f}" y="{middle - 4:.1f}" '
                        f'width="{b - a:.1f}" height="8" rx="3"/>')  # fmt: skip
        body.append(_placed(_GAIN_SIGNS["says"], (a + b) / 2, middle))
    if gain.off is not None and gain.off > 0:
        body.append(_placed(_GAIN_SIGNS["off"], at(gain.off), middle))
    if gain.found is not None and gain.found > 0:
        if gain.lo is not None and gain.hi is not None and 0 < gain.lo < gain.hi < math.inf:
            body.append(whisker(at(gain.lo), at(gain.hi), middle))
        body.append(_placed(_GAIN_SIGNS["found"], at(gain.found), middle))
    return body


def _placed(sign: str, x: float, y: float) -> str:
    return f'<g transform="translate({x:.1f} {y:.1f})">{sign}</g>'


def _gain_words(gain: Gain) -> str:
    words = gain.name
    if gain.says is not None:
        ends = [svg.number(round(x, 4)) for x in gain.says]
        words += " published " + (ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}")
    if gain.found is not None:
        words += f", found {gain.found:.4g}"
    return words + (f", mechanism off {gain.off:.4g}" if gain.off is not None else "")


def _tick_words(
    at: _Scale, ticks: Sequence[float], y: float, say: Callable[[float], str]
) -> list[str]:
    if not at.log:
        return axis_words(at.lo, at.hi, at, y, say, len(ticks))
    body, end = [], -math.inf
    for tick in ticks:
        half = svg.text_width(say(tick)) / 2
        if at(tick) - half > end + 8:
            body.append(svg.text(max(at(tick), half + 4), y, say(tick), "soft", "m"))
            end = at(tick) + half
    return body


# -- what happened in a run, as a whole


def activity(times_s: Sequence[float], end_s: float) -> list[int]:
    """How many of these times fall into each of the equal parts of a run."""
    counts = [0] * BINS
    edges = [end_s * (i + 1) / BINS for i in range(BINS)]
    for time_s in times_s:
        counts[min(bisect_right(edges, time_s), BINS - 1)] += 1
    return counts


def activity_chart(
    times_s: Sequence[float],
    end_s: float,
    *,
    title: str,
    lanes: Sequence[Lane] = (),
    marks: Sequence[float] = (),
    windows: Sequence[tuple[str, float, float]] = (),
) -> str:
    """A whole run at a glance: messages over time, faults below, violations and windows above."""
    if not end_s > 0:
        raise UsageError(f"a run of {end_s} s has no activity to draw")
    counts = activity(times_s, end_s)
    left, right, top, high = 48.0, 18.0, 72.0, 110.0
    shown, more = list(lanes[:MOST_LANES]), len(lanes) - MOST_LANES
    foot = top + high + 24
    height = foot + 22 * len(shown) + (20 if more > 0 else 0) + 24
    per_s, unit = svg.time_unit(end_s)
    at = _Scale(0.0, end_s, left, WIDE - right, log=False)
    most = max(counts) or 1
    body = [svg.text(16, 26, svg.shorten(title, 52), "h", "ink")]
    body.append(svg.text(16, 46, f"messages in each {svg.in_words(end_s / BINS, 's')}", "soft"))
    for letter, lo, hi in windows:
        a, b = at(lo), max(at(hi), at(lo) + 3)
        body.append(f'<rect class="o-tint" x="{a:.1f}" y="{top - 14:.1f}" width="{b - a:.1f}" '
                    f'height="{high + 14:.1f}"/>')  # fmt: skip
        body.append(svg.text((a + b) / 2, top - 3, letter, "ink", "b", "m"))
    for y in svg.ticks(0.0, float(most), 3):
        level = top + high - y / most * high
        body.append(svg.line(left, level, WIDE - right, level, "grid"))
        body.append(svg.text(left - 6, level + 4, svg.number(y), "soft", "e"))
    wide = (WIDE - left - right) / BINS
    bars = [
        f"M{left + i * wide:.1f} {top + high:.1f}v{-n / most * high:.1f}h{wide - 0.6:.1f}"
        f"v{n / most * high:.1f}z"
        for i, n in enumerate(counts) if n
    ]  # fmt: skip
    body.append(f'<path class="o-f0" opacity="0.8" d="{"".join(bars)}"/>')
    body.append(svg.line(left, top + high, WIDE - right, top + high, "axis"))
    ticks = axis_words(0.0, end_s * per_s, lambda x: at(x / per_s), top + high + 17, svg.number, 6)
    body += [*ticks, svg.text(16, top + high + 17, unit, "soft")]
    for time_s in list(marks)[:200]:
        body.append(_placed(_SIGNS["no"], at(min(time_s, end_s)), top + high))
    for i, lane in enumerate(shown):
        body += _lane(lane, foot + 22 * i, at, end_s, WIDE - right)
    if more > 0:
        body.append(svg.text(16, foot + 22 * len(shown) + 14, f"and {more} more faults", "soft"))
    told = [f"{sum(counts)} messages in {svg.in_words(end_s, 's')}, at most {most} in one bar"]
    told += [f"{lane.words} from {svg.in_words(lane.start_s, 's')} to "
             f"{svg.in_words(min(lane.end_s, end_s), 's')}" for lane in shown]  # fmt: skip
    told += [f"violation at {svg.in_words(time_s, 's')}" for time_s in list(marks)[:10]]
    return svg.picture(WIDE, height, title, "; ".join(told) + ".", body)


def _lane(lane: Lane, y: float, at: _Scale, end_s: float, right: float) -> list[str]:
    a, b = at(lane.start_s), max(at(min(lane.end_s, end_s)), at(lane.start_s) + 2)
    words = svg.shorten(lane.words, 50)
    wide = svg.text_width(words)
    x = b + 6 if b + 6 + wide <= right else a - 6 - wide
    if x < 16:
        x = min(a + 4, right - wide)  # no room beside the bar: the words stand on it
    return [
        f'<rect class="o-shade" x="{a:.1f}" y="{y + 2:.1f}" width="{b - a:.1f}" height="16" '
        'rx="3"/>',
        svg.text(x, y + 14, words, "ink", "k", "halo"),
    ]


# -- points


def dots_chart(
    series: Mapping[tuple[str, str], Points],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log: tuple[bool, bool] = (False, False),
    lines: Sequence[Points] = (),
) -> str:
    """Points by (sign, name), each with its sign in the legend; `lines` are drawn between them."""
    kept = {key: _finite(points) for key, points in series.items() if _finite(points)}
    if not kept:
        raise UsageError("a chart of points needs at least one finite point")
    if sum(map(len, kept.values())) > MOST_DOTS:
        raise UsageError(f"a chart of more than {MOST_DOTS} points cannot be read")
    legend, rows = _legend([(sign, name) for sign, name in kept])
    top = 52.0 + 20 * rows
    height, left, bottom, right = top + 300.0, 60.0, 50.0, 20.0
    both = [point for points in kept.values() for point in points]
    x_lo, x_hi = svg.spread([x for x, _ in both])
    y_lo, y_hi = svg.spread([y for _, y in both])
    x_at = _Scale(x_lo, x_hi, left + 8, WIDE - right, log[0])
    y_at = _Scale(y_lo, y_hi, height - bottom - 8, top + 14, log[1])
    body = [svg.text(16, 26, svg.shorten(title, 52), "h", "ink"), *legend]
    body.append(svg.text(16, top, svg.shorten(y_label, 60), "soft"))
    for y in y_at.ticks(5):
        body.append(svg.line(left, y_at(y), WIDE - right, y_at(y), "grid"))
        body.append(svg.text(left - 8, y_at(y) + 4, svg.number(y), "soft", "e"))
    body += _tick_words(x_at, x_at.ticks(5), height - bottom + 18, svg.number)
    body.append(svg.line(left, height - bottom, WIDE - right, height - bottom, "axis"))
    body.append(svg.text((left + WIDE - right) / 2, height - 12, x_label, "soft", "m"))
    for line in lines:
        spots = "L".join(f"{x_at(x):.1f} {y_at(y):.1f}" for x, y in _finite(line))
        if "L" in spots:
            body.append(f'<path class="o-s0" d="M{spots}" fill="none" stroke-width="2.6" '
                        'stroke-linejoin="round"/>')  # fmt: skip
    for (sign, _), points in kept.items():
        body += [_placed(_SIGNS[sign], x_at(x), y_at(y)) for x, y in points]
    told = "; ".join(f"{len(points)} {name}" for (_, name), points in kept.items())
    return svg.picture(WIDE, height, title, f"{y_label} over {x_label}: {told}.", body)


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _legend(names: Sequence[tuple[str, str]]) -> tuple[list[str], int]:
    """Signs with their names, in as many lines as they need."""
    body, x, y = [], 22.0, 46.0
    for sign, name in names:
        wide = 26 + svg.text_width(svg.shorten(name, 40))
        if x + wide > WIDE and x > 22:
            x, y = 22.0, y + 20
        body.append(_placed(_SIGNS[sign], x, y))
        body.append(svg.text(x + 12, y + 4, svg.shorten(name, 40), "soft"))
        x += wide + 8
    return body, int((y - 46) / 20) + 1
