"""Requests to replicas in turn."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.ports import ReplicaView, Router
from orrery.models.requests import Request


class RoundRobin(Router):
    """Sends requests to the replicas in turn, whatever they are and whatever the replicas do.

    What vLLM's data-parallel front and most load balancers do by default. Each replica gets the
    same number of requests, but not the same work.
    """

    def start(self) -> None:
        self.turn = 0

    def route(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        if not replicas:
            return -1
        self.turn += 1
        return replicas[(self.turn - 1) % len(replicas)].index


__all__ = ["RoundRobin"]
