"""Linear attention on one device, the measure of all ways to spread it."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.linear_attention import Array, Step
from orrery.systems.collectives.problems.long_linear_attention import (
    LinearJob,
    SequenceLinearAttention,
)
from orrery.world import World


class LinearSingle(SequenceLinearAttention):
    """Rank 0 has the whole sequence and computes alone, chunk by chunk (Yang et al., GLA, 2024).

    No byte is sent, and no state comes from elsewhere.

    >>> LinearSingle().shares(LinearJob(tokens=9), 3, World.lan(3))
    [9, 0, 0]
    """

    def shares(self, job: LinearJob, size: int, world: World) -> Sequence[int]:
        return [job.rows_in(size)] + [0] * (size - 1)

    async def incoming(self, step: Step, reverse: bool) -> Array:
        return self.no_state()
