"""Plain SGD: one worker has all stages, and nothing is ever stale."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from orrery.models.learn import make
from orrery.parts import Whole
from orrery.parts.collectives import Array
from orrery.systems.train.problems.stage import BACK, FORTH, Read, Stage, picked, stepped, work


class OneWorkerSGD(Stage):
    """Pass each batch through all stages on one worker, then update (Robbins and Monro, 1951).

    The other workers idle. The stages are those of the rivals, so that their arithmetic is the
    same bit for bit, and what differs is staleness alone.

    Knobs: `update`: "all" blocks after a batch, or a "random" one; `block_seed` draws it;
    `optimiser`.
    Differs from the paper: nothing known.

    >>> OneWorkerSGD().update
    'all'
    """

    update: Literal["all", "random"] = "all"
    block_seed: Whole = 1

    def start(self) -> None:
        super().start()
        self.owns = () if self.rank else tuple(range(self.size))
        self.every = [self.cut.block(stage) for stage in self.owns]
        self.since = [0 for _ in self.owns]
        self.steppers = [make(self.optimiser, self.rate * self.rate_scale) for _ in self.owns]

    @property
    def updates_one(self) -> bool:
        """Whether a batch updates one block alone."""
        return self.update == "random"

    def final_weights(self) -> Array:
        return np.concatenate(self.every) if self.every else np.empty(0)

    async def pump(self) -> None:
        if self.rank:
            return
        chosen = picked(self.block_seed, self.training.steps, self.size)
        for batch in range(self.training.steps):
            gradients = await self._gradients(batch)
            for stage in self.owns:
                if self.updates_one and stage != chosen[batch]:
                    continue
                stepper = self.steppers[stage]
                self.every[stage] = stepped(stepper, self.every[stage], gradients[stage])
                self.since[stage] += 1
                self.note_update(stage, self.since[stage], self.every[stage], (batch,))

    async def _gradients(self, batch: int) -> dict[int, Array]:
        """The gradient of every block, all at the same weights."""
        x: Any = None
        kept, found = [], {}
        for stage in self.owns:
            began_s, flops = self.now, self.forward_share * self.cut.flops(stage)
            x, inside = await self.compute(
                work, flops, self.cut.forward, stage, self.every[stage], x, batch
            )
            kept.append(inside)
            self.note_pass(FORTH, stage, batch, self._read(stage), began_s)
        self.most_kept, up = 1, None
        for stage in reversed(self.owns):
            began_s, flops = self.now, (1 - self.forward_share) * self.cut.flops(stage)
            found[stage], up = await self.compute(
                work, flops, self.cut.backward, stage, self.every[stage], kept[stage], up, batch
            )
            self.note_pass(BACK, stage, batch, self._read(stage), began_s)
        return found

    def _read(self, stage: int) -> Read:
        return Read(self.since[stage], self.every[stage])
