"""LASP-2: every rank gathers the states of all and combines those that it needs."""

from __future__ import annotations

from typing import Literal

import numpy as np

from orrery.models.linear_attention import Array, Step
from orrery.systems.collectives.problems.long_linear_attention import SequenceLinearAttention
from orrery.systems.collectives.problems.sequence_worker import Kind, blank


class LASP2(SequenceLinearAttention):
    """Gather the states of all ranks, then combine those before (Sun et al., LASP-2, 2025).

    "LASP-2: Rethinking Sequence Parallelism for Linear Attention and Its Hybrid". One all-gather of
    states replaces P - 1 dependent sends and runs under the work inside chunks; each rank then
    applies the steps of the ranks before it by itself. Every rank receives P - 1 states, so the
    bytes grow with P.

    Knobs: `gathering`: "ring", P - 1 steps, as NCCL gathers what is large; "doubling", log2 P steps
    (Bruck et al., 1997, for any P), which is better where latency counts.
    **Differs from the paper**: with decay each rank's decay travels with its state.

    >>> LASP2(gathering="doubling").gathering
    'doubling'
    """

    gathering: Literal["ring", "doubling"] = "ring"

    async def incoming(self, step: Step, reverse: bool) -> Array:
        tag = f"gather{reverse}"
        ring = self.gathering == "ring"
        steps = await (self._ring(tag, step) if ring else self._doubling(tag, step))
        order = range(self.size - 1, self.rank, -1) if reverse else range(self.rank)
        needed = [steps[rank] for rank in order]
        size = step.added.size
        return await self.work(
            lambda: self._combined(needed), flops=2.0 * size * len(needed),
            bytes=4.0 * size * (len(needed) + 2), blanks=lambda: blank(step.added.shape),
        )  # fmt: skip

    def _combined(self, steps: list[Step]) -> Array:
        state = self.no_state()
        for step in steps:
            state = np.exp(step.log_decay)[..., None] * state + step.added
        return state

    def _kinds(self, step: Step, count: int = 1) -> list[Kind]:
        return [Kind(step.log_decay.shape), Kind(step.added.shape)] * count

    async def _ring(self, tag: str, step: Step) -> dict[int, Step]:
        found, held = {self.rank: step}, step
        ahead, behind = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        for number in range(self.size - 1):
            self.post(ahead, f"{tag}{number}", *held)
            held = Step(*await self.take(behind, f"{tag}{number}", *self._kinds(step)))
            found[(self.rank - number - 1) % self.size] = held
        return found

    async def _doubling(self, tag: str, step: Step) -> dict[int, Step]:
        """Bruck's all-gather: held[i] is what rank + i has."""
        held, distance = [step], 1
        while distance < self.size:
            count = min(distance, self.size - distance)
            arrays = [array for one in held[:count] for array in one]
            self.post((self.rank - distance) % self.size, f"{tag}{distance}", *arrays)
            source = (self.rank + distance) % self.size
            came = await self.take(source, f"{tag}{distance}", *self._kinds(step, count))
            held += [Step(*came[i : i + 2]) for i in range(0, len(came), 2)]
            distance *= 2
        return {(self.rank + i) % self.size: one for i, one in enumerate(held)}
