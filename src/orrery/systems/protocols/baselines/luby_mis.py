"""Luby's maximal independent set: new random priorities in every phase."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from orrery.systems.protocols.baselines.greedy_mis import IN, OUT, UNKNOWN, _ranks
from orrery.systems.protocols.problems.local_rounds.graph import Ints, LocalGraph, draws
from orrery.systems.protocols.problems.local_rounds.port import (
    LocalAlgorithm,
    Payload,
    State,
)


class LubyMis(LocalAlgorithm):
    """Each phase, nodes whose fresh draw beats all undecided neighbours join (Luby, 1986).

    A phase has two rounds: draws are compared in the first, and those beside a new member leave in
    the second. Half of the edges go in each phase on average, so O(log n) phases are enough with
    high probability, whatever the identifiers.

    Differs from the paper: the variant by random values (Métivier et al., 2011) in place of
    marking with probability 1 / (2 degree); the identifier settles equal draws.

    >>> from orrery.systems.protocols.problems.local_rounds import cycle, lockstep
    >>> said = lockstep(LubyMis(), cycle(3, np.array([0, 1, 2]), key=1))
    >>> sorted(said)
    [[(0, 2)], [(0, 2)], [(1, 1)]]
    """

    task: ClassVar[str] = "mis"

    def begin(self, state: State) -> None:
        if not state.me.degree:
            state.speak(IN)

    def send(self, state: State, port: int) -> Payload:
        # The draw of the phase that the coming round belongs to.
        word = state.me.draw(state.round // 2)
        return ((word, state.me.id, UNKNOWN if state.answer is None else state.answer),)

    def take(self, state: State, inbox: list[Payload]) -> None:
        if state.said:
            return
        rows = [row for (row,) in inbox]
        if state.round % 2 == 0:
            if any(row[2] == IN for row in rows):
                state.speak(OUT)
            return
        mine = (state.me.draw(state.round // 2), state.me.id)
        if all(row[2] != UNKNOWN or row[:2] < mine for row in rows):
            state.speak(IN)

    def ball(self, ball: Any) -> int | None:
        known: dict[tuple[int, int], int] = {}
        status = self._status(ball, ball.centre, ball.radius, known)
        return None if status == UNKNOWN else status

    def _status(self, ball: Any, v: int, after: int, known: dict[tuple[int, int], int]) -> int:
        """What v has decided after so many rounds, by what its neighbours had one round before."""
        if not ball.degree(v):
            return IN
        if after == 0:
            return UNKNOWN
        if (v, after) in known:
            return known[v, after]
        found = self._status(ball, v, after - 1, known)
        if found == UNKNOWN:
            others = [(u, self._status(ball, u, after - 1, known)) for u in ball.neighbours(v)]
            if after % 2 == 0:
                found = OUT if any(status == IN for _, status in others) else UNKNOWN
            else:
                phase = after // 2
                mine = (ball.draw(v, phase), ball.id(v))
                rivals = [u for u, status in others if status == UNKNOWN]
                wins = all((ball.draw(u, phase), ball.id(u)) < mine for u in rivals)
                found = IN if wins else UNKNOWN
        known[v, after] = found
        return found

    def arrays(self, graph: LocalGraph) -> tuple[Ints, Ints]:
        """Two steps of NumPy for each phase, over the edges between undecided nodes only."""
        status = np.full(graph.n, UNKNOWN)
        rounds = np.full(graph.n, -1, dtype=np.int64)
        alone = np.diff(graph.offsets) == 0
        status[alone], rounds[alone] = IN, 0
        near, far = graph.sources, graph.targets
        phase = 0
        while (left := np.flatnonzero(status == UNKNOWN)).size:
            ranks = _ranks(graph.ids, draws(graph.tapes, phase))
            beaten = np.zeros(graph.n, dtype=bool)
            beaten[near[ranks[far] > ranks[near]]] = True
            join = left[~beaten[left]]
            status[join], rounds[join] = IN, 2 * phase + 1
            hit = near[(status[far] == IN) & (status[near] == UNKNOWN)]
            status[hit], rounds[hit] = OUT, 2 * phase + 2
            keep = (status[near] == UNKNOWN) & (status[far] == UNKNOWN)
            near, far = near[keep], far[keep]
            phase += 1
        return status, rounds
