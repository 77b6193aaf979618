"""Runs as formulas: long stretches in which only numbers of firings matter, and single steps.

While no guard changes its truth, the order of rules within a stretch is free but for one thing: a
process must be there to take a step. Counts of firings can be put in some order exactly if every
location ends with no fewer than nought processes and every location that is left is reached, over
rules that fire, from one that is occupied (Esparza, 1997, for nets in which each transition takes
one token). That is a formula of linear arithmetic; `in_order` finds the order again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orrery.base.errors import InternalError
from orrery.systems.protocols.taco.automaton import Automaton, Rule
from orrery.systems.protocols.taco.solver import Solver

# Formulas are remembered by what they are about, since searches ask for the same ones often.
Values = dict[str, Any]


class Walk:
    """The variables of a run of some stretches and steps, and the constraints that tie them."""

    def __init__(self, solver: Solver, automaton: Automaton) -> None:
        self.solver = solver
        self.automaton = automaton
        self.parameters: Values = {p: solver.number(p) for p in automaton.parameters}
        self.points: list[Values] = []
        self.counts: dict[int, Values] = {}
        self._kept: dict[Any, list[Any]] = {}

    def point(self, place: int) -> Values:
        """The configuration at a place of the run, with the parameters."""
        while len(self.points) <= place:
            at = len(self.points)
            names = (*self.automaton.locations, *self.automaton.shared)
            made = {name: self.solver.number(f"{name}@{at}") for name in names}
            self.points.append({**self.parameters, **made})
        return self.points[place]

    def firings(self, place: int) -> Values:
        """How often each rule fires between a place and the next."""
        if place not in self.counts:
            self.counts[place] = {
                rule.name: self.solver.number(f"#{rule.name}@{place}")
                for rule in self.automaton.live_rules
            }
        return self.counts[place]

    def sound(self, place: int) -> list[Any]:
        """No count is negative."""
        if ("sound", place) not in self._kept:
            names = (*self.automaton.locations, *self.automaton.shared)
            values = self.point(place)
            self._kept["sound", place] = [values[name] >= 0 for name in names]
        return self._kept["sound", place]

    def start(self) -> list[Any]:
        """The first configuration obeys the assumptions and the initial conditions."""
        values = self.point(0)
        own = [values[name] >= 0 for name in self.automaton.parameters]
        wanted = (self.automaton.assumptions, self.automaton.inits)
        return own + self.sound(0) + [self.solver.formula(each, values) for each in wanted]

    def balance(self, place: int, rules: Sequence[Rule]) -> list[Any]:
        """The next configuration is this one, moved by the firings of these rules."""
        before, after, fired = self.point(place), self.point(place + 1), self.firings(place)
        made = [fired[rule.name] >= 0 for rule in rules]
        for name in self.automaton.locations:
            terms = [(1, before[name])]
            terms += [(1, fired[r.name]) for r in rules if r.target == name != r.source]
            terms += [(-1, fired[r.name]) for r in rules if r.source == name != r.target]
            made.append(after[name] == self.solver.sum(terms))
        for name in self.automaton.shared:
            terms = [(1, before[name])]
            terms += [(r.delta[name], fired[r.name]) for r in rules if name in r.delta]
            moved = after[name] == self.solver.sum(terms)
            cleared = [fired[r.name] >= 1 for r in rules if name in r.resets]
            if cleared:
                # Only a single step may reset, so that "was there a reset" has one answer.
                reset = self.solver.any(cleared)
                moved = self.solver.all([
                    self.solver.implies(reset, after[name] == 0),
                    self.solver.any([reset, moved]),
                ])  # fmt: skip
            made.append(moved)
        return made + self.sound(place + 1)

    def stretch(self, place: int, rules: Sequence[Rule]) -> list[Any]:
        """Any number of firings of these rules, all enabled throughout, in a possible order."""
        key = ("stretch", place, tuple(rule.name for rule in rules))
        if key not in self._kept:
            self._kept[key] = self.balance(place, rules) + self._reached(place, rules)
        return self._kept[key]

    def step(self, place: int, rules: Sequence[Rule], exactly: bool) -> list[Any]:
        """One firing of one of these rules, or at most one; its process must be there."""
        key = ("step", place, exactly, tuple(rule.name for rule in rules))
        if key not in self._kept:
            fired, before = self.firings(place), self.point(place)
            total = self.solver.sum((1, fired[rule.name]) for rule in rules)
            made = self.balance(place, rules)
            made.append(total == 1 if exactly else total <= 1)
            for rule in rules:
                if rule.source == rule.target:
                    enough = before[rule.source] >= 1
                    made.append(self.solver.implies(fired[rule.name] >= 1, enough))
            self._kept[key] = made
        return self._kept[key]

    def _reached(self, place: int, rules: Sequence[Rule]) -> list[Any]:
        """Whatever is left within a cycle of rules was reached before, from outside or the start.

        Without cycles the numbers alone suffice: fire the rules from the sources on.
        """
        made = []
        before, fired = self.point(place), self.firings(place)
        for knot in knots(rules):
            far = {name: self.solver.number(f"far {name}@{place}") for name in knot}
            for name in knot:
                out = [fired[r.name] >= 1 for r in rules if r.source == name]
                into = [r for r in rules if r.target == name != r.source]
                ways = [before[name] >= 1]
                ways += [fired[r.name] >= 1 for r in into if r.source not in far]
                ways += [
                    self.solver.all([fired[r.name] >= 1, far[r.source] < far[name]])
                    for r in into
                    if r.source in far
                ]
                made.append(self.solver.implies(self.solver.any(out), self.solver.any(ways)))
        return made

    # -- reading a run off a model

    def schedule(self, places: Sequence[tuple[int, Sequence[Rule]]], core: Any = None) -> list[str]:
        """The rules in an order that can be taken, from the last model."""
        found: list[str] = []
        names = self.automaton.locations
        for place, rules in places:
            counts = self.solver.values(
                {rule.name: self.firings(place)[rule.name] for rule in rules}, core
            )
            here = self.solver.values({name: self.point(place)[name] for name in names}, core)
            found += in_order(rules, counts, here)
        return found


def knots(rules: Sequence[Rule]) -> list[tuple[str, ...]]:
    """The sets of locations that lie on a common cycle of rules, a loop at one location included.

    >>> knots([Rule("0", "a", "b"), Rule("1", "b", "a"), Rule("2", "b", "c")])
    [('a', 'b')]
    """
    nexts: dict[str, set[str]] = {}
    for rule in rules:
        nexts.setdefault(rule.source, set()).add(rule.target)
    places = sorted({place for rule in rules for place in (rule.source, rule.target)})
    reach = {place: _reachable(nexts, place) for place in places}
    found: dict[tuple[str, ...], None] = {}
    for place in places:
        if place in reach[place]:
            knot = [other for other in places if other in reach[place] and place in reach[other]]
            found[tuple(knot)] = None
    return list(found)


def _reachable(nexts: Mapping[str, set[str]], place: str) -> set[str]:
    seen: set[str] = set()
    todo = [place]
    while todo:
        for other in sorted(nexts.get(todo.pop(), ())):
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return seen


def in_order(
    rules: Sequence[Rule], counts: Mapping[str, int], here: Mapping[str, int]
) -> list[str]:
    """An order in which these firings can be taken from these places.

    Each step is one after which the rest can still be put in order, and there always is one.
    """
    left = {rule.name: counts[rule.name] for rule in rules if counts[rule.name]}
    using = [rule for rule in rules if rule.name in left]
    held = dict(here)
    found: list[str] = []
    while left:
        for rule in using:
            if rule.name in left and held[rule.source] and _can_go_on(rule, using, left, held):
                found.append(rule.name)
                held[rule.source] -= 1
                held[rule.target] += 1
                left[rule.name] -= 1
                if not left[rule.name]:
                    del left[rule.name]
                break
        else:
            raise InternalError(f"the firings {left} cannot be put in order from {held}")
    return found


def _can_go_on(
    rule: Rule, using: Sequence[Rule], left: Mapping[str, int], held: Mapping[str, int]
) -> bool:
    """Whether, after this step, every location still to be left is reached from an occupied one."""
    after = {**held}
    after[rule.source] -= 1
    after[rule.target] += 1
    rest = {name: count - (name == rule.name) for name, count in left.items()}
    active = [other for other in using if rest.get(other.name, 0) > 0]
    nexts: dict[str, set[str]] = {}
    for other in active:
        nexts.setdefault(other.source, set()).add(other.target)
    reached = {place for place, count in after.items() if count}
    for place in sorted(reached):
        reached |= _reachable(nexts, place)
    return all(other.source in reached for other in active)
