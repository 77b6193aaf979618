"""Replicas that never talk: what communication has to be worth."""

from __future__ import annotations

from typing import ClassVar

from orrery.systems.train.problems.trainer import Trainer


class NoTalk(Trainer):
    """Every replica trains alone; nothing is exchanged.

    The floor of cost and the ceiling of loss for whoever saves communication. What the problem
    judges is the average of weights that were trained apart.

    Knobs: `optimiser`.
    Differs from the paper: there is none; it is the control that comparisons of local methods use.

    >>> NoTalk().agrees
    False
    """

    agrees: ClassVar[bool] = False

    async def train(self) -> None:
        for _ in self.steps():
            await self.local_step()
