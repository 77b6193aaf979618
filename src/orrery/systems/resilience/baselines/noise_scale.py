"""Watch the gradient noise scale, from norms before and after the average."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from orrery.parts import Count, Positive
from orrery.systems.resilience.baselines.global_norm import GlobalNorm
from orrery.systems.resilience.problems.detector import Step


class NoiseScale(GlobalNorm):
    """Estimates the gradient noise scale and raises an alarm when it moves; it can blame nobody.

    After McCandlish, Kaplan, Amodei and others, "An Empirical Model of Large-Batch Training"
    (2018), appendix A.1: from the mean squared norm of the ranks' gradients and that of the
    averaged one follow unbiased estimates of tr(Sigma) and |G|^2; each is averaged over steps, and
    their ratio is the noise scale, here in batches of a rank. The alarm is an EWMA control chart
    of its logarithm.

    Knobs: `smooth`, the weight of the newest step in both averages; and those of `AveragedLoss`.

    Differs from the paper: the paper raises no alarm. Averages that overlap make neighbouring
    values alike, so the chart is fed only as often as they are renewed.

    >>> NoiseScale().kind
    'noise_scale_moved'
    """

    smooth: Positive = 0.1
    warmup: Count = 5
    watches_sum: ClassVar[bool] = True

    def begin(self) -> None:
        super().begin()
        self._noise = self._slope = self._total = 0.0
        self._since = 0
        self.estimate = math.nan

    def value(self, step: Step) -> float:
        ranks = len(step.ranks)
        if ranks < 2 or not step.usable or not math.isfinite(step.sum_norm):
            return math.nan
        small = float(np.mean(step.norms**2))
        big = (step.sum_norm / ranks) ** 2
        keep = 1.0 - self.smooth
        noise = (small - big) / (1.0 - 1.0 / ranks)
        slope = (ranks * big - small) / (ranks - 1.0)
        self._noise = keep * self._noise + self.smooth * noise
        self._slope = keep * self._slope + self.smooth * slope
        if self._slope <= 0 or self._noise <= 0:
            return math.nan
        self.estimate = self._noise / self._slope
        self._since += 1
        if self._since * self.smooth < 1.0:
            return math.nan
        self._since = 0
        return math.log(self.estimate)

    def learn(self, steps: list[Step]) -> None:
        self.begin()
        super().learn(steps)

    @property
    def kind(self) -> str:
        return "noise_scale_moved"
