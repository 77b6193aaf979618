"""`RandomizedPipeDream`: a random block takes a step along a gradient from a delayed point."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

import msgspec
import numpy as np

from orrery.base.errors import PartError
from orrery.base.rand import Stream
from orrery.parts import Whole
from orrery.parts.collectives import Array
from orrery.systems.train.baselines.pipedream import PipeDream
from orrery.systems.train.problems.stage import Read, alternate, picked
from orrery.systems.train.randomized_pipedream.theory import delay_law

Delay = Annotated[int, msgspec.Meta(ge=-1)]


class RandomizedPipeDream(PipeDream):
    """Stale block SGD in a pipeline: a random block, a stochastic gradient, a bounded delay.

    "Demystifying Pipeline Parallelism: First Theory for PipeDream" (arXiv 2606.03498, 2026). In
    iteration k, with a block i_k drawn uniformly and a delay tau_k of at most `delay`,

        x_{k+1} = x_k - rate * (block i_k of the gradient of batch k at x_{k - tau_k})

    The blocks stand on the stages of a pipeline. Batch k goes forward through the version that
    each stage had after k - tau_k iterations, then back as far as stage i_k, which takes the step.
    All stages draw the same blocks and delays by themselves. A stage keeps the versions that are
    still to be read, about S of them with the delay of PipeDream. The weights do not depend on
    the timing of the stages: an engine with other speeds finds the same ones.

    One iteration is one block update, so S iterations are to be compared with one batch of
    PipeDream. A pass back costs half of a full one here, since a stage needs either the gradient
    of its block or that of what it read. A stage does O(steps) passes.

    Knobs: `randomized`, whether blocks are drawn (off: PipeDream itself, each batch updates all
    blocks); `delay`, the largest delay in iterations (-1: that of PipeDream, S^2 - S/2 rounded
    down; 0 switches staleness off); `least_delay`, from which to `delay` the delays are uniform
    (-1: all are `delay`); `block_seed` draws both; `in_flight`, `stash`, `optimiser` as in
    `PipeDream`.

    **Differs from the paper**: its text was not at hand, so the exact update law is our rendering
    of the published abstract. How the law runs on stages (versions kept by count, the way back cut
    off at the drawn block) is ours. `stash` off is refused together with `randomized`.

    >>> RandomizedPipeDream().bound(4), RandomizedPipeDream(delay=5).bound(4)
    (14, 5)
    """

    randomized: bool = True
    delay: Delay = -1
    least_delay: Delay = -1
    block_seed: Whole = 1

    @property
    def updates_one(self) -> bool:
        return self.randomized

    def bound(self, stages: int) -> int:
        """The largest delay with so many stages."""
        return delay_law(stages) if self.delay < 0 else self.delay

    def delays(self, stages: int, steps: int) -> Array:
        """The delay of each iteration; no gradient is older than the start."""
        most = self.bound(stages)
        least = most if self.least_delay < 0 else self.least_delay
        if least > most:
            raise PartError(
                f"RandomizedPipeDream.least_delay = {least} is above delay = {most}; lower it"
            )
        return np.minimum(drawn_delays(self.block_seed, steps, least, most), np.arange(steps))

    def start(self) -> None:
        super().start()
        if self.randomized and not self.stash:
            raise PartError(
                "RandomizedPipeDream.stash = False: a delayed point needs its old weights; set "
                "stash = true, or randomized = false"
            )
        self.history: dict[int, Array] = {0: self.blocks[0]}
        self.waits = self.delays(self.size, self.training.steps)

    def old_blocks(self) -> int:
        if not self.randomized:
            return super().old_blocks()
        return len(self.history) + sum(v not in self.history for _, v in self.stashed) - 1

    async def pump(self) -> None:
        if not self.randomized:
            await super().pump()
            return
        steps = self.training.steps
        blocks = picked(self.block_seed, steps, self.size)
        # After n iterations this stage has version had[n]; iteration k reads version asked[k].
        had = np.concatenate([[0], np.cumsum(blocks == self.rank)])
        asked = had[np.arange(steps) - self.waits]
        oldest = np.minimum.accumulate(asked[::-1])[::-1]
        least = int(self.waits[-1]) if self.least_delay < 0 else self.least_delay
        in_flight = min(self.in_flight or self.size, least + 1)
        for step in alternate(self.rank, self.size, steps, in_flight):
            k = step.micro_batch
            if step.direction == "F":
                version = int(asked[k])
                self._forget(int(oldest[k]))
                await self.forward(k, Read(version, self.history[version]))
                if blocks[k] > self.rank:
                    self.release(k)  # the gradient turns back before it reaches this stage
            elif blocks[k] == self.rank:
                self.step(await self.backward(k, part=0.5, on=False), (k,))
                self.history[self.versions[0]] = self.blocks[0]
            elif blocks[k] < self.rank:
                await self.backward(k, part=0.5)

    def _forget(self, oldest: int) -> None:
        """Drop the versions that no later iteration reads; the newest one stays."""
        for version in [v for v in self.history if v < min(oldest, self.versions[0])]:
            del self.history[version]


@lru_cache(maxsize=16)
def drawn_delays(seed: int, steps: int, least: int, most: int) -> Array:
    """Uniform delays from least to most, the same at every stage."""
    rng = Stream(seed, "pipeline", "delays").numpy()
    return rng.integers(least, most + 1, steps)
