"""Overlap local SGD: replicas are pulled to an anchor whose average runs behind the local steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.parts import Count, Fraction
from orrery.parts.collectives import Array
from orrery.systems.train.problems.trainer import Trainer


class OverlapLocalSGD(Trainer):
    """At the end of a round pull the replica towards the anchor; average it in the background.

    Wang, Liang and Joshi, "Overlap local-SGD: an algorithmic approach to hide communication
    delays", ICASSP 2020: after `every` local steps, x <- x - pull (x - z); then the average of the
    new x is started, and is the anchor z, with momentum, at the end of the next round.

    Knobs: `every`, local steps in a round; `pull`, how strongly a replica follows the anchor;
    `anchor_momentum`; `optimiser`.
    Differs from the paper: after the last step the replicas average once, so that they agree.

    >>> OverlapLocalSGD().pull
    0.6
    """

    every: Count = 8
    pull: Fraction = 0.6
    anchor_momentum: Fraction = 0.7

    async def train(self) -> None:
        anchor = self.weights.copy()
        speed: Array = np.zeros_like(anchor)
        coming: Any = None
        for step in self.steps():
            await self.local_step()
            if step % self.every:
                continue
            if coming is not None:
                mean = await coming
                speed = self.anchor_momentum * speed + (mean - anchor)
                anchor = (anchor + speed).astype(anchor.dtype)
            self.weights = self.weights - anchor.dtype.type(self.pull) * (self.weights - anchor)
            coming = self.behind(self.mean(self.weights.copy(), tag="anchor"))
        if coming is not None:
            await coming
        self.weights = await self.mean(self.weights)
