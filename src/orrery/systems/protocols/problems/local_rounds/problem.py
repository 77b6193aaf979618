"""The problem `local_rounds`: in which round does each node of a LOCAL algorithm output?

A graph with identifiers is given to the nodes, one node of the world for each node of the graph,
and they compute in synchronous rounds. The checker asks four things: does every node output once,
do the outputs solve the task, does the ball function give the same output in the same round, and
does nothing change for a node when everything beyond its ball is changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from orrery.base.errors import DeadlineExceeded, KnobError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.parts import Count, Driver, Metric, Node, Outcome, Positive, Problem, Whole
from orrery.systems.protocols.common import as_violations
from orrery.systems.protocols.problems.local_rounds import graph as graphs
from orrery.systems.protocols.problems.local_rounds.ball import (
    check_balls,
    check_locality,
    check_said,
    check_task,
)
from orrery.systems.protocols.problems.local_rounds.port import LocalAlgorithm, me_of
from orrery.world import World

# Balls are judged in plain Python: not in larger graphs than this and not for wider balls; changed
# beyond the ball only in small graphs.
MOST_CHANGED, MOST_AUDITED, WIDEST = 256, 20_000, 64


class Solved(msgspec.Struct):
    """What the workload leaves behind: the instance's key and what each node said."""

    word: int
    outputs: list[int] | None = None
    rounds: list[int] | None = None
    drawn_mean: float = math.nan


class LocalRounds(Problem):
    """Count rounds in the LOCAL model: the mean over nodes, and the slowest node.

    Knobs: `graph` ("cycle" or "random", connected with mean degree `degree`); `n` nodes (0: as
    many as the world has); `ids` ("random", "sorted" round the cycle, or "worst" for leader
    election); `by` ("messages": every node is a node of the world; "arrays": all of them in NumPy,
    for a million, and the world stands idle); `audit`, how many nodes are judged by their balls;
    `retry_s`, after which a node that has not answered is asked again, up to `retries` times.

    >>> LocalRounds(graph="random", n=20).knobs()["ids"]
    'random'
    """

    graph: Literal["cycle", "random"] = "cycle"
    n: Whole = 0
    degree: Positive = 3.0
    ids: Literal["random", "sorted", "worst"] = "random"
    by: Literal["messages", "arrays"] = "messages"
    audit: Whole = 6
    retry_s: Positive = 3.0
    retries: Count = 2000
    rounds_per_node: Count = 4

    port: ClassVar[type] = LocalAlgorithm
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "node_averaged": Metric("rounds", "lower", "mean over the nodes of their output round"),
        "slowest": Metric("rounds", "lower", "the output round of the slowest node"),
        "ratio": Metric("", "", "node_averaged / slowest"),
        "exponential_gap": Metric(
            "", "higher", "log2(slowest) / node_averaged; 1 or more: an exponential gap"
        ),
        "drawn_ratio": Metric(
            "", "", "node_averaged over that with random priorities on sorted identifiers"
        ),
        "messages_per_node": Metric("", "lower", "all messages of the run; 0 with arrays"),
    }

    def world(self) -> World:
        return World.rounds(12, round_s=0.1)

    def accept(self, part: Any) -> None:
        super().accept(part)
        if part.cycles_only and self.graph != "cycle":
            fix = 'set graph = "cycle"'
            raise KnobError("LocalRounds.graph", f"{type(part).__name__} runs on cycles", fix)

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        size = self.n or world.size
        least = 3 if self.graph == "cycle" else 1
        if size < least:
            raise KnobError("LocalRounds.n", f"{size} nodes make no cycle", "give 3 or more")
        if size > graphs.MOST_NODES:
            raise KnobError("LocalRounds.n", f"{size} is too many", "give at most 20,000,000")
        if self.by == "arrays":
            return {}
        if size > world.size:
            fix = f'use World.rounds({size}), or by = "arrays"'
            raise KnobError("LocalRounds.n", f"{size} nodes in a world of {world.size}", fix)
        return {"node": part}

    def instance(self, word: int, world_size: int) -> graphs.LocalGraph:
        """The graph that a run's key stands for."""
        n = self.n or world_size
        key = graphs.instance_key(word, "tapes")
        if self.ids == "random":
            ids = graphs.random_ids(n, graphs.instance_key(word, "ids"))
        elif self.ids == "worst":
            ids = graphs.worst_ids(n, graphs.instance_key(word, "ids") % n)
        else:
            ids = graphs.sorted_ids(n)
        # Identifiers from the second quarter of their space: were they exactly 0..n - 1, all but
        # one node would know that they are not the largest before the first message.
        ids, bits = ids + n, graphs.id_bits(n) + 2
        if self.graph == "cycle":
            return graphs.cycle(n, ids, key, bits=bits)
        rng = Stream.keyed(graphs.instance_key(word, "edges"))
        return graphs.random_graph(n, self.degree, rng, ids, key, bits=bits)

    # -- the workload

    async def drive(self, driver: Driver) -> Solved:
        word = driver.rng.word()
        # Recorded too, so that a run cut short can be judged as far as it went.
        driver.emit(instance=word)
        graph = self.instance(word, len(driver.nodes))
        solved = Solved(word)
        if self.by == "arrays":
            outputs, rounds = driver.part.arrays(graph)
            solved.outputs, solved.rounds = outputs.tolist(), rounds.tolist()
            solved.drawn_mean = self._drawn_mean(driver.part, graph)
            return solved
        limit = self.rounds_per_node * graph.n + 16
        await driver.all(*(self._solve(driver, v, me_of(graph, v, limit)) for v in range(graph.n)))
        return solved

    async def _solve(self, driver: Driver, v: int, me: Any) -> None:
        """Ask a node until it answers; one that lost its memory is told its part again.

        After `retries` it is left alone, and the checker says that it has no output.
        """
        for _ in range(self.retries):
            try:
                async with driver.deadline(self.retry_s):
                    await driver.ask(v, LocalAlgorithm.solve, me)
                    return
            except DeadlineExceeded:
                continue

    def _drawn_mean(self, part: LocalAlgorithm, graph: graphs.LocalGraph) -> float:
        """The mean time with random priorities on the identifiers that an adversary would give."""
        other = part.drawn()
        if other is None:
            return math.nan
        graph = graph.changed_ids(graphs.sorted_ids(graph.n))
        return float(other.arrays(graph)[1].mean())

    # -- the checker

    def check(self, outcome: Outcome) -> list[Violation]:
        told = outcome.emitted("instance")
        if not told:
            return []
        graph = self.instance(told[0][2], outcome.world.size)
        said = self.said(outcome, graph.n)
        found = check_said(said, needs_all=outcome.ended == "driven")
        first = [each[0] if each else None for each in said]
        if all(each is not None for each in first):
            found += check_task(outcome.part.task, graph, [each[0] for each in first if each])
        found += self._audits(outcome.part, graph, first, told[0][2])
        return as_violations(found, outcome.seconds)

    def _audits(
        self, part: LocalAlgorithm, graph: graphs.LocalGraph,
        first: list[tuple[int, int] | None], word: int,
    ) -> list[Violation]:  # fmt: skip
        if graph.n > MOST_AUDITED:
            return []
        rng = Stream.keyed(graphs.instance_key(word, "audit"))
        who = [v for v in rng.sample(range(graph.n), self.audit) if first[v] is not None]
        found = check_balls(
            part, graph, first, [v for v in who if (first[v] or (0, 0))[1] <= WIDEST]
        )
        if graph.n <= MOST_CHANGED:
            found += check_locality(part, graph, first, who, rng)
        return found

    def said(self, outcome: Outcome, n: int) -> list[list[tuple[int, int]]]:
        """Each (output, round) that each node reported, in order of time."""
        said: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        solved = outcome.driven
        if self.by == "arrays" and isinstance(solved, Solved) and solved.outputs is not None:
            pairs = zip(solved.outputs, solved.rounds or (), strict=True)
            return [[pair] if pair[1] >= 0 else [] for pair in pairs]
        for record in outcome.records:
            if "output" in record.values and record.node < n:
                said[record.node].append((record.values["output"], record.values["round"]))
        return said

    # -- the metrics

    def measure(self, outcome: Outcome) -> dict[str, float]:
        n = self.n or outcome.world.size
        rounds = np.array([each[0][1] for each in self.said(outcome, n) if each])
        if not len(rounds):
            return {}
        mean, most = float(rounds.mean()), float(rounds.max())
        found = {
            "node_averaged": mean,
            "slowest": most,
            "ratio": mean / most if most else 1.0,
            "exponential_gap": math.log2(most) / mean if most >= 1 else 0.0,
            "messages_per_node": outcome.messages / n,
        }
        solved = outcome.driven
        if isinstance(solved, Solved) and not math.isnan(solved.drawn_mean):
            found["drawn_ratio"] = mean / solved.drawn_mean
        return found

    def decisions(self, outcome: Outcome) -> dict[int, tuple[int, int]]:
        """The first (output, round) of each node."""
        n = self.n or outcome.world.size
        return {v: each[0] for v, each in enumerate(self.said(outcome, n)) if each}
