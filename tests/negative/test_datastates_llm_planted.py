"""Planted faults of checkpointers: each must be named by the referee of training with failures."""

from __future__ import annotations

import pytest
from tests.systems.resilience.checkpoint_runs import LARGE, said, trained

from orrery.systems.resilience.baselines.synchronous_save import SynchronousSave
from orrery.systems.resilience.datastates_llm import DataStates, Ring
from orrery.systems.resilience.problems.shards import Entry, Manifest
from orrery.world import Crash

SHORT = {"steps": 16, "step_s": 0.02, "watch_s": 0.02, "until_s": 30.0}
CRASH = Crash(node=(0, 1), at_s=0.2, until_s=0.25)


def kinds(part, faults=(CRASH,), **knobs):
    made = trained(part, faults=faults, **{**SHORT, **knobs})
    return {violation.kind for violation in made.violations}


def test_without_a_planted_fault_there_is_no_violation():
    assert kinds(DataStates()) == set() and kinds(SynchronousSave()) == set()


class CommitsAlone(SynchronousSave):
    """Rank 0 writes the manifest as soon as its own shard is safe, and asks nobody."""

    async def commit(self, file):
        record = await file.finish()
        if self.rank == 0:
            entries = tuple(Entry(rank, record.size_B, record.crc) for rank in range(self.size))
            await self.files.commit(Manifest(iteration=file.iteration, shards=entries))
            self.emit(committed=file.iteration, attempt=self.attempt)
        return True


def test_a_commit_without_the_votes_of_all():
    """Rank 1's shard is not the one that the manifest names: nothing can be restored any more."""
    assert kinds(CommitsAlone()) == {"unreadable"}
    made = trained(CommitsAlone(), faults=[CRASH], **SHORT)
    assert said(made, "damaged") and made.metrics["restored"] == 0


class TakesItsOwnNewest(DataStates):
    """A rank restores whatever is newest on its own disk, and does not ask the others."""

    async def _restore(self):
        mine = [i for i in self.files.iterations(".record") if i <= 5 + self.rank]
        if self.attempt and mine:
            self._take(*await self.files.read(mine[-1]))
        self.safe = mine
        self.emit(restored=self.iteration, attempt=self.attempt, mark=self.mark())


def test_ranks_that_restore_different_iterations():
    faults = [Crash(node=(0, 1), at_s=0.14, until_s=0.2)]
    found = kinds(TakesItsOwnNewest(), faults, coupled=False, keep=16, until_s=5.0)
    assert "ranks_differ" in found


class ForgetsMoments(DataStates):
    """It restores the weights and not the optimiser's moments."""

    def _take(self, record, data):
        super()._take(record, data)
        self.device["second"][:] = 0.0


def test_a_restore_without_the_optimiser():
    assert kinds(ForgetsMoments()) >= {"wrong_restore", "other_weights"}


class ForgetsWhereItRead(DataStates):
    """After a restore it reads the data from the beginning."""

    def _take(self, record, data):
        super()._take(record, data)
        self.share.taken = 0


def test_a_restore_that_reads_other_batches():
    assert "other_weights" in kinds(ForgetsWhereItRead(), more={"noise": 0.5})


class KeepsEverySecond(DataStates):
    """It leaves out every second checkpoint, and says nothing."""

    async def save(self, iteration):
        if iteration % 2:
            await super().save(iteration)


def test_a_checkpoint_that_was_left_out():
    assert kinds(KeepsEverySecond()) == {"dropped_silently"}


class GoesBackOne(DataStates):
    """It takes the last checkpoint but one."""

    async def _load(self, manifest):
        if self.attempt and "skipped" not in vars(self):
            self.skipped = True
            manifest = Manifest(iteration=manifest.iteration - 1, shards=())
            record, data = await self.files.read(manifest.iteration)
            return record, data
        return await super()._load(manifest)


def test_a_restore_that_goes_too_far_back():
    assert "went_too_far_back" in kinds(GoesBackOne())


class WritesWrongly(DataStates):
    """One byte of what it writes is not what it copied."""

    async def _copy_piece(self, snapshot, tensor, start, stop):
        await super()._copy_piece(snapshot, tensor, start, stop)
        if tensor.name == "first":
            self.ring.memory[: self.ring.used_B] ^= 1


def test_bytes_that_change_on_their_way():
    assert "torn_copy" in kinds(WritesWrongly())


class TakesMoreMemory(DataStates):
    """Its buffer is four times as large as it was told."""

    async def begin(self):
        await super().begin()
        self.ring = Ring(4 * self.ring.size_B)


@pytest.mark.parametrize("part", [TakesMoreMemory])
def test_a_buffer_that_is_larger_than_allowed(part):
    made = trained(part(buffer_B=5e8, piece_B=1e8), **LARGE)
    assert {violation.kind for violation in made.violations} == {"buffer_exceeded"}
    assert trained(DataStates(buffer_B=5e8, piece_B=1e8), **LARGE).violations == []


class NeverSyncs(DataStates):
    """It tells that shards are safe without having synced them."""

    def start(self):
        super().start()
        self.disk.fsync = self._no_sync  # of this node's disk alone

    async def _no_sync(self, name):
        await self.sleep(0.0)


def test_shards_that_were_never_synced_are_missed_after_a_crash():
    seen = set()
    for seed in range(6):
        made = trained(NeverSyncs(), faults=[CRASH], seed=seed, more={"numbers": 400}, **SHORT)
        seen |= {violation.kind for violation in made.violations}
    assert "went_too_far_back" in seen
