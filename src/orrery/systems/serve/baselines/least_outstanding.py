"""The replica with the fewest unfinished requests."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.ports import ReplicaView, Router
from orrery.models.requests import Request


class LeastOutstanding(Router):
    """Sends a request where the fewest requests are unfinished; the first of equals.

    Known as least connections, and as joining the shortest queue where a server has no batch. A
    request counts as one, however long it is.
    """

    def route(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        if not replicas:
            return -1
        return min(replicas, key=lambda each: each.outstanding).index


__all__ = ["LeastOutstanding"]
