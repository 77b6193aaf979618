"""Scores by which detectors tell chance from change: ranks against ranks, and a series in time."""

from __future__ import annotations

import math

import numpy as np

from orrery.parts.collectives import Array

# Deviations below this part of a value's size are rounding, however equal the others are.
ROUNDING = 1e-4


class RankScores:
    """How many standard deviations each rank lies from all others, over the last steps.

    The deviation of a rank is its value less the mean of the others; its scale is the spread of
    these others, so that a sick rank cannot hide itself by widening it. Both are averaged with
    exponential weights. In a sound run the deviations of different steps are independent, so the
    mean over steps has the standard deviation that the weights give. `known` is the spread of
    sound ranks where it was learnt before; a scale is not below it. One `add` takes O(ranks).
    """

    def __init__(self, weight: float, warmup: int, known: float = 0.0) -> None:
        self.weight, self.warmup, self.known = weight, warmup, known
        self.ranks: tuple[int, ...] = ()

    def _restart(self, ranks: tuple[int, ...]) -> None:
        self.ranks, self.count = ranks, 0
        self.mean = np.zeros(len(ranks))
        self.variance = np.zeros(len(ranks))
        self.total = self.squares = self.size = 0.0

    def add(self, ranks: tuple[int, ...], values: Array) -> Array:
        """The scores after one more step; zeros until there is enough to judge by."""
        if ranks != self.ranks:
            self._restart(ranks)
        n, keep = len(ranks), 1.0 - self.weight
        if n < 3:  # of two, either may be the odd one
            return np.zeros(n)
        offset = values - values[0]
        others = (offset.sum() - offset) / (n - 1)
        squared = (np.sum(offset**2) - offset**2) / (n - 1) - others**2
        self.count += 1
        self.mean = keep * self.mean + self.weight * (offset - others)
        self.variance = keep * self.variance + self.weight * np.maximum(squared, 0.0) * (
            (n - 1) / (n - 2)
        )
        self.size = keep * self.size + self.weight * float(np.mean(np.abs(values)))
        self.total = keep * self.total + self.weight
        self.squares = keep**2 * self.squares + self.weight**2
        if self.count < self.warmup:
            return np.zeros(n)
        sigma = np.maximum(np.sqrt(self.variance / self.total), self.known)
        sigma = np.maximum(sigma, ROUNDING * max(self.size / self.total, ROUNDING))
        error = sigma * math.sqrt(n / (n - 1)) * math.sqrt(self.squares) / self.total
        return np.asarray(self.mean / self.total / error)


class Chart:
    """An EWMA control chart (Roberts, 1959): tells when the mean of a series has moved.

    Charted is what a sample differs from its forecast by. Where the series' mean and standard
    deviation are `known` they are the forecast and the scale: with `weight` 0.25 and `limit` 2.998
    there is then a false alarm every 500 samples (Lucas and Saccucci, Technometrics 1990). Else the
    forecast follows level and trend by double exponential smoothing with weight `slow` (Brown,
    1959), so that a falling loss is not taken for a change, and the scale comes from neighbouring
    samples, which a trend does not widen. `rises`: only upwards counts.
    """

    def __init__(
        self, weight: float, limit: float, warmup: int, slow: float, *,
        known: tuple[float, float] | None = None, rises: bool = False,
    ) -> None:  # fmt: skip
        self.weight, self.limit, self.slow = weight, limit, slow
        self.known, self.rises = known, rises
        self.warmup = 0 if known else warmup
        self.count = 0
        self.charted = self.score = 0.0
        self.variance = known[1] ** 2 if known else 0.0
        self.first = self.second = self.last = 0.0

    def add(self, value: float) -> bool:
        """Whether the chart is out of its limits after one more sample."""
        if not math.isfinite(value):
            return False
        self.count += 1
        error = value - (self.known[0] if self.known else self._follow(value))
        since = self.count - self.warmup
        if since <= 0:
            return False
        self.charted += self.weight * (error - self.charted)
        part = self.weight / (2 - self.weight) * (1 - (1 - self.weight) ** (2 * since))
        sigma = math.sqrt(self.variance * part)
        moved = self.charted if self.rises else abs(self.charted)
        self.score = moved / sigma if sigma > 0 else 0.0
        return self.score > self.limit

    def _follow(self, value: float) -> float:
        """The forecast of this sample from those before it; it then learns from the sample."""
        if self.count == 1:
            self.first = self.second = self.last = value
            return value
        slow = self.slow
        gap = self.first - self.second
        forecast = self.first + gap + slow / (1 - slow) * gap
        # Half the mean squared difference of neighbours is the variance (von Neumann, 1941).
        share = max(slow, 1.0 / (self.count - 1))
        self.variance += share * ((value - self.last) ** 2 / 2 - self.variance)
        self.last = value
        if self.count > self.warmup:
            # A sample far out draws the forecast no more than one at the limit does.
            bound = self.limit * math.sqrt(self.variance)
            value = forecast + min(max(value - forecast, -bound), bound)
        self.first += slow * (value - self.first)
        self.second += slow * (self.first - self.second)
        return forecast
