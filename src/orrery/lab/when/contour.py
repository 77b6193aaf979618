"""The break-even line: where the score changes its sign, cell by cell, stitched into polylines.

A cell's rim holds its corners and whatever points finer neighbours have put on its sides. Both
cells at a side thus see the same pieces of it, and the line has no gaps where cells of two sizes
meet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from orrery.lab.when.points import NO, OPEN, YES
from orrery.lab.when.survey import Cell, Place, Survey

Spot = tuple[float, float]  # shares of the two axes
Key = tuple[Place, Place]  # the piece of a side on which the line crosses it


class Piece(NamedTuple):
    """A part of a cell in which one answer counts."""

    state: str
    rim: list[Spot]


class Crossed(NamedTuple):
    """A cell as the line cuts it: its pieces, and the ends of the cuts."""

    pieces: list[Piece]
    cuts: list[tuple[Key, Key]]


def spot_of(survey: Survey, place: Place) -> Spot:
    """Where a place really is: whole numbers do not lie on every point of the lattice."""
    point = survey.places[place]
    return survey.x.share(point.x), survey.y.share(point.y)


def crossing(survey: Survey, key: Key) -> Spot:
    """Where the score is zero between two neighbouring places, by a straight line."""
    one, other = (spot_of(survey, place) for place in key)
    here, there = (survey.places[place] for place in key)
    # Where a verdict is not about the measured value, all that is known is that it lies between.
    measured = here.measured_score and there.measured_score
    one_score, other_score = here.margin or 0.0, there.margin or 0.0
    way = one_score / (one_score - other_score) if measured else 0.5
    return one[0] + way * (other[0] - one[0]), one[1] + way * (other[1] - one[1])


def cross(survey: Survey, cell: Cell, sides: Mapping[Place, float]) -> Crossed:
    """Cut one cell along the line; `sides` are those of the survey."""
    rim = survey.rim(cell)
    good = [sides[place] > 0 for place in rim]
    if len(set(good)) == 1:
        return Crossed(_plain(survey, cell), [])
    n = len(rim)
    # With more than two crossings the middle of the cell decides which sides belong together.
    middle = sum(sides[place] for place in cell.corners()) > 0
    start = next(i for i in range(n) if good[i - 1] == middle and good[i] != middle)
    pieces: list[Piece] = []
    cuts: list[tuple[Key, Key]] = []
    rest: list[Place] = []
    rest_rim: list[Spot] = []
    run: list[Place] = []
    enter: Key | None = None
    for step in range(n):
        i = (start + step) % n
        was, now = rim[i - 1], rim[i]
        if good[i] != middle:
            if not run:
                enter = _key(was, now)
                rest_rim.append(crossing(survey, enter))
            run.append(now)
            continue
        if run and enter is not None:
            leave = _key(was, now)
            spots = [spot_of(survey, place) for place in run]
            ends = crossing(survey, enter), crossing(survey, leave)
            pieces.append(Piece(_state(survey, run, not middle), [ends[0], *spots, ends[1]]))
            cuts.append((enter, leave))
            rest_rim.append(ends[1])
            run = []
        rest.append(now)
        rest_rim.append(spot_of(survey, now))
    return Crossed([Piece(_state(survey, rest, middle), rest_rim), *pieces], cuts)


def _key(one: Place, other: Place) -> Key:
    return (one, other) if one < other else (other, one)


def _state(survey: Survey, places: list[Place], good: bool) -> str:
    states = {survey.places[place].state for place in places}
    return OPEN if states == {OPEN} else YES if good else NO


def _plain(survey: Survey, cell: Cell) -> list[Piece]:
    """A cell without the line: one piece, or a quarter for each corner where these differ."""
    corners = cell.corners()
    spots = [spot_of(survey, corner) for corner in corners]
    states = [survey.places[corner].state for corner in corners]
    if len(set(states)) == 1:
        return [Piece(states[0], spots)]
    centre = (sum(x for x, _ in spots) / 4, sum(y for _, y in spots) / 4)
    made = []
    for k, (x, y) in enumerate(spots):
        after, before = spots[(k + 1) % 4], spots[k - 1]
        half = ((x + after[0]) / 2, (y + after[1]) / 2)
        last = ((x + before[0]) / 2, (y + before[1]) / 2)
        made.append(Piece(states[k], [(x, y), half, centre, last]))
    return made


def lines(survey: Survey) -> list[list[Spot]]:
    """The break-even line as polylines in shares of the axes; a closed one ends as it began."""
    nexts: dict[Key, list[Key]] = defaultdict(list)
    sides = survey.sides()
    for cell in sorted(survey.cells):
        for one, other in cross(survey, cell, sides).cuts:
            if one != other:
                nexts[one].append(other)
                nexts[other].append(one)
    found: list[list[Key]] = []
    left = {key: list(others) for key, others in nexts.items()}
    # Open lines begin at an end of theirs; what remains are closed ones.
    for only_ends in (True, False):
        for key in sorted(left):
            while left[key] and (not only_ends or len(left[key]) == 1):
                found.append(_walk(key, left))
    return [_spots(survey, keys) for keys in found]


def _walk(start: Key, left: dict[Key, list[Key]]) -> list[Key]:
    path, here = [start], start
    while left[here]:
        there = left[here].pop(0)
        left[there].remove(here)
        path.append(there)
        here = there
    return path


def _spots(survey: Survey, keys: list[Key]) -> list[Spot]:
    spots = [crossing(survey, key) for key in keys]
    return [spot for i, spot in enumerate(spots) if i == 0 or spot != spots[i - 1]]


def in_values(survey: Survey, line: list[Spot]) -> list[list[float]]:
    """A polyline in the values of the two parameters."""
    import msgspec

    # Between two whole numbers the line stands where it stands.
    x, y = (msgspec.structs.replace(axis, whole=False) for axis in (survey.x, survey.y))
    return [[x.value(u), y.value(v)] for u, v in line]
