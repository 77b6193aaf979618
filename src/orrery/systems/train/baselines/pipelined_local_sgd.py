"""Local SGD in a pipeline: several replicas share the stages and average now and then."""

from __future__ import annotations

import numpy as np

from orrery.parts import Count, Whole
from orrery.systems.train.problems.stage import Stage, alternate


class PipelinedLocalSGD(Stage):
    """Fill the pipeline with batches of different replicas; average them every `every` steps.

    Stich, "Local SGD converges fast and communicates little", ICLR 2019, as the rival of PipeDream
    on the same devices: each stage has the blocks of all replicas, and a replica has one batch
    under way at a time, so no weight is stale. To average, the pipeline runs empty: of S stages
    each idles for S - 1 of every (replicas x every) + S - 1 turns. All replicas of a block stand
    on one worker, so that averaging sends nothing.

    Knobs: `every`, steps of a replica between two averages; `replicas` (0: as many as stages, which
    fills the pipeline); `optimiser`, of which each replica has its own.
    Differs from the paper: the replicas share their devices; after the last step they average once
    more, whatever the count.

    >>> PipelinedLocalSGD(every=4).every
    4
    """

    every: Count = 8
    replicas: Whole = 0

    async def pump(self) -> None:
        replicas = self.replicas or self.size
        self.make_replicas(replicas)
        steps, round_size = self.training.steps, replicas * self.every
        for first in range(0, steps, round_size):
            count = min(round_size, steps - first)
            for step in alternate(self.rank, self.size, count, replicas):
                batch, replica = first + step.micro_batch, step.micro_batch % replicas
                if step.direction == "F":
                    await self.forward(batch, self.current(replica))
                else:
                    self.step(await self.backward(batch), (batch,), replica)
            # Like a step of an optimiser, a few operations for each weight cost no time here.
            with np.errstate(over="ignore", invalid="ignore"):  # where training diverges
                mean = np.mean(self.blocks, axis=0)
            for replica in range(replicas):
                self.put(mean, (), replica)
