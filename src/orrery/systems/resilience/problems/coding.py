"""Codes and courses: which worker computes what in which round, so that stragglers can be missed.

A *job* is one gradient over all data, which is cut into chunks. In a round a worker gets
*mini-tasks*, each a linear combination of the gradients of some chunks for some job, and sends one
vector for each. A *course* is the plan of one scheme for one run: it assigns the mini-tasks of a
round, learns who answered, and says which answers give a job's gradient. It holds no arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from orrery.base.errors import PartError
from orrery.base.rand import Stream
from orrery.parts import Part, Policy
from orrery.parts.collectives import Array

# Answers by (worker, mini-task) with their factors: their sum is a gradient.
Recipe = dict[tuple[int, "Mini"], float]


class Mini(NamedTuple):
    """What a worker computes for a job: the sum of factor times the gradient of a chunk."""

    job: int
    kind: str
    chunks: tuple[int, ...]
    factors: tuple[float, ...]


class Course:
    """The plan of a scheme for some workers, and what has come back so far.

    `delay`: by how many rounds a job may be late; `sizes`: the part of the data in each chunk;
    `load`: the most data that a worker reads in a round, as a part of all data.
    """

    delay = 0
    load = 1.0

    def __init__(self, workers: int, sizes: Sequence[float]) -> None:
        self.workers = workers
        self.sizes = list(sizes)
        self.answered: dict[int, list[tuple[int, Mini]]] = {}
        self.given: dict[int, list[list[Mini]]] = {}
        self.done: set[int] = set()

    def assign(self, number: int) -> list[list[Mini]]:
        """What each worker does in a round; rounds are asked for in order."""
        given = self.given[number] = self.plan(number)
        return given

    def plan(self, number: int) -> list[list[Mini]]:
        """What each worker does in a round."""
        raise PartError(f"{type(self).__name__} is no whole course: write plan, fits and recipe")

    def finish(self, number: int, heard: Iterable[int]) -> None:
        """Note which workers answered in a round."""
        heard = sorted(heard)
        self.note(number, heard)
        for worker in heard:
            for mini in self.given[number][worker]:
                self.answered.setdefault(mini.job, []).append((worker, mini))

    def note(self, number: int, heard: Iterable[int]) -> None:
        """Remember of a round what `fits` needs later; `finish` calls it."""

    def fits(self, number: int, heard: Iterable[int]) -> bool:
        """Whether the round may end with these answers, and every job still be decoded in time."""
        raise PartError(f"{type(self).__name__} is no whole course: write plan, fits and recipe")

    def recipe(self, job: int) -> Recipe | None:
        """How the answers so far give a job's gradient; None where they do not."""
        raise PartError(f"{type(self).__name__} is no whole course: write plan, fits and recipe")

    def forget(self, job: int) -> None:
        """A job is done; its answers are wanted no more, and nobody need repeat its tasks."""
        self.answered.pop(job, None)
        self.done.add(job)

    def load_of(self, minis: Sequence[Mini]) -> float:
        """The part of all data that some mini-tasks read."""
        return sum(self.sizes[chunk] for mini in minis for chunk in mini.chunks)


class GradientScheme(Policy):
    """The port: a scheme makes a course for a number of workers. It never waits."""

    # Whether every gradient is the true one; not so for a scheme that drops what is late.
    exact: ClassVar[bool] = True

    def course(self, workers: int) -> Course:
        """The plan for a run with so many workers."""
        raise PartError(f"{type(self).__name__} has no course(workers); write its plan there")

    def outline(
        self, workers: int, heard: Sequence[Sequence[int]]
    ) -> tuple[float, int, list[list[list[Mini]]]]:
        """(load, delay, the plans of some rounds) where these workers answer in each round."""
        course = self.course(workers)
        plans = []
        for number, came in enumerate(heard):
            plans.append(course.assign(number))
            course.finish(number, came)
        return course.load, course.delay, plans


class Code:
    """A gradient code: worker w sends row w of `matrix` times the chunks' gradients.

    Any workers but `missing` give the whole. Where missing + 1 divides n, each chunk is computed by
    a group of missing + 1 workers and one of each group is enough: factors are 1 and nothing is
    lost to rounding (fractional repetition; Tandon et al., "Gradient coding", ICML 2017). Else row
    w covers the chunks w to w + missing in a circle. Where n and missing are of different parity,
    the factors are the coefficients of a real polynomial whose roots are neighbouring roots of
    unity about -1 (cyclic MDS; Raviv et al., "Gradient coding from cyclic MDS codes and expander
    graphs", ICML 2018), which stays exact for hundreds of workers; else they are random, which is
    good for some dozens.
    """

    def __init__(self, workers: int, missing: int) -> None:
        if not 0 <= missing < workers:
            raise PartError(
                f"a code for {workers} workers cannot miss {missing}; miss 0 to {workers - 1}"
            )
        self.workers, self.missing = workers, missing
        self.repeats = workers % (missing + 1) == 0
        self.rows = _fractional(workers, missing) if self.repeats else _cyclic(workers, missing)

    def minis(self, job: int, kind: str, first_chunk: int = 0) -> list[Mini]:
        """The mini-task of each worker, for chunks that are numbered from `first_chunk`."""
        return [
            Mini(job, kind, tuple(first_chunk + c for c, _ in row), tuple(f for _, f in row))
            for row in self.rows
        ]

    def suffices(self, came: Array) -> bool:
        """Whether the workers who came (a truth value for each) give the whole."""
        if self.repeats:
            return bool(came.reshape(-1, self.missing + 1).any(axis=1).all())
        return int(came.sum()) >= self.workers - self.missing

    def factors(self, heard: Sequence[int]) -> dict[int, float] | None:
        """Factors of the workers' vectors that give the whole; None where they do not suffice."""
        return _decode(self.workers, self.missing, tuple(sorted(set(heard))))


@lru_cache(maxsize=256)
def _fractional(workers: int, missing: int) -> list[list[tuple[int, float]]]:
    # Worker w belongs to block w // (missing + 1); all of a block do the same chunks.
    size = missing + 1
    return [[(w // size * size + c, 1.0) for c in range(size)] for w in range(workers)]


@lru_cache(maxsize=64)
def _cyclic(workers: int, missing: int) -> list[list[tuple[int, float]]]:
    if (workers + missing) % 2:
        # The roots lie symmetrically about the angle pi, so the polynomial is real; 1 is no root.
        angles = np.pi + (np.arange(missing) - (missing - 1) / 2) * 2 * np.pi / workers
        factors = np.real(np.poly(np.exp(1j * angles)))
        factors /= np.abs(factors).max()
        return [
            [((worker + step) % workers, float(factors[step])) for step in range(missing + 1)]
            for worker in range(workers)
        ]
    # Rows lie in the null space of a random matrix whose rows add up to zero, so that the vector
    # of ones is in the span of any workers - missing of them.
    rng = Stream(workers, missing, "cyclic code").numpy()
    check = rng.standard_normal((missing, workers))
    check[:, -1] = -check[:, :-1].sum(axis=1)
    rows: list[list[tuple[int, float]]] = []
    for worker in range(workers):
        places = [(worker + step) % workers for step in range(missing + 1)]
        tail = np.linalg.solve(check[:, places[1:]], -check[:, places[0]]) if missing else []
        rows.append(list(zip(places, [1.0, *map(float, tail)], strict=True)))
    return rows


@lru_cache(maxsize=65536)
def _decode(workers: int, missing: int, heard: tuple[int, ...]) -> dict[int, float] | None:
    if workers % (missing + 1) == 0:
        first: dict[int, int] = {}
        for worker in heard:
            first.setdefault(worker // (missing + 1), worker)
        whole = len(first) == workers // (missing + 1)
        return dict.fromkeys(first.values(), 1.0) if whole else None
    if len(heard) < workers - missing:
        return None
    used = heard  # all that came: the more rows, the smaller the factors
    matrix: Array = np.zeros((len(used), workers))
    for place, worker in enumerate(used):
        for chunk, factor in _cyclic(workers, missing)[worker]:
            matrix[place, chunk] = factor
    try:
        found, *_ = np.linalg.lstsq(matrix.T, np.ones(workers), rcond=None)
    except np.linalg.LinAlgError:
        return None
    if not np.abs(matrix.T @ found - 1.0).max() < 1e-7:
        return None
    return dict(zip(used, map(float, found), strict=True))


class CodeCourse(Course):
    """Every round is a job of its own, coded so that `missing` workers may be missed."""

    def __init__(self, workers: int, missing: int) -> None:
        super().__init__(workers, [1.0 / workers] * workers)
        self.code = Code(workers, missing)
        self.load = (missing + 1) / workers

    def plan(self, number: int) -> list[list[Mini]]:
        return [[mini] for mini in self.code.minis(number, "coded")]

    def fits(self, number: int, heard: Iterable[int]) -> bool:
        came = np.zeros(self.workers, bool)
        came[list(heard)] = True
        return self.code.suffices(came)

    def recipe(self, job: int) -> Recipe | None:
        found = dict(self.answered.get(job, ()))
        factors = self.code.factors(sorted(found))
        return None if factors is None else {(w, found[w]): f for w, f in factors.items()}


class Bursty(Part):
    """The model of stragglers: in any `window` rounds at most `most` workers straggle, each of them
    within one burst of `burst` rounds.

    >>> Bursty(burst=1, window=3, most=1).holds([{0}, {0}])
    False
    """

    burst: int = 1
    window: int = 2
    most: int = 1

    def holds(self, missed: Sequence[Iterable[int]]) -> bool:
        """Whether the last rounds obey the model; the sets of stragglers, oldest first."""
        recent = [set(each) for each in missed[-self.window :]]
        seen: dict[int, int] = {}
        for number, each in enumerate(recent):
            for worker in each:
                if number - seen.setdefault(worker, number) >= self.burst:
                    return False
        return len(seen) <= self.most
