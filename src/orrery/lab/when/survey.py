"""The survey: a coarse grid first, then finer where the answer changes, within a budget of points.

Cells are squares of a lattice whose finest step is the coarse one halved `depth` times. A cell is
split while its known points disagree: first those with *holds* beside *does not*, then those where
only the measured side of break-even changes, then those of which a part is open or whose interval
straddles break-even, last those that are wholly open; the largest and the lowest come first. The
order rests on what was found and on nothing else, so a survey that is taken up again gives the
same map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from orrery.lab.when.axes import Axis
from orrery.lab.when.points import NO, OPEN, UNMEASURED, YES, Point

Place = tuple[int, int]
SURE, SIGN, UNSURE, BLIND, EVEN = range(5)


class Cell(NamedTuple):
    """A square of the lattice: its lower left corner and its side."""

    i: int
    j: int
    size: int

    def corners(self) -> tuple[Place, Place, Place, Place]:
        """Its corners against the clock, from the lower left."""
        i, j, n = self
        return (i, j), (i + n, j), (i + n, j + n), (i, j + n)

    def quarters(self) -> list[Cell]:
        """The four cells of half its side."""
        i, j, half = self.i, self.j, self.size // 2
        return [Cell(i + a, j + b, half) for b in (0, half) for a in (0, half)]

    def middles(self) -> list[Place]:
        """The places that a split adds: its centre and the middles of its sides."""
        i, j, half = self.i, self.j, self.size // 2
        steps = ((half, half), (half, 0), (0, half), (2 * half, half), (half, 2 * half))
        return [(i + a, j + b) for a, b in steps]


class Survey:
    """The points found so far and the cells between them."""

    def __init__(
        self, x: Axis, y: Axis, judge: Callable[[float, float], Point], *, grid: int = 5,
        depth: int = 3, budget: int = 60,
    ) -> None:  # fmt: skip
        self.x, self.y, self.judge = x, y, judge
        self.step = 1 << depth
        self.side = (grid - 1) * self.step
        self.budget = budget
        self.places: dict[Place, Point] = {}
        self.values: dict[tuple[float, float], Point] = {}
        self.cells = [Cell(i * self.step, j * self.step, self.step)
                      for j in range(grid - 1) for i in range(grid - 1)]  # fmt: skip
        self.complete = False

    def at(self, place: Place) -> tuple[float, float]:
        """The values of the two parameters at a place."""
        return self.x.value(place[0] / self.side), self.y.value(place[1] / self.side)

    def run(self) -> Survey:
        """Judge the coarse grid, then split cells until nothing disagrees or the budget is gone."""
        for j in range(0, self.side + 1, self.step):
            for i in range(0, self.side + 1, self.step):
                self._find((i, j))
        while True:
            ranked = sorted((self.rank(cell), -cell.size, cell.j, cell.i, cell)
                            for cell in self.cells)  # fmt: skip
            ranked = [each for each in ranked if each[0] != EVEN and self._can_split(each[-1])]
            if not ranked:
                self.complete = True
                return self
            best = ranked[0][:2]
            for *head, cell in ranked:
                if tuple(head[:2]) != best:
                    break
                if not self._split(cell):
                    return self

    def _find(self, place: Place) -> None:
        """Have the point at a place; the same values (of whole numbers) are judged once."""
        values = self.at(place)
        if values not in self.values:
            self.values[values] = self.judge(*values)
        self.places[place] = self.values[values]

    def _new(self, cell: Cell) -> int:
        """How many points a split of a cell would have to judge."""
        wanted = {self.at(place) for place in cell.middles()}
        return len(wanted - self.values.keys())

    def _can_split(self, cell: Cell) -> bool:
        """Whether halves of a cell are other values: whole numbers cannot be halved for ever."""
        if cell.size < 2:
            return False
        ends = {self.at(corner) for corner in cell.corners()}
        return any(self.at(place) not in ends for place in cell.middles())

    def _split(self, cell: Cell) -> bool:
        """Split a cell; False when the budget does not allow it."""
        if len(self.values) + self._new(cell) > self.budget:
            return False
        for place in cell.middles():
            if place not in self.places:
                self._find(place)
        self.cells.remove(cell)
        self.cells += cell.quarters()
        return True

    # -- reading the map

    def inside(self, cell: Cell) -> Iterator[Point]:
        """Every known point of a cell, on its sides too: a finer neighbour may know more."""
        for (i, j), point in self.places.items():
            if cell.i <= i <= cell.i + cell.size and cell.j <= j <= cell.j + cell.size:
                yield point

    def rank(self, cell: Cell) -> int:
        """Why a cell should be split, the most pressing reason first; EVEN where none is."""
        known = list(self.inside(cell))
        states = {point.state for point in known}
        if {YES, NO} <= states:
            return SURE
        if len({point.score > 0 for point in known if point.score is not None}) > 1:
            return SIGN
        if states == {OPEN}:
            return BLIND
        unsure = OPEN in states or any(point.straddles for point in known)
        return UNSURE if unsure else EVEN

    def sides(self) -> dict[Place, float]:
        """The score of every place; one without takes the side of the nearest that has one.

        No line is drawn towards the unknown: a region that nobody measured has no border.
        """
        known = {place: point.score for place, point in self.places.items()
                 if point.score is not None}  # fmt: skip
        found: dict[Place, float] = {}
        for i, j in self.places:
            score = known.get((i, j))
            if score is None and known:
                near = min(known, key=lambda p: ((p[0] - i) ** 2 + (p[1] - j) ** 2, p))
                score = math.copysign(UNMEASURED, known[near])
            found[(i, j)] = score if score is not None else -UNMEASURED
        return found

    def rim(self, cell: Cell) -> list[Place]:
        """The known places along the sides of a cell, against the clock from the lower left."""
        i, j, n = cell
        low, high, left, right = [], [], [], []
        for a, b in self.places:
            if not (i <= a <= i + n and j <= b <= j + n):
                continue
            if b == j and a < i + n:
                low.append((a, b))
            elif a == i + n and b < j + n:
                right.append((a, b))
            elif b == j + n and a > i:
                high.append((a, b))
            elif a == i and b > j:
                left.append((a, b))
        return [*sorted(low), *sorted(right), *sorted(high, reverse=True),
                *sorted(left, reverse=True)]  # fmt: skip

    def shares(self) -> dict[str, float]:
        """How much of the map's area holds, does not, or is open, by the corners of the cells."""
        total = {YES: 0.0, NO: 0.0, OPEN: 0.0}
        for cell in self.cells:
            for corner in cell.corners():
                total[self.places[corner].state] += cell.size * cell.size / 4
        area = float(self.side * self.side)
        return {state: round(size / area, 6) for state, size in total.items()}

    def finest(self) -> tuple[float, float]:
        """The side of the smallest and of the largest cell, as shares of an axis."""
        sizes = [cell.size for cell in self.cells]
        return min(sizes) / self.side, max(sizes) / self.side
