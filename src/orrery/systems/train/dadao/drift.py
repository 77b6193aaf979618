"""The linear drift of a state between events: exp(A t) for any t, from tables.

Time goes in whole ticks. A stretch of k ticks is the product of at most three tabled matrices, one
for each 1,024-fold, so that a drift costs two or three small products whatever its length. The
tables are made by scaling and squaring, all matrices of a table at once.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from orrery.base.errors import PartError

Floats = npt.NDArray[np.float64]

TERMS = 18  # of the series, at a norm of at most 1/2: the rest is below 1e-21
FOLD = 1024


def expm(matrices: Floats) -> Floats:
    """The exponential of a square matrix, or of each of a stack, by scaling and squaring.

    >>> expm(np.array([[0.0, 1.0], [0.0, 0.0]])).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    given = np.asarray(matrices, dtype=float)
    if given.ndim < 2 or given.shape[-1] != given.shape[-2]:
        raise PartError(f"expm of shape {given.shape}: give square matrices")
    if not np.all(np.isfinite(given)):
        raise PartError("expm of a matrix that is not finite; check the constants")
    norm = float(np.abs(given).sum(axis=-1).max(initial=0.0))
    halvings = max(0, math.ceil(math.log2(norm)) + 1) if norm > 0 else 0
    if halvings > 60:
        raise PartError(f"expm of a matrix of norm {norm:.3g}: the result would overflow")
    small = given / 2.0**halvings
    eye = np.broadcast_to(np.eye(given.shape[-1]), given.shape)
    total, term = eye.copy(), eye
    for k in range(1, TERMS + 1):
        term = term @ small / k
        total += term
    for _ in range(halvings):
        total = total @ total
    return total


class Drift:
    """State' = A state, advanced by whole ticks of which `ticks` make a unit of time."""

    def __init__(self, matrix: Floats, ticks: int) -> None:
        steps = np.arange(FOLD)[:, None, None]
        self._low = expm(matrix * (steps / ticks))
        self._mid = expm(matrix * (steps * (FOLD / ticks)))
        # exp(A FOLD^2 2^k / ticks) for k = 0, 1, 2 …, made when they are first needed.
        self._powers = [expm(matrix * (FOLD**2 / ticks))]

    def moved(self, state: Floats, ticks: int) -> Floats:
        """The state so many ticks later."""
        if ticks < 0:
            raise PartError(f"a drift of {ticks} ticks: time does not go back")
        low, mid = ticks % FOLD, ticks // FOLD
        if low:
            state = self._low[low] @ state
        if mid:
            long, mid = divmod(mid, FOLD)
            state = self._mid[mid] @ state
            power = 0
            while long:
                if power == len(self._powers):
                    self._powers.append(self._powers[-1] @ self._powers[-1])
                if long & 1:
                    state = self._powers[power] @ state
                long, power = long >> 1, power + 1
        return state


@lru_cache(maxsize=16)
def drift_of(rows: tuple[tuple[float, ...], ...], ticks: int) -> Drift:
    """The drift of a matrix, shared by all nodes of a run."""
    return Drift(np.array(rows), ticks)


__all__ = ["Drift", "drift_of", "expm"]
