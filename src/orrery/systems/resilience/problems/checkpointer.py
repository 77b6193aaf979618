"""`Checkpointer`: the port of training with failures: one rank that trains and keeps its state.

What all ways of checkpointing share stands here: the training loop, the commit over ranks, and the
restore. A subclass says when the state is copied from the device and when it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from orrery.base.errors import DeadlineExceeded, DiskError, PartError, Refused
from orrery.models.learn import LearningTask, make
from orrery.parts import Positive, Worker, rpc
from orrery.parts.collectives import Array, Collective, part_items
from orrery.systems.resilience.problems.rig import Rig, crunch, touch
from orrery.systems.resilience.problems.shard_files import Files, Lane, ShardFile, mark_of
from orrery.systems.resilience.problems.shards import (
    CheckpointError,
    DamagedShard,
    Entry,
    Layout,
    Manifest,
    Record,
    seal,
    unseal,
)

# How many answers rank 0 keeps for ranks that ask again.
ANSWERS = 64


class Small(msgspec.Struct):
    """The state of a rank that is not tensors."""

    iteration: int
    count: int  # of the optimiser's steps


class _Table:
    """What ranks have said for one question so far, at rank 0."""

    def __init__(self, decided: Any) -> None:
        self.said: dict[int, bytes] = {}
        self.decided = decided
        self.complete = False
        self.answer = b""


class Checkpointer(Worker):
    """One rank of a training run that must survive. A subclass writes `save` and the hooks.

    After each `every`-th update the loop calls `save(iteration)`, and before each update
    `before_update()`; seconds in either count as blocked. `settle()` is called at the end, when
    training is over and all must still become safe. `begin()` is called once a life.

    The tensors of the state stand in `self.device` and are changed in place, as on a GPU: who
    still reads them when the update begins gets a torn copy.

    Knobs: `retry_s`, after which a rank asks rank 0 again. `rig` is given by the problem.

    A checkpoint is committed in two phases: each rank makes its shard safe and says so to rank 0,
    which writes the manifest when all have. It aborts when one could not write.
    """

    # Direct and in rank order, so that the referee's plain loop gives the same bits.
    collective: Collective = Collective()
    rig: Rig = Rig()
    retry_s: Positive = 1.0

    tolerates: ClassVar[tuple[str, ...]] = ("restart", "pause")
    # Whether it promises that each checkpoint asked for becomes safe or is told to have failed.
    keeps: ClassVar[bool] = True

    # -- what a subclass writes

    async def begin(self) -> None:
        """The state is restored and training begins: make buffers, spawn tasks by `run_behind`."""

    async def save(self, iteration: int) -> None:
        """Keep the state of this iteration, which the device holds now."""
        raise PartError(f"{type(self).__name__} has no save(iteration); write how it keeps state")

    async def before_update(self) -> None:
        """The device's state is about to change."""

    async def settle(self) -> None:
        """Training is over: wait until everything asked for is safe or has failed."""

    # -- one life

    def start(self) -> None:
        self.attempt = -1
        self.finished = False
        self.iteration = 0
        self.blocked_s = self.stalled_s = 0.0
        self.high_B = 0.0
        self.job: Any = None
        self.tasks: list[Any] = []
        self.tables: dict[str, _Table] = {}

    @rpc
    async def launch(self, attempt: int) -> bool:
        """Begin (or begin again) to train from the newest checkpoint."""
        if attempt > self.attempt:
            self._end()
            self.attempt, self.finished = attempt, False
            self.tables = {
                key: table for key, table in self.tables.items() if _attempt_of(key) >= attempt
            }
            self.job = self.spawn(self._train(attempt))
        return True

    @rpc
    async def look(self, attempt: int) -> str:
        """How this rank is doing in an attempt: "running", "done" or "gone"."""
        if attempt != self.attempt or self.job is None:
            return "gone"
        return "done" if self.finished else "running"

    @rpc
    async def halt(self, attempt: int) -> bool:
        """Give up an attempt, because another rank is gone."""
        if attempt == self.attempt:
            self._end()
        return True

    def _end(self) -> None:
        for task in (self.job, *self.tasks):
            if task is not None:
                task.cancel()
        self.job, self.tasks = None, []

    def run_behind(self, work: Any) -> Any:
        """Run something in the background; it ends with the attempt."""
        task = self.spawn(work)
        self.tasks = [each for each in self.tasks if not each.done]
        self.tasks.append(task)
        return task

    async def _train(self, attempt: int) -> None:
        self.ranks = self.group(range(self.size), f"attempt {attempt}")
        self._make_state()
        await self._restore()
        await self.begin()
        began_s, rig = self.now, self.rig
        self.blocked_s = self.stalled_s = 0.0
        while self.iteration < self.training.steps:
            gradient = await self._gradient()
            due_s = self.now
            await self.before_update()
            self.stalled_s += self.now - due_s
            self.blocked_s += self.now - due_s
            await self._update(gradient)
            if self.iteration % rig.every == 0:
                self._tell_asked()
                asked_s = self.now
                await self.save(self.iteration)
                self.blocked_s += self.now - asked_s
        trained_s = self.now
        await self.settle()
        self.emit(
            ended=attempt, rank=self.rank, weights=self.device["weights"].copy(),
            mark=self.mark(), blocked_s=self.blocked_s, stalled_s=self.stalled_s,
            took_s=trained_s - began_s, drained_s=self.now - trained_s, high_B=self.high_B,
            shard_B=self.shard_B,
        )  # fmt: skip
        self.finished = True

    def _tell_asked(self) -> None:
        """Tell the referee what must be found again: a reference copy, taken while all waits."""
        self.emit(asked=self.iteration, attempt=self.attempt, mark=self.mark(),
                  blocked_s=self.blocked_s, stalled_s=self.stalled_s,
                  high_B=self.high_B)  # fmt: skip

    def mark(self) -> str:
        """A mark of the state that the device holds now."""
        return mark_of(self.device.values())

    # -- the state and its arithmetic

    @property
    def learning(self) -> LearningTask:
        """What is learned."""
        assert isinstance(self.training, LearningTask)
        return self.training

    def _make_state(self) -> None:
        first = np.array(self.training.start_weights())
        mine = own_part(first.size, self.rank, self.size) if self.rig.coupled else slice(None)
        weights = first[mine].copy()
        self.inner: Any = make("adamw", self.training.rate)
        self.device: dict[str, Array] = {
            "weights": weights, "first": np.zeros_like(weights), "second": np.zeros_like(weights),
        }  # fmt: skip
        self.share: Any = self.training.share(self.rank, self.size, None)  # type: ignore[arg-type]
        self.iteration = 0
        self.layout = Layout.of(self.device)
        own_B = self.layout.size_B
        self.shard_B = self.rig.state_B or float(own_B)
        self.scale_B = self.shard_B / own_B if own_B else 1.0
        self.files = Files(self, self.scale_B)
        self.link, self.core = Lane(self), Lane(self)

    async def _gradient(self) -> Array:
        """Forward and backward, and the exchange: the gradient of this rank's own part."""
        rig, weights = self.rig, self.device["weights"]
        whole = weights
        if rig.coupled:
            whole = np.concatenate(await self.ranks.all_gather(weights, tag="weights"))
        factor = self.rng.lognormvariate(0.0, rig.jitter) if rig.jitter else 1.0
        if rig.flops:
            await self.compute(crunch, factor * rig.flops)
            found = np.asarray(self.share.grad(whole))
        else:
            found = np.asarray(await self.compute(self.share.grad, whole))
        if rig.step_s:
            await self.sleep(factor * rig.step_s)
        if not rig.coupled:
            await self.together("step", self.iteration)
            return found
        total = await self.ranks.reduce_scatter(found, tag="gradient")
        return np.asarray(total / self.size)

    async def _update(self, gradient: Array) -> None:
        inner, device = self.inner, self.device
        inner.first, inner.second = device["first"], device["second"]
        weights = inner.step(device["weights"], gradient)
        if self.rig.state_B:
            await self.compute(touch, self.shard_B)
        # In place, as a device does it: an unfinished copy would now be torn.
        np.copyto(device["weights"], weights)
        np.copyto(device["first"], inner.first)
        np.copyto(device["second"], inner.second)
        self.iteration += 1

    # -- what ways of checkpointing are made of

    async def pack_small(self) -> bytes:
        """The state that is not tensors, serialised; it is small, so training waits for it."""
        small = Small(iteration=self.iteration, count=self.inner.count)
        await self.core.move(self.rig.small_B, self.rig.serialise_Bps)
        return msgspec.msgpack.encode(small)

    def device_bytes(self, name: str, start: int, stop: int) -> Array:
        """Some bytes of a tensor on the device, as they are now; no copy."""
        return self.device[name].reshape(-1).view(np.uint8)[start:stop]

    def piece_items(self, piece_B: float) -> int:
        """How many real bytes stand for a piece of so many."""
        return max(int(piece_B / self.scale_B), 1)

    def shard_file(self, small: bytes, iteration: int) -> ShardFile:
        """The file of this rank's shard of an iteration."""
        return ShardFile(self, iteration, self.layout, small)

    async def commit(self, file: ShardFile) -> bool:
        """Make the shard safe and wait for the verdict of all ranks; False: it was aborted."""
        record = await file.finish()
        said = b"!" + file.failed.encode() if record is None else seal(record)
        answer = await self.together("commit", file.iteration, said)
        if answer:
            await self.files.remove(file.iteration)
            return False
        # Only what is known to count may push an older one out.
        self.safe = sorted({*self.safe, file.iteration})
        while len(self.safe) > self.rig.keep:
            await self.files.remove(self.safe.pop(0))
        return True

    # -- agreement: rank 0 hears all and answers all

    async def together(self, kind: str, number: int, said: bytes = b"") -> bytes:
        """Say something for a question; the answer comes when all ranks have."""
        key = f"{self.attempt} {kind} {number}"
        if self.rank == 0:
            return await self._come(key, 0, said)
        while True:
            try:
                async with self.deadline(self.retry_s):
                    answer: bytes = await self.ask(
                        self.fellows()[0], Checkpointer.meet, key, self.rank, said
                    )
                    return answer
            except DeadlineExceeded:
                continue  # rank 0 may have been down when it was asked; it hears each rank once

    @rpc
    async def meet(self, key: str, rank: int, said: bytes) -> bytes:
        """Another rank says something for a question."""
        if _attempt_of(key) < self.attempt:
            raise Refused(f"{key!r} is of an attempt that is over")
        return await self._come(key, rank, said)

    async def _come(self, key: str, rank: int, said: bytes) -> bytes:
        table = self.tables.setdefault(key, _Table(self.event()))
        table.said[rank] = said
        if len(table.said) == self.size and not table.complete:
            table.complete = True
            self.spawn(self._decide(key, table))
        await table.decided.wait()
        return table.answer

    async def _decide(self, key: str, table: _Table) -> None:
        _, kind, number = key.split(" ")
        said = [table.said[rank] for rank in range(self.size)]
        if kind == "commit":
            table.answer = await self._decide_commit(int(number), said)
        elif kind == "known":
            whole, damaged = await self.files.manifests()
            for iteration, why in damaged.items():
                self.emit(damaged=iteration, why=why)
            table.answer = msgspec.msgpack.encode([seal(manifest) for manifest in whole])
        elif kind == "agree":
            table.answer = next((each for each in said if each), b"")
        table.decided.set()
        # A rank that did not hear an answer asks again, so the last few are kept.
        for old in [k for k, each in self.tables.items() if each.decided.is_set()][:-ANSWERS]:
            del self.tables[old]

    async def _decide_commit(self, iteration: int, said: Sequence[bytes]) -> bytes:
        """Empty where the manifest is safe; else why the checkpoint failed."""
        refusals = [(rank, each[1:].decode()) for rank, each in enumerate(said) if each[:1] == b"!"]
        if refusals:
            why = f"rank {refusals[0][0]}: {refusals[0][1]}"
        else:
            records = [unseal(each, Record, f"vote of rank {i}") for i, each in enumerate(said)]
            entries = tuple(Entry(each.rank, each.size_B, each.crc) for each in records)
            # From here on it may count: a crash can come after the manifest is safe.
            self.emit(voted=iteration)
            try:
                await self.files.commit(Manifest(iteration=iteration, shards=entries))
                self.emit(committed=iteration, attempt=self.attempt)
                return b""
            except DiskError as error:
                why = f"manifest: {error}"
        self.emit(failed=iteration, attempt=self.attempt, why=why)
        return why.encode()

    # -- restore

    async def _restore(self) -> None:
        """Load the newest checkpoint that is whole on all ranks; begin anew where there is none."""
        answer = await self.together("known", 0)
        sealed = msgspec.msgpack.decode(answer, type=list[bytes])
        known = [unseal(each, Manifest, "manifest") for each in sealed]
        kept = {manifest.iteration for manifest in known}
        for manifest in known:
            try:
                record, data = await self._load(manifest)
                why = ""
            except CheckpointError as error:
                why = f"rank {self.rank}: {error}"
                self.emit(damaged=manifest.iteration, why=why)
            if await self.together("agree", manifest.iteration, why.encode()):
                kept.discard(manifest.iteration)
                continue
            self._take(record, data)
            break
        self.safe = sorted(i for i in kept if i <= self.iteration)
        await self.files.sweep(set(self.safe))
        self.emit(restored=self.iteration, attempt=self.attempt, mark=self.mark())

    async def _load(self, manifest: Manifest) -> tuple[Record, bytes]:
        entry = manifest.entry(self.rank)
        record, data = await self.files.read(manifest.iteration)
        if (record.crc, record.size_B) != (entry.crc, entry.size_B):
            raise DamagedShard(
                f"iteration {manifest.iteration}: the shard is not the one that the manifest "
                "names; use the checkpoint before it"
            )
        record.layout.must_fit(self.layout)
        return record, data

    def _take(self, record: Record, data: bytes) -> None:
        for name, array in record.layout.arrays(data).items():
            np.copyto(self.device[name], array)
        small = msgspec.msgpack.decode(record.small, type=Small)
        self.inner.count = small.count
        self.iteration = self.share.taken = small.iteration


def own_part(items: int, rank: int, size: int) -> slice:
    """The part of a vector that a rank keeps, as `reduce_scatter` cuts it."""
    counts = part_items(items, size)
    begin = sum(counts[:rank])
    return slice(begin, begin + counts[rank])


def _attempt_of(key: str) -> int:
    return int(key.split(" ", 1)[0])
