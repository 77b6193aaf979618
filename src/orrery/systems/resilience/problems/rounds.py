"""Rounds on workers of unreliable speed: delay profiles, their replay, and the choice of knobs.

A worker's round takes factor x (start-up + load x unit time). The master hears the fastest, calls
everybody a straggler who takes more than (1 + mu) times as long, and then ends the round, unless
the scheme says that these answers do not fit: then it waits for the next ones, in the order of
their arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from orrery.base.errors import PartError
from orrery.base.rand import Stream
from orrery.parts.collectives import Array
from orrery.systems.resilience.problems.coding import Course, GradientScheme


def profile(
    workers: int, rounds: int, seed: int, *, slow: float = 5.0, share: float = 0.05,
    burst: float = 1.5, steady: bool = False, noise: float = 0.1,
) -> Array:  # fmt: skip
    """Factors by which each worker's round is slower: (rounds, workers), all at least 1.

    At any time about `share` of the workers straggle, `slow` times slower, in bursts of `burst`
    rounds on average (geometric); with `steady` the same workers straggle all the time. The others
    vary by a little `noise`.
    """
    if not (workers >= 1 and rounds >= 1 and slow >= 1 and 0 <= share < 1 and burst >= 1):
        raise PartError(
            f"profile(workers={workers}, rounds={rounds}, slow={slow:g}, share={share:g}, "
            f"burst={burst:g}): counts and factors are at least 1, the share is in [0, 1)"
        )
    rng = Stream(seed, "profile", "stragglers").numpy()
    factors = 1.0 + noise * rng.exponential(size=(rounds, workers))
    if steady:
        lame = rng.permutation(workers)[: round(share * workers)]
        factors[:, lame] *= slow
        return factors
    leave = 1.0 / burst
    enter = share * leave / (1.0 - share)
    lame = rng.random(workers) < share
    for number in range(rounds):
        factors[number, lame] *= slow
        draws = rng.random(workers)
        lame = np.where(lame, draws >= leave, draws < enter)
    return factors


class Replayed(NamedTuple):
    """What a profile made of a scheme."""

    seconds: float
    load: float
    waited: int  # rounds that had to be waited out


def replay(
    scheme: GradientScheme, factors: Array, *, startup_s: float = 1.0, unit_s: float = 20.0,
    mu: float = 1.0,
) -> Replayed:  # fmt: skip
    """Run a scheme over a profile of delays, for its times alone: as many jobs as it has rounds.

    In the steady state all workers have the same load, so no task need be made out. The rounds at
    the end that finish the last jobs read the profile from its beginning. Time O(rounds x workers).
    """
    jobs, workers = factors.shape
    course = scheme.course(workers)
    total, waited = 0.0, 0
    for number in range(jobs + course.delay):
        took = factors[number % jobs] * (startup_s + course.load * unit_s)
        heard, took_s, patient = close_round(course, number, took, mu)
        total += took_s
        waited += patient
        course.note(number, heard)
    return Replayed(total, course.load, waited)


def close_round(
    course: Course, number: int, took: Array, mu: float
) -> tuple[list[int], float, bool]:
    """(who is heard, how long the round takes, whether it was waited out)."""
    order = np.argsort(took, kind="stable")
    limit = (1.0 + mu) * took[order[0]]
    count = int(np.searchsorted(took[order], limit, side="right"))
    patient = not course.fits(number, order[:count])
    if patient:
        # More answers never fit worse, so the least number that fits is found by halving.
        low, high = count, len(took)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if course.fits(number, order[:middle]) else (middle, high)
        count = high
    # Whoever answers in time ends the round early where all do.
    ended_s = float(took[order[count - 1]]) if patient or count == len(took) else float(limit)
    return order[:count].tolist(), ended_s, patient


def tune(
    schemes: Iterable[GradientScheme], factors: Array, **timing: float
) -> tuple[GradientScheme, Replayed]:
    """The quickest of some schemes on a profile; those that do not fit the workers are left out."""
    best: tuple[GradientScheme, Replayed] | None = None
    for scheme in schemes:
        try:
            found = replay(scheme, factors, **timing)
        except PartError:
            continue
        if best is None or found.seconds < best[1].seconds:
            best = scheme, found
    if best is None:
        raise PartError("tune: none of the schemes fits this number of workers; give others")
    return best


def settings(workers: int, limit: int = 0) -> Sequence[tuple[int, int, int]]:
    """Some (burst, window, most) that are worth trying for a number of workers.

    `most` is such that most + 1 divides the workers, whose codes are exact, up to a third of them.
    """
    top = limit or max(workers // 3, 1)
    mosts = [m for m in range(1, top + 1) if workers % (m + 1) == 0]
    return [(b, w, m) for b in (1, 2, 3) for w in (b + 1, 2 * b + 1) for m in mosts if w > b]
