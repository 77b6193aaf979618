"""Counterexamples: parameters, a start and a schedule; and the plain semantics that judge them.

`follow` is the definition of a run, written as plainly as can be: every checker's counterexample
must pass it, and so must each step of its replay on an engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from orrery.systems.protocols.taco.automaton import Automaton, Property, Rule, Values
from orrery.systems.protocols.taco.forms import holds


@dataclass(frozen=True)
class Counterexample:
    """A run that breaks a property: `parameters`, the `start`, and the rules in their order."""

    parameters: tuple[tuple[str, int], ...]
    start: tuple[tuple[str, int], ...]
    schedule: tuple[str, ...]

    @property
    def values(self) -> dict[str, int]:
        """Parameters, locations and shared variables at the start."""
        return {**dict(self.parameters), **dict(self.start)}

    def processes(self, automaton: Automaton) -> int:
        """How many processes take part."""
        values = self.values
        return sum(values[place] for place in automaton.locations)

    def __str__(self) -> str:
        told = ", ".join(f"{name} = {value}" for name, value in self.parameters)
        start = ", ".join(f"{name} = {value}" for name, value in self.start if value)
        return f"{told}; start: {start or 'all nought'}; then rules {' '.join(self.schedule)}"


def may_fire(rule: Rule, values: Values) -> bool:
    """Whether some process can take this step in this configuration."""
    if values[rule.source] < 1 or not holds(rule.guard, values):
        return False
    return all(values[name] + amount >= 0 for name, amount in rule.changes)


def fire(rule: Rule, values: Values) -> dict[str, int]:
    """The configuration after the step."""
    after = dict(values)
    after[rule.source] -= 1
    after[rule.target] += 1
    for name, amount in rule.changes:
        after[name] += amount
    for name in rule.resets:
        after[name] = 0
    return after


def follow(automaton: Automaton, run: Counterexample) -> list[dict[str, int]]:
    """Every configuration of the run, the start first; ValueError where a step cannot be taken."""
    values = run.values
    wanted = {*automaton.parameters, *automaton.shared, *automaton.locations}
    if set(values) != wanted or any(value < 0 for value in values.values()):
        raise ValueError("the start does not give every parameter, location and variable a number")
    if not automaton.start_values(values):
        raise ValueError("the start breaks the assumptions or the initial conditions")
    rules = {rule.name: rule for rule in automaton.rules}
    path = [values]
    for place, name in enumerate(run.schedule):
        rule = rules.get(name)
        if rule is None or not may_fire(rule, path[-1]):
            raise ValueError(f"step {place}: rule {name} cannot be taken")
        path.append(fire(rule, path[-1]))
    return path


def breaks(asked: Property, start: Values, values: Values) -> bool:
    """Whether this configuration, in a run from this start, breaks the property."""
    return any(holds(case.before, start) and holds(case.bad, values) for case in asked.cases)


def why_bogus(automaton: Automaton, asked: Property, run: Counterexample) -> str:
    """What is wrong with a counterexample, or "" where it is a true one."""
    try:
        path = follow(automaton, run)
    except ValueError as error:
        return str(error)
    if not breaks(asked, path[0], path[-1]):
        return f"the last configuration does not break {asked.name}"
    return ""
