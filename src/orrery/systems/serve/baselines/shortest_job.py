"""The shortest job first."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.requests import Running
from orrery.parts import NonNegative
from orrery.systems.serve.baselines.queueing import Queueing


class ShortestJob(Queueing):
    """Lets in the request that is expected to take the least work.

    The least mean waiting time of all orders, if lengths are known (Smith, 1956); here the length
    of an answer is a guess, `guess_per_token` for each token of its question plus `guess_tokens`.
    Long requests may wait for ever.
    """

    guess_tokens: NonNegative = 200.0
    guess_per_token: NonNegative = 0.0

    def order(self, waiting: Sequence[Running], now_s: float) -> Sequence[Running]:
        return sorted(waiting, key=lambda seq: (self.work(seq), seq.request.id))

    def work(self, seq: Running) -> float:
        """Tokens that are still to be computed, as far as anyone knows."""
        prompt = seq.request.prompt_tokens
        answer = self.guess_tokens + self.guess_per_token * prompt
        return seq.missing + max(answer - seq.generated, 0.0)


__all__ = ["ShortestJob"]
