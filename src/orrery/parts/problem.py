"""`Problem`: owns the question that parts answer: port, workload, checker, metrics.

A problem is written once and is the same in every engine: `host` says which parts run in which
roles, `drive` is a coroutine on a driver node outside the world (the clients), `check` finds
violations in what was recorded, `measure` gives the metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import msgspec

from orrery.base.errors import DeadlineExceeded, PartError
from orrery.base.violation import Violation
from orrery.parts.knobs import Part
from orrery.parts.node import Node

if TYPE_CHECKING:
    from orrery.world import World

# How long a node that has just come back is given to answer before it is asked again, and the
# shortest wait for an answer.
RETURNED_S, LEAST_S = 1.0, 1e-6
Kind = Literal["measured", "modelled", "published"]


class Metric(NamedTuple):
    """What a number means: its unit, and which direction is better."""

    unit: str = ""
    better: Literal["lower", "higher", ""] = ""
    says: str = ""


class Record(NamedTuple):
    """One `emit` of a node: when, where, what."""

    time_s: float
    node: int
    values: dict[str, Any]


class Outcome(msgspec.Struct, kw_only=True):
    """All that a run left behind for `check` and `measure`."""

    part: Any
    world: Any
    seed: int
    engine: str
    seconds: float  # virtual, or wall on a real engine
    ended: str  # "driven", "quiet", "until", "stopped"
    driven: Any = None  # what `drive` returned
    records: list[Record] = []
    messages: int = 0
    bytes: int = 0
    events: int = 0
    alive: list[bool] = []
    energy_J: float = 0.0
    money: float = 0.0
    digest: str = ""
    spans: list[Any] = []
    violations: list[Violation] = []  # what the engine itself saw: stuck, unanswered
    extra: dict[str, Any] = {}

    def emitted(self, name: str) -> list[tuple[float, int, Any]]:
        """Every (time, node, value) that was emitted under `name`."""
        return [(r.time_s, r.node, r.values[name]) for r in self.records if name in r.values]

    def lost_ranks(self) -> list[Violation]:
        """A violation for each rank that gave up because another was silent."""
        return [
            Violation(kind="rank_lost", node=node, time_s=time_s,
                      message=f"node {node} gave up: rank {rank} was silent")
            for time_s, node, rank in self.emitted("lost")
        ]  # fmt: skip


class Driver(Node):
    """The node outside the world on which a problem's workload runs; no fault reaches it.

    It has all that a `Node` has, and `nodes` (the ids in the world) and `part` (the part under
    test, for problems that call a part directly). `alive(node)` tells what a fault has taken,
    `absences(node)` when crashes do (from, until) in this run, inf for what never comes back.
    """

    if TYPE_CHECKING:

        @property
        def nodes(self) -> range: ...
        @property
        def part(self) -> Any: ...
        def alive(self, node: int) -> bool: ...
        def absences(self, node: int) -> list[tuple[float, float]]: ...

    async def until_all(self, method: Callable[..., Any], ask_s: float) -> None:
        """Wait until every node has answered `method`, or is gone for good.

        A node that comes back is asked anew, as what it was asked before is lost; so is one that
        was silent for `ask_s`.
        """
        await self.all(*(self._until(node, method, ask_s) for node in self.nodes))

    async def _until(self, node: int, method: Callable[..., Any], ask_s: float) -> None:
        away = [*self.absences(node), (math.inf, math.inf)]
        patience_s = ask_s
        while True:
            begin_s, end_s = next(one for one in away if one[1] > self.now or one[1] == math.inf)
            if begin_s <= self.now:
                if end_s == math.inf:
                    return
                await self.sleep(end_s - self.now)
                # A real process needs a while before it hears anything.
                patience_s = min(ask_s, RETURNED_S)
                continue
            try:
                async with self.deadline(max(min(patience_s, begin_s - self.now), LEAST_S)):
                    await self.ask(node, method)
                return
            except DeadlineExceeded:
                patience_s = min(ask_s, 2 * patience_s)


class Problem(Part):
    """The question: which port, which workload, what must never happen, what is measured."""

    # The class that a part must inherit to answer this problem.
    port: ClassVar[type] = Node
    # What `measure` reports, with units and directions.
    metrics: ClassVar[Mapping[str, Metric]] = {}
    # Where it can be run: one that builds a modelled world around its part runs in virtual time.
    engines: ClassVar[tuple[str, ...]] = ("virtual", "processes")
    # Knobs of a shorter question of the same kind, where the usual one is dear: by it the default
    # tests try the laws of parts.
    trial: ClassVar[Mapping[str, Any]] = {}
    # Whether `decisions` is the same in every correct run, so that engines can be compared.
    unique_outcome: ClassVar[bool] = False

    def world(self) -> World:
        """The world used when the user names none."""
        from orrery.world import World

        return World.lan(5)

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        """Which part runs in which role; the default puts a node everywhere."""
        if isinstance(part, Node):
            return {"node": part}
        if isinstance(part, Mapping):
            return part
        return {}

    def axes(self, by: str) -> Mapping[str, Sequence[float]]:
        """Knobs along which `choose` looks for another answer by a metric, and values to try."""
        return {}

    async def drive(self, driver: Driver) -> Any:
        """The workload; the run ends when it returns. What it returns is `outcome.driven`."""
        await driver.event().wait()

    def check(self, outcome: Outcome) -> list[Violation]:
        """What went wrong; empty when nothing did."""
        return []

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """The metrics, by the names in `metrics`."""
        return {}

    def decisions(self, outcome: Outcome) -> Any:
        """What was decided, for comparing engines where the outcome is unique."""
        return None

    def accept(self, part: Any) -> None:
        """Refuse a part that does not fit the port, with the fix."""
        parts = part.values() if isinstance(part, Mapping) else [part]
        for one in parts:
            if not isinstance(one, self.port) and not isinstance(part, Mapping):
                raise PartError(
                    f"{type(one).__name__} does not fit {type(self).__name__}: "
                    f"inherit from {self.port.__name__}"
                )
