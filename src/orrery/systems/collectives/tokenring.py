"""TokenRing: queries travel, K and V stay, and partial results go straight home."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.attention import (
    Array,
    Blocks,
    Layout,
    Partial,
    contiguous,
    rows,
    visible_pairs,
    zigzag,
)
from orrery.systems.collectives.problems.long_attention import AttentionJob, SequenceAttention
from orrery.systems.collectives.problems.sequence_worker import Kind
from orrery.world import World

Grads = tuple[Array, Array, Array]


class TokenRing(SequenceAttention):
    """Send Q from rank to rank, and each partial result straight back to the owner of its Q.

    Wang, Liu, Li, Jiang: "TokenRing: An Efficient Parallelism Framework for Infinite-Context LLMs
    via Bidirectional Communication", 2024 (arXiv:2412.20501).

    K and V never move. In step i a rank passes the visiting Q on, attends from it to its own K and
    V, and sends the output with its log-sum-exp to the owner of that Q, while the next Q comes in:
    compute(i), send Q(i+1) and send out(i-1) run at once. The owner merges what comes, in any
    order. A step thus puts one block of Q on a link and one block of output on another, where Ring
    Attention puts K and V on one. On a mesh with a link for each pair the busiest direction carries
    (n - 2) Q + 1 out, half of Ring Attention's 2 (n - 1) blocks. Behind one shared port a rank
    sends (n - 1) (Q + out + lse), a little *more* than K and V; and with grouped queries K and V
    are the smaller ones, so there Ring Attention wins. A bidirectional ring has the same bytes for
    each direction, and Ulysses, where there are heads enough, far fewer than any of them.

    Backwards (Q, dO, lse, delta) travel the same way, dQ goes home, and dK and dV grow in place.

    Knobs: `both_ways`, whether results go straight home (off: they travel on with their Q, all
    bytes in one direction); `balance`, zigzag shards under a causal mask.

    **Differs from the paper**: the rank just before the owner, last on the ring, gets that Q from
    the owner itself, one hop backwards. In the paper it makes all n - 1 hops forwards, and the last
    output shares its link: n blocks instead of n - 1 on the busiest direction, 0.67 of Ring
    Attention at 4 ranks. The backward pass is our design; gradients travel in fp32.

    >>> from orrery.world import World
    >>> len(TokenRing().layout(AttentionJob(tokens=64), 4, World.lan(4))[0])
    2
    """

    both_ways: bool = True
    balance: bool = True

    def layout(self, job: AttentionJob, size: int, world: World) -> Layout:
        cut = zigzag if job.causal and self.balance else contiguous
        return cut(job.lengths, size)

    async def forward(self, q: Array, k: Array, v: Array) -> Array:
        self.saved = [q, k, v]
        if self.both_ways:
            own, others = await self.all(self._host_queries(), self._gather_outputs())
            whole = await self.merge(own, others)
        else:
            whole = await self._carry_outputs()
        self.result: Partial = whole if whole is not None else self.unseen(q.shape)
        return self.result.out

    async def backward(self, dout: Array) -> Grads:
        delta = await self.delta(dout, self.result.out)
        self.grown = (self.zeros(self.saved[1].shape), self.zeros(self.saved[2].shape))
        if self.both_ways:
            own, others = await self.all(
                self._host_gradients(dout, delta), self._gather_gradients()
            )
            dq = self.add(own, others)
        else:
            dq = await self._carry_gradients(dout, delta)
        return (dq, *self.grown)

    # -- the way of the queries

    def _at(self, shift: int) -> int:
        return (self.rank + shift) % self.size

    def _send_on(self, tag: str, step: int, *arrays: Array) -> None:
        """Pass what visits in this step to the rank that it visits in the next."""
        last = self.size - 1
        if step + 1 < last or (step + 1 == last and (last == 1 or not self.both_ways)):
            self.post(self._at(1), f"{tag}{step + 1}", *arrays)
        if step == 0 and last > 1 and self.both_ways:
            self.post(self._at(-1), f"{tag}{last}", *arrays)

    def _comes_from(self, step: int) -> int:
        """Who sends the visitor of a step: the rank before, and for the last step its owner."""
        last = self.size - 1
        return self._at(1) if step == last > 1 and self.both_ways else self._at(-1)

    # -- forwards: results go home

    async def _host_queries(self) -> Partial | None:
        """Attend from every visitor to the own K and V, and send each result home."""
        q, k, v = self.saved
        visitor, own = self.wire(q), None
        for step in range(self.size):
            blocks = self.shards[self._at(-step)]
            if step:
                kind = self.rows_kind(blocks, self.job.heads)
                (visitor,) = await self.take(self._comes_from(step), f"q{step}", kind)
            self._send_on("q", step, visitor)
            part = await self.attend(self.unwire(visitor), k, v, blocks, self.mine)
            if step == 0:
                own = part
            elif part is not None:
                self.post(self._at(-step), "out", self.wire(part.out), part.lse)
        return own

    def arrivals(self) -> Sequence[int]:
        """In which order the results of the ranks ahead are merged: as they come, nearest first."""
        return range(1, self.size)

    async def _gather_outputs(self) -> Partial | None:
        """Merge the results of the others while the next ones are under way."""
        whole = None
        for step in self.arrivals():
            whole = await self.merge(whole, await self._output_from(self._at(step)))
        return whole

    async def _output_from(self, rank: int) -> Partial | None:
        if not self._meet(self.mine, self.shards[rank]):
            return None
        kind = self.rows_kind(self.mine, self.job.heads)
        out, lse = await self.take(rank, "out", kind, Kind(kind.shape[:2]))
        return Partial(self.unwire(out), lse)

    def _meet(self, queries: Blocks, keys: Blocks) -> bool:
        """Whether any of these queries sees any of these keys; if not, nothing is sent."""
        return visible_pairs(queries, keys, self.job.causal) > 0

    # -- forwards, mechanism off: results travel on with their queries

    async def _carry_outputs(self) -> Partial | None:
        q, k, v = self.saved
        visitor, carried = self.wire(q), None
        for step in range(self.size):
            blocks = self.shards[self._at(-step)]
            kind = self.rows_kind(blocks, self.job.heads)
            if step:
                (visitor,) = await self.take(self._at(-1), f"q{step}", kind)
            self._send_on("q", step, visitor)
            part = await self.attend(self.unwire(visitor), k, v, blocks, self.mine)
            if step:
                out, lse = await self.take(self._at(-1), f"out{step}", kind, Kind(kind.shape[:2]))
                carried = Partial(self.unwire(out), lse)
            carried = await self.merge(carried, part)
            if self.size > 1:
                full = carried if carried is not None else self.unseen(kind.shape)
                self.post(self._at(1), f"out{step + 1}", self.wire(full.out), full.lse)
        if self.size == 1:
            return carried
        kind = self.rows_kind(self.mine, self.job.heads)
        out, lse = await self.take(self._at(-1), f"out{self.size}", kind, Kind(kind.shape[:2]))
        return Partial(self.unwire(out), lse)

    # -- backwards

    def _visit_kinds(self, blocks: Blocks) -> tuple[Kind, ...]:
        kind = self.rows_kind(blocks, self.job.heads)
        return kind, kind, Kind(kind.shape[:2]), Kind(kind.shape[:2])

    async def _host_gradients(self, dout: Array, delta: Array) -> Array:
        """For every visitor: grow the own dK and dV, and send its part of dQ home."""
        own = self.zeros(self.saved[0].shape)
        visitor = [self.wire(self.saved[0]), self.wire(dout), self.result.lse, delta]
        for step in range(self.size):
            blocks = self.shards[self._at(-step)]
            if step:
                kinds = self._visit_kinds(blocks)
                visitor = await self.take(self._comes_from(step), f"back{step}", *kinds)
            self._send_on("back", step, *visitor)
            dq = await self._grow(visitor, blocks)
            if step == 0:
                own = dq if dq is not None else own
            elif dq is not None:
                self.post(self._at(-step), "dq", dq)
        return own

    async def _gather_gradients(self) -> Array:
        total = self.zeros(self.saved[0].shape)
        for step in self.arrivals():
            rank = self._at(step)
            if self._meet(self.mine, self.shards[rank]):
                (dq,) = await self.take(rank, "dq", Kind(total.shape))
                total = self.add(total, dq)
        return total

    async def _carry_gradients(self, dout: Array, delta: Array) -> Array:
        visitor = [self.wire(self.saved[0]), self.wire(dout), self.result.lse, delta]
        carried = self.zeros(self.saved[0].shape)
        for step in range(self.size):
            blocks = self.shards[self._at(-step)]
            shape = (rows(blocks), *self.saved[0].shape[1:])
            if step:
                visitor = await self.take(self._at(-1), f"back{step}", *self._visit_kinds(blocks))
            self._send_on("back", step, *visitor)
            dq = await self._grow(visitor, blocks)
            if step:
                (carried,) = await self.take(self._at(-1), f"dq{step}", Kind(shape))
            carried = carried if dq is None else self.add(carried, dq)
            if self.size > 1:
                self.post(self._at(1), f"dq{step + 1}", carried)
        if self.size > 1:
            (carried,) = await self.take(self._at(-1), f"dq{self.size}", Kind(self.saved[0].shape))
        return carried

    async def _grow(self, visitor: list[Array], blocks: Blocks) -> Array | None:
        """What a visitor adds to the own dK and dV; gives what the own keys add to its dQ."""
        (q, dout), (lse, delta) = (self.unwire(x) for x in visitor[:2]), visitor[2:]
        k, v = self.saved[1:]
        made = await self.attend_back(q, k, v, dout, lse, delta, blocks, self.mine)
        if made is None:
            return None
        dq, dk, dv = made
        self.grown = (self.add(self.grown[0], dk), self.add(self.grown[1], dv))
        return dq
