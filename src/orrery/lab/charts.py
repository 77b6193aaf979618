"""Two plain charts in SVG: lines over time, and bars with intervals.

They are narrow, so that their letters are of a readable size on a phone too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from orrery.base.errors import UsageError
from orrery.lab import svg

Points = Sequence[tuple[float, float]]
Scale = Callable[[float], float]
Bar = tuple[str, float, float | None, float | None]

WIDE, NARROW = 480.0, 400.0
_LABEL = 18  # letters of a name at the end of its line
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
_MOST_LINES = 12
_MOST_POINTS = 400
_MOST_BARS = 60


def line_chart(
    series: Mapping[str, Points],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y_from: float | None = None,
    y_to: float | None = None,
    steps: bool = False,
) -> str:
    """Lines of (x, y) points, each with its name at its end; `steps` for counts over time."""
    kept = {name: _finite(points) for name, points in series.items()}
    kept = {name: points for name, points in kept.items() if points}
    if not kept:
        raise UsageError("a line chart needs at least one finite point")
    if len(kept) > _MOST_LINES:
        fix = f"give at most {_MOST_LINES}"
        raise UsageError(f"a line chart with {len(kept)} lines cannot be read; {fix}")
    width, height, top, bottom = WIDE, 300.0, 66.0, 50.0
    right = 22 + max(svg.text_width(svg.shorten(name, _LABEL)) for name in kept)
    left = 56.0
    x_lo, x_hi = svg.spread([x for points in kept.values() for x, _ in points])
    y_lo, y_hi = svg.spread([y for points in kept.values() for _, y in points])
    y_lo = y_from if y_from is not None else y_lo
    y_hi = y_to if y_to is not None else y_hi
    y_hi = y_hi if y_hi > y_lo else y_lo + 1.0

    def x_at(x: float) -> float:
        return left + (x - x_lo) / (x_hi - x_lo) * (width - left - right)

    def y_at(y: float) -> float:
        return height - bottom - (y - y_lo) / (y_hi - y_lo) * (height - top - bottom)

    body = [svg.text(16, 26, svg.shorten(title, 52), "h", "ink")]
    for y in svg.ticks(y_lo, y_hi, 5):
        body.append(svg.line(left, y_at(y), width - right, y_at(y), "grid"))
        body.append(svg.text(left - 8, y_at(y) + 4, svg.number(y), "soft", "e"))
    body += axis_words(x_lo, x_hi, x_at, height - bottom + 18, svg.number, 5)
    body.append(svg.line(left, height - bottom, width - right, height - bottom, "axis"))
    body.append(svg.text((left + width - right) / 2, height - 12, x_label, "soft", "m"))
    body.append(svg.text(16, top - 18, svg.shorten(y_label, 60), "soft"))
    ends: list[tuple[float, int, str]] = []
    for i, (name, points) in enumerate(kept.items()):
        body.append(_path(points, x_at, y_at, i, steps))
        ends.append((y_at(points[-1][1]), i, name))
    for y, i, name in _apart(ends, 15.0, top, height - bottom):
        body.append(svg.text(width - right + 8, y + 4, svg.shorten(name, _LABEL), f"f{i % 7}", "b"))
    told = "; ".join(
        f"{name}: from {svg.number(points[0][1])} to {svg.number(points[-1][1])}"
        for name, points in kept.items()
    )
    return svg.picture(width, height, title, f"{y_label} over {x_label}. {told}.", body)


def _finite(points: Points) -> list[tuple[float, float]]:
    kept = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(kept) <= _MOST_POINTS:
        return kept
    # Evenly thinned; the last point stays, since the label stands at it.
    every = -(-len(kept) // _MOST_POINTS)
    return [*kept[::every], kept[-1]]


def _path(points: Points, x_at: Scale, y_at: Scale, i: int, steps: bool) -> str:
    parts = [f"M{x_at(points[0][0]):.1f} {y_at(points[0][1]):.1f}"]
    for x, y in points[1:]:
        parts.append(f"H{x_at(x):.1f}V{y_at(y):.1f}" if steps else f"L{x_at(x):.1f} {y_at(y):.1f}")
    dash = _DASHES[i // 7 % len(_DASHES)] or _DASHES[min(i, 3)]
    more = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path class="o-s{i % 7}" d="{"".join(parts)}" fill="none" stroke-width="2.2" '
        f'stroke-linejoin="round"{more}/>'
    )


def _apart(
    ends: list[tuple[float, int, str]], gap: float, top: float, bottom: float
) -> list[tuple[float, int, str]]:
    """Labels moved so far apart that each can be read."""
    placed: list[tuple[float, int, str]] = []
    for y, i, name in sorted(ends):
        y = max(y, placed[-1][0] + gap) if placed else max(y, top)
        placed.append((y, i, name))
    over = placed[-1][0] - bottom
    if over > 0:
        placed = [(y - over, i, name) for y, i, name in placed]
    return placed


def bar_chart(bars: Sequence[Bar], *, title: str, unit: str = "", better: str = "") -> str:
    """Bars of (name, value, lo, hi), with the interval as a whisker and the figures in words."""
    if not bars:
        raise UsageError("a bar chart needs at least one bar")
    kept = list(bars[:_MOST_BARS])
    words = [_figures(bar, unit) for bar in kept]
    width, row, top, left, right = NARROW, 38.0, 60.0 if better else 44.0, 16.0, 20.0
    height = top + row * len(kept) + 34
    ends = [v for _, value, lo, hi in kept for v in (value, lo, hi) if v is not None]
    lo, hi = svg.spread([0.0, *ends])

    def x_at(x: float) -> float:
        return left + (x - lo) / (hi - lo) * (width - left - right)

    body = [svg.text(left, 26, svg.shorten(title, 44), "h", "ink")]
    if better:
        body.append(svg.text(left, 44, f"{better} is better", "soft"))
    body += [svg.line(x_at(x), top, x_at(x), height - 30, "grid") for x in svg.ticks(lo, hi, 4)]
    body += axis_words(lo, hi, x_at, height - 12, lambda x: svg.in_words(x, unit), 4)
    for i, (bar, figures) in enumerate(zip(kept, words, strict=True)):
        body += _bar(bar, figures, top + row * i, (left, width - right), x_at)
    body.append(svg.line(x_at(0.0), top, x_at(0.0), height - 30, "axis"))
    told = "; ".join(f"{name} {each}" for (name, *_), each in zip(kept, words, strict=True))
    if len(bars) > _MOST_BARS:
        told += f"; {len(bars) - _MOST_BARS} more are left out"
    return svg.picture(width, height, title, told + ".", body)


def axis_words(
    lo: float, hi: float, x_at: Scale, y: float, say: Callable[[float], str], about: int
) -> list[str]:
    """The figures below an axis, as many as stand apart."""
    body: list[str] = []
    end = -math.inf
    for x in svg.ticks(lo, hi, about):
        words = say(x)
        half = svg.text_width(words) / 2
        at = max(x_at(x), half + 6)
        if at - half > end + 8:
            body.append(svg.text(at, y, words, "soft", "m"))
            end = at + half
    return body


def _bar(
    bar: Bar, figures: str, y: float, ends: tuple[float, float], x_at: Scale
) -> list[str]:  # fmt: skip
    """The name and the figures on one line, the bar below them."""
    name, value, lo, hi = bar
    left, right = ends
    middle = y + 24
    room = (right - left - svg.text_width(figures) - 10) / svg.text_width("x")
    body = [svg.text(left, y + 13, svg.shorten(name, max(4, int(room))), "ink", "b")]
    if not math.isfinite(value):
        return [*body, svg.text(right, y + 13, "no value", "soft", "e")]
    body.append(svg.text(right, y + 13, figures, "ink", "e"))
    x0, x1 = sorted((x_at(0.0), x_at(value)))
    body.append(
        f'<rect class="o-f0" opacity="0.78" x="{x0:.1f}" y="{middle - 5:.1f}" '
        f'width="{max(x1 - x0, 1.0):.1f}" height="10" rx="2"/>'
    )
    if lo is not None and hi is not None and math.isfinite(lo) and math.isfinite(hi) and hi > lo:
        body.append(whisker(x_at(lo), x_at(hi), middle))
    return body


def whisker(x0: float, x1: float, y: float) -> str:
    """An interval: a line with ends, on a halo so that it shows on a bar too."""
    path = f"M{x0:.1f} {y:.1f}H{x1:.1f}M{x0:.1f} {y - 5:.1f}v10M{x1:.1f} {y - 5:.1f}v10"
    return (
        f'<path class="o-halo" d="{path}" fill="none" stroke-width="3.4"/>'
        f'<path class="o-inks" d="{path}" fill="none" stroke-width="1.8"/>'
    )


def _figures(bar: Bar, unit: str) -> str:
    _, value, lo, hi = bar
    found = svg.in_words(value, unit)
    if lo is not None and hi is not None and math.isfinite(lo) and math.isfinite(hi) and hi > lo:
        found += f" [{svg.in_words(lo, unit)}, {svg.in_words(hi, unit)}]"
    return found
