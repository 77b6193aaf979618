"""LASP: the state goes from rank to rank, whole, one after the other."""

from __future__ import annotations

from orrery.models.linear_attention import Array, Step
from orrery.systems.collectives.problems.long_linear_attention import SequenceLinearAttention
from orrery.systems.collectives.problems.sequence_worker import Kind


class LASP(SequenceLinearAttention):
    """Pass the state along the ranks as a whole (Sun et al., LASP, 2024).

    "Linear Attention Sequence Parallelism". Rank p waits for the state of rank p - 1, applies its
    own rows and sends the result on; the last of P ranks waits for P - 1 latencies and whole
    states. Backwards the same the other way round. A rank sends one state. **Differs from the
    paper**: the work inside chunks runs while a rank waits (in its favour); decays may come from
    the data.

    >>> LASP().job.state_B
    512
    """

    async def incoming(self, step: Step, reverse: bool) -> Array:
        place = self.size - 1 - self.rank if reverse else self.rank
        ahead = -1 if reverse else 1
        state = self.no_state()
        if place:
            kind = Kind(step.added.shape)
            (state,) = await self.take(self.rank - ahead, f"state{reverse}", kind)
        if place < self.size - 1:
            after = await self.advance(step.log_decay, step.added, state) if place else step.added
            self.post(self.rank + ahead, f"state{reverse}", after)
        return state
