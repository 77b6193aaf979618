"""The replica with the fewest tokens in its cache."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.ports import ReplicaView, Router
from orrery.models.requests import Request


class LeastKV(Router):
    """Sends a request where the caches hold, or will soon hold, the fewest tokens.

    What a decode step reads grows with the tokens in the cache, so this evens out the steps.
    """

    def route(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        if not replicas:
            return -1
        return min(
            replicas, key=lambda each: (each.kv_tokens + each.prefill_tokens, each.index)
        ).index


__all__ = ["LeastKV"]
