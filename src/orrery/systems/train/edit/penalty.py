"""The pseudo gradient penalty: who is left out, with which weights the rest count, how far to go.

All of it works on norms, one for each worker and layer, so the workers agree by exchanging a few
numbers. A worker that is left out has the norm infinity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from orrery.parts.collectives import Array

LEFT_OUT = math.inf


class Watch:
    """What the norms of one layer at one worker have been: a mean and a variance that forget.

    Both are weighted exponentially and corrected for their beginning, as in Adam: without that, the
    variance begins at nothing and the first change looks like an anomaly. A norm that is anomalous
    is not learned from.

    >>> watch = Watch(alpha=0.02, least=3)
    >>> [watch.score(norm) > 3 for norm in (1.0, 1.1, 0.9, 1.05, 9.0, 1.0)]
    [False, False, False, False, True, False]
    """

    def __init__(self, alpha: float, least: int) -> None:
        self.alpha, self.least = alpha, least
        self.seen = 0
        self.sums = (0.0, 0.0)

    def score(self, norm: float, limit: float = 3.0) -> float:
        """How many deviations a norm lies above the mean; it is learned unless that is too many."""
        if not math.isfinite(norm):
            return LEFT_OUT
        found = self._deviations(norm) if self.seen >= self.least else 0.0
        if found <= limit:
            keep = 1 - self.alpha
            self.sums = (
                keep * self.sums[0] + self.alpha * norm,
                keep * self.sums[1] + self.alpha * norm * norm,
            )
            self.seen += 1
        return found

    def _deviations(self, norm: float) -> float:
        whole = 1 - (1 - self.alpha) ** self.seen
        mean, square = self.sums[0] / whole, self.sums[1] / whole
        # Norms that never differed say nothing about how much they may; a twentieth always may.
        deviation = max(math.sqrt(max(square - mean * mean, 0.0)), 0.05 * mean)
        if deviation == 0.0:
            return LEFT_OUT if norm > mean else 0.0
        return (norm - mean) / deviation


def shares(norms: Sequence[float], counts: Sequence[float] | None = None) -> Array:
    """The weight of each worker: the softmax of minus the norms; zeros where all are left out.

    `counts`, such as each worker's steps, multiply the weights before they are made to add up.

    >>> shares([1.0, 1.0, math.inf]).tolist()
    [0.5, 0.5, 0.0]
    >>> shares([math.inf, math.inf]).tolist()
    [0.0, 0.0]
    """
    given = np.asarray(norms, np.float64)
    taken = np.isfinite(given)
    found = np.zeros(len(given))
    if not taken.any():
        return found
    found[taken] = np.exp(given[taken].min() - given[taken])
    if counts is not None:
        found = found * np.asarray(counts, np.float64)
    total = found.sum()
    return found / total if total > 0 else found


def within(norm: float, most: float) -> float:
    """The factor that brings a vector of this norm to at most `most`; 0 is no bound.

    >>> within(20.0, 10.0), within(5.0, 10.0), within(5.0, 0.0)
    (0.5, 1.0, 1.0)
    """
    return most / norm if most and norm > most else 1.0
