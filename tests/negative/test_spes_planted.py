"""Faults planted in SPES: each must be seen by what the acceptance lines look at."""

from __future__ import annotations

import numpy as np
from tests.systems.train.spes_runs import (
    TINY,
    Watched,
    disagreeing,
    miscounted,
    syncs,
    thawed,
    tiny,
    trained,
    untrained,
)

from orrery import World
from orrery.models.learn import mixture
from orrery.systems.train import DataParallel, NoTalk, Synchronous
from orrery.systems.train.spes import SPES
from orrery.systems.train.spes.training import SHARED
from orrery.world import Crash


def kinds(made):
    return {violation.kind for violation in made.violations}


class Stingy(SPES):
    """Keeps the foreign experts that it has, whatever comes."""

    def joined_with(self, part):
        return self._unpacked(self.weights, [SHARED], part[: self.sizes[SHARED]])


def test_experts_that_are_not_copied_are_seen():
    made = tiny(Stingy(every=4))
    assert kinds(made) == {"replicas_differ"} and disagreeing(made) == [0, 1, 2]


class Deaf(SPES):
    """Takes nothing from the others: the nodes are isolated, and each has frozen experts."""

    def end_round(self, whole, members):
        super().end_round(self.weights, members)


def test_without_synchronisation_the_loss_is_no_longer_near():
    made = trained(Deaf(every=5), steps=80)
    central = trained(Synchronous(), steps=80)
    alone = trained(NoTalk(), steps=80)
    own = DataParallel(task="experts").learning()
    judged = [own.judge(r.values["weights"]) for r in made.records if "digest" in r.values]
    best = min(own.judge(r.values["weights"]) for r in alone.records if "digest" in r.values)
    # A node that trains half of its experts is even worse than one that trains them all.
    assert min(judged) > 1.05 * central.metrics["loss"] and min(judged) > best


class Hoarder(SPES):
    """Keeps optimiser state for every expert, trained or not."""

    def _settle(self):
        super()._settle()
        for expert in range(self.experts):
            if expert not in self.inners:
                self.inners[expert] = type(self.inners[SHARED])(1e-3)
                self.inners[expert].step(*[mixture.pack(self.weights, self.pieces[expert])] * 2)


class Chatty(SPES):
    """Hands in the whole model."""

    def part_for(self, rank, whole):
        return whole.copy()

    def joined_with(self, part):
        return part

    def part_size(self, rank):
        return sum(self.sizes.values())


def test_more_state_or_more_bytes_are_seen():
    problem = DataParallel(task="experts", more={**TINY, "experts": 8})
    assert miscounted(tiny(SPES(every=4)), problem) == []
    assert miscounted(tiny(Hoarder(every=4)), problem) == [0, 1, 2, 3]
    assert miscounted(tiny(Chatty(every=4)), problem) == [0, 1, 2, 3]
    # With every node training every expert, nothing is saved.
    everything = tiny(SPES(every=4, owners=4)).metrics
    assert everything["up_B"] == everything["optimiser_B"] / 2
    assert everything["up_B"] > 2 * tiny(SPES(every=4)).metrics["up_B"]


class Thawing(Watched):
    """Lets weight decay shrink the frozen experts as well."""

    async def _step(self):
        await super()._step()
        for expert in range(self.experts):
            if expert not in self.of[self.rank]:
                for part in self.pieces[expert]:
                    self.weights[part] *= np.float32(1 - 1e-5)


class Lazy(Watched):
    """Never trains its experts."""

    async def _step(self):
        before = self.weights.copy()
        await super()._step()
        for expert in self.of[self.rank]:
            for part in self.pieces[expert]:
                self.weights[part] = before[part]


def test_a_frozen_expert_that_moves_is_seen():
    assert len(thawed(tiny(Thawing(every=4)))) == 3 * 4
    made = tiny(Lazy(every=4))
    assert thawed(made) and untrained(made, 8) == list(range(8))


class Restless(SPES):
    """Merges a little even where the weight is zero."""

    def end_round(self, whole, members):
        whole = whole.copy()
        for expert in range(1, self.experts):
            for part, first in zip(self.pieces[expert], self.pieces[0], strict=True):
                whole[part] += np.float32(1e-6) * (whole[first] - whole[part])
        super().end_round(whole, members)


def test_a_merge_that_does_not_stop_is_seen():
    plain, restless = (tiny(part(every=4, merge=0.0)) for part in (SPES, Restless))
    assert syncs(plain)[0][0]["mark"] != syncs(restless)[0][0]["mark"]


class Heartless(Watched):
    """Leaves the experts of a lost node without an owner."""

    def end_round(self, whole, members):
        before = self.of
        super().end_round(whole, members)
        self.of = {rank: before.get(rank, ()) for rank in members}
        self._settle()


def test_experts_that_nobody_takes_over_are_seen():
    world = World.lan(4).with_faults(Crash(node=2, at_s=1e-4))
    knobs = {"every": 3, "ping_s": 0.01, "tries": 2}
    assert untrained(tiny(Watched(**knobs), world=world), 8) == []
    assert len(untrained(tiny(Heartless(**knobs), world=world), 8)) == 2


class Hasty(SPES):
    """A hub that ends before the others have its last result."""

    async def delivered(self):
        return


def test_a_result_that_dies_with_the_hub_is_seen():
    world = World.lan(4, latency_s=2e-4, bandwidth_Bps=2e7)
    knobs = {"every": 4, "ping_s": 0.02, "tries": 2}
    ended = tiny(Hasty(**knobs), world=world, scale=30.0)
    first = min(r.time_s for r in ended.records if "digest" in r.values and r.node == 0)
    fault = world.with_faults(Crash(node=0, at_s=first + 1e-5))
    assert "replicas_differ" in kinds(tiny(Hasty(**knobs), world=fault, scale=30.0))
    assert kinds(tiny(SPES(**knobs), world=fault, scale=30.0)) == set()
