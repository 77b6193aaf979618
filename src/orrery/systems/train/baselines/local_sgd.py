"""Local SGD: replicas train alone and average their weights now and then."""

from __future__ import annotations

from orrery.parts import Count
from orrery.systems.train.problems.trainer import Trainer


class LocalSGD(Trainer):
    """Average the weights every `every` steps (Stich, "Local SGD converges fast", ICLR 2019).

    With plain SGD and `every` 1 it equals synchronous training. The optimiser's state stays with
    its replica.

    Knobs: `every`, steps between two averages; `optimiser`.
    Differs from the paper: after the last step the replicas average once more, whatever the count.

    >>> LocalSGD(every=4).every
    4
    """

    every: Count = 8

    async def train(self) -> None:
        for step in self.steps():
            await self.local_step()
            if step % self.every == 0 or step == self.training.steps:
                self.weights = await self.mean(self.weights)
