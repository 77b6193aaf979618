"""The shortest job first, by estimates as they are given."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.requests import Request, Running
from orrery.parts import NonNegative
from orrery.systems.serve.baselines.queueing import Queueing
from orrery.systems.serve.problems.tenant_desk import Gatekeeper


class EstimatedShortest(Queueing, Gatekeeper):
    """Lets in the request with the least estimated work, and believes every estimate.

    Smith's rule (1956) on the estimates that requests bring; `guess_tokens` where one brings none,
    `prompt_weight` is the work of a prompt token in decode tokens. Long requests may wait for ever.

    >>> EstimatedShortest().expected(Request(0, 0.0, 10, 1))
    200.0
    """

    guess_tokens: NonNegative = 200.0
    prompt_weight: NonNegative = 0.05

    def expected(self, request: Request) -> float:
        return float(getattr(request, "estimate", 0.0)) or self.guess_tokens

    def work(self, seq: Running) -> float:
        """What is still to be computed, in decode tokens."""
        left = max(self.expected(seq.request) - seq.generated, 1.0)
        return self.prompt_weight * seq.missing + left

    def order(self, waiting: Sequence[Running], now_s: float) -> Sequence[Running]:
        return sorted(waiting, key=lambda seq: (self.work(seq), seq.arrived_s, seq.request.id))


__all__ = ["EstimatedShortest"]
