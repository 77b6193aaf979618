"""Ulysses for linear attention: some heads of all rows at each rank, by all-to-all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orrery.models import attention
from orrery.models.linear_attention import Array
from orrery.parts.collectives import part_items
from orrery.systems.collectives.problems.long_linear_attention import (
    Grads,
    SequenceLinearAttention,
)
from orrery.systems.collectives.problems.sequence_worker import Kind, blank


class LinearUlysses(SequenceLinearAttention):
    """Each rank does some heads over all rows (Jacobs et al., DeepSpeed-Ulysses, 2023).

    An all-to-all turns rows with all heads into all rows of some heads, linear attention runs
    there as on one device, and a second all-to-all turns the output back. The bytes of a rank grow
    with its rows, not with the state, and no more than `heads` ranks find work.
    **Differs from the paper**: heads need not be divisible by the ranks; gradients travel in fp32.

    >>> LinearUlysses().shares(LinearUlysses().job, 3, None)
    [64, 64, 64]
    """

    async def forward(self, q: Array, k: Array, v: Array, log_g: Array) -> Array:
        wire = attention.wire_dtype(self.job.dtype)
        kinds = [(wire, x.shape[2]) for x in (q, k, v)] + [(np.float32, log_g.shape[2])]
        q, k, v, log_g = await self._to_heads("qkvg", (q, k, v, log_g), kinds)
        self.saved = (q, k, v, log_g)
        self.chunks = await self.chunk_states(k, v, log_g)
        self.entering = self.carried(self.chunks, self._nothing())
        inner = await self.inside(*self.saved)
        out = await self.across(inner, q, log_g, self.entering)
        (found,) = await self._to_rows("out", (out,), [(wire, v.shape[2])])
        return found

    async def backward(self, dout: Array) -> Grads:
        wire, dv = attention.wire_dtype(self.job.dtype), dout.shape[2]
        (grown,) = await self._to_heads("dout", (dout,), [(wire, dv)])
        chunks = await self.chunk_gradients(grown)
        leaving = self.carried(chunks, self._nothing(), reverse=True)
        made = await self.across_backward(await self.inside_backward(grown), grown, leaving)
        kinds = [(np.float32, x.shape[2]) for x in made]
        dq, dk, dvalue, dg = await self._to_rows("grads", made, kinds)
        return dq, dk, dvalue, dg

    # -- the swaps; `kinds` say of each array its type on the wire and its dim

    def _nothing(self) -> Array:
        shape = (self._heads(self.rank)[1], self.job.key_dim, self.job.value_dim)
        return blank(shape) if self.job.sized else np.zeros(shape, np.float32)

    def _heads(self, rank: int) -> tuple[int, int]:
        """(the first head of a rank, how many it has)."""
        counts = part_items(self.job.heads, self.size)
        return sum(counts[:rank]), counts[rank]

    def _wire(self, array: Array, dtype: Any) -> Array:
        if self.job.sized:
            return blank(array.shape, dtype)
        return array if dtype == np.float32 else attention.to_wire(array, self.job.dtype)

    def _unwire(self, array: Array) -> Array:
        return blank(array.shape) if self.job.sized else attention.from_wire(array)

    def _stack(self, parts: Sequence[Array], axis: int) -> Array:
        if not self.job.sized:
            return np.concatenate(parts, axis=axis)
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return blank(shape)

    async def _to_heads(
        self, tag: str, arrays: Sequence[Array], kinds: Sequence[tuple[Any, int]]
    ) -> list[Array]:
        """My heads of all rows, for my rows of all heads."""
        for shift in range(1, self.size):
            peer = (self.rank + shift) % self.size
            first, count = self._heads(peer)
            parts = [x[:, first : first + count] for x in arrays]
            types = [dtype for dtype, _ in kinds]
            self.post(peer, tag, *map(self._wire, parts, types))
        first, count = self._heads(self.rank)
        found = []
        for source, rows in enumerate(self.shares(self.job, self.size, self.world)):
            if source == self.rank:
                found.append([x[:, first : first + count] for x in arrays])
            else:
                shapes = [Kind((rows, count, dim), dtype) for dtype, dim in kinds]
                found.append([self._unwire(x) for x in await self.take(source, tag, *shapes)])
        return [self._stack(parts, 0) for parts in zip(*found, strict=True)]

    async def _to_rows(
        self, tag: str, arrays: Sequence[Array], kinds: Sequence[tuple[Any, int]]
    ) -> list[Array]:
        """My rows of all heads, for my heads of all rows."""
        counts = list(self.shares(self.job, self.size, self.world))
        ends = np.cumsum([0, *counts])
        for shift in range(1, self.size):
            peer = (self.rank + shift) % self.size
            parts = [x[ends[peer] : ends[peer + 1]] for x in arrays]
            types = [dtype for dtype, _ in kinds]
            self.post(peer, tag, *map(self._wire, parts, types))
        found = []
        for source in range(self.size):
            if source == self.rank:
                found.append([x[ends[source] : ends[source + 1]] for x in arrays])
            else:
                many = self._heads(source)[1]
                shapes = [Kind((counts[self.rank], many, dim), dtype) for dtype, dim in kinds]
                found.append([self._unwire(x) for x in await self.take(source, tag, *shapes)])
        return [self._stack(parts, 1) for parts in zip(*found, strict=True)]
