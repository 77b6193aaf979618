"""Leader election by full view: every node waits until it has seen all identifiers."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from orrery.systems.protocols.problems.local_rounds.graph import (
    Ints,
    LocalGraph,
    check_rows,
)
from orrery.systems.protocols.problems.local_rounds.port import (
    LocalAlgorithm,
    Payload,
    State,
)


class FullViewElection(LocalAlgorithm):
    """Flood all identifiers; when all n are there, the largest leads (Le Lann, 1977, in LOCAL).

    Every node outputs in the round of its eccentricity: floor(n / 2) on a cycle, for all nodes and
    all identifiers, so the node-averaged time is the classical one.

    Differs from Le Lann: all nodes flood both ways in lockstep instead of passing tokens round.

    >>> FullViewElection().bound(9, 4)
    4
    """

    task: ClassVar[str] = "leader"

    def begin(self, state: State) -> None:
        state.seen = {state.me.id}
        state.fresh = (state.me.id,)
        self.decide(state)

    def send(self, state: State, port: int) -> Payload:
        return (state.fresh,)

    def take(self, state: State, inbox: list[Payload]) -> None:
        heard = {each for (ids,) in inbox for each in ids}
        state.fresh = tuple(sorted(heard - state.seen))
        state.seen |= heard
        self.decide(state)

    def decide(self, state: State) -> None:
        """Output when all identifiers are there; a node may decide sooner in a subclass."""
        if not state.said and len(state.seen) == state.me.n:
            state.speak(int(max(state.seen) == state.me.id))

    def ball(self, ball: Any) -> int | None:
        ids = [ball.id(v) for v in ball.nodes()]
        return int(max(ids) == ball.id(ball.centre)) if len(ids) == ball.n else None

    def arrays(self, graph: LocalGraph) -> tuple[Ints, Ints]:
        """O(n) on a cycle; a breadth-first search from each node elsewhere."""
        outputs = (graph.ids == graph.ids.max()).astype(np.int64)
        if graph.cycle:
            return outputs, np.full(graph.n, graph.n // 2)
        return outputs, np.array([max(graph.distances(v)) for v in range(graph.n)])

    def many(self, ids: Ints, key: int = 0) -> Ints:
        return np.full(check_rows(ids).shape, np.shape(ids)[1] // 2)

    def bound(self, n: int, bits: int) -> int | None:
        return n // 2
