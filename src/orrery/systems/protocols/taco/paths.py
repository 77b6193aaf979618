"""Abstract error paths, shortest first, each held against the solver.

A path is a sequence of contexts. Within a context any number of firings may be taken, between two
there is one step. A path whose beginning cannot be real is never made longer, so where counts only
grow the search ends; where they also fall it may go on until the budget is spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orrery.systems.protocols.taco.automaton import Rule
from orrery.systems.protocols.taco.forms import atoms, names
from orrery.systems.protocols.taco.graph import Graph
from orrery.systems.protocols.taco.orders import Context
from orrery.systems.protocols.taco.smt import read_run
from orrery.systems.protocols.taco.solver import CALL_UNITS
from orrery.systems.protocols.taco.trace import Counterexample

Path = tuple[Context, ...]
Shape = tuple[tuple[tuple[str, int], ...], tuple[str, ...]]
Shapes = dict[Context, list[Shape]]
# A longer list of shapes costs the solver more than it spares.
MOST_SHAPES = 24


class PathSearch:
    """Looks for a real run along the paths of a graph of contexts.

    `shapes[c]` says what configurations of context c must look like for a bad one to follow; each
    shape is (processes that a location must hold at least, locations that must be empty).
    """

    def __init__(self, graph: Graph, shapes: Shapes) -> None:
        setting = graph.setting
        self.graph, self.shapes = graph, shapes
        self.solver, self.walk, self.case = setting.solver, setting.walk, setting.case
        self.ends = self._balanced({context for context, known in shapes.items() if known})
        self.live = self._towards(self.ends)
        self.nexts = graph.onward(self.live)
        self.core = self.solver.fresh()
        self.core.add(*self.walk.start(), *setting.thresholds.meaning(), *graph.order.told)
        self.core.add(self.solver.formula(self.case.before, self.walk.point(0)))
        self.refuted: set[Path] = set()
        self.real: set[Path] = set()
        self.paths = 0
        self._within: dict[tuple[int, Context], list[Any]] = {}
        self._stretches: dict[Context, list[Rule]] = {}

    def _balanced(self, contexts: set[Context]) -> set[Context]:
        """The contexts that a bad configuration may lie in, by the balance of all firings alone.

        However a run goes, its end is its start moved by the sum of its firings. One check for each
        context spares the many paths that would end there in vain. A reset spoils the balance.
        """
        graph, setting = self.graph, self.graph.setting
        if any(rule.resets for rule in setting.rules):
            return contexts
        core = self.solver.fresh()
        core.add(*self.walk.start(), *setting.thresholds.meaning(), *graph.order.told)
        core.add(self.solver.formula(self.case.before, self.walk.point(0)))
        core.add(*self.walk.balance(0, setting.rules))
        core.add(self.solver.formula(self.case.bad, self.walk.point(1)))
        found = set()
        for context in sorted(contexts):
            core.push()
            core.add(*graph.order.within(context, self.walk.point(1)))
            if self.solver.check(core):
                found.add(context)
            core.pop()
        return found

    def _towards(self, ends: set[Context]) -> set[Context]:
        """The contexts from which one of these can be reached, within those that have a shape."""
        live, todo = set(ends), sorted(ends)
        while todo:
            for before, _ in self.graph.into.get(todo.pop(), ()):
                if before not in live and self.shapes[before]:
                    live.add(before)
                    todo.append(before)
        return live

    def find(self) -> Counterexample | None:
        """A run that breaks the property, or None when no path is left."""
        length = 1
        while True:
            self.more = False
            for start in self.graph.starts:
                if start in self.live:
                    found = self._visit((start,), length)
                    if found is not None:
                        return found
            if not self.more:
                return None
            length += 1

    def _visit(self, path: Path, length: int) -> Counterexample | None:
        if path in self.refuted:
            return None
        context, at = path[-1], 2 * (len(path) - 1)
        self.solver.charge(CALL_UNITS)
        self.core.push()
        try:
            self.core.add(*self._in(at, context), *self._in(at + 1, context))
            self.core.add(*self.walk.stretch(at, self._stretch(context)))
            self.core.add(*self._parameter_guards(at, self._stretch(context)))
            if len(path) == length:
                return self._ends_badly(path)
            if path not in self.real:
                if not self.solver.check(self.core):
                    self.refuted.add(path)
                    return None
                self.real.add(path)
            return self._go_on(path, length)
        finally:
            self.core.pop()

    def _go_on(self, path: Path, length: int) -> Counterexample | None:
        context, at = path[-1], 2 * (len(path) - 1) + 1
        for after in self.nexts.get(context, ()):
            if (*path, after) in self.refuted:
                continue
            self.core.push()
            rules = self._crossing(context, after)
            self.core.add(*self.walk.step(at, rules, exactly=True))
            self.core.add(*self._parameter_guards(at, rules))
            found = self._visit((*path, after), length)
            self.core.pop()
            if found is not None:
                return found
        return None

    def _ends_badly(self, path: Path) -> Counterexample | None:
        """Whether the path, made real, can end in a configuration that breaks the property."""
        if path[-1] not in self.ends:
            self.more = self.more or bool(self.nexts.get(path[-1]))
            return None
        self.paths += 1
        last = self.walk.point(2 * len(path) - 1)
        self.core.push()
        try:
            self.core.add(self.solver.formula(self.case.bad, last))
            if self.solver.check(self.core):
                return read_run(self.walk, self._places(path), self.core)
        finally:
            self.core.pop()
        self.more = self.more or bool(self.nexts.get(path[-1]))
        return None

    def _places(self, path: Path) -> list[tuple[int, Sequence[Rule]]]:
        places: list[tuple[int, Sequence[Rule]]] = []
        for turn, context in enumerate(path):
            if turn:
                places.append((2 * turn - 1, self._crossing(path[turn - 1], context)))
            places.append((2 * turn, self._stretch(context)))
        return places

    # -- what may fire where

    def _stretch(self, context: Context) -> list[Rule]:
        if context not in self._stretches:
            rules = self.graph.steps.get((context, context), [])
            kept = {rule.name for rule in rules if not self.graph.breaking(rule)}
            # In the automaton's own order, so that formulas do not depend on the exploration.
            self._stretches[context] = [r for r in self.graph.setting.rules if r.name in kept]
        return self._stretches[context]

    def _crossing(self, context: Context, after: Context) -> list[Rule]:
        rules = self.graph.steps[context, after]
        if context == after:
            rules = [rule for rule in rules if self.graph.breaking(rule)]
        kept = {rule.name for rule in rules}
        return [rule for rule in self.graph.setting.rules if rule.name in kept]

    def _in(self, place: int, context: Context) -> list[Any]:
        key = (place, context)
        if key not in self._within:
            values = self.walk.point(place)
            made = self.graph.order.within(context, values)
            known = self.shapes[context]
            if len(known) <= MOST_SHAPES and ((), ()) not in known:
                made.append(self.solver.any(self._shape(shape, values) for shape in known))
            self._within[key] = made
        return self._within[key]

    def _shape(self, shape: Shape, values: dict[str, Any]) -> Any:
        least, empty = shape
        parts = [values[name] >= count for name, count in least]
        return self.solver.all(parts + [values[name] == 0 for name in empty])

    def _parameter_guards(self, place: int, rules: Sequence[Rule]) -> list[Any]:
        """Guards about parameters alone are not in the context, so they are said here."""
        shared = set(self.walk.automaton.shared)
        made = []
        for rule in rules:
            if any(not shared & set(names(atom)) for atom in atoms(rule.guard)):
                fired = self.walk.firings(place)[rule.name] >= 1
                true = self.solver.formula(rule.guard, self.walk.point(place))
                made.append(self.solver.implies(fired, true))
        return made
