"""The problem `directed_consensus`: agree over one-way links although some nodes lie.

A client outside the world hands every node the graph, its input and the moment to begin, and waits
for the decisions. The graph is a list of one-way links: what comes over no link is thrown away, so
a liar cannot speak past it. Correct are the nodes that no `Byzantine` fault bends and that never
fell. Parts with the goal "exact" are judged by **agreement**, **validity** (equal inputs of the
correct nodes are the output) and **termination**; those with the goal "approximate" by **validity**
(outputs lie within the inputs of the correct nodes), **closeness**, **termination** and, where they
promise it, **halving** of the range in every round. Nobody may believe a **forgery**: a statement
of a correct node that it never made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from orrery.base.errors import KnobError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.check import agreement
from orrery.parts import (
    Count,
    Driver,
    Fraction,
    Metric,
    Node,
    Outcome,
    Positive,
    Problem,
    Whole,
)
from orrery.systems.protocols.common import as_violations, downtimes
from orrery.systems.protocols.problems import digraphs
from orrery.systems.protocols.problems.digraphs import Digraph
from orrery.systems.protocols.problems.directed_node import DirectedNode, Key
from orrery.world import Byzantine, World

FIXED: dict[str, Callable[[int], Digraph]] = {
    "complete": digraphs.complete,
    "ring": digraphs.ring,
    "triangles": lambda n: digraphs.triangles(),
    "bridge": lambda n: digraphs.triangles(joined=False),
}
MOST_DRAWS = 10_000
ROUNDING = 1e-9  # of the first range: what floating-point sums may add to a bound


class DirectedConsensus(Problem):
    """Give every node an input; do the correct ones agree, on something that they may agree on?

    Knobs: `graph` ("complete", "ring", "triangles" joined, "bridge" between them, "random": thinned
    out as far as the part allows, down to a share `keep` of all links, anew for each seed; "links":
    those of `links`); `tolerated` faults f; `inputs` ("random"; "equal" for all but the liars, who
    have another; "split" by turns; "values": those of `values`); `rounds` of an approximate part
    and `epsilon`, the share of the first range within which it must end; `strict`, off: also run
    on graphs for which the part promises nothing; `necessity`: besides, draw a graph that violates
    the part's condition and ask for the attack that refutes the part there; `lead_s` until the
    beginning, `poll_s` between two looks, `limit_s` in all.

    >>> DirectedConsensus(graph="ring", tolerated=0).knobs()["inputs"]
    'random'
    """

    graph: Literal["complete", "ring", "triangles", "bridge", "random", "links"] = "complete"
    links: tuple[tuple[int, int], ...] = ()
    keep: Fraction = 0.3
    tolerated: Whole = 1
    inputs: Literal["random", "equal", "split", "values"] = "random"
    values: tuple[float, ...] = ()
    rounds: Count = 10
    epsilon: Positive = 0.001
    strict: bool = True
    necessity: bool = False
    lead_s: Positive = 0.2
    poll_s: Positive = 0.05
    limit_s: Positive = 300.0

    port: ClassVar[type] = DirectedNode
    metrics: ClassVar[Mapping[str, Metric]] = {
        "rounds": Metric("", "lower", "communication rounds until the last correct decision"),
        "decision_s": Metric("s", "lower", "from the beginning to the last correct decision"),
        "messages": Metric("", "lower", "messages of all nodes and the client"),
        "bytes": Metric("B", "lower", "bytes of all these"),
        "spread": Metric("", "lower", "range of the decisions over that of the correct inputs"),
        "contraction": Metric("", "lower", "by what the range shrank in a round, on average"),
        "forged": Metric("", "", "statements thrown away for a bad signature, by correct nodes"),
        "refused": Metric("", "", "all that correct nodes threw away"),
        "links": Metric("", "lower", "links of the graph"),
        "refuted": Metric("", "higher", "1: the attack broke the part on a violating graph"),
    }

    def world(self) -> World:
        return World.lan(4)

    # -- the instance

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        self._fits(world.size)
        parts = part if isinstance(part, Mapping) else {"node": part}
        made = {}
        for role, one in parts.items():
            if not isinstance(one, DirectedNode):
                self.accept(one)
            graph = digraphs.complete(world.size)
            if self.graph != "random":
                graph = self._fixed(world.size)
            if self.strict and not one.suits(graph, self.tolerated):
                raise KnobError(
                    "DirectedConsensus.graph",
                    f"{type(one).__name__} promises nothing on {self.graph!r} of {world.size} "
                    f"nodes with {self.tolerated} faults",
                    "add nodes or links, tolerate fewer, or set strict = false",
                )
            made[role] = one.with_knobs(tolerated=self.tolerated, rounds=self.rounds)
        if isinstance(part, Mapping):
            return made
        return dict.fromkeys((group.name for group in world.groups), made["node"])

    def _fits(self, n: int) -> None:
        if self.tolerated >= n:
            fix = f"give 0 to {n - 1}"
            raise KnobError("DirectedConsensus.tolerated", f"{self.tolerated} of {n} nodes", fix)
        if self.graph in ("triangles", "bridge") and n != 6:
            fix = "use World.lan(6)"
            raise KnobError("DirectedConsensus.graph", f"{self.graph!r} of {n} nodes", fix)
        if (self.graph == "links") != bool(self.links):
            fix = 'graph = "links" goes with links = [[0, 1], …], and only then'
            raise KnobError("DirectedConsensus.links", f"{len(self.links)} links given", fix)
        if (self.inputs == "values") != bool(self.values) or len(self.values) not in (0, n):
            fix = f'inputs = "values" goes with {n} values, and only then'
            raise KnobError("DirectedConsensus.values", f"{len(self.values)} values given", fix)
        if not all(map(math.isfinite, self.values)):
            raise KnobError("DirectedConsensus.values", "hold what is no number", "give numbers")

    def _fixed(self, n: int) -> Digraph:
        return Digraph.of(n, self.links) if self.graph == "links" else FIXED[self.graph](n)

    def instance(self, part: Any, n: int, rng: Stream) -> Digraph:
        """The graph of a run."""
        if self.graph != "random":
            return self._fixed(n)
        good = lambda graph: part.suits(graph, self.tolerated)  # noqa: E731
        return digraphs.thinned(digraphs.complete(n), self.keep, rng, good)

    def violating(self, part: Any, n: int, rng: Stream) -> Digraph:
        """A graph on which the part promises nothing."""
        for _ in range(MOST_DRAWS):
            graph = digraphs.drawn(n, rng.random(), rng)
            if not part.suits(graph, self.tolerated):
                return graph
        fix = "tolerate more, or leave necessity off"
        raise KnobError("DirectedConsensus.necessity", f"no graph of {n} nodes violates", fix)

    def inputs_for(self, part: Any, world: World, rng: Stream) -> tuple[float, ...]:
        """The input of each node."""
        n = world.size

        def draw() -> float:
            return float(rng.below(2)) if part.binary else rng.random()

        if self.inputs == "values":
            return self.values
        if self.inputs == "split":
            return tuple(float(v % 2) for v in range(n))
        if self.inputs == "random":
            return tuple(draw() for _ in range(n))
        same = draw()
        liars = named_liars(world)
        return tuple(1.0 - same if v in liars else same for v in range(n))

    # -- the workload

    async def drive(self, driver: Driver) -> dict[str, float]:
        n = len(driver.nodes)
        part = next(iter(driver.part.values())) if isinstance(driver.part, Mapping) else driver.part
        graph = self.instance(part, n, driver.rng)
        inputs = self.inputs_for(part, driver.world, driver.rng)
        begin_s = driver.now + self.lead_s
        driver.emit(begin_s=begin_s, links=len(graph.links))
        for v in driver.nodes:
            driver.tell(v, DirectedNode.begin, n, graph.links, inputs[v], begin_s)
        answered: dict[int, float] = {}

        async def wait(v: int) -> None:
            answered[v] = await driver.ask(v, DirectedNode.outcome)

        liars = named_liars(driver.world)
        judged = [v for v in driver.nodes if v not in liars]
        tasks = [driver.spawn(wait(v)) for v in judged]
        while driver.now < begin_s + self.limit_s:
            if all(v in answered or not driver.alive(v) for v in judged):
                break
            await driver.sleep(self.poll_s)
        for task in tasks:
            task.cancel()
        if not self.necessity:
            return {}
        return {"refuted": float(part.refuted(self.violating(part, n, driver.rng), self.tolerated))}

    def alone(self, part: DirectedNode, world: World, seed: int) -> Mapping[str, Node]:
        """The same parts without a client: each node knows graph and input from the start.

        For worlds of chosen order, where a client's clock would be one more thing to choose: the
        run ends when all is quiet, and `check` judges it the same way.
        """
        rng = Stream(seed, "client", "instance")
        graph = self.instance(part, world.size, rng)
        inputs = self.inputs_for(part, world, rng)
        hosted = self.host(part, world)
        return {role: _self_starting(one, graph, inputs) for role, one in hosted.items()}

    # -- judging

    def check(self, outcome: Outcome) -> list[Violation]:
        good = correct_nodes(outcome)
        inputs, decided = _inputs(outcome), _decisions(outcome)
        part = next(iter(outcome.part.values())) if isinstance(outcome.part, Mapping) else (
            outcome.part
        )  # fmt: skip
        ended = outcome.ended in ("driven", "quiet")
        if getattr(part, "goal", "exact") == "exact":
            rule = getattr(part, "validity", "unanimous")
            found = agreement.consensus(
                inputs, decided, good, rule=rule, must_terminate=ended, uniform=False
            )
        else:
            found = self._check_range(outcome, part, good, inputs, decided)
            found += agreement.integrity(decided, good)
            if ended:
                found += agreement.termination(decided, sorted(good))
        found += _forgeries(outcome, good)
        told = outcome.driven if isinstance(outcome.driven, dict) else {}
        if told.get("refuted") == 0.0:
            text = "the attack broke nothing on a graph that violates the condition"
            found.append(Violation("not_refuted", text))
        return as_violations(found, outcome.seconds)

    def _check_range(
        self, outcome: Outcome, part: Any, good: set[int], inputs: dict[Any, float],
        decided: dict[Any, list[float]],
    ) -> list[Violation]:  # fmt: skip
        """Inside the inputs of the correct nodes, close in the end, halved on the way."""
        mine = [inputs[v] for v in good if v in inputs]
        ends = {v: values[0] for v, values in decided.items() if v in good and values}
        if not mine or not ends:
            return []
        low, high = min(mine), max(mine)
        slack = ROUNDING * (high - low) + 1e-300
        found = [
            Violation("out_of_range", f"{v!r} decided {x!r}, outside [{low!r}, {high!r}]", (v, x))
            for v, x in ends.items() if not low - slack <= x <= high + slack
        ]  # fmt: skip
        spread = max(ends.values()) - min(ends.values())
        if spread > self.epsilon * (high - low) + slack:
            text = f"decisions lie {spread!r} apart, over {self.epsilon} of {high - low!r}"
            found.append(Violation("disagreement", text, tuple(sorted(ends.items()))))
        if getattr(part, "halves", False):
            found += _halving(outcome, good, high - low, slack)
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        good = correct_nodes(outcome)
        made = [r for r in outcome.records if "decided" in r.values and r.node in good]
        begins = [r.values for r in outcome.records if "begin_s" in r.values]
        inputs = [x for v, x in _inputs(outcome).items() if v in good]
        first = max(inputs, default=0.0) - min(inputs, default=0.0)
        ends = [r.values["decided"] for r in made]
        last = max(ends, default=0.0) - min(ends, default=0.0)
        steps = 1 + max((k for _, _, k in outcome.emitted("step")), default=-1)
        told = outcome.driven if isinstance(outcome.driven, dict) else {}
        spread = last / first if first else float(last > 0)
        begin_s = begins[0]["begin_s"] if begins else 0.0
        return {
            "rounds": float(max((r.values["rounds"] for r in made), default=0)),
            "decision_s": max((r.time_s for r in made), default=begin_s) - begin_s,
            "messages": float(outcome.messages),
            "bytes": float(outcome.bytes),
            "spread": spread,
            "contraction": spread ** (1 / steps) if steps and spread else 0.0,
            "forged": float(sum(r.values["forged"] for r in made)),
            "refused": float(sum(r.values["refused"] for r in made)),
            "links": float(begins[0]["links"]) if begins else 0.0,
            "refuted": told.get("refuted", 0.0),
        }


def named_liars(world: World) -> set[int]:
    """The nodes that the world's `Byzantine` faults name, where they are named."""
    return {
        node for fault in world.faults
        if isinstance(fault, Byzantine) and fault.node != "random" for node in world.targets(fault)
    }  # fmt: skip


def correct_nodes(outcome: Outcome) -> set[int]:
    """The nodes that neither lied nor ever fell."""
    fallen = set(downtimes(outcome))
    for fault in outcome.world.schedule(outcome.seed):
        if isinstance(fault, Byzantine) and fault.at_s <= outcome.seconds:
            fallen |= set(outcome.world.targets(fault))
    return {node for node, up in enumerate(outcome.alive) if up and node not in fallen}


def _inputs(outcome: Outcome) -> dict[Any, float]:
    return {v: x for _, v, x in outcome.emitted("input")}


def _decisions(outcome: Outcome) -> dict[Any, list[float]]:
    found: dict[Any, list[float]] = {v: [] for v in range(outcome.world.size)}
    for _, v, x in outcome.emitted("decided"):
        found[v].append(x)
    return found


def _halving(outcome: Outcome, good: set[int], first: float, slack: float) -> list[Violation]:
    """After k rounds the values of the correct nodes lie within the first range over 2^k."""
    steps: dict[int, list[float]] = {}
    for record in outcome.records:
        if "step" in record.values and record.node in good:
            steps.setdefault(record.values["step"], []).append(record.values["value"])
    found = []
    for number, values in sorted(steps.items()):
        width = max(values) - min(values)
        if width > first / 2 ** (number + 1) + slack:
            text = f"after {number + 1} rounds the range is {width!r}, the first was {first!r}"
            found.append(Violation("not_halved", text, (number, width)))
    return found


def _forgeries(outcome: Outcome, good: set[int]) -> list[Violation]:
    """Statements that a correct node took for the word of another, which never said that."""
    said: dict[int, set[Key]] = {}
    taken: dict[int, list[Key]] = {}
    for record in outcome.records:
        if "said" in record.values and record.node in good:
            said[record.node] = {tuple(key) for key in record.values["said"]}
            taken[record.node] = [tuple(key) for key in record.values["taken"]]
    return [
        Violation("forgery", f"{v!r} believed that {key[2]!r} had said {key!r}", key)
        for v, keys in taken.items() for key in keys
        if key[2] in said and key not in said[key[2]]
    ]  # fmt: skip


def _self_starting(part: Any, graph: Digraph, inputs: tuple[float, ...]) -> Node:
    """The same part, whose nodes have the client's word before they start."""
    cls = type(part)

    def start(self: Any) -> None:
        cls.start(self)
        self.begin(graph.n, graph.links, inputs[self.id], 0.0)

    body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    made: type[Node] = type(cls.__name__, (cls,), {**body, "start": start})
    return made(**part.changed_knobs())


def every_fault_set(n: int, f: int) -> list[tuple[int, ...]]:
    """Every set of at most f of n nodes, the empty one first."""
    return [chosen for size in range(f + 1) for chosen in itertools.combinations(range(n), size)]
