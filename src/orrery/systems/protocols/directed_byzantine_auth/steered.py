"""An order of delivery that pulls values apart: the worst that was found for the halving bound.

Every node belongs to the low or to the high side. The low ones get the lowest values first, the
high ones the highest, and liars sign far lower and far higher values for the two. All messages
arrive in the end. On small graphs such runs come as close to one half a round as numbers allow.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection
from typing import Any

from orrery.base.rand import Stream
from orrery.systems.protocols.directed_byzantine_auth.approximate import (
    ApproximateMachine,
    Flood,
    Said,
    value_text,
)
from orrery.systems.protocols.problems.digraphs import Digraph, bits
from orrery.systems.protocols.problems.signing import TokenKeys

FAR = 9.0


class Steering:
    """The messages under way, handed out in the order that does most harm."""

    def __init__(self, graph: Digraph, liars: Collection[int], rng: Stream) -> None:
        self.graph, self.liars, self.rng = graph, liars, rng
        self.low = [bool(rng.below(2)) for _ in range(graph.n)]
        self.heap: list[Any] = []
        self.count = itertools.count()

    def send(self, a: int, floods: list[Flood]) -> None:
        """What node a floods goes to all whom it has a link to."""
        for flood in floods:
            for b in bits(self.graph.out[a]):
                told = self._lie(a, b, flood)
                heard = told.report.heard if told.report is not None else [told.said]
                values = [said.value for said in heard if said is not None]
                harm = max(values) if self.low[b] else -min(values)
                place = (told.number, harm, self.rng.below(3), next(self.count))
                heapq.heappush(self.heap, (*place, b, told))

    def _lie(self, a: int, b: int, flood: Flood) -> Flood:
        said = flood.said
        if a not in self.liars or said is None or said.origin != a or not self.rng.below(4):
            return flood
        value = said.value + (-FAR if self.low[b] else FAR)
        token = TokenKeys(a).sign(value_text(flood.number, a, value))
        return flood._replace(said=Said(a, value, token))


def steer(
    graph: Digraph, f: int, liars: Collection[int], seed: int, rounds: int = 3,
    machine: type[ApproximateMachine] = ApproximateMachine,
) -> list[list[float]]:  # fmt: skip
    """Run machines in such an order; the values of the fault-free ones, by round, the inputs first.

    A row is shorter where somebody never got so far.
    """
    rng = Stream(seed, graph.n, "steered")
    steering = Steering(graph, liars, rng)
    inputs = [rng.choice((0.0, 1.0, rng.random())) for _ in range(graph.n)]
    cast = [machine(v, graph, f, inputs[v], rounds, TokenKeys(v)) for v in range(graph.n)]
    for v, each in enumerate(cast):
        steering.send(v, each.begin())
    while steering.heap:
        *_, b, told = heapq.heappop(steering.heap)
        if told.said is not None:
            steering.send(b, cast[b].take_said(told.number, told.said))
        else:
            steering.send(b, cast[b].take_report(told.number, told.report))
    good = [cast[v] for v in range(graph.n) if v not in liars]
    return [[each.values[k] for each in good if k < len(each.values)] for k in range(rounds + 1)]
