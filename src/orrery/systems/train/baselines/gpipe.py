"""GPipe: all forward passes of a mini-batch, then all backward ones, then one update."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from orrery.models.taskgraph.schedules import Step, gpipe
from orrery.parts import Count
from orrery.parts.collectives import Array
from orrery.systems.train.problems.stage import Stage


class GPipe(Stage):
    """Flush the pipeline after every `micro_batches` batches and update all stages together.

    Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism",
    NeurIPS 2019. No weight is ever stale, but of S stages each idles for S - 1 of every M + S - 1
    turns, and keeps the activations of M batches.

    Knobs: `micro_batches`, M; `optimiser`.
    Differs from the paper: activations are kept and not computed again.

    >>> GPipe(micro_batches=4).micro_batches
    4
    """

    micro_batches: Count = 8

    schedule: ClassVar[Callable[..., list[Step]]] = staticmethod(gpipe)

    def in_flight_most(self) -> int:
        return self.micro_batches

    async def pump(self) -> None:
        for first in range(0, self.training.steps, self.micro_batches):
            count = min(self.micro_batches, self.training.steps - first)
            total: Array | None = None
            for step in self.schedule(self.rank, self.size, count):
                if step.direction == "F":
                    await self.forward(first + step.micro_batch)
                else:
                    gradient = await self.backward(first + step.micro_batch)
                    total = gradient if total is None else total + gradient
            assert total is not None
            self.step(total / total.dtype.type(count), range(first, first + count))
