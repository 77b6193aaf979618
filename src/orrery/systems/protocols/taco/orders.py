"""Thresholds in order: every ranking that the resilience condition allows, and the intervals.

Each form that guards count (mostly one shared variable) has thresholds such as t + 1 - f and
n - t - f. Once it is known which of them are equal and which is the smaller, they cut the numbers
into intervals, and a guard is true or false on a whole interval. A context says in which interval
each form lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from orrery.systems.protocols.taco.automaton import Automaton, Rule, form_delta, split_atom
from orrery.systems.protocols.taco.forms import All, Atom, Formula, Linear, atoms
from orrery.systems.protocols.taco.solver import Solver

Context = tuple[int, ...]


@dataclass(frozen=True)
class Threshold:
    """`scale * form >= bound`; `form` is a place in the list of forms."""

    form: int
    scale: int
    bound: Linear


class Order:
    """One ranking of the thresholds: `rank[t]` is the interval from which t is met.

    Interval 0 is where no threshold above nought is met; a threshold of rank 0 is always met.
    """

    def __init__(
        self, thresholds: Thresholds, ranks: dict[Threshold, int], told: list[Any]
    ) -> None:
        self.thresholds = thresholds
        self.rank = ranks
        self.told = told
        forms = range(len(thresholds.forms))
        self.levels: list[list[Any]] = [[] for _ in forms]
        for place in forms:
            for level in range(1, 1 + self._most(place)):
                one = next(t for t, r in ranks.items() if t.form == place and r == level)
                self.levels[place].append(thresholds.number[one])

    def _most(self, place: int) -> int:
        return max((rank for t, rank in self.rank.items() if t.form == place), default=0)

    def within(self, context: Context, values: dict[str, Any]) -> list[Any]:
        """The forms lie in the intervals of the context, in a configuration."""
        forms = range(len(self.thresholds.forms))
        return [each for place in forms for each in self.lies(place, context[place], values)]

    def lies(self, place: int, at: int, values: dict[str, Any]) -> list[Any]:
        """One form lies in this interval."""
        levels = self.levels[place]
        count = self.thresholds.solver.linear(self.thresholds.forms[place], values)
        low = [count >= levels[at - 1]] if at else []
        return low + ([count < levels[at]] if at < len(levels) else [])

    def enabled(self, rule: Rule, context: Context) -> bool:
        """Whether the guard is true in the context; atoms of parameters alone count as true."""
        return self._true(rule.guard, context)

    def _true(self, guard: Formula, context: Context) -> bool:
        if isinstance(guard, Atom):
            known = self.thresholds.of_atom.get(guard)
            if known is None:
                return True
            threshold, rises = known
            return (context[threshold.form] >= self.rank[threshold]) == rises
        parts = [self._true(part, context) for part in guard.parts]
        return all(parts) if isinstance(guard, All) else any(parts)

    def after(self, rule: Rule, context: Context) -> Iterator[Context]:
        """The contexts in which a step may end, as far as the intervals can tell."""
        ways = []
        for place, form in enumerate(self.thresholds.forms):
            at, most = context[place], len(self.levels[place])
            move = form_delta(form, rule)
            if any(name in rule.resets for name in form.names):
                ways.append(range(1) if len(form.terms) == 1 else range(most + 1))
            else:
                # Levels are whole numbers apart, so a step of d passes at most d of them.
                low, high = max(0, at + min(move, 0)), min(most, at + max(move, 0))
                ways.append(range(low, high + 1))
        return product(*ways)

    def __str__(self) -> str:
        told = []
        for place, form in enumerate(self.thresholds.forms):
            ranked = sorted((rank, str(t.bound)) for t, rank in self.rank.items()
                            if t.form == place)  # fmt: skip
            told.append(f"{form}: " + ", ".join(f"{text} at {rank}" for rank, text in ranked))
        return "; ".join(told)


class Thresholds:
    """The thresholds of some rules, as whole numbers of the solver."""

    def __init__(self, automaton: Automaton, rules: tuple[Rule, ...], solver: Solver,
                 parameters: dict[str, Any]) -> None:  # fmt: skip
        self.automaton, self.solver = automaton, solver
        self.parameters = parameters
        places: dict[Linear, int] = {}
        self.of_atom: dict[Atom, tuple[Threshold, bool]] = {}
        self.number: dict[Threshold, Any] = {}
        for rule in rules:
            for atom in atoms(rule.guard):
                split = split_atom(automaton, atom)
                if split.form.terms:
                    place = places.setdefault(split.form, len(places))
                    threshold = Threshold(place, split.scale, split.threshold)
                    self.of_atom[atom] = threshold, split.rises
                    if threshold not in self.number:
                        name = f"level {len(self.number)}"
                        self.number[threshold] = solver.number(name)
        self.forms = tuple(places)

    def meaning(self) -> list[Any]:
        """Each number is the smallest count that meets its threshold."""
        made = []
        for threshold, number in self.number.items():
            bound = self.solver.linear(threshold.bound, self.parameters)
            if threshold.scale == 1:
                made.append(number == bound)
            else:
                made.append(threshold.scale * number >= bound)
                made.append(threshold.scale * (number - 1) < bound)
        return made

    def orders(self) -> Iterator[Order]:
        """Every ranking that some parameters under the assumptions have."""
        core = self.solver.fresh()
        core.add(*(each >= 0 for each in self.parameters.values()))
        core.add(self.solver.formula(self.automaton.assumptions, self.parameters))
        core.add(*self.meaning())
        yield from self._rank(core, list(self.number), [[] for _ in self.forms], [])

    def _rank(
        self, core: Any, left: list[Threshold], chains: list[list[list[Threshold]]], told: list[Any]
    ) -> Iterator[Order]:
        if not left:
            ranks = {
                t: level
                for chain in chains
                for level, group in enumerate(chain)
                for t in group
            }  # fmt: skip
            # The first group of a chain holds what is met from the start: it has rank 0.
            yield Order(self, ranks, list(told))
            return
        threshold, *rest = left
        place = threshold.form
        chain = chains[place] or [[]]
        for changed, said in self._ways(threshold, chain):
            core.push()
            core.add(*said)
            if self.solver.check(core):
                here = [*chains]
                here[place] = changed
                yield from self._rank(core, rest, here, told + said)
            core.pop()

    def _ways(
        self, threshold: Threshold, chain: list[list[Threshold]]
    ) -> Iterator[tuple[list[list[Threshold]], list[Any]]]:
        """Where a threshold may stand in a chain: with the met ones, in a group, or between two."""
        number, form = self.number[threshold], self.forms[threshold.form]
        natural = all(factor > 0 for _, factor in form.terms)
        if natural:
            yield [[*chain[0], threshold], *chain[1:]], [number <= 0]
        floor = [number >= 1] if natural else []
        for at in range(1, len(chain)):
            group = chain[at]
            same = [*chain[:at], [*group, threshold], *chain[at + 1 :]]
            yield same, [*floor, number == self.number[group[0]]]
        for at in range(1, len(chain) + 1):
            said = list(floor)
            if at > 1:
                said.append(number > self.number[chain[at - 1][0]])
            if at < len(chain):
                said.append(number < self.number[chain[at][0]])
            yield [*chain[:at], [threshold], *chain[at:]], said
