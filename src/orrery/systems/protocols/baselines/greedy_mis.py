"""Greedy maximal independent set by priority: the identifier, or a number drawn once."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from orrery.systems.protocols.problems.local_rounds.graph import Ints, LocalGraph, draws
from orrery.systems.protocols.problems.local_rounds.port import (
    LocalAlgorithm,
    Payload,
    State,
)

UNKNOWN, OUT, IN = -1, 0, 1


class GreedyMis(LocalAlgorithm):
    """Join when all larger neighbours are out, leave when one is in (Blelloch et al., SPAA 2012).

    The set is that of the sequential greedy algorithm in the order of the priorities. By random
    priorities all nodes are done in O(log n) rounds with high probability (Fischer and Noever,
    SODA 2018); by identifiers it takes n rounds in the worst case.

    Knobs: `draw` takes one random number of each node for its priority in place of its identifier.

    Differs from the paper: one node is one machine, and a round is one exchange with all
    neighbours, so a node that joins is heard one round later.

    >>> from orrery.systems.protocols.problems.local_rounds import cycle, lockstep
    >>> lockstep(GreedyMis(), cycle(4, np.array([0, 1, 2, 3])))
    [[(0, 2)], [(1, 3)], [(0, 2)], [(1, 1)]]
    """

    draw: bool = False

    task: ClassVar[str] = "mis"

    def begin(self, state: State) -> None:
        # The identifier settles the (very rare) case of two equal draws.
        state.rank = (state.me.draw(0) if self.draw else 0, state.me.id)
        if not state.me.degree:
            state.speak(IN)

    def send(self, state: State, port: int) -> Payload:
        return ((*state.rank, UNKNOWN if state.answer is None else state.answer),)

    def take(self, state: State, inbox: list[Payload]) -> None:
        if state.said:
            return
        larger = [row[2] for (row,) in inbox if row[:2] > state.rank]
        if IN in larger:
            state.speak(OUT)
        elif UNKNOWN not in larger:
            state.speak(IN)

    def ball(self, ball: Any) -> int | None:
        return self._status(ball, ball.centre, ball.radius)

    def _rank(self, ball: Any, v: int) -> tuple[int, int]:
        return (ball.draw(v, 0) if self.draw else 0, ball.id(v))

    def _status(self, ball: Any, v: int, left: int) -> int | None:
        """What v has decided, when news may travel `left` more edges to reach it."""
        if left == 0:
            return None if ball.degree(v) else IN
        mine = self._rank(ball, v)
        larger = [
            self._status(ball, u, left - 1)
            for u in ball.neighbours(v)
            if self._rank(ball, u) > mine
        ]
        if IN in larger:
            return OUT
        return None if None in larger else IN

    def arrays(self, graph: LocalGraph) -> tuple[Ints, Ints]:
        """One step of NumPy for each round, over the ports of undecided nodes only."""
        ranks = _ranks(graph.ids, draws(graph.tapes, 0)) if self.draw else graph.ids
        status = np.full(graph.n, UNKNOWN)
        rounds = np.full(graph.n, -1, dtype=np.int64)
        alone = np.diff(graph.offsets) == 0
        status[alone], rounds[alone] = IN, 0
        up = ranks[graph.targets] > ranks[graph.sources]
        near, far = graph.sources[up], graph.targets[up]
        number = 0
        while (left := np.flatnonzero(rounds < 0)).size:
            number += 1
            heard = status[far]
            out, wait = np.zeros(graph.n, dtype=bool), np.zeros(graph.n, dtype=bool)
            out[near[heard == IN]] = True
            wait[near[heard == UNKNOWN]] = True
            leave, join = left[out[left]], left[~out[left] & ~wait[left]]
            status[leave], status[join] = OUT, IN
            rounds[leave] = rounds[join] = number
            keep = rounds[near] < 0
            near, far = near[keep], far[keep]
        return status, rounds

    def bound(self, n: int, bits: int) -> int | None:
        return n

    def drawn(self) -> LocalAlgorithm | None:
        return self.with_knobs(draw=True)


def _ranks(ids: Ints, words: Any) -> Ints:
    """The place of each node in the order by (draw, identifier)."""
    ranks = np.empty(len(ids), dtype=np.int64)
    ranks[np.lexsort((ids, words))] = np.arange(len(ids))
    return ranks
