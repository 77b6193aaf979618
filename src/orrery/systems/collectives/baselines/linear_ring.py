"""Ring Attention for linear attention: K, V and decays go round, and no state is used."""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.models import attention
from orrery.models import linear_attention as linear
from orrery.models.linear_attention import Array
from orrery.systems.collectives.problems.long_linear_attention import (
    Grads,
    SequenceLinearAttention,
)
from orrery.systems.collectives.problems.sequence_worker import Kind, blank


class LinearRing(SequenceLinearAttention):
    """Pass K, V and the log decays round a ring, and pair rows directly (Liu et al., 2023).

    What Ring Attention does when the attention happens to be linear: every rank meets every earlier
    run of rows pair by pair, so the work grows with the square of the length and the bytes with the
    length, where a state would do with neither. Blocks come nearest first, so a rank knows the
    decay between a block and its own rows from those that came before.

    **Differs from the paper**: softmax is left out, decays travel along; a rank's own rows are
    handled in chunks. Backwards dK and dV follow their blocks home, and the gradients of the decays
    need one small message for each pair of ranks. Gradients travel in fp32.

    >>> LinearRing().job.chunk
    16
    """

    async def forward(self, q: Array, k: Array, v: Array, log_g: Array) -> Array:
        self.saved = (q, k, v, log_g)
        self.chunks = await self.chunk_states(k, v, log_g)
        self.entering = self.carried(self.chunks, self.no_state())
        held, between = [k, v, log_g], self._no_decay()
        for step in range(self.size):
            self._send_on("kvg", step, held)
            if step == 0:
                inner = await self.inside(*self.saved)
                out = await self.across(inner, q, log_g, self.entering)
            elif step <= self.rank and len(held[0]):
                out = await self._meet(out, held, between)
                between = self._further(between, held[2])
            held = await self._next("kvg", step, held)
        return out

    async def backward(self, dout: Array) -> Grads:
        q, k, v, log_g = self.saved
        grown = await self.chunk_gradients(dout)
        leaving = self.carried(grown, self.no_state(), reverse=True)
        own = await self.across_backward(await self.inside_backward(dout), dout, leaving)
        held, between = [k, v, log_g], self._no_decay()
        far, travelling = self._zeros(q), [self._zeros(k), self._zeros(v)]
        turns: dict[int, Array] = {}
        for step in range(self.size):
            self._send_on("kvg back", step, held)
            if step:
                travelling = await self._grads_from_behind(step - 1, held)
            if 0 < step <= self.rank and len(held[0]):
                made = await self._meet_back(dout, held, between)
                between = self._further(between, held[2])
                turns[self.rank - step] = self._turn(q, made[0])
                far = self._add(far, made[0])
                travelling = [self._add(a, b) for a, b in zip(travelling, made[1:], strict=True)]
            if self.size > 1:
                self.post((self.rank + 1) % self.size, f"dkv{step}", *travelling)
            held = await self._next("kvg back", step, held)
        if self.size > 1:
            travelling = await self._grads_from_behind(self.size - 1, [k, v])
        dg = await self._decay_gradients(own[3], far, travelling[0], turns)
        dk, dv = (self._add(a, b) for a, b in zip(own[1:3], travelling, strict=True))
        return self._add(own[0], far), dk, dv, dg

    # -- arithmetic

    def _zeros(self, like: Array) -> Array:
        return blank(like.shape) if self.job.sized else np.zeros(like.shape, np.float32)

    def _add(self, a: Array, b: Array) -> Array:
        return a if self.job.sized else a + b

    def _no_decay(self) -> Array:
        return np.zeros((self.job.heads, self.job.key_dim))

    def _further(self, between: Array, log_g: Array) -> Array:
        return between if self.job.sized else between + linear.total_log(log_g)

    def _pair_flops(self, rows: int, products: float) -> float:
        mine = len(self.saved[0])
        return 2.0 * mine * rows * self.job.heads * products

    async def _meet(self, out: Array, held: list[Array], between: Array) -> Array:
        q, _, _, log_g = self.saved
        k, v, their_g = held
        return await self.work(
            lambda: out + linear.meet(
                linear.apart(q, log_g, between), linear.ahead(k, their_g), v
            ),
            flops=self._pair_flops(len(k), self.job.key_dim + self.job.value_dim),
            bytes=self._items(q, k, v, out), blanks=lambda: out,
        )  # fmt: skip

    async def _meet_back(
        self, dout: Array, held: list[Array], between: Array
    ) -> tuple[Array, Array, Array]:
        q, _, _, log_g = self.saved
        k, v, their_g = held
        return await self.work(
            lambda: linear.meet_backward(q, k, v, dout, log_g, their_g, between),
            flops=self._pair_flops(len(k), 3 * self.job.key_dim + 2 * self.job.value_dim),
            bytes=self._items(q, k, v, dout, q, k, v),
            blanks=lambda: (blank(q.shape), blank(k.shape), blank(v.shape)),
        )

    def _turn(self, q: Array, dq: Array) -> Array:
        """What all pairs of this rank's rows with one block say of any decay between them."""
        if self.job.sized:
            return blank(q.shape[1:])
        return np.asarray(np.einsum("nhk,nhk->hk", q, dq))

    async def _decay_gradients(
        self, own: Array, far_dq: Array, far_dk: Array, turns: dict[int, Array]
    ) -> Array:
        """Add to the gradients of the decays what pairs of rows of two ranks say of them.

        A pair (i, j) says q_i dq_i of every decay after j up to i: of rows of i's rank, of rows of
        j's rank, and of all rows of the ranks between, who have to be told.
        """
        q, k, _, _ = self.saved
        kind = Kind(q.shape[1:])
        for rank in range(self.rank):
            told = [turn for source, turn in turns.items() if source < rank]
            nothing = blank(kind.shape) if self.job.sized else np.zeros(kind.shape, np.float32)
            self.post(rank, "turns", nothing if self.job.sized else sum(told, nothing))
        total = own
        for rank in range(self.rank + 1, self.size):
            (turn,) = await self.take(rank, "turns", kind)
            total = self._add(total, turn)
        if self.job.sized:
            return total
        up_to = np.cumsum((q * far_dq)[::-1], axis=0)[::-1]
        after = np.cumsum(k * far_dk, axis=0) - k * far_dk
        return np.asarray(total + up_to + after, np.float32)

    # -- what travels

    def _kinds(self, rank: int) -> list[Kind]:
        rows = self.shares(self.job, self.size, self.world)[rank]
        job, wire = self.job, attention.wire_dtype(self.job.dtype)
        return [Kind((rows, job.heads, job.key_dim), wire),
                Kind((rows, job.heads, job.value_dim), wire),
                Kind((rows, job.heads, job.key_dim))]  # fmt: skip

    def _wired(self, array: Array, kind: Any) -> Array:
        if self.job.sized:
            return blank(array.shape, kind.dtype)
        return array if kind.dtype == np.float32 else attention.to_wire(array, self.job.dtype)

    def _send_on(self, tag: str, step: int, held: list[Array]) -> None:
        if step < self.size - 1:
            kinds = self._kinds((self.rank - step) % self.size)
            arrays = map(self._wired, held, kinds)
            self.post((self.rank + 1) % self.size, f"{tag}{step}", *arrays)

    async def _next(self, tag: str, step: int, held: list[Array]) -> list[Array]:
        if step == self.size - 1:
            return held
        kinds = self._kinds((self.rank - step - 1) % self.size)
        came = await self.take((self.rank - 1) % self.size, f"{tag}{step}", *kinds)
        return [blank(x.shape) if self.job.sized else attention.from_wire(x) for x in came]

    async def _grads_from_behind(self, step: int, block: list[Array]) -> list[Array]:
        kinds = [Kind(x.shape) for x in block[:2]]
        return await self.take((self.rank - 1) % self.size, f"dkv{step}", *kinds)
