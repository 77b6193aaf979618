"""A counterexample on stage: one Orrery node for each process, step by step to the bad state.

Every process keeps its own location and its own tally of the messages that were sent. To take a
step it checks its guard against its own tally, moves, and tells all others what it sent; the next
step begins when they have heard. The driver chooses who steps, as the schedule says, and after each
step it asks everybody where they are and holds the answer against the semantics of the automaton.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from orrery.base.errors import UsageError
from orrery.base.violation import Violation
from orrery.parts import Driver, Metric, Node, Outcome, Problem, rpc
from orrery.systems.protocols.taco.automaton import Automaton
from orrery.systems.protocols.taco.forms import holds
from orrery.systems.protocols.taco.parser import parse
from orrery.systems.protocols.taco.trace import Counterexample, breaks, follow
from orrery.systems.protocols.taco.write import to_text
from orrery.world import World

ABSENT = ""  # where a node is that stands for no process


class Process(Node):
    """One process of a threshold automaton: a location, and a tally of what all have sent.

    Knobs: `text`, the automaton as a .ta file; `parameters`.
    """

    text: str = ""
    parameters: dict[str, int] = {}

    def start(self) -> None:
        self.automaton = parse(self.text)
        self.rules = {rule.name: rule for rule in self.automaton.rules}
        self.place = ABSENT
        self.tally = dict.fromkeys(self.automaton.shared, 0)

    @rpc
    def begin(self, place: str, tally: dict[str, int]) -> None:
        """Take a place, before the first step."""
        self.place = place
        self.tally = dict(tally)

    @rpc
    async def fire(self, name: str) -> bool:
        """Take a step if location and guard allow it, and see to it that everybody hears."""
        rule = self.rules.get(name)
        if rule is None or self.place != rule.source:
            return False
        if not holds(rule.guard, {**self.parameters, **self.tally}):
            return False
        if any(self.tally[each] + amount < 0 for each, amount in rule.changes):
            return False
        self.place = rule.target
        self.hear(name)
        await self.all(*(self.ask(peer, Process.hear, name) for peer in self.peers))
        self.emit(rule=name, place=self.place)
        return True

    @rpc
    def hear(self, name: str) -> None:
        """Count what a step has sent."""
        rule = self.rules[name]
        for each, amount in rule.changes:
            self.tally[each] += amount
        for each in rule.resets:
            self.tally[each] = 0

    @rpc
    def look(self) -> tuple[str, dict[str, int]]:
        """Where this process is, and what it has counted."""
        return self.place, self.tally


class Replay(Problem):
    """Play a counterexample: every step must be taken, and the last state must be the bad one.

    The run's violations tell the story: `property_broken` at the end says that the counterexample
    is real; `step_refused` or `configuration_differs` say that it is not.
    """

    text: str = ""
    name: str = ""
    parameters: dict[str, int] = {}
    begin: dict[str, int] = {}
    schedule: tuple[str, ...] = ()

    port: ClassVar[type] = Process
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "steps": Metric("", "", "steps that were taken"),
        "processes": Metric("", "", "processes that take part"),
    }

    @property
    def counterexample(self) -> Counterexample:
        return Counterexample(
            tuple(self.parameters.items()), tuple(self.begin.items()), tuple(self.schedule)
        )

    def world(self) -> World:
        automaton = parse(self.text)
        return World.lan(max(1, self.counterexample.processes(automaton)))

    async def drive(self, driver: Driver) -> list[dict[str, int]]:
        automaton = parse(self.text)
        places = [p for p in automaton.locations for _ in range(self.begin[p])]
        if len(places) > len(driver.nodes):
            raise UsageError(f"{len(places)} processes do not fit on {len(driver.nodes)} nodes; "
                             f"give World.lan({len(places)})")  # fmt: skip
        tally = {name: self.begin[name] for name in automaton.shared}
        for node in driver.nodes:
            place = places[node] if node < len(places) else ABSENT
            await driver.ask(node, Process.begin, place, tally)
        rules = {rule.name: rule for rule in automaton.rules}
        seen = [await self._look(driver, automaton)]
        for name in self.schedule:
            source = rules[name].source if name in rules else ABSENT
            who = places.index(source) if source in places else 0
            if not await driver.ask(who, Process.fire, name):
                break
            places[who] = rules[name].target
            seen.append(await self._look(driver, automaton))
        return seen

    async def _look(self, driver: Driver, automaton: Automaton) -> dict[str, int]:
        """The configuration that all nodes together are in; -1 where their tallies differ."""
        told = await driver.all(*(driver.ask(node, Process.look) for node in driver.nodes))
        values = dict.fromkeys(automaton.locations, 0)
        for place, _ in told:
            if place != ABSENT:
                values[place] += 1
        for name in automaton.shared:
            counts = {tally[name] for _, tally in told}
            values[name] = min(counts) if len(counts) == 1 else -1
        return values

    def check(self, outcome: Outcome) -> list[Violation]:
        automaton = parse(self.text)
        seen: list[dict[str, int]] = outcome.driven or []
        try:
            want = follow(automaton, self.counterexample)
        except ValueError as error:
            return [Violation(kind="step_refused", message=str(error))]
        if len(seen) < len(want):
            at = len(seen) - 1
            said = f"step {at}: rule {self.schedule[at]} was not taken" if at >= 0 else "no start"
            return [Violation(kind="step_refused", message=said)]
        for at, (got, due) in enumerate(zip(seen, want, strict=True)):
            if any(due[name] != value for name, value in got.items()):
                said = f"after step {at} the nodes are in {got}"
                return [Violation(kind="configuration_differs", message=said)]
        if breaks(automaton.property_named(self.name), want[0], want[-1]):
            said = f"{automaton.name}.{self.name} is broken after {len(self.schedule)} steps"
            return [Violation(kind="property_broken", message=said, evidence=seen[-1],
                              time_s=outcome.seconds)]  # fmt: skip
        return []

    def measure(self, outcome: Outcome) -> dict[str, float]:
        automaton = parse(self.text)
        crowd = self.counterexample.processes(automaton)
        return {"steps": float(len(outcome.driven or [1]) - 1), "processes": float(crowd)}

    def decisions(self, outcome: Outcome) -> list[dict[str, int]]:
        """Every configuration on the way."""
        return outcome.driven or []


def replayed(automaton: Automaton, name: str, run: Counterexample) -> tuple[Process, Replay, World]:
    """(part, problem, world) that play a counterexample: `run(part, problem=…, world=…)`."""
    text = to_text(automaton)
    parameters = dict(run.parameters)
    problem = Replay(
        text=text, name=name or automaton.property_named(name).name, parameters=parameters,
        begin=dict(run.start), schedule=run.schedule,
    )  # fmt: skip
    return Process(text=text, parameters=parameters), problem, problem.world()
