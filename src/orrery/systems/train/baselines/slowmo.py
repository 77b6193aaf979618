"""SlowMo: local steps, an average, and a slow momentum over the averages."""

from __future__ import annotations

import numpy as np

from orrery.parts import Count, Fraction, Positive
from orrery.parts.collectives import Array
from orrery.systems.train.problems.trainer import Trainer


class SlowMo(Trainer):
    """Average the weights every `every` steps; move on along a momentum of those moves.

    Wang et al., "SlowMo: improving communication-efficient distributed SGD with slow momentum",
    ICLR 2020. With `slow_momentum` 0 and `slow_rate` 1 it is local SGD. The momentum is kept in
    units of weights: the paper divides by the inner rate and multiplies by it again.

    Knobs: `every`, local steps in a round; `slow_momentum`; `slow_rate`; `optimiser`.
    Differs from the paper: the inner optimiser's state is kept over rounds, never reset.

    >>> SlowMo().slow_momentum
    0.5
    """

    every: Count = 8
    slow_momentum: Fraction = 0.5
    slow_rate: Positive = 1.0

    async def train(self) -> None:
        anchor = self.weights.copy()
        speed: Array = np.zeros_like(anchor)
        for step in self.steps():
            await self.local_step()
            if step % self.every == 0 or step == self.training.steps:
                mean = await self.mean(self.weights)
                speed = self.slow_momentum * speed + (mean - anchor)
                anchor = (anchor + self.slow_rate * speed).astype(anchor.dtype)
                self.weights = anchor.copy()
