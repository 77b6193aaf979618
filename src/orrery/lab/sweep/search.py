"""How a sweep chooses its trials: the whole grid, at random, or by a model of what was found.

Trial number n depends on the seed and on the results of earlier *generations* only, and how large a
generation is does not depend on the workers. So any number of workers, any order of finishing and
any number of kills give the same trials, and a larger budget only adds some.

The model is a tree-structured Parzen estimator (Bergstra and others, "Algorithms for
hyper-parameter optimization", 2011), with kernels over all parameters at once: the best trials so
far give one density, the others a second one, and of some candidates drawn from the first the one
is tried at which the first exceeds the second the most.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from orrery.base.errors import UsageError, did_you_mean
from orrery.base.rand import Stream
from orrery.lab.sweep.space import Choice, Point, Space

SEARCHES = ("grid", "random", "tpe")
MOST_TRIALS = 100_000
MOST_MODELLED = 5_000
# Trials that are handed to the workers together where nothing has to be waited for.
CHUNK = 64
# The first trials of the model's search are random; then it proposes a few at a time.
START, GENERATION = 12, 4
CANDIDATES = 32
GOOD_SHARE, MOST_GOOD = 0.15, 25
# The share of a listed value's kernel that is spread over the whole list: with less, a wrong value
# that was lucky among the first trials is seldom left again.
SPREAD = 0.4
TRIES = 200
Array = npt.NDArray[np.float64]


class Search:
    """The order of trials. `losses` are what earlier trials cost: low is good, NaN failed."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        self.space, self.seed = space, seed
        self.points: list[Point] = []
        self._seen: set[bytes] = set()

    def limit(self, trials: int | None) -> int:
        """How many trials there will be, or an error when that is too many."""
        size = self.space.size
        wanted = _checked(trials if trials is not None else 50, self.most)
        return wanted if size is None else min(wanted, size)

    most = MOST_TRIALS

    def until(self, n: int) -> int:
        """The end of the generation that begins at trial n."""
        return n + CHUNK

    def extend(self, until: int, losses: Sequence[float]) -> None:
        """Choose the points of one generation, from the losses of all before it."""
        for n in range(len(self.points), until):
            self._add(self._next(n, losses))

    def _add(self, point: Point) -> None:
        self.points.append(point)
        self._seen.add(_key(point))

    def _next(self, n: int, losses: Sequence[float]) -> Point:
        raise TypeError("a search says how it goes on")

    def _random(self, stream: Stream) -> Point:
        """A point not tried before; in a small space that is nearly used up, the next one."""
        for _ in range(TRIES):
            point = self.space.at([stream.random() for _ in self.space.dims])
            if _key(point) not in self._seen:
                return point
        if self.space.size is None:
            return point
        sizes = [range(dim.size or 0) for dim in self.space.dims]
        for places in itertools.product(*sizes):
            shares = [(at + 0.5) / len(size) for at, size in zip(places, sizes, strict=True)]
            point = self._by_place(places, shares)
            if _key(point) not in self._seen:
                return point
        return point

    def _by_place(self, places: Sequence[int], shares: Sequence[float]) -> Point:
        found: list[Any] = []
        for dim, place, share in zip(self.space.dims, places, shares, strict=True):
            found.append(dim.at(share) if isinstance(dim, Choice) else int(dim.axis.lo) + place)
        return tuple(found)


class GridSearch(Search):
    """Every point of the grid, once."""

    def limit(self, trials: int | None) -> int:
        size = self.space.grid_size
        if size > MOST_TRIALS:
            fix = "give fewer values or steps, or --search random with --trials"
            raise UsageError(f"the grid has {size} trials, more than {MOST_TRIALS}; {fix}")
        if trials is not None and _checked(trials, MOST_TRIALS) < size:
            fix = f"leave it out, or use --search random --trials {trials}"
            raise UsageError(f"trials {trials}: the grid has {size}; {fix}")
        self._grid = self.space.grid()
        return size

    def _next(self, n: int, losses: Sequence[float]) -> Point:
        return next(self._grid)


class RandomSearch(Search):
    """Points at random; none twice where the space can be counted."""

    def _next(self, n: int, losses: Sequence[float]) -> Point:
        return self._random(Stream(self.seed, n, "sweep random"))


class ModelSearch(Search):
    """Points that a Parzen estimator thinks better than the rest."""

    most = MOST_MODELLED

    def until(self, n: int) -> int:
        return START if n < START else n + GENERATION

    def _next(self, n: int, losses: Sequence[float]) -> Point:
        stream = Stream(self.seed, n, "sweep tpe")
        known = np.asarray(losses, dtype=np.float64)
        if n < START or not np.isfinite(known).any():
            return self._random(stream)
        order = np.argsort(np.where(np.isfinite(known), known, np.inf), kind="stable")
        good = min(math.ceil(GOOD_SHARE * len(known)), MOST_GOOD, int(np.isfinite(known).sum()))
        places = np.array([self._place(point) for point in self.points[: len(known)]])
        best, rest = Kernels(self.space, places[order[:good]]), Kernels(
            self.space, places[order[good:]])  # fmt: skip
        drawn = np.array([best.draw(stream) for _ in range(CANDIDATES)])
        worth = best.log_density(drawn) - rest.log_density(drawn)
        for at in np.argsort(-worth, kind="stable"):
            point = self._point(drawn[at])
            if _key(point) not in self._seen:
                return point
        return self._random(stream)

    def _place(self, point: Point) -> list[float]:
        """A point as numbers: the share of a range, the number of a listed value."""
        return [
            float(dim.values.index(value)) if isinstance(dim, Choice) else dim.share(value)
            for dim, value in zip(self.space.dims, point, strict=True)
        ]

    def _point(self, place: Array) -> Point:
        return tuple(
            dim.values[int(at)] if isinstance(dim, Choice) else dim.at(float(at))
            for dim, at in zip(self.space.dims, place, strict=True)
        )


class Kernels:
    """A density over the space: a kernel at each trial, and one that is even everywhere."""

    def __init__(self, space: Space, places: Array) -> None:
        self.counts = [dim.size if isinstance(dim, Choice) else 0 for dim in space.dims]
        self.places = places.reshape(-1, len(self.counts))
        ranges = sum(1 for count in self.counts if not count)
        # Scott's rule for the width, on shares of a range.
        self.width = 0.2 * max(len(self.places), 1) ** (-1.0 / (ranges + 4))

    def draw(self, stream: Stream) -> list[float]:
        """A place drawn from the density; what leaves a range is reflected back into it."""
        which = stream.below(len(self.places) + 1)
        even = which == len(self.places)
        found = []
        for at, count in enumerate(self.counts):
            if count:
                stay = not even and stream.random() >= SPREAD
                found.append(float(self.places[which, at]) if stay else float(stream.below(count)))
            elif even:
                found.append(stream.random())
            else:
                place = stream.gauss(float(self.places[which, at]), self.width)
                place = abs(place) % 2.0
                found.append(2.0 - place if place > 1.0 else place)
        return found

    def log_density(self, at: Array) -> Array:
        """The logarithm of the density at some places."""
        logs = np.zeros((len(at), len(self.places)))
        even = 0.0
        for dim, count in enumerate(self.counts):
            here, there = at[:, dim][:, None], self.places[:, dim][None, :]
            if count:
                logs += np.log((1 - SPREAD) * (here == there) + SPREAD / count)
                even -= math.log(count)
                continue
            total = np.zeros(logs.shape)
            for image in (here, -here, 2.0 - here):  # a reflected kernel adds up to one inside
                total += np.exp(-0.5 * ((image - there) / self.width) ** 2)
            logs += np.log(np.maximum(total, 1e-300)) - math.log(
                self.width * math.sqrt(2 * math.pi)
            )
        logs = np.hstack([logs, np.full((len(at), 1), even)])
        top = logs.max(axis=1)
        found: Array = top + np.log(np.exp(logs - top[:, None]).mean(axis=1))
        return found


def make_search(name: str, space: Space, seed: int) -> Search:
    """A search by its name."""
    kinds = {"grid": GridSearch, "random": RandomSearch, "tpe": ModelSearch}
    if name not in kinds:
        raise UsageError(f"search {name!r}: {did_you_mean(str(name), SEARCHES)}")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(f"seed {seed!r}: give a whole number")
    return kinds[name](space, seed)


def _checked(trials: Any, most: int) -> int:
    if isinstance(trials, bool) or not isinstance(trials, int) or not 1 <= trials <= most:
        raise UsageError(f"trials {trials!r}: give a whole number from 1 to {most}")
    return trials


def _key(point: Point) -> bytes:
    return msgspec.json.encode(point)
