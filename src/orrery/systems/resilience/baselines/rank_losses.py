"""Log the loss of every rank, and look at nothing else."""

from __future__ import annotations

import math

import numpy as np

from orrery.parts import Count, Positive
from orrery.systems.resilience.problems.detector import Detector, Step, spread
from orrery.systems.resilience.problems.scores import RankScores


class RankLosses(Detector):
    """Blames the rank whose loss is not like that of the others; gradients go unseen.

    Per-rank logging with the leave-one-out score of the system it is compared with: the rank's loss
    less the mean of the others, over their spread, averaged with exponential weights.

    Knobs: `threshold`, in standard deviations; `weight` of the newest step; `warmup` steps.

    Differs from the paper: there is none; it is the usual log with an alarm beside it.

    >>> RankLosses().threshold
    6.0
    """

    threshold: Positive = 6.0
    weight: Positive = 0.1
    warmup: Count = 10

    def begin(self) -> None:
        known = self.__dict__.get("_learnt", 0.0)
        self._scores = RankScores(self.weight, self.warmup, known)

    def look(self, step: Step) -> list[tuple[str, tuple[int, ...], float]]:
        if not np.all(np.isfinite(step.losses)):
            return []
        self.signal = spread(step.losses)
        scores = np.abs(self._scores.add(step.ranks, step.losses))
        worst = int(np.argmax(scores))
        kind, who = "loss_outlier", (step.ranks[worst],)
        on = scores[worst] >= self.threshold * (0.5 if self.is_on(kind, who) else 1.0)
        return [(kind, who, float(scores[worst]))] if on else []

    def learn(self, steps: list[Step]) -> None:
        found = [float(np.var(step.losses, ddof=1)) for step in steps if len(step.ranks) > 1]
        found = [each for each in found if math.isfinite(each)]
        self._learnt = math.sqrt(float(np.mean(found))) if found else 0.0
