"""Greedy colouring by identifier: the least colour that no larger neighbour has taken."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from orrery.base.errors import UsageError
from orrery.systems.protocols.problems.local_rounds.graph import Ints, LocalGraph
from orrery.systems.protocols.problems.local_rounds.port import (
    LocalAlgorithm,
    Payload,
    State,
)

UNKNOWN = -1
MOST_CELLS = 200_000_000


def least_free(taken: set[int]) -> int:
    """The least colour that is not taken."""
    colour = 0
    while colour in taken:
        colour += 1
    return colour


class GreedyById(LocalAlgorithm):
    """Colour greedily from the largest identifier down; at most degree + 1 colours.

    A node outputs the least colour that no larger neighbour has, in the round after the last of
    them. On a cycle that is a 3-colouring; the time is the longest chain of rising identifiers, n
    in the worst case and O(log n / log log n) for random ones. The sequential rule is folklore
    (Linial, 1992, calls it the trivial algorithm).

    Differs from the sequential rule in nothing: the colours are the same.

    >>> from orrery.systems.protocols.problems.local_rounds import cycle, lockstep
    >>> lockstep(GreedyById(), cycle(4, np.array([0, 1, 2, 3])))
    [[(1, 4)], [(0, 3)], [(1, 2)], [(0, 1)]]
    """

    task: ClassVar[str] = "colouring"

    def begin(self, state: State) -> None:
        state.colour = UNKNOWN
        if not state.me.degree:
            state.speak(0)

    def send(self, state: State, port: int) -> Payload:
        return ((state.me.id, state.colour),)

    def take(self, state: State, inbox: list[Payload]) -> None:
        if state.said:
            return
        larger = [colour for ((other, colour),) in inbox if other > state.me.id]
        if UNKNOWN not in larger:
            state.colour = least_free(set(larger))
            state.speak(state.colour)

    def ball(self, ball: Any) -> int | None:
        return self._colour(ball, ball.centre, ball.radius)

    def _colour(self, ball: Any, v: int, left: int) -> int | None:
        """The colour of v, when news may travel `left` more edges to reach it."""
        if left == 0:
            return None if ball.degree(v) else 0
        taken = set()
        for u in ball.neighbours(v):
            if ball.id(u) > ball.id(v):
                colour = self._colour(ball, u, left - 1)
                if colour is None:
                    return None
                taken.add(colour)
        return least_free(taken)

    def arrays(self, graph: LocalGraph) -> tuple[Ints, Ints]:
        """O(edges) in all, one step of NumPy for each round."""
        most = int(np.diff(graph.offsets).max(initial=0)) + 1
        if graph.n * most > MOST_CELLS:
            raise UsageError(f"{graph.n} nodes of degree {most - 1} are too many for arrays")
        taken = np.zeros((graph.n, most), dtype=bool)
        colours = np.full(graph.n, UNKNOWN)

        def colour(ready: Ints) -> None:
            colours[ready] = np.argmin(taken[ready], axis=1)

        def tell(near: Ints, far: Ints) -> None:
            taken[far, colours[near]] = True

        return colours, by_waves(graph, graph.ids, colour, tell)

    def bound(self, n: int, bits: int) -> int | None:
        return n


def by_waves(graph: LocalGraph, ranks: Any, decide: Any, tell: Any) -> Ints:
    """Rounds of nodes that wait for all larger neighbours; each wave decides, then tells."""
    near, far = graph.sources, graph.targets
    up = ranks[far] > ranks[near]
    waits = np.bincount(near[up], minlength=graph.n)
    rounds = np.full(graph.n, -1, dtype=np.int64)
    ready = np.flatnonzero(waits == 0)
    number = 1
    while len(ready):
        decide(ready)
        rounds[ready] = number
        ports = ports_of(graph, ready)
        ports = ports[~up[ports]]
        tell(near[ports], far[ports])
        np.subtract.at(waits, far[ports], 1)
        ready = np.unique(far[ports])
        ready = ready[waits[ready] == 0]
        number += 1
    rounds[np.diff(graph.offsets) == 0] = 0
    return rounds


def ports_of(graph: LocalGraph, nodes: Ints) -> Ints:
    """The positions of all ports of some nodes in the flat arrays."""
    counts = graph.offsets[nodes + 1] - graph.offsets[nodes]
    begins = np.repeat(graph.offsets[nodes] - np.cumsum(counts) + counts, counts)
    return begins + np.arange(counts.sum())
