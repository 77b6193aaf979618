"""What schedulers that differ only in the order of their queue share."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.ports import EngineView
from orrery.models.requests import Running
from orrery.systems.serve.baselines.vllm_v1 import VllmV1


class Queueing(VllmV1):
    """vLLM's engine with another order of the queue: a subclass gives `order`.

    Who runs keeps its place; only who is let in next changes, as in vLLM with a priority policy.
    """

    def order(self, waiting: Sequence[Running], now_s: float) -> Sequence[Running]:
        """The queue, first to be let in first."""
        return waiting

    def queue(self, view: EngineView) -> Sequence[Running]:
        return self.order(view.waiting, view.now_s) if view.waiting else view.waiting


__all__ = ["Queueing"]
