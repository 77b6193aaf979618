"""The map as a picture (SVG, nothing from outside) and as characters for a terminal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from orrery.lab import svg
from orrery.lab.when.axes import Axis
from orrery.lab.when.contour import Piece, Spot, cross, lines, spot_of
from orrery.lab.when.points import NO, OPEN, YES

if TYPE_CHECKING:
    from orrery.lab.when import Map
    from orrery.lab.when.survey import Place, Survey

LEFT, TOP, SIZE, BOTTOM = 92.0, 76.0, 440.0, 66.0
LEGEND = 210.0
WORDS = {YES: "holds, at least in part", NO: "does not hold", OPEN: "open"}
# A class of fill for each answer, with how strong it is.
FILLS = {YES: ("o-good", 0.30), NO: ("o-lie", 0.95), OPEN: ("o-shade", 0.70)}
SIGNS = {YES: "#", NO: ".", OPEN: "?"}
LINE = "*"


def axis_ticks(axis: Axis, about: int = 6) -> list[float]:
    """Round values along an axis; on a logarithmic one tens, and halves and fifths of them.

    >>> axis_ticks(Axis(owner="world", name="x", lo=1.0, hi=100.0, log=True))
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
    """
    if not axis.log:
        found = svg.ticks(axis.lo, axis.hi, about)
        return [x for x in found if not axis.whole or x == round(x)]
    first, last = math.floor(math.log10(axis.lo)), math.ceil(math.log10(axis.hi))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    every = max(1, (last - first) // 8)
    made = [float(f"{m}e{k}") for k in range(first, last + 1, every) for m in steps]
    return [x for x in made if axis.lo * (1 - 1e-9) <= x <= axis.hi * (1 + 1e-9)]


def picture(found: Map) -> str:
    """The map as a whole SVG document."""
    survey = found.survey
    width, height = LEFT + SIZE + LEGEND, TOP + SIZE + BOTTOM

    def at(spot: Spot) -> tuple[float, float]:
        return LEFT + spot[0] * SIZE, TOP + (1 - spot[1]) * SIZE

    claim = found.claim
    told = claim.says or claim.form
    body = [svg.text(20, 30, svg.shorten(f"When {found.id} holds: {claim.metric}", 80), "h", "ink"),
            svg.text(20, 50, svg.shorten(_claim_line(found, told), 110), "soft")]  # fmt: skip
    body += _regions(survey, at)
    body += _scales(survey, at)
    break_even = lines(survey)
    for line in break_even:
        spots = [at(spot) for spot in line]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
        body.append(f'<path class="o-halo" d="{path}" fill="none" stroke-width="6"/>')
        body.append(f'<path class="o-s0" d="{path}" fill="none" stroke-width="3" '
                    'stroke-linejoin="round" stroke-linecap="round"/>')  # fmt: skip
    for place in sorted(survey.places):
        body.append(_mark(survey.places[place].state, *at(spot_of(survey, place))))
    body += _legend(found, bool(break_even))
    words = f"{found.sentence()}. x: {survey.x.parameter}, y: {survey.y.parameter}. "
    words += f"{len(survey.values)} points; {len(break_even)} break-even lines."
    return svg.picture(width, height, f"{found.id}: {claim.metric}", words, body)


def _claim_line(found: Map, told: str) -> str:
    against = f" against {found.claim.against}" if found.claim.against else ""
    return f"claimed: {told}{against} ({found.kind})"


def _regions(survey: Survey, at: Callable[[Spot], tuple[float, float]]) -> list[str]:
    """The pieces of every cell, in the colour of their answer."""
    made = []
    sides = survey.sides()
    for cell in sorted(survey.cells):
        for piece in cross(survey, cell, sides).pieces:
            spots = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, piece.rim))
            name, strong = FILLS[piece.state]
            made.append(f'<polygon class="{name}" opacity="{strong}" points="{spots}"/>')
    # Without smoothing no hairlines show between the pieces.
    return ['<g shape-rendering="crispEdges">', *made, "</g>"]


def _scales(survey: Survey, at: Callable[[Spot], tuple[float, float]]) -> list[str]:
    made = []
    for value in axis_ticks(survey.x):
        x, _ = at((survey.x.share(value), 0.0))
        made.append(svg.line(x, TOP + SIZE, x, TOP + SIZE + 5, "axis"))
        made.append(svg.text(x, TOP + SIZE + 20, svg.number(value), "soft", "m"))
    for value in axis_ticks(survey.y):
        _, y = at((0.0, survey.y.share(value)))
        made.append(svg.line(LEFT - 5, y, LEFT, y, "axis"))
        made.append(svg.text(LEFT - 9, y + 4, svg.number(value), "soft", "e"))
    made.append(svg.text(LEFT + SIZE / 2, TOP + SIZE + 44, _label(survey.x), "ink", "m"))
    made.append(svg.text(20, TOP - 8, _label(survey.y), "ink"))
    for x1, y1, x2, y2 in (
        (LEFT, TOP, LEFT, TOP + SIZE), (LEFT, TOP + SIZE, LEFT + SIZE, TOP + SIZE)
    ):  # fmt: skip
        made.append(svg.line(x1, y1, x2, y2, "axis"))
    return made


def _label(axis: Axis) -> str:
    return svg.shorten(axis.parameter, 60) + (" (logarithmic)" if axis.log else "")


def _mark(state: str, x: float, y: float) -> str:
    """A sample: each answer has its own sign, so that no one needs the colours."""
    where = f'transform="translate({x:.1f} {y:.1f})"'
    if state == YES:
        return f'<circle class="o-good o-halo" r="4" stroke-width="1.2" {where}/>'
    if state == NO:
        return (f'<path class="o-bad" d="M-3.4 -3.4L3.4 3.4M3.4 -3.4L-3.4 3.4" '
                f'stroke-width="2" {where}/>')  # fmt: skip
    return f'<circle class="o-axis" r="3.6" fill="none" stroke-width="1.8" {where}/>'


def _legend(found: Map, line: bool) -> list[str]:
    x, y = LEFT + SIZE + 24, TOP + 12
    shares = found.survey.shares()
    made = []
    for state in (YES, NO, OPEN):
        name, strong = FILLS[state]
        made.append(f'<rect class="{name}" opacity="{strong}" x="{x:.1f}" y="{y - 11:.1f}" '
                    'width="26" height="18" rx="2"/>')  # fmt: skip
        made.append(_mark(state, x + 13, y - 2))
        made.append(svg.text(x + 34, y + 2, WORDS[state], "ink"))
        made.append(svg.text(x + 34, y + 17, f"{shares[state]:.0%} of the map", "soft"))
        y += 44
    if line:
        made.append(svg.line(x, y - 2, x + 26, y - 2, "s0", 'stroke-width="3"'))
        made.append(svg.text(x + 34, y + 2, "break-even", "ink"))
        y += 30
    finest, _ = found.survey.finest()
    made.append(svg.text(x, y + 10, f"{len(found.survey.values)} points", "soft"))
    made.append(svg.text(x, y + 27, f"finest cell {finest:.1%} of an axis", "soft"))
    return made


# -- characters


def characters(found: Map, columns: int = 56, rows: int = 18) -> list[str]:
    """The map as lines of text: # holds, . does not, ? open, * break-even."""
    survey, sides = found.survey, found.survey.sides()
    pieces = [p for cell in sorted(survey.cells) for p in cross(survey, cell, sides).pieces]
    grid = []
    for r in range(rows):
        across = [((c + 0.5) / columns, (r + 0.5) / rows) for c in range(columns)]
        grid.append([SIGNS[_state_at(survey, pieces, spot)] for spot in across])
    for line in lines(survey):
        for u, v in _along(line, 2 * max(columns, rows)):
            grid[min(rows - 1, int(v * rows))][min(columns - 1, int(u * columns))] = LINE
    heads = [svg.number(survey.y.lo), svg.number(survey.y.hi)]
    wide = max(len(head) for head in heads)
    made = [f"{'':>{wide}} {survey.y.parameter}{' (log)' if survey.y.log else ''}"]
    for r in range(rows - 1, -1, -1):
        head = heads[1] if r == rows - 1 else heads[0] if r == 0 else ""
        made.append(f"{head:>{wide}} |{''.join(grid[r])}")
    lo, hi = svg.number(survey.x.lo), svg.number(survey.x.hi)
    made.append(f"{'':>{wide}} +{'-' * columns}")
    made.append(f"{'':>{wide}}  {lo}{hi:>{columns - len(lo)}}")
    name = f"{survey.x.parameter}{' (log)' if survey.x.log else ''}"
    made.append(f"{'':>{wide}}  {name:^{columns}}".rstrip())
    made.append(f"{'':>{wide}}  # holds   . does not   ? open   * break-even")
    return made


def _state_at(survey: Survey, pieces: Sequence[Piece], spot: Spot) -> str:
    """The answer of the piece that a spot lies in, else that of the nearest known point."""
    for piece in pieces:
        if _within(*spot, piece.rim):
            return piece.state

    def far(place: Place) -> tuple[float, Place]:
        x, y = spot_of(survey, place)
        return math.hypot(x - spot[0], y - spot[1]), place

    return survey.places[min(survey.places, key=far)].state


def _within(u: float, v: float, rim: Sequence[Spot]) -> bool:
    """Whether a spot lies inside a polygon: a ray meets its rim an odd number of times."""
    inside = False
    for k, (x, y) in enumerate(rim):
        w, z = rim[k - 1]
        if (y > v) != (z > v) and u < (w - x) * (v - y) / (z - y) + x:
            inside = not inside
    return inside


def _along(line: Sequence[Spot], steps: int) -> list[Spot]:
    made = []
    for (a, b), (c, d) in itertools.pairwise(line):
        made += [(a + (c - a) * k / steps, b + (d - b) * k / steps) for k in range(steps + 1)]
    return made
