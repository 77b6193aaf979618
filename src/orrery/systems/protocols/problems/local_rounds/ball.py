"""Balls: what a node can know after T rounds, and the judges of whether it looked beyond."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from orrery.base.errors import PartError, UsageError
from orrery.base.rand import GOLDEN, Stream, mix64
from orrery.base.violation import Violation
from orrery.systems.protocols.problems.local_rounds.graph import LocalGraph
from orrery.systems.protocols.problems.local_rounds.port import LocalAlgorithm, lockstep

WAYS = ("any", "low", "high")


class BeyondRadius(PartError):
    """A function of a ball asked for something outside of it."""


class Ball:
    """All that T rounds can tell a node: nodes up to distance T, edges with an end nearer than T.

    Nodes are named by handles (`centre` is one), which mean nothing to an algorithm; what it may
    use are `id`, `degree` and `draw` of a node within the radius, and `neighbours` of a node
    nearer than the radius. Anything else raises `BeyondRadius`.
    """

    __slots__ = ("_distances", "_graph", "centre", "radius")

    def __init__(self, graph: LocalGraph, centre: int, radius: int, distances: list[int]) -> None:
        self._graph = graph
        self._distances = distances
        self.centre = centre
        self.radius = radius

    @property
    def n(self) -> int:
        """How many nodes the whole graph has; all nodes know it."""
        return self._graph.n

    @property
    def bits(self) -> int:
        """Identifiers lie in 0..2**bits - 1."""
        return self._graph.bits

    def nodes(self) -> list[int]:
        """Every node within the radius."""
        return [v for v, far in enumerate(self._distances) if 0 <= far <= self.radius]

    def _within(self, v: int, radius: int, what: str) -> None:
        far = self._distances[v]
        if not 0 <= far <= radius:
            raise BeyondRadius(
                f"{what} of a node at distance {far} was read with a ball of radius {self.radius}; "
                f"give None until the radius is {far + self.radius - radius}"
            )

    def id(self, v: int) -> int:
        """The identifier of a node within the radius."""
        self._within(v, self.radius, "the identifier")
        return int(self._graph.ids[v])

    def degree(self, v: int) -> int:
        """How many neighbours a node within the radius has."""
        self._within(v, self.radius, "the degree")
        return len(self._graph.neighbours(v))

    def draw(self, v: int, i: int) -> int:
        """Draw number i of the private tape of a node within the radius."""
        self._within(v, self.radius, "the tape")
        return mix64(int(self._graph.tapes[v]) + (i + 1) * GOLDEN)

    def neighbours(self, v: int) -> list[int]:
        """The neighbours of a node nearer than the radius, by port."""
        self._within(v, self.radius - 1, "an edge")
        return self._graph.neighbours(v)


def ball_times(
    part: LocalAlgorithm, graph: LocalGraph, nodes: Iterable[int] | None = None, limit: int = 0
) -> dict[int, tuple[int, int] | None]:
    """(output, round) of each node by the ball alone; None where no radius up to `limit` is enough.

    The radius grows by one until `part.ball` gives an output.
    """
    found: dict[int, tuple[int, int] | None] = {}
    most = limit or 4 * graph.n + 16
    for v in range(graph.n) if nodes is None else nodes:
        distances = graph.distances(v)
        found[v] = None
        for radius in range(most + 1):
            value = part.ball(Ball(graph, v, radius, distances))
            if value is not None:
                found[v] = (int(value), radius)
                break
    return found


def check_balls(
    part: LocalAlgorithm, graph: LocalGraph, said: Sequence[tuple[int, int] | None],
    nodes: Iterable[int],
) -> list[Violation]:  # fmt: skip
    """Whether the ball function agrees with what was said, stays inside, and stays with it."""
    found: list[Violation] = []
    for v in nodes:
        try:
            alone = ball_times(part, graph, [v])[v]
            if alone is not None:
                wider = part.ball(Ball(graph, v, alone[1] + 1, graph.distances(v)))
                if wider != alone[0]:
                    text = f"node {v}: radius {alone[1]} gives {alone[0]}, one more gives {wider}"
                    found.append(Violation(kind="two_outputs", message=text, node=v))
        except BeyondRadius as error:
            found.append(Violation(kind="beyond_radius", message=f"node {v}: {error}", node=v))
            continue
        if alone != said[v]:
            text = f"node {v} said (output, round) {said[v]}; its ball says {alone}"
            found.append(Violation(kind="ball_differs", message=text, node=v))
    return found


def check_locality(
    part: LocalAlgorithm, graph: LocalGraph, said: Sequence[tuple[int, int] | None],
    nodes: Iterable[int], rng: Stream,
) -> list[Violation]:  # fmt: skip
    """Change everything beyond the ball of a node; it must say the same in the same round.

    This judges messages as well as functions, and needs no cooperation: whoever has looked beyond
    its radius says something else as soon as what it saw there matters.
    """
    found: list[Violation] = []
    for v in nodes:
        heard = said[v]
        if heard is None:
            continue
        for how in WAYS:
            other = scrambled(graph, v, heard[1], rng, how)
            again = lockstep(part, other, limit=heard[1])[v][:1]
            if again != [heard]:
                text = (
                    f"node {v} said (output, round) {heard}; with all beyond distance {heard[1]} "
                    f"changed it says {again[0] if again else 'nothing by then'}"
                )
                found.append(Violation(kind="beyond_radius", message=text, node=v))
                break
    return found


def scrambled(
    graph: LocalGraph, centre: int, radius: int, rng: Stream, how: str = "any"
) -> LocalGraph:
    """Another graph with the same ball: beyond the radius, new identifiers, tapes and edges.

    The new identifiers are any free ones, or the lowest, or the highest: many rules only compare,
    and what is merely different may compare the same.
    """
    distances = np.array(graph.distances(centre))
    outside = np.flatnonzero(distances > radius)
    ids, tapes = graph.ids.copy(), graph.tapes.copy()
    if len(outside):
        # A few more numbers than are needed, so that the fresh ones differ from the old.
        space = min(1 << graph.bits, 4 * graph.n + 16)
        free = np.setdiff1d(np.arange(space), ids[distances <= radius]).tolist()
        rng.shuffle(free)
        fresh = free if how == "any" else sorted(free, reverse=how == "high")
        fresh = fresh[: len(outside)]
        rng.shuffle(fresh)
        ids[outside] = fresh
        tapes[outside] = [rng.word() for _ in fresh]
    more: list[tuple[int, int]] = []
    if not graph.cycle and len(outside) >= 2:
        for _ in range(3):
            a, b = (outside[rng.below(len(outside))] for _ in range(2))
            pair = (int(min(a, b)), int(max(a, b)))
            if a != b and pair[1] not in graph.neighbours(pair[0]) and pair not in more:
                more.append(pair)
    return graph.changed(ids, tapes, more)


def check_said(
    said: Sequence[Sequence[tuple[int, int]]], needs_all: bool = True
) -> list[Violation]:
    """Each node outputs, and never two different values or in two different rounds."""
    found: list[Violation] = []
    for v, each in enumerate(said):
        if len(set(each)) > 1:
            text = f"node {v} output {each[0]} and then {next(e for e in each if e != each[0])}"
            found.append(Violation(kind="two_outputs", message=text, node=v))
        elif not each and needs_all:
            found.append(Violation(kind="no_output", message=f"node {v} said nothing", node=v))
    return found


def check_task(task: str, graph: LocalGraph, outputs: Sequence[int]) -> list[Violation]:
    """Whether outputs solve the task: one leader, a proper colouring, or a maximal independent set.

    >>> from orrery.systems.protocols.problems.local_rounds.graph import cycle
    >>> [v.kind for v in check_task("mis", cycle(4, np.arange(4)), [1, 1, 0, 0])]
    ['not_independent']
    """
    x = np.asarray(outputs)
    near, far = graph.sources, graph.targets
    if task == "leader":
        who = np.flatnonzero(x)
        good = len(who) == 1 and graph.ids[who[0]] == graph.ids.max()
        return [] if good else [Violation(kind="leaders", message=f"leaders: {who[:5].tolist()}")]
    if task == "colouring":
        bad = np.flatnonzero(x[near] == x[far])
        found = [_edge("not_proper", near[bad[0]], far[bad[0]], x)] if len(bad) else []
        most = 2 if graph.cycle else np.diff(graph.offsets)
        if (x > most).any() or (x < 0).any():
            v = int(np.flatnonzero((x > most) | (x < 0))[0])
            text = f"node {v} has colour {x[v]}, beyond its degree or 2 on a cycle"
            found.append(Violation(kind="too_many_colours", message=text, node=v))
        return found
    if task == "mis":
        bad = np.flatnonzero((x[near] == 1) & (x[far] == 1))
        found = [_edge("not_independent", near[bad[0]], far[bad[0]], x)] if len(bad) else []
        covered = x == 1
        covered[near[x[far] == 1]] = True
        if not covered.all():
            v = int(np.flatnonzero(~covered)[0])
            text = f"node {v} and none of its neighbours is in the set"
            found.append(Violation(kind="not_maximal", message=text, node=v))
        return found
    raise UsageError(f"task {task!r}; known: colouring, leader, mis")


def _edge(kind: str, a: int, b: int, x: np.ndarray) -> Violation:
    return Violation(kind=kind, message=f"neighbours {a} and {b} both have {x[a]}", node=int(a))
