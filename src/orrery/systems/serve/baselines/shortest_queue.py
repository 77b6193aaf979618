"""The replica with the least work waiting."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.ports import ReplicaView, Router
from orrery.models.requests import Request
from orrery.parts import NonNegative


class ShortestQueue(Router):
    """Joins the queue with the fewest tokens: prompts to compute, and some for each that decodes.

    Join the shortest queue (Winston, 1977), with work counted in tokens: `decode_weight` is what a
    token in the cache counts beside a prompt token that must be computed.
    """

    decode_weight: NonNegative = 0.1

    def route(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        if not replicas:
            return -1
        weight = self.decode_weight
        return min(
            replicas, key=lambda each: (each.prefill_tokens + weight * each.kv_tokens, each.index)
        ).index


__all__ = ["ShortestQueue"]
