"""The problem `long_attention`: softmax attention over a batch that is spread over many ranks.

The port is `SequenceAttention`, a rank. It has its shard of Q, K and V and must produce its shard
of the output, and then, from the output's gradient, its shards of dQ, dK and dV. A shard is a list
of blocks (document, start, stop), and the part itself says which: documents may be packed, cut,
spread unevenly or in zigzag. Rows attend within their document only. The checker holds every
value against a plain float64 computation.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from orrery.base.errors import KnobError, PartError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.models import attention
from orrery.models.attention import Array, Block, Blocks, Layout, Partial
from orrery.parts import Count, Metric, Node, NonNegative, Outcome, Positive, Whole
from orrery.systems.collectives.problems.sequence_worker import (
    Kind,
    SequenceJob,
    SequenceProblem,
    SequenceWorker,
    blank,
)
from orrery.world import World

# What one float64 reference may cost: some minutes of NumPy on one core.
MOST_REAL_FLOPS = 2e12
ALLOWED = {"fp32": 1e-5, "bf16": 2e-2}


class AttentionJob(SequenceJob):
    """The batch and its shape.

    Knobs: `tokens` of one document, or `documents`, the lengths of several; `heads` of Q,
    `kv_heads` of K and V (0: as many), `head_dim`; `causal`; and those of `SequenceJob`.

    >>> AttentionJob(documents=(5, 3)).lengths
    (5, 3)
    """

    tokens: Whole = 192
    documents: tuple[Whole, ...] = ()
    heads: Count = 4
    kv_heads: Whole = 0
    head_dim: Count = 16
    causal: bool = True

    @property
    def lengths(self) -> tuple[int, ...]:
        """The length of each document."""
        return self.documents or (self.tokens,)

    @property
    def groups(self) -> int:
        """Heads of K and V."""
        return self.kv_heads or self.heads

    def check_job(self) -> None:
        super().check_job()
        name = type(self).__name__
        if self.heads % self.groups:
            problem = f"{self.kv_heads} does not divide heads = {self.heads}"
            raise KnobError(f"{name}.kv_heads", problem, "give a divisor, or 0 for as many")
        pairs = sum(length * length for length in self.lengths)
        if not self.sized and pairs * self.heads * self.head_dim * 14 > MOST_REAL_FLOPS:
            problem = f"{max(self.lengths)} rows are too many to compute for real"
            raise KnobError(f"{name}.tokens", problem, "set sized=True for timing only, or fewer")


class SequenceAttention(SequenceWorker):
    """The port: one rank of a group that computes attention over a spread sequence.

    A part writes `forward` and `backward`, and `layout` where contiguous shards do not suit it.
    It computes with `attend`, `merge` and `attend_back`, which know the masks and the costs, and
    exchanges arrays with `post` and `take`.
    """

    job: AttentionJob = AttentionJob()

    def layout(self, job: AttentionJob, size: int, world: World) -> Layout:
        """Which blocks each rank has; every row stands at one rank. Pure: all ranks ask it."""
        return attention.contiguous(job.lengths, size)

    async def forward(self, q: Array, k: Array, v: Array) -> Array:
        """This rank's rows of the output."""
        raise PartError(f"{type(self).__name__} has no forward(q, k, v)")

    async def backward(self, dout: Array) -> tuple[Array, Array, Array]:
        """This rank's rows of (dQ, dK, dV), from those of the output's gradient."""
        raise PartError(f"{type(self).__name__} has no backward(dout)")

    # -- what a part uses

    @property
    def mine(self) -> Blocks:
        """The blocks of this rank, in the order of its rows."""
        return self.shards[self.rank]

    async def attend(
        self, q: Array, k: Array, v: Array, queries: Blocks, keys: Blocks
    ) -> Partial | None:
        """Attention of visiting or own rows to some keys; None where no row sees any."""
        pairs = attention.visible_pairs(queries, keys, self.job.causal)
        if not pairs:
            return None
        shape = (*q.shape[:2], v.shape[2])
        return await self.work(
            lambda: attention.attend(q, k, v, attention.mask(queries, keys, self.job.causal)),
            flops=attention.FORWARD_FLOPS * pairs * q.shape[1] * q.shape[2],
            bytes=self.job.item_B * (2 * q.size + k.size + v.size),
            blanks=lambda: Partial(blank(shape), blank(shape[:2])),
        )

    async def merge(self, a: Partial | None, b: Partial | None) -> Partial | None:
        """Two partial results as one; None stands for one that saw nothing."""
        if a is None or b is None:
            return b if a is None else a
        return await self.work(
            lambda: attention.merge(a, b), bytes=3 * 4 * a.out.size, blanks=lambda: a
        )

    async def delta(self, dout: Array, out: Array) -> Array:
        """The row sums that the backward pass needs."""
        return await self.work(
            lambda: attention.row_sums(dout, out), bytes=2 * 4 * out.size,
            blanks=lambda: blank(out.shape[:2]),
        )  # fmt: skip

    async def attend_back(
        self, q: Array, k: Array, v: Array, dout: Array, lse: Array, delta: Array,
        queries: Blocks, keys: Blocks,
    ) -> tuple[Array, Array, Array] | None:  # fmt: skip
        """What some keys add to (dq, dk, dv); None where no row sees any."""
        pairs = attention.visible_pairs(queries, keys, self.job.causal)
        if not pairs:
            return None
        return await self.work(
            lambda: attention.attend_backward(
                q, k, v, dout, lse, delta, attention.mask(queries, keys, self.job.causal)
            ),
            flops=attention.BACKWARD_FLOPS * pairs * q.shape[1] * q.shape[2],
            bytes=self.job.item_B * (3 * q.size + 2 * k.size + 2 * v.size),
            blanks=lambda: (blank(q.shape), blank(k.shape), blank(v.shape)),
        )

    def add(self, total: Array, part: Array) -> Array:
        """The sum of two gradients; in sized mode nothing but its shape."""
        return total if self.job.sized else total + part

    def zeros(self, shape: Sequence[int]) -> Array:
        """Zeros of a shape; in sized mode they take no memory."""
        return blank(shape) if self.job.sized else np.zeros(shape, np.float32)

    def stacked(self, parts: Sequence[Array]) -> Array:
        """Rows of several arrays below each other."""
        if len(parts) == 1:
            return parts[0]
        if self.job.sized:
            return blank((sum(len(part) for part in parts), *parts[0].shape[1:]))
        return np.concatenate(parts)

    def unseen(self, shape: Sequence[int]) -> Partial:
        """The result of rows that see no key: zeros, and no weight in any merge."""
        if self.job.sized:
            return Partial(blank(shape), blank(shape[:2]))
        return Partial(self.zeros(shape), np.full(shape[:2], -np.inf, np.float32))

    def wire(self, array: Array) -> Array:
        """An array in the precision in which it travels."""
        if self.job.sized:
            return blank(array.shape, attention.wire_dtype(self.job.dtype))
        return attention.to_wire(array, self.job.dtype)

    def unwire(self, array: Array) -> Array:
        """What came in that precision, to compute with."""
        return blank(array.shape) if self.job.sized else attention.from_wire(array)

    def rows_kind(self, blocks: Sequence[Block], heads: int) -> Kind:
        """Rows of some blocks as they travel."""
        shape = (attention.rows(blocks), heads, self.job.head_dim)
        return Kind(shape, attention.wire_dtype(self.job.dtype))

    # -- the rounds

    def _job(self) -> AttentionJob:
        return self.job

    async def round(self, number: int) -> dict[str, Any]:
        job = self.job
        self.shards = self.layout(job, self.size, self.world)
        q, k, v, dout = self._shard(number)
        await self.barrier(tag="between rounds")
        out, forward = await self.timed(self.forward(q, k, v))
        found: dict[str, Any] = {"round": number, "rank": self.rank, "forward": forward}
        made = {"out": out}
        if job.backward:
            grads, found["backward"] = await self.timed(self.backward(dout))
            made.update(zip(("dq", "dk", "dv"), grads, strict=True))
        if not job.sized:
            here, truth = row_numbers(self.mine, job.lengths), true_values(job, number)
            found["errors"] = {
                name: attention.deviation(made[name], truth[name][here]) for name in made
            }
        return found

    def _shard(self, number: int) -> tuple[Array, Array, Array, Array]:
        job, count = self.job, attention.rows(self.mine)
        many, few = (count, job.heads, job.head_dim), (count, job.groups, job.head_dim)
        if job.sized:
            return blank(many), blank(few), blank(few), blank(many)
        here = row_numbers(self.mine, job.lengths)
        q, k, v, dout = (data(job, number, name)[here] for name in ("q", "k", "v", "dout"))
        return q, k, v, dout


class LongAttention(AttentionJob, SequenceProblem):
    """Attention over a long sequence on many ranks: the right values, how fast, how many bytes.

    Knobs beside those of the batch: `tolerance`, what values may be off beyond what the precision
    explains; `patience_s`, after which a silent rank counts as lost.

    >>> LongAttention(tokens=7).lengths
    (7,)
    """

    tolerance: NonNegative = 0.0
    patience_s: Positive = 60.0

    port: ClassVar[type] = SequenceAttention
    metrics: ClassVar[Mapping[str, Metric]] = {
        **SequenceProblem.sequence_metrics,
        "mfu": Metric("", "higher", "flops of visible pairs over what all devices could do in the "
                                    "time, at their peak"),
    }  # fmt: skip

    def batch(self) -> AttentionJob:
        """The batch that every rank knows."""
        return AttentionJob(**{name: getattr(self, name) for name in AttentionJob().knobs()})

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        job = self.batch()
        job.check_job()
        attention.check_layout(part.layout(job, world.size, world), job.lengths, world.size)
        return {"node": part.with_knobs(job=job, patience_s=self.patience_s)}

    def rows(self, outcome: Outcome) -> int:
        return sum(self.lengths)

    def check(self, outcome: Outcome) -> list[Violation]:
        found = self.check_ranks(outcome, self.rounds, ALLOWED[self.dtype] + self.tolerance)
        if self.sized and outcome.engine != "virtual":
            found.append(Violation(
                kind="no_values", message=f"sized mode has no values, and on {outcome.engine} no "
                                          "time either; set sized=False"))  # fmt: skip
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        found = self.measure_ranks(outcome, self.rounds)
        every = tuple(Block(document, 0, length) for document, length in enumerate(self.lengths))
        per_pair = attention.FORWARD_FLOPS + attention.BACKWARD_FLOPS * self.backward
        flops = attention.visible_pairs(every, every, self.causal) * per_pair
        could = found["time_s"] * sum(peak_flops(outcome.world, n, self.dtype)
                                      for n in range(outcome.world.size))  # fmt: skip
        found["mfu"] = flops * self.heads * self.head_dim / could if could > 0 else 0.0
        return found


def peak_flops(world: World, node: int, dtype: str) -> float:
    """What the first device of a node can do at most; of its processor where it has none."""
    machine = world.machine_of(node)
    if not machine.accelerators:
        return float(machine.cpu_flops)
    peaks = machine.accelerators[0].peak_flops
    return float(peaks.get(dtype) or max(peaks.values()))


@functools.lru_cache(maxsize=16)
def data(job: AttentionJob, number: int, name: str) -> Array:
    """One of the tensors q, k, v and dout of a round, all documents end to end."""
    heads = job.groups if name in ("k", "v") else job.heads
    shape = (sum(job.lengths), heads, job.head_dim)
    values = Stream(job.data_seed, name, f"attention {number}").numpy().standard_normal(shape)
    # The values themselves are of the precision, so that sending them changes nothing.
    made = attention.from_wire(attention.to_wire(values.astype(np.float32), job.dtype))
    made.flags.writeable = False
    return made


@functools.lru_cache(maxsize=4)
def true_values(job: AttentionJob, number: int) -> dict[str, Array]:
    """Output and gradients of the whole batch in float64."""
    q, k, v, dout = (data(job, number, name) for name in ("q", "k", "v", "dout"))
    return attention.reference(q, k, v, dout, job.lengths, job.causal)


def row_numbers(blocks: Sequence[Block], lengths: Sequence[int]) -> Array:
    """Where the rows of some blocks stand when all documents lie end to end."""
    if not blocks:
        return np.zeros(0, np.int64)
    first = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])
    return np.concatenate([first[b.document] + np.arange(b.start, b.stop) for b in blocks])


__all__ = [
    "AttentionJob", "LongAttention", "SequenceAttention", "data", "peak_flops", "row_numbers",
]  # fmt: skip
