"""How long does an ordinary node with an ordinary identifier take? Early output in LOCAL."""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.base.errors import KnobError
from orrery.systems.protocols.baselines.full_view_election import FullViewElection
from orrery.systems.protocols.problems.local_rounds.graph import (
    Ints,
    LocalGraph,
    all_ids,
    check_rows,
    id_bits,
    instance_key,
    some_ids,
)
from orrery.systems.protocols.problems.local_rounds.port import (
    LocalAlgorithm,
    Payload,
    State,
)

LEADER, LOSER = 1, 0


class LargestId(FullViewElection):
    """Leader election: "not me" on sight of a larger identifier, "me" on sight of all n.

    The flood is that of `FullViewElection`; only the moment of the output differs. The distances to
    the nearest larger identifier sum to O(n log n) on a cycle, so the average is O(log n) although
    the leader needs floor(n / 2).

    >>> from orrery.systems.protocols.problems.local_rounds import cycle, lockstep
    >>> lockstep(LargestId(), cycle(4, np.array([3, 0, 2, 1])))
    [[(1, 2)], [(0, 1)], [(0, 2)], [(0, 1)]]
    """

    def decide(self, state: State) -> None:
        if not state.said and max(state.fresh, default=-1) > state.me.id:
            state.speak(LOSER)
        super().decide(state)

    def ball(self, ball: Any) -> int | None:
        if max(ball.id(v) for v in ball.nodes()) > ball.id(ball.centre):
            return LOSER
        return super().ball(ball)

    def arrays(self, graph: LocalGraph) -> tuple[Ints, Ints]:
        """O(n log n) on a cycle, by doubling; O(edges) a round elsewhere."""
        leader = int(np.argmax(graph.ids))
        outputs = np.full(graph.n, LOSER)
        outputs[leader] = LEADER
        if graph.cycle:
            return outputs, self.many(graph.ids[None, :])[0]
        rounds = _flooded(graph)
        rounds[leader] = max(graph.distances(leader))
        return outputs, rounds

    def many(self, ids: Ints, key: int = 0) -> Ints:
        ids = check_rows(ids)
        rounds = np.minimum(nearest_larger(ids), nearest_larger(ids[:, ::-1])[:, ::-1])
        return np.minimum(rounds, ids.shape[1] // 2)


def nearest_larger(ids: Ints) -> Ints:
    """How far ahead on each cycle (a row) the first larger identifier stands; n for the largest.

    Blocks of 2^k nodes are skipped from large to small while they hold nothing larger.
    """
    n = ids.shape[1]
    tops = [ids]
    while 2 << (len(tops) - 1) < n:
        half = 1 << (len(tops) - 1)
        tops.append(np.maximum(tops[-1], np.roll(tops[-1], -half, axis=1)))
    at = np.arange(n)
    gone = np.zeros(ids.shape, dtype=np.int64)  # so many nodes after this one are smaller
    for k in range(len(tops) - 1, -1, -1):
        block_top = np.take_along_axis(tops[k], (at + gone + 1) % n, axis=1)
        gone += np.where(block_top < ids, 1 << k, 0)
    gone[np.arange(len(ids)), np.argmax(ids, axis=1)] = n - 1
    return gone + 1


def _flooded(graph: LocalGraph) -> Ints:
    """The round in which each node first hears of a larger identifier; -1 for the leader."""
    top = graph.ids.copy()
    rounds = np.full(graph.n, -1, dtype=np.int64)
    number = 0
    while (rounds < 0).sum() > 1:
        number += 1
        heard = top.copy()
        np.maximum.at(heard, graph.sources, top[graph.targets])
        top = heard
        rounds[(rounds < 0) & (top > graph.ids)] = number
    return rounds


class OrdinaryNode(LocalAlgorithm):
    """Measures when the ordinary node outputs, beside the slowest: early output in LOCAL.

    L. Feuilloley, "How Long It Takes for an Ordinary Node with an Ordinary ID to Output?",
    SIROCCO 2017. A node outputs as soon as its ball allows and goes on relaying for the others.
    The node-averaged time is the mean over nodes of the output round, the classical time is the
    maximum, and the ID-averaged time is the mean over assignments of identifiers. For leader
    election the first is exponentially smaller than the second; for locally checkable labellings
    on cycles the two have the same order.

    Knobs: `algorithm`, which LOCAL algorithm runs (leader election, `ColeVishkin()`, …); `early`:
    off, every node holds its output back until the round that is enough for all of them
    (`algorithm.bound`), which is the classical notion of running time; `patience_s`, how long a
    node waits for a message before it asks again.

    **Differs from the paper**: the paper proves bounds for all algorithms, here some algorithms
    are run; nodes know n exactly and the bits of the identifiers; identifiers are a
    permutation of n numbers in a row (so "all assignments" are the permutations), in a space of
    about 4 n; a synchroniser stands below the rounds, so that they
    also run where messages are late or lost.

    >>> from orrery.systems.protocols.problems.local_rounds import cycle
    >>> ring = cycle(8, np.array([7, 0, 4, 1, 6, 2, 5, 3]))
    >>> OrdinaryNode().arrays(ring)[1].tolist(), OrdinaryNode(early=False).arrays(ring)[1].tolist()
    ([4, 1, 2, 1, 4, 1, 2, 1], [4, 4, 4, 4, 4, 4, 4, 4])
    """

    algorithm: LocalAlgorithm = LargestId()
    early: bool = True

    @property
    def task(self) -> str:  # type: ignore[override]
        """The task of the algorithm within."""
        return self.algorithm.task

    @property
    def cycles_only(self) -> bool:  # type: ignore[override]
        """Whether the algorithm within needs a cycle."""
        return self.algorithm.cycles_only

    def begin(self, state: State) -> None:
        state.until = 0 if self.early else self._bound(state.me.n, state.me.bits)
        state.inner = State(state.me)
        self.algorithm.begin(state.inner)
        self._pass_on(state)

    def send(self, state: State, port: int) -> Payload:
        return self.algorithm.send(state.inner, port)

    def take(self, state: State, inbox: list[Payload]) -> None:
        state.inner.round = state.round
        self.algorithm.take(state.inner, inbox)
        self._pass_on(state)

    def _pass_on(self, state: State) -> None:
        if state.round >= state.until:
            for value, _ in state.inner.said[len(state.said) :]:
                state.speak(value)

    def ball(self, ball: Any) -> int | None:
        if not self.early and ball.radius < self._bound(ball.n, ball.bits):
            return None
        return self.algorithm.ball(ball)

    def arrays(self, graph: LocalGraph) -> tuple[Ints, Ints]:
        outputs, rounds = self.algorithm.arrays(graph)
        if not self.early:
            rounds = np.maximum(rounds, self._bound(graph.n, graph.bits))
        return outputs, rounds

    def many(self, ids: Ints, key: int = 0) -> Ints:
        rounds = self.algorithm.many(ids, key)
        if not self.early:
            n = rounds.shape[1]
            rounds = np.maximum(rounds, self._bound(n, id_bits(n)))
        return rounds

    def id_averaged(self, n: int, samples: int = 0, seed: int = 0) -> float:
        """The mean over nodes and identifiers on a cycle: over all assignments, or over samples."""
        key = instance_key(seed, "samples")
        return float(self.many(some_ids(n, samples, key) if samples else all_ids(n), key).mean())

    def bound(self, n: int, bits: int) -> int | None:
        return self.algorithm.bound(n, bits)

    def drawn(self) -> LocalAlgorithm | None:
        return self.algorithm.drawn()

    def _bound(self, n: int, bits: int) -> int:
        found = self.algorithm.bound(n, bits)
        if found is None:
            name = type(self.algorithm).__name__
            fix = "leave early on, or choose an algorithm with a bound"
            raise KnobError("OrdinaryNode.early", f"{name} has no bound to wait for", fix)
        return found
