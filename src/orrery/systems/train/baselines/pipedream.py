"""PipeDream: 1F1B without a flush, with stale weights that are stashed."""

from __future__ import annotations

from orrery.parts import Whole
from orrery.systems.train.problems.stage import Stage, alternate


class PipeDream(Stage):
    """Never flush; every stage updates its block right after each backward pass.

    Harlap et al., "PipeDream: fast and efficient pipeline parallel DNN training", 2018; Narayanan
    et al., SOSP 2019. S batches are under way at once, so all stages are busy. A batch goes back
    through the weights that it went forward through: stage s stashes up to S - 1 - s old versions.
    From the read of a batch at the first stage to the write of its gradient there, the S stages
    make S^2 - S/2 block updates.

    Knobs: `in_flight`, batches in the pipeline (0: as many as stages; 1: each batch goes all the
    way before the next one enters, which removes all staleness); `stash`, whether the weights of
    the forward pass are kept for the backward one; `optimiser`.
    Differs from the papers: one worker a stage; no vertical sync (nor is it the papers' default).

    >>> PipeDream().stash
    True
    """

    in_flight: Whole = 0
    stash: bool = True

    @property
    def goes_back_as_forth(self) -> bool:
        return self.stash

    async def pump(self) -> None:
        for step in alternate(self.rank, self.size, self.training.steps, self.in_flight):
            if step.direction == "F":
                await self.forward(step.micro_batch, stash=self.stash)
            else:
                gradient = await self.backward(step.micro_batch, newest=not self.stash)
                self.step(gradient, (step.micro_batch,))
