"""The better of a few replicas drawn at random."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.base.rand import Stream
from orrery.models.ports import ReplicaView, Router
from orrery.models.requests import Request
from orrery.parts import Count, Whole


class PowerOfTwo(Router):
    """Draws `choices` replicas at random and takes the one with fewer unfinished requests.

    Mitzenmacher (IEEE TPDS 2001): with two choices the longest queue of n servers grows as
    log log n instead of log n, and the router has to look at two replicas only. `choices=1` is a
    random router.
    """

    choices: Count = 2
    seed: Whole = 0

    def start(self) -> None:
        self.draws = Stream(self.seed, "power_of_two")

    def route(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        if not replicas:
            return -1
        drawn = self.draws.sample(range(len(replicas)), min(self.choices, len(replicas)))
        return min((replicas[place] for place in drawn), key=lambda each: each.outstanding).index


__all__ = ["PowerOfTwo"]
