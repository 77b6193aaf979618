"""The problem `long_linear_attention`: linear attention with decay over a spread sequence.

The port is `SequenceLinearAttention`, a rank with some rows of one long sequence. All that a rank
needs of the rows before it is one state, and backwards one gradient of a state from the rows after
it. How these states get there is the question; a part writes `incoming`, or its own `forward` and
`backward`. The checker holds every value against the recurrence in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from orrery.base.errors import KnobError, PartError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.models import attention
from orrery.models import linear_attention as linear
from orrery.models.linear_attention import Array, Chunks, Step
from orrery.parts import Count, Metric, Node, NonNegative, Outcome, Positive, Whole
from orrery.parts.collectives import part_items
from orrery.systems.collectives.problems.sequence_worker import (
    SequenceJob,
    SequenceProblem,
    SequenceWorker,
    blank,
)
from orrery.world import World

# What a float64 reference may cost: it keeps a state for every row.
MOST_REAL_ITEMS = 1e8
ALLOWED = {"fp32": 1e-4, "bf16": 2e-2}
Grads = tuple[Array, Array, Array, Array]


class LinearJob(SequenceJob):
    """The sequence and the shape of its linear attention.

    Knobs: `tokens` in all, or `tokens_per_rank`; `heads`, `key_dim`, `value_dim`; `decay`: none,
    fixed for each head, or given by the data for each row and channel; `strength`, the mean of the
    log of a decay, with its sign turned; `chunk`, the rows that are handled at once; `dense_flops`,
    what the rest of the layer costs for each row forwards (twice that backwards).
    """

    tokens: Whole = 192
    tokens_per_rank: Whole = 0
    heads: Count = 2
    key_dim: Count = 8
    value_dim: Count = 8
    decay: Literal["none", "fixed", "data"] = "data"
    strength: NonNegative = 0.1
    chunk: Count = 16
    dense_flops: NonNegative = 0.0

    def rows_in(self, size: int) -> int:
        """Rows of the whole sequence on so many ranks."""
        return self.tokens_per_rank * size or self.tokens

    @property
    def state_B(self) -> int:
        """Bytes of one state; states travel in fp32."""
        return 4 * self.heads * self.key_dim * self.value_dim

    def check_linear(self, size: int) -> None:
        """Refuse what would not fit."""
        self.check_job()
        rows = self.rows_in(size)
        if not self.sized and rows * self.state_B / 4 > MOST_REAL_ITEMS:
            path, problem = f"{type(self).__name__}.tokens", f"{rows} rows are too many for real"
            raise KnobError(path, problem, "set sized=True for timing only, or give fewer")


class SequenceLinearAttention(SequenceWorker):
    """The port: one rank of a group that computes linear attention over a spread sequence.

    A part writes `incoming`: given what this rank's rows do to a state, fetch the state that comes
    to them. It runs while the rank works inside its chunks, which needs no state; the last
    product then reads it. Parts that go another way write `forward` and `backward` themselves.
    """

    job: LinearJob = LinearJob()

    def shares(self, job: LinearJob, size: int, world: World) -> Sequence[int]:
        """How many rows each rank has, in the order of the sequence; zero is allowed."""
        return part_items(job.rows_in(size), size)

    async def incoming(self, step: Step, reverse: bool) -> Array:
        """The state of all rows before this rank's (backwards: its gradient, of those after)."""
        raise PartError(f"{type(self).__name__} has no incoming(step, reverse)")

    async def forward(self, q: Array, k: Array, v: Array, log_g: Array) -> Array:
        """This rank's rows of the output."""
        self.saved = (q, k, v, log_g)
        self.chunks = await self.chunk_states(k, v, log_g)
        step = self.folded(self.chunks)
        inner, state = await self.meanwhile(
            self.inside(*self.saved), self._timed_incoming(step, reverse=False)
        )
        self.entering = self.carried(self.chunks, state)
        return await self.across(inner, q, log_g, self.entering)

    async def backward(self, dout: Array) -> Grads:
        """This rank's rows of the gradients of q, k, v and the log decay."""
        grown = await self.chunk_gradients(dout)
        step = self.folded(grown, reverse=True)
        inner, state = await self.meanwhile(
            self.inside_backward(dout), self._timed_incoming(step, reverse=True)
        )
        return await self.across_backward(inner, dout, self.carried(grown, state, reverse=True))

    async def meanwhile(self, inner: Awaitable[Any], state: Awaitable[Array]) -> Sequence[Any]:
        """Both results; the state comes while the rank works inside its chunks."""
        return await self.all(inner, state)

    async def _timed_incoming(self, step: Step, reverse: bool) -> Array:
        began_s = self.now
        state = await self.incoming(step, reverse)
        self.waits.append((began_s, self.now))
        return state

    # -- arithmetic at its cost

    def _items(self, *arrays: Array) -> float:
        return float(self.job.item_B * sum(array.size for array in arrays))

    def _flops(self, array: Array, products: float, pairs: float = 0.0, chunks: int = 0) -> float:
        """Of `products` with a state for each row (and chunk), and `pairs` of dims in a chunk."""
        job, (rows, heads, _) = self.job, array.shape
        state = job.key_dim * job.value_dim
        return float(2 * heads * ((products * rows + chunks) * state + pairs * rows * job.chunk))

    def _chunk_count(self, rows: int) -> int:
        return -(-rows // self.job.chunk)

    def _state_shape(self, heads: int) -> tuple[int, int, int]:
        return (heads, self.job.key_dim, self.job.value_dim)

    async def chunk_states(self, k: Array, v: Array, log_g: Array) -> Chunks:
        """What each chunk does to the state."""
        count, shape = self._chunk_count(len(k)), self._state_shape(k.shape[1])
        return await self.work(
            lambda: linear.chunk_states(k, v, log_g, self.job.chunk),
            flops=self._flops(k, 1), bytes=self._items(k, v, log_g),
            blanks=lambda: Chunks(blank((count, *shape[:2])), blank((count, *shape))),
        )  # fmt: skip

    async def chunk_gradients(self, dout: Array) -> Chunks:
        """What each chunk does to the gradient of the state."""
        q, _, _, log_g = self.saved
        return await self.work(
            lambda: linear.chunk_gradients(q, dout, log_g, self.chunks.log_decay, self.job.chunk),
            flops=self._flops(q, 1), bytes=self._items(q, dout, log_g),
            blanks=lambda: Chunks(self.chunks.log_decay, self.chunks.added),
        )  # fmt: skip

    def folded(self, chunks: Chunks, reverse: bool = False) -> Step:
        """All chunks as one step."""
        if self.job.sized:
            return Step(blank(chunks.log_decay.shape[1:]), blank(chunks.added.shape[1:]))
        return linear.fold(chunks, reverse)

    def carried(self, chunks: Chunks, state: Array, reverse: bool = False) -> Array:
        """The state that enters each chunk."""
        return chunks.added if self.job.sized else linear.carry(chunks, state, reverse)

    async def inside(self, q: Array, k: Array, v: Array, log_g: Array) -> Array:
        """The output from pairs of rows within a chunk; needs no state."""
        job = self.job
        return await self.work(
            lambda: linear.inside(q, k, v, log_g, job.chunk),
            flops=self._flops(q, 0, job.key_dim + job.value_dim),
            bytes=self._items(q, k, v, v), blanks=lambda: blank(v.shape),
        )  # fmt: skip

    async def across(self, inner: Array, q: Array, log_g: Array, entering: Array) -> Array:
        """The whole output: the inner one, and what comes through the states."""
        count = self._chunk_count(len(q))
        return await self.work(
            lambda: inner + linear.across(q, log_g, entering, self.job.chunk),
            flops=self._flops(q, 1, chunks=count), bytes=self._items(q, log_g, inner),
            blanks=lambda: inner,
        )  # fmt: skip

    async def inside_backward(self, dout: Array) -> tuple[Array, Array, Array]:
        """(dq, dk, dv) from pairs of rows within a chunk."""
        q, k, v, log_g = self.saved
        job = self.job
        return await self.work(
            lambda: linear.inside_backward(q, k, v, log_g, dout, job.chunk),
            flops=self._flops(q, 0, 3 * job.key_dim + 2 * job.value_dim),
            bytes=self._items(q, k, v, dout, q, k, v),
            blanks=lambda: (blank(q.shape), blank(k.shape), blank(v.shape)),
        )

    async def across_backward(
        self, inner: tuple[Array, Array, Array], dout: Array, leaving: Array
    ) -> Grads:
        """All gradients, given those of the states that leave each chunk."""
        q, k, v, log_g = self.saved
        count = self._chunk_count(len(q))
        return await self.work(
            lambda: linear.across_backward(
                inner, q, k, v, log_g, dout, self.entering, leaving, self.chunks, self.job.chunk
            ),
            flops=self._flops(q, 3, chunks=count),
            bytes=self._items(q, k, v, dout, log_g, q, k, v, log_g),
            blanks=lambda: (*inner, blank(log_g.shape)),
        )

    async def advance(self, log_decay: Array, added: Array, state: Array) -> Array:
        """A state after a step that decays it and adds to it, row by row of the state."""
        return await self.work(
            lambda: np.exp(log_decay)[..., None] * state + added,
            flops=2.0 * added.size, bytes=3.0 * 4 * added.size, blanks=lambda: blank(added.shape),
        )  # fmt: skip

    def no_state(self, heads: int = 0) -> Array:
        """The state before any row."""
        shape = self._state_shape(heads or self.job.heads)
        return blank(shape) if self.job.sized else np.zeros(shape, np.float32)

    # -- the rounds

    def _job(self) -> LinearJob:
        return self.job

    async def _rest(self, rows: int, times: float) -> None:
        """The rest of the layer, which no part can change."""
        if self.job.dense_flops:
            flops = times * rows * self.job.dense_flops
            await self.work(lambda: None, flops=flops, blanks=lambda: None)

    async def _forward(self, q: Array, k: Array, v: Array, log_g: Array) -> Array:
        out = await self.forward(q, k, v, log_g)
        await self._rest(len(q), 1.0)
        return out

    async def _backward(self, dout: Array) -> Grads:
        await self._rest(len(dout), 2.0)
        return await self.backward(dout)

    async def _alone(self, q: Array, k: Array, v: Array, log_g: Array, dout: Array) -> float:
        """How long this rank takes for its rows as if they were the whole sequence."""
        began_s = self.now
        self.saved = (q, k, v, log_g)
        self.chunks = await self.chunk_states(k, v, log_g)
        self.entering = self.carried(self.chunks, self.no_state())
        await self.across(await self.inside(*self.saved), q, log_g, self.entering)
        await self._rest(len(q), 1.0)
        if self.job.backward:
            await self._rest(len(q), 2.0)
            grown = await self.chunk_gradients(dout)
            leaving = self.carried(grown, self.no_state(), reverse=True)
            await self.across_backward(await self.inside_backward(dout), dout, leaving)
        return float(self.now - began_s)

    async def round(self, number: int) -> dict[str, Any]:
        job = self.job
        counts = self.shares(job, self.size, self.world)
        first = sum(counts[: self.rank])
        q, k, v, log_g, dout = self._shard(number, first, counts[self.rank])
        alone_s = await self._alone(q, k, v, log_g, dout)
        self.waits: list[tuple[float, float]] = []
        await self.barrier(tag="between rounds")
        out, forward = await self.timed(self._forward(q, k, v, log_g))
        found: dict[str, Any] = {
            "round": number, "rank": self.rank, "forward": forward, "alone_s": alone_s,
        }  # fmt: skip
        made = {"out": out}
        if job.backward:
            grads, found["backward"] = await self.timed(self._backward(dout))
            made.update(zip(("dq", "dk", "dv", "dg"), grads, strict=True))
        found["waits"] = list(self.waits)
        if not job.sized:
            truth = true_values(job, self.size, number)
            here = slice(first, first + counts[self.rank])
            found["errors"] = {
                name: attention.deviation(made[name], truth[name][here]) for name in made
            }
        return found

    def _shard(self, number: int, first: int, count: int) -> list[Array]:
        job = self.job
        names = ("q", "k", "v", "g", "dout")
        if job.sized:
            dims = (job.key_dim, job.key_dim, job.value_dim, job.key_dim, job.value_dim)
            return [blank((count, job.heads, dim)) for dim in dims]
        return [data(job, self.size, number, name)[first : first + count] for name in names]


class LongLinearAttention(LinearJob, SequenceProblem):
    """Linear attention over a long sequence on many ranks: right values, time, and bytes.

    Knobs beside those of the sequence: `tolerance`, what values may be off beyond 1e-4
    (2e-2 in bf16);
    `patience_s`, after which a silent rank counts as lost.

    >>> LongLinearAttention(tokens_per_rank=5).rows_in(3)
    15
    """

    tolerance: NonNegative = 0.0
    patience_s: Positive = 60.0

    port: ClassVar[type] = SequenceLinearAttention
    metrics: ClassVar[Mapping[str, Metric]] = {
        **SequenceProblem.sequence_metrics,
        "scan_s": Metric("s", "lower", "forwards: from the first rank that asks for its state to "
                                       "the last that has it; 0 where none does"),
        "sent_states": Metric("", "lower", "bytes of the busiest rank forwards, in whole states"),
        "alone_s": Metric("s", "", "the slowest rank's time for its own rows, were they all"),
        "stretch": Metric("", "lower", "time_s over alone_s: 1 is a free split"),
    }  # fmt: skip

    def sequence(self) -> LinearJob:
        """The sequence that every rank knows."""
        return LinearJob(**{name: getattr(self, name) for name in LinearJob().knobs()})

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        job = self.sequence()
        job.check_linear(world.size)
        counts = list(part.shares(job, world.size, world))
        if len(counts) != world.size or min(counts) < 0 or sum(counts) != job.rows_in(world.size):
            raise PartError(
                f"{type(part).__name__}.shares gives {counts[:8]} for {job.rows_in(world.size)} "
                f"rows on {world.size} ranks; give each its count, all rows together"
            )
        return {"node": part.with_knobs(job=job, patience_s=self.patience_s)}

    def rows(self, outcome: Outcome) -> int:
        return self.rows_in(len(outcome.alive))

    def check(self, outcome: Outcome) -> list[Violation]:
        found = self.check_ranks(outcome, self.rounds, ALLOWED[self.dtype] + self.tolerance)
        if self.sized and outcome.engine != "virtual":
            found.append(Violation(
                kind="no_values", message=f"sized mode has no values, and on {outcome.engine} no "
                                          "time either; set sized=False"))  # fmt: skip
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        found = self.measure_ranks(outcome, self.rounds)
        scans, sent, alone = [0.0], [0.0], [0.0]
        for number in range(self.rounds):
            done = list(self.done(outcome, number).values())
            first = [values["waits"][0] for values in done if values["waits"]]
            if first:
                scans.append(max(end for _, end in first) - min(began for began, _ in first))
            sent += [sum(b for _, b in values["forward"]["sent"]) for values in done]
            alone += [values["alone_s"] for values in done]
        found["scan_s"] = max(scans) if max(sent) else 0.0
        found["sent_states"] = max(sent) / self.state_B
        found["alone_s"] = max(alone)
        found["stretch"] = found["time_s"] / max(alone) if max(alone) > 0 else 1.0
        return found


@functools.lru_cache(maxsize=16)
def data(job: LinearJob, size: int, number: int, name: str) -> Array:
    """One of the tensors q, k, v, g (log decay) and dout of a round, for the whole sequence."""
    dim = job.value_dim if name in ("v", "dout") else job.key_dim
    shape = (job.rows_in(size), job.heads, dim)
    rng = Stream(job.data_seed, name, f"linear attention {number}").numpy()
    if name != "g":
        values = rng.standard_normal(shape) * (job.key_dim**-0.5 if name == "q" else 1.0)
        made = attention.from_wire(attention.to_wire(values.astype(np.float32), job.dtype))
    elif job.decay == "data":
        made = -(job.strength * rng.exponential(size=shape)).astype(np.float32)
    else:
        steps = np.linspace(0.5, 1.5, job.heads)[:, None] * (job.decay == "fixed")
        made = np.broadcast_to(-job.strength * steps, shape).astype(np.float32)
    made.flags.writeable = False
    return made


@functools.lru_cache(maxsize=4)
def true_values(job: LinearJob, size: int, number: int) -> dict[str, Array]:
    """Output and gradients of the whole sequence in float64."""
    return linear.reference(*(data(job, size, number, n) for n in ("q", "k", "v", "g", "dout")))


__all__ = ["LinearJob", "LongLinearAttention", "SequenceLinearAttention", "data"]
