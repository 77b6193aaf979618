"""Ring Attention: K and V go round a ring while each rank keeps its queries."""

from __future__ import annotations

from typing import ClassVar

from orrery.models.attention import Array, Blocks, Partial, rows
from orrery.systems.collectives.problems.long_attention import SequenceAttention
from orrery.systems.collectives.problems.sequence_worker import Kind


class RingAttention(SequenceAttention):
    """Pass blocks of K and V round a ring under the compute (Liu, Zaharia, Abbeel, 2023).

    "Ring Attention with Blockwise Transformers for Near-Infinite Context". In step i a rank sends
    the K and V that it holds to the next rank and meanwhile attends to them; after n steps its
    queries have met all keys. Backwards the gradients of K and V travel one step behind their
    blocks, are added to on the way, and come home after n steps. Every link direction of the ring
    carries 2 (n - 1) blocks forwards, the other direction none.

    Shards are contiguous, so under a causal mask early ranks have little to do; `ZigzagRing`
    mends that. **Differs from the paper**: gradients travel in fp32, as in ring-flash-attention.

    >>> RingAttention().ways
    (1,)
    """

    # In which direction each part of K and V travels.
    ways: ClassVar[tuple[int, ...]] = (1,)

    def lanes(self, rank: int) -> tuple[Blocks, ...]:
        """The blocks of a rank that travel each way."""
        return (self.shards[rank],)

    async def forward(self, q: Array, k: Array, v: Array) -> Array:
        self.saved = [q, k, v]
        held, whole = self._own(k, v), None
        for step in range(self.size):
            self._send_on("kv", step, held)
            for lane, (keys, values) in enumerate(held):
                blocks = self.lanes(self._owner(lane, step))[lane]
                whole = await self.merge(
                    whole, await self.attend(q, keys, values, self.mine, blocks)
                )
            held = await self._next("kv", step, held)
        done = whole if whole is not None else self.unseen(q.shape)
        self.result = Partial(*done)
        return done.out

    async def backward(self, dout: Array) -> tuple[Array, Array, Array]:
        q, k, v = self.saved
        dq, delta = self.zeros(q.shape), await self.delta(dout, self.result.out)
        held, grown = self._own(k, v), list[tuple[Array, Array]]()
        for step in range(self.size):
            self._send_on("kv back", step, held)
            grown = []
            for lane, (keys, values) in enumerate(held):
                blocks = self.lanes(self._owner(lane, step))[lane]
                made = await self.attend_back(
                    q, keys, values, dout, self.result.lse, delta, self.mine, blocks
                )
                more = made[1:] if made else (self.zeros(keys.shape), self.zeros(values.shape))
                dq = self.add(dq, made[0]) if made else dq
                grown.append(await self._add_to_travelling(lane, step, blocks, *more))
            for lane, (dkeys, dvalues) in enumerate(grown):
                if self.size > 1:
                    self.post(self._peer(lane), f"dkv{lane}.{step}", dkeys, dvalues)
            held = await self._next("kv back", step, held)
        if self.size > 1:
            grown = [
                await self._travelling(lane, self.size - 1, blocks)
                for lane, blocks in enumerate(self.lanes(self.rank))
            ]
        dk, dv = (self.stacked([pair[i] for pair in grown]) for i in (0, 1))
        return dq, dk, dv

    # -- what travels

    def _own(self, k: Array, v: Array) -> list[tuple[Array, Array]]:
        """This rank's K and V, cut into the parts that travel each way."""
        found, at = [], 0
        for blocks in self.lanes(self.rank):
            count = rows(blocks)
            found.append((k[at : at + count], v[at : at + count]))
            at += count
        return found

    def _peer(self, lane: int, back: bool = False) -> int:
        way = -self.ways[lane] if back else self.ways[lane]
        return (self.rank + way) % self.size

    def _owner(self, lane: int, step: int) -> int:
        """Whose block a rank holds in a step."""
        return (self.rank - self.ways[lane] * step) % self.size

    def _send_on(self, tag: str, step: int, held: list[tuple[Array, Array]]) -> None:
        if step < self.size - 1:
            for lane, pair in enumerate(held):
                arrays = [self.wire(array) for array in pair]
                self.post(self._peer(lane), f"{tag}{lane}.{step}", *arrays)

    async def _next(
        self, tag: str, step: int, held: list[tuple[Array, Array]]
    ) -> list[tuple[Array, Array]]:
        if step == self.size - 1:
            return held
        found = []
        for lane in range(len(self.ways)):
            blocks = self.lanes(self._owner(lane, step + 1))[lane]
            kind = self.rows_kind(blocks, self.job.groups)
            k, v = await self.take(self._peer(lane, back=True), f"{tag}{lane}.{step}", kind, kind)
            found.append((self.unwire(k), self.unwire(v)))
        return found

    async def _travelling(self, lane: int, step: int, blocks: Blocks) -> tuple[Array, Array]:
        kind = Kind(self.rows_kind(blocks, self.job.groups).shape)
        dk, dv = await self.take(self._peer(lane, back=True), f"dkv{lane}.{step}", kind, kind)
        return dk, dv

    async def _add_to_travelling(
        self, lane: int, step: int, blocks: Blocks, dk: Array, dv: Array
    ) -> tuple[Array, Array]:
        """The gradients that came with a block, and what this rank adds to them."""
        if step == 0:
            return dk, dv
        came = await self._travelling(lane, step - 1, blocks)
        return self.add(came[0], dk), self.add(came[1], dv)
