"""`Stage`: the port of training in a pipeline: one rank, its block of the weights, its passes."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from orrery.base.errors import DeadlineExceeded, PartError
from orrery.base.rand import Stream
from orrery.models.learn import Optimiser, make
from orrery.models.learn.optim import Name
from orrery.models.taskgraph.schedules import Step, one_f_one_b
from orrery.parts import Fraction, cost
from orrery.parts.collectives import Array
from orrery.parts.worker import RankLost
from orrery.systems.train.problems.cuts import Cut, cut
from orrery.systems.train.problems.trainer import FORWARD, Trainer

FORTH, BACK = 0, 1


@cost(flops=lambda flops, fn, *args: flops)
def work(flops: float, fn: Any, *args: Any) -> Any:
    """Real arithmetic whose time in the model is that of so many operations."""
    with np.errstate(over="ignore", invalid="ignore"):  # the referee names what diverged
        return fn(*args)


class Read(NamedTuple):
    """Weights as a pass reads them: which replica, which version, and the block itself."""

    version: int
    block: Array
    replica: int = 0


class Kept(NamedTuple):
    """What a stage keeps of a batch that went forward: activations, and what it read."""

    inside: Any
    read: Read


class Stage(Trainer):
    """One stage of a pipeline in training. A subclass writes `pump`.

    `await self.forward(batch)` takes the activations of a batch from the stage before, passes them
    through this stage's block and sends them on; `await self.backward(batch)` does the same with
    gradients the other way and gives the gradient of the block; `self.step(gradient, batches)`
    updates the block. Both passes take the time of their share of the arithmetic; an update takes
    none. Every pass and update is noted with the version of the weights, for the referee.

    Knobs: `forward_share`, the part of a batch's arithmetic that the forward pass takes;
    `optimiser`, of which each stage has its own for its block; `rate_scale`.
    """

    optimiser: Name = "sgd"
    forward_share: Fraction = FORWARD

    agrees: ClassVar[bool] = False
    counts_steps: ClassVar[bool] = False

    @property
    def updates_one(self) -> bool:
        """Whether a batch updates one block alone, and not all of them."""
        return False

    @property
    def goes_back_as_forth(self) -> bool:
        """Whether a batch goes back through the weights that it went forward through."""
        return True

    def start(self) -> None:
        super().start()
        # The batches are not known before all stages have agreed on them; the blocks are.
        self.cut: Cut = cut(self.learning, self.size)
        self.owns: tuple[int, ...] = (self.rank,)
        self.kept: dict[int, Kept] = {}
        self.stashed: Counter[tuple[int, int]] = Counter()  # batches by replica and version
        self.passes: list[tuple[int, ...]] = []
        self.times: list[tuple[float, float]] = []
        self.used: list[tuple[int, ...]] = []
        self.used_s: list[float] = []
        self.looks: list[Array] = []
        self.most_kept = self.kept_B = self.stash_B = 0
        self.make_replicas(1)

    def make_replicas(self, count: int) -> None:
        """Hold the block of this stage for so many replicas, all at the start."""
        self.blocks = [self.cut.block(self.rank) for _ in range(count)]
        self.versions = [0] * count
        rate = self.training.rate * self.rate_scale
        self.inners: list[Optimiser] = [make(self.optimiser, rate) for _ in range(count)]

    async def pump(self) -> None:
        """Pass all batches through this stage."""
        raise PartError(f"{type(self).__name__} has no pump(); write the loop of one stage")

    def in_flight_most(self) -> int:
        """The most batches that are under way between two stages at a time."""
        return self.size

    async def train(self) -> None:
        # The first rank's stream says which batches there are; the others must read the same.
        key = await self.broadcast(np.array([self.rng.key], np.uint64))
        self.cut = cut(self.learning, self.size, int(key[0]))
        await self.pump()
        self.weights = self.final_weights()
        self.emit(
            stages=list(self.owns), passes=np.array(self.passes, np.int64).reshape(-1, 6),
            times=np.array(self.times).reshape(-1, 2), used=np.array(self.used, np.int64),
            used_s=np.array(self.used_s), most_kept=self.most_kept, kept_B=self.kept_B,
            stash_B=self.stash_B, looks=self.looks, key=int(key[0]),
        )  # fmt: skip

    def final_weights(self) -> Array:
        """The block of this stage as it is judged."""
        return self.blocks[0]

    # -- passes

    def current(self, replica: int = 0) -> Read:
        """The newest weights of this stage."""
        return Read(self.versions[replica], self.blocks[replica], replica)

    async def forward(self, batch: int, read: Read | None = None, *, stash: bool = True) -> None:
        """Take a batch one stage forward, through the newest weights or those given.

        With `stash` the weights are kept beside the activations for the way back.
        """
        x = await self._take(self.rank - 1, "F", batch) if self.rank else None
        read, began_s = read or self.current(), self.now
        out, inside = await self.compute(
            work, self.forward_share * self.cut.flops(self.rank), self.cut.forward, self.rank,
            read.block, x, batch,
        )  # fmt: skip
        self.note_pass(FORTH, self.rank, batch, read, began_s)
        self.kept[batch] = Kept(inside, read if stash else read._replace(block=_NOTHING))
        if stash:
            self.stashed[read.replica, read.version] += 1
        self._count_memory()
        if self.rank < self.size - 1:
            self._ship(self.rank + 1, out, "F", batch)

    async def backward(
        self, batch: int, *, part: float = 1.0, on: bool = True, newest: bool = False
    ) -> Array:
        """Take a batch one stage back; gives the gradient of this stage's block.

        `newest`: through the newest weights instead of those of the forward pass. `part` of the
        arithmetic is done; not `on`: nothing is sent to the stage before.
        """
        last = self.rank == self.size - 1
        up = None if last else await self._take(self.rank + 1, "B", batch)
        inside, read = self.release(batch)
        read = self.current(read.replica) if newest else read
        began_s = self.now
        flops = part * (1 - self.forward_share) * self.cut.flops(self.rank)
        gradient, down = await self.compute(
            work, flops, self.cut.backward, self.rank, read.block, inside, up, batch
        )
        self.note_pass(BACK, self.rank, batch, read, began_s)
        if self.rank and on:
            self._ship(self.rank - 1, down, "B", batch)
        return np.asarray(gradient)

    def release(self, batch: int) -> Kept:
        """Forget what was kept of a batch."""
        kept = self.kept.pop(batch)
        place = (kept.read.replica, kept.read.version)
        self.stashed[place] -= 1
        if self.stashed[place] <= 0:
            del self.stashed[place]
        return kept

    def step(self, gradient: Array, batches: Any, replica: int = 0) -> None:
        """Update the block of this stage by the mean gradient of some batches."""
        self.put(stepped(self.inners[replica], self.blocks[replica], gradient), batches, replica)

    def put(self, block: Array, batches: Any, replica: int = 0) -> None:
        """Make this the newest block; no batches: it is an average over the replicas."""
        self.blocks[replica] = block
        self.versions[replica] += 1
        self.note_update(self.rank, self.versions[replica], block, batches, replica)

    # -- what the referee reads

    def note_pass(self, way: int, stage: int, batch: int, read: Read, began_s: float) -> None:
        """Write down a pass that has just ended."""
        self.busy_s += self.now - began_s
        self.passes.append((way, stage, read.replica, batch, read.version, mark(read.block)))
        self.times.append((began_s, self.now))

    def note_update(
        self, stage: int, version: int, block: Array, batches: Any, replica: int = 0
    ) -> None:
        """Write down an update: a row for each of its batches, or one with batch -1."""
        seen = mark(block)
        for batch in tuple(batches) or (-1,):
            self.used.append((stage, replica, version, batch, seen))
            self.used_s.append(self.now)
        every = getattr(self.training, "look_every", 0)
        if every and version % every == 0:
            self.looks.append(np.concatenate([[self.now, stage, replica, version], block]))

    def _count_memory(self) -> None:
        self.most_kept = max(self.most_kept, len(self.kept))
        if not self.kept_B:
            self.kept_B = bytes_of(next(iter(self.kept.values())).inside)
        self.stash_B = max(self.stash_B, self.old_blocks() * self.blocks[0].nbytes)

    def old_blocks(self) -> int:
        """How many blocks this stage holds beside its newest one."""
        newest = sum(place in self.stashed for place in enumerate(self.versions))
        return len(self.stashed) - newest + len(self.versions) - 1

    # -- between stages

    def _lane(self, way: str, batch: int) -> str:
        # Two batches on one lane are never under way together, so none overtakes the other.
        return f"{way}{batch % (2 * self.in_flight_most())}"

    def _ship(self, rank: int, array: Any, way: str, batch: int) -> None:
        data = np.asarray(array)
        self.sent_B += int(data.nbytes)
        # Activations grow with the width of a model, which is the root of its weights.
        scale = math.sqrt(self.training.scale)
        self.spawn(self.transfer(self.fellows()[rank], data, self._lane(way, batch), scale))

    async def _take(self, rank: int, way: str, batch: int) -> Array:
        node = self.fellows()[rank]
        try:
            async with self.deadline(self.patience_s):
                return await self.receive(node, self._lane(way, batch))
        except DeadlineExceeded:
            doing = f"batch {batch}, {'forward' if way == 'F' else 'backward'}"
            raise RankLost(rank, node, doing, self.patience_s) from None


_NOTHING: Array = np.empty(0)


def stepped(inner: Optimiser, block: Array, gradient: Array) -> Array:
    """A block one step on; where training diverges, without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        return inner.step(block, gradient)


def alternate(stage: int, stages: int, batches: int, in_flight: int = 0) -> list[Step]:
    """1F1B with at most `in_flight` batches in the pipeline (0: as many as stages).

    >>> "".join(step.direction for step in alternate(0, 4, 3, 1))
    'FBFBFB'
    >>> alternate(0, 4, 9) == one_f_one_b(0, 4, 9)
    True
    """
    warm = min(stages - 1 - stage, (in_flight or stages) - 1)
    return one_f_one_b(stages - 1 - warm, stages, batches)


@lru_cache(maxsize=16)
def picked(seed: int, count: int, stages: int) -> Array:
    """The block of each iteration, uniform; every stage finds the same ones by itself."""
    return Stream(seed, "pipeline", "blocks").numpy().integers(0, stages, count)


def mark(block: Array) -> int:
    """A number that tells this block from others, bit for bit."""
    seen = hashlib.blake2b(np.ascontiguousarray(block).tobytes(), digest_size=7)
    return int.from_bytes(seen.digest(), "little")


def bytes_of(kept: Any) -> int:
    """Bytes of the arrays inside what a stage keeps."""
    if isinstance(kept, np.ndarray):
        return int(kept.nbytes)
    if isinstance(kept, list | tuple):
        return sum(bytes_of(each) for each in kept)
    if hasattr(kept, "kept"):
        named = (kept.kept, getattr(kept, "normed", None), getattr(kept, "logits", None))
        return sum(bytes_of(each) for each in named)
    return 0
