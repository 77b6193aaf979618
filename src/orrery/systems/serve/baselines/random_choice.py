"""Requests to replicas at random."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.base.rand import Stream
from orrery.models.ports import ReplicaView, Router
from orrery.models.requests import Request
from orrery.parts import Whole


class RandomChoice(Router):
    """Sends each request to a replica drawn at random.

    With Poisson arrivals every replica then has Poisson arrivals of its own: N separate queues, the
    baseline of queueing theory. `seed` gives another sequence.
    """

    seed: Whole = 0

    def start(self) -> None:
        self.draws = Stream(self.seed, "random_choice")

    def route(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        if not replicas:
            return -1
        return replicas[self.draws.randrange(len(replicas))].index


__all__ = ["RandomChoice"]
