"""Watch the averaged loss: what every training dashboard shows."""

from __future__ import annotations

import numpy as np

from orrery.base.errors import PartError
from orrery.parts import Count, Fraction, Positive
from orrery.systems.resilience.problems.detector import Detector, Step
from orrery.systems.resilience.problems.scores import Chart


class AveragedLoss(Detector):
    """Raises an alarm when the loss averaged over the ranks rises; it can blame nobody.

    An EWMA control chart (Roberts, "Control Chart Tests Based on Geometric Moving Averages",
    Technometrics 1959) of what the loss differs by from a forecast that follows its trend; fitted
    to a steady series, of what it differs by from that series' mean.

    Knobs: `weight` of the newest step; `limit`, in standard deviations of the average; `warmup`
    steps; `slow`, the weight of the newest step in the forecast.

    Differs from the paper: the forecast, and that only a rise counts unless the chart is fitted.
    The limit is wider than the usual 3, because a forecast errs too: sound runs then have an alarm
    on in less than 1 % of their steps.

    >>> AveragedLoss().kind
    'loss_rose'
    """

    weight: Positive = 0.25
    limit: Positive = 3.5
    warmup: Count = 20
    slow: Fraction = 0.15

    def begin(self) -> None:
        if self.slow >= 1 or self.weight > 1:
            raise PartError(
                f"slow={self.slow}, weight={self.weight}: give slow < 1 and weight of at most 1"
            )
        known = self.__dict__.get("_learnt")
        self._chart = Chart(
            self.weight, self.limit, self.warmup, self.slow, known=known, rises=known is None
        )

    def value(self, step: Step) -> float:
        """The number of a step that is watched."""
        return float(np.mean(step.losses))

    def look(self, step: Step) -> list[tuple[str, tuple[int, ...], float]]:
        self.signal = self.value(step)
        return [(self.kind, (), self._chart.score)] if self._chart.add(self.signal) else []

    @property
    def kind(self) -> str:
        """The name of its alarm."""
        return "loss_rose"

    def learn(self, steps: list[Step]) -> None:
        values = np.array([self.value(step) for step in steps])
        values = values[np.isfinite(values)]
        self._learnt = (float(np.mean(values)), float(np.std(values))) if values.size else None
