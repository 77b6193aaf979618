"""ZeCO: one state flows through the ranks in blocks, as a pipeline, under the compute."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Awaitable, Sequence
from typing import Any

import numpy as np

from orrery.models.linear_attention import Array, Step
from orrery.parts import Whole
from orrery.parts.collectives import part_items
from orrery.systems.collectives.problems.long_linear_attention import SequenceLinearAttention
from orrery.systems.collectives.problems.sequence_worker import Kind, blank
from orrery.world import World


class ZeCO(SequenceLinearAttention):
    """Hand each rank just the state that it needs, by a pipelined scan along the ranks.

    Chou et al.: "ZeCO: Zero Communication Overhead Sequence Parallelism for Linear Attention",
    2025. A rank's rows turn the state that enters into Gamma S + dS. In the *All-Scan* rank p
    receives S from rank p - 1, applies its own step and passes the result on. The state is cut into
    K blocks of rows that follow each other, so the last of P ranks has it after (K + P - 2) times
    (alpha + T / K), where alpha is the latency and T the time of a whole state on a link, instead
    of (P - 1) (alpha + T). Every rank sends one state forwards, and backwards one gradient of a
    state by the same scan in reverse: no algorithm can do with less. The work inside chunks, which
    needs no state, runs meanwhile.

    Knobs: `blocks`, K; 0 takes the best for the links of the world, about sqrt((P - 2) T / alpha);
    1 switches the pipeline off. `overlap`: whether the scan runs under the work inside chunks.

    **Differs from the paper**: a block is sent when the one before has arrived, which is what the
    formula says; NCCL's channels would keep a second one under way. The state of one layer and one
    sequence is scanned at a time. Kernels are costs, not Triton.

    >>> best_blocks(World.lan(66, latency_s=1e-4, bandwidth_Bps=1e9), tuple(range(66)), 10**6)
    25
    """

    blocks: Whole = 0
    overlap: bool = True

    async def meanwhile(self, inner: Awaitable[Any], state: Awaitable[Array]) -> Sequence[Any]:
        if self.overlap:
            return await super().meanwhile(inner, state)
        came = await state
        return await inner, came

    async def incoming(self, step: Step, reverse: bool) -> Array:
        """All-Scan: take each block, pass it on one step further, keep what came."""
        place = self.size - 1 - self.rank if reverse else self.rank
        ahead = -1 if reverse else 1
        came: list[Array] = []
        ready = self.queue()

        async def pass_on() -> None:
            for number in range(len(pieces) if place < self.size - 1 else 0):
                block = await ready.get()
                await self.deliver(self.rank + ahead, f"scan{reverse}{number}", block)

        async def apply() -> None:
            for number, piece in enumerate(pieces):
                if place:
                    kind = Kind(piece.added.shape)
                    (state,) = await self.take(self.rank - ahead, f"scan{reverse}{number}", kind)
                    came.append(state)
                    if place < self.size - 1:
                        ready.put(await self.advance(piece.log_decay, piece.added, state))
                else:
                    ready.put(piece.added)

        pieces = self._pieces(step)
        await self.all(apply(), pass_on())
        if not place:
            return self.no_state()
        return self._joined(came)

    def _pieces(self, step: Step) -> list[Step]:
        """The step cut into blocks of rows of the state."""
        heads, dk, dv = step.added.shape
        nodes = tuple(self.fellows())
        count = self.blocks or best_blocks(self.world, nodes, self.job.state_B)
        sizes = part_items(heads * dk, min(count, heads * dk))
        if self.job.sized:
            return [Step(blank((size,)), blank((size, dv))) for size in sizes]
        ends = np.cumsum([0, *sizes])
        log_decay, added = step.log_decay.reshape(-1), step.added.reshape(-1, dv)
        return [
            Step(log_decay[begin:end], added[begin:end]) for begin, end in itertools.pairwise(ends)
        ]

    def _joined(self, blocks: list[Array]) -> Array:
        shape = (self.job.heads, self.job.key_dim, self.job.value_dim)
        return blank(shape) if self.job.sized else np.concatenate(blocks).reshape(shape)


@functools.lru_cache(maxsize=64)
def best_blocks(world: World, nodes: tuple[int, ...], state_B: int) -> int:
    """The number of blocks that makes the scan along these nodes shortest.

    With hops of latency a_h and time T_h for a whole state, the scan takes the sum of
    (a_h + T_h / K) and K - 1 times the slowest of them; that is least at
    K = sqrt((sum T_h - T_max) / a_max), which for equal hops is sqrt((P - 2) T / alpha).
    """
    if len(nodes) < 3:
        return 1
    wiring = world.wiring()
    hops = list(itertools.pairwise(nodes))
    latency_s = max(wiring.latency(a, b) for a, b in hops)
    times_s = [state_B / min(wiring.capacity_Bps[link] for link in wiring.path(a, b))
               for a, b in hops]  # fmt: skip
    if latency_s <= 0:
        return state_B
    return max(1, round(math.sqrt((sum(times_s) - max(times_s)) / latency_s)))
