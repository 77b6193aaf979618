"""The highest priority first."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.requests import Running
from orrery.systems.serve.baselines.queueing import Queueing


class PriorityFirst(Queueing):
    """Lets in requests by their priority, 0 first, and in order of arrival within one.

    vLLM's priority policy. Low priorities may wait for ever.
    """

    def order(self, waiting: Sequence[Running], now_s: float) -> Sequence[Running]:
        return sorted(
            waiting, key=lambda seq: (seq.request.priority, seq.arrived_s, seq.request.id)
        )


__all__ = ["PriorityFirst"]
