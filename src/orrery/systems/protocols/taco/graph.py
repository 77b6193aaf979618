"""The graph of contexts: what is common to the checkers that abstract counts to intervals."""

from __future__ import annotations

from itertools import product

from orrery.systems.protocols.taco.automaton import Automaton, Case, Rule, form_delta
from orrery.systems.protocols.taco.orders import Context, Order, Thresholds
from orrery.systems.protocols.taco.segments import Walk
from orrery.systems.protocols.taco.solver import Solver


class Setting:
    """One way to break a property, made ready: the rules that can ever fire, and the thresholds."""

    def __init__(self, automaton: Automaton, case: Case, solver: Solver) -> None:
        self.automaton, self.case, self.solver = automaton, case, solver
        self.walk = Walk(solver, automaton)
        self.first = solver.fresh()
        self.first.add(*self.walk.start(), solver.formula(case.before, self.walk.point(0)))
        self.possible = solver.check(self.first)
        self.starting = frozenset(
            place for place in automaton.locations
            if self.possible and solver.check(self.first, self.walk.point(0)[place] >= 1)
        )  # fmt: skip
        self.rules = self._fireable()
        self.thresholds = Thresholds(automaton, self.rules, solver, self.walk.parameters)

    def _fireable(self) -> tuple[Rule, ...]:
        """The rules whose location can ever be occupied."""
        places = set(self.starting)
        while True:
            more = {r.target for r in self.automaton.live_rules if r.source in places} - places
            if not more:
                break
            places |= more
        return tuple(rule for rule in self.automaton.live_rules if rule.source in places)


class Graph:
    """The contexts that can be reached under one order of thresholds, and the steps between them.

    `occupied[c]` are the locations that may hold a process in context c; a step whose location
    cannot be occupied is left out.
    """

    def __init__(self, setting: Setting, order: Order) -> None:
        self.setting, self.order = setting, order
        self.starts = self._starts()
        self.occupied: dict[Context, frozenset[str]] = {}
        self.steps: dict[tuple[Context, Context], list[Rule]] = {}
        self._enabled: dict[Context, list[Rule]] = {}
        self._explore()
        self.into: dict[Context, list[tuple[Context, Rule]]] = {}
        for (before, after), rules in self.steps.items():
            self.into.setdefault(after, []).extend((before, rule) for rule in rules)

    def _starts(self) -> list[Context]:
        """The contexts in which a run may begin."""
        setting, order = self.setting, self.order
        values = setting.walk.point(0)
        core = setting.first
        core.push()
        core.add(*setting.thresholds.meaning(), *order.told)
        spans = []
        for place in range(len(setting.thresholds.forms)):
            fits = []
            for at in range(len(order.levels[place]) + 1):
                core.push()
                core.add(*order.lies(place, at, values))
                if setting.solver.check(core):
                    fits.append(at)
                core.pop()
            spans.append(fits)
        core.pop()
        return [tuple(each) for each in product(*spans)]

    def enabled(self, context: Context) -> list[Rule]:
        if context not in self._enabled:
            self._enabled[context] = [
                rule for rule in self.setting.rules if self.order.enabled(rule, context)
            ]
        return self._enabled[context]

    def _explore(self) -> None:
        """Forward, until neither contexts nor occupied locations become more."""
        todo = list(self.starts)
        for context in todo:
            self.occupied[context] = self.setting.starting
        while todo:
            context = todo.pop()
            held = self.occupied[context]
            for rule in self.enabled(context):
                if rule.source not in held:
                    continue
                for after in self.order.after(rule, context):
                    rules = self.steps.setdefault((context, after), [])
                    if rule not in rules:
                        rules.append(rule)
                    old = self.occupied.get(after, frozenset())
                    new = old | held | {rule.target}
                    if new != old or after not in self.occupied:
                        self.occupied[after] = new
                        todo.append(after)

    def breaking(self, rule: Rule) -> bool:
        """Whether a step may take a count down, so that it cannot stand within a stretch."""
        if rule.resets or any(amount < 0 for _, amount in rule.changes):
            return True
        return any(form_delta(form, rule) < 0 for form in self.setting.thresholds.forms)

    def onward(self, live: set[Context]) -> dict[Context, list[Context]]:
        """The contexts that may follow each, within a set; itself where a step breaks a stretch."""
        found: dict[Context, list[Context]] = {}
        for (before, after), rules in self.steps.items():
            if before in live and after in live and (
                before != after or any(self.breaking(rule) for rule in rules)):  # fmt: skip
                found.setdefault(before, []).append(after)
        return {context: sorted(nexts) for context, nexts in found.items()}
