"""Faults planted in pipelines: each must be seen by the referee of `pipeline_training`."""

from __future__ import annotations

import numpy as np
import pytest
from tests.systems.train.pipeline_runs import trained

from orrery.systems.train.baselines.gpipe import GPipe
from orrery.systems.train.baselines.one_worker_sgd import OneWorkerSGD
from orrery.systems.train.baselines.pipedream import PipeDream
from orrery.systems.train.baselines.pipelined_local_sgd import PipelinedLocalSGD
from orrery.systems.train.problems.stage import Read
from orrery.systems.train.randomized_pipedream import RandomizedPipeDream, delay_law


class Skipping(PipeDream):
    """Stage 1 makes no update by batch 5."""

    def step(self, gradient, batches, replica=0):
        if self.rank != 1 or tuple(batches) != (5,):
            super().step(gradient, batches, replica)


class Twice(PipeDream):
    """Stage 1 updates by batch 5 a second time."""

    def step(self, gradient, batches, replica=0):
        super().step(gradient, batches, replica)
        if self.rank == 1 and tuple(batches) == (5,):
            super().step(gradient, batches, replica)


class Inventing(PipeDream):
    """Tells of a batch that there is not."""

    def step(self, gradient, batches, replica=0):
        super().step(gradient, [b + 100 if b == 5 else b for b in batches], replica)


class Unstashed(PipeDream):
    """Says that it stashes, and goes back through the newest weights."""

    async def backward(self, batch, **how):
        return await super().backward(batch, **how | {"newest": True})


class Mislabelling(PipeDream):
    """Reads the newest weights under the number of an older version."""

    def current(self, replica=0):
        return super().current(replica)._replace(version=max(self.versions[replica] - 1, 0))


class Steeper(PipeDream):
    """Takes steps a hundredth too long."""

    def step(self, gradient, batches, replica=0):
        super().step(gradient * 1.01, batches, replica)


class Garbling(PipeDream):
    """Sends activations that are not quite what came out."""

    def _ship(self, rank, array, way, batch):
        super()._ship(rank, np.asarray(array) * (1.001 if way == "F" else 1.0), way, batch)


class Summing(GPipe):
    """Adds the gradients of a flush up instead of averaging them."""

    def step(self, gradient, batches, replica=0):
        super().step(gradient * len(batches), batches, replica)


class Favouring(PipelinedLocalSGD):
    """Takes the first replica for the average."""

    def put(self, block, batches, replica=0):
        super().put(block if tuple(batches) else self.blocks[0], batches, replica)


class Peeking(OneWorkerSGD):
    """Takes the gradient of another batch than it says."""

    async def _gradients(self, batch):
        return await super()._gradients(max(batch - 1, 0))


class AllBlocks(RandomizedPipeDream):
    """Updates the last block as well, whichever was drawn."""

    async def backward(self, batch, **how):
        gradient = await super().backward(batch, **how)
        if self.rank == self.size - 1 and how.get("on", True):
            self.step(gradient, (batch,))
            self.history[self.versions[0]] = self.blocks[0]
        return gradient


class FreshRead(RandomizedPipeDream):
    """Reads the newest weights and says that they are the delayed ones."""

    async def forward(self, batch, read=None, *, stash=True):
        await super().forward(batch, Read(read.version, self.blocks[0]), stash=stash)


PLANTED = {
    Skipping: "batch_misused", Twice: "batch_misused", Inventing: "batch_unknown",
    Unstashed: "weights_changed", Mislabelling: "weights_mistaken", Steeper: "replay_differs",
    Garbling: "replay_differs", Summing: "replay_differs", Favouring: "replay_differs",
    AllBlocks: "batch_misused", FreshRead: "weights_mistaken",
}  # fmt: skip


@pytest.mark.parametrize("part", PLANTED, ids=lambda part: part.__name__)
def test_the_referee_sees_it(part):
    made = trained(part(), 3, task="logistic", steps=24)
    assert made.violations and made.violations[0].kind == PLANTED[part]


def test_the_referee_sees_a_batch_that_was_read_twice():
    kinds = {violation.kind for violation in trained(Peeking(), 3, steps=12).violations}
    assert kinds & {"batch_misused", "replay_differs"}


@pytest.mark.parametrize("part", [RandomizedPipeDream, PipeDream, GPipe, PipelinedLocalSGD])
def test_the_honest_ones_pass(part):
    assert trained(part(), 3, task="logistic", steps=24).violations == []


class Later(RandomizedPipeDream):
    """Reads weights older than the bound allows; its notes say so."""

    def delays(self, stages, steps):
        return np.minimum(super().delays(stages, steps) + 4, np.arange(steps))


def test_a_delay_beyond_the_bound_shows_in_the_metric():
    assert trained(RandomizedPipeDream(), 3, steps=40).metrics["delay_max"] == delay_law(3)
    assert trained(Later(), 3, steps=40).metrics["delay_max"] == delay_law(3) + 4


def test_weights_that_diverge_are_named():
    made = trained(PipeDream(), 4, steps=60, rate=1e8, audit=False)
    assert [violation.kind for violation in made.violations] == ["not_finite"]
    assert made.metrics["loss"] == float("inf")


class Deserting(PipeDream):
    """The middle stage ends its training before the others."""

    async def pump(self):
        if self.rank != 1:
            await super().pump()


def test_a_stage_that_deserts_is_named_by_the_others():
    made = trained(Deserting(), 3, steps=8, patience_s=5.0)
    assert {violation.kind for violation in made.violations} == {"rank_lost"}
