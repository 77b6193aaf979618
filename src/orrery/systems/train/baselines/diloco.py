"""DiLoCo: long stretches of local AdamW, and an outer Nesterov step on what they moved."""

from __future__ import annotations

import numpy as np

from orrery.parts import Count, Fraction, Positive
from orrery.parts.collectives import Array
from orrery.systems.train.problems.trainer import Trainer


class DiLoCo(Trainer):
    """Average how far the replicas moved in `every` steps; take it as an outer gradient.

    Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023:
    inner AdamW, outer SGD with Nesterov momentum 0.9 and rate 0.7.

    Knobs: `every`, local steps in a round; `outer_rate`; `outer_momentum`; `optimiser`.
    Differs from the paper: a last round may be shorter, so that all steps count.

    >>> DiLoCo().outer_rate, DiLoCo().outer_momentum
    (0.7, 0.9)
    """

    every: Count = 20
    outer_rate: Positive = 0.7
    outer_momentum: Fraction = 0.9

    async def train(self) -> None:
        anchor = self.weights.copy()
        speed: Array = np.zeros_like(anchor)
        for step in self.steps():
            await self.local_step()
            if step % self.every == 0 or step == self.training.steps:
                moved = await self.mean(self.weights - anchor)
                speed = self.outer_momentum * speed + moved
                # Nesterov's step looks ahead along the new speed.
                ahead = moved + self.outer_momentum * speed
                anchor = (anchor + self.outer_rate * ahead).astype(anchor.dtype)
                self.weights = anchor.copy()
