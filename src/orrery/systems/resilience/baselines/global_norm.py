"""Watch the norm of the averaged gradient: what gradient clipping computes anyway."""

from __future__ import annotations

import math
from typing import ClassVar

from orrery.systems.resilience.baselines.averaged_loss import AveragedLoss
from orrery.systems.resilience.problems.detector import Step


class GlobalNorm(AveragedLoss):
    """Raises an alarm when the norm of the averaged gradient moves; it can blame nobody.

    The norm is what clipping needs (Pascanu, Mikolov, Bengio, ICML 2013) and most training loops
    log; the alarm is an EWMA control chart of its logarithm, up and down.

    Knobs: those of `AveragedLoss`.

    Differs from the paper: the paper clips and raises no alarm.

    >>> GlobalNorm().kind
    'norm_moved'
    """

    watches_sum: ClassVar[bool] = True

    def begin(self) -> None:
        super().begin()
        self._chart.rises = False

    def value(self, step: Step) -> float:
        norm = step.sum_norm / max(len(step.ranks), 1)
        return math.log(norm) if norm > 0 else math.nan

    @property
    def kind(self) -> str:
        return "norm_moved"
