"""The SMT checker: one formula per property, for automata whose counts only grow.

A guard of such an automaton changes its truth at most once, so with k guards every run falls into
at most k + 1 stretches of constant guards, with single steps between them. The formula has that
many stretches; a rule that fires within one must have its rising guards true where the stretch
begins and its falling guards true where it ends, which is the same as true throughout. A shorter
run leaves stretches empty, so one formula speaks for all runs and all parameters: if it cannot be
met, the property holds (Balasubramanian, Esparza and Lazic, ATVA 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orrery.systems.protocols.taco.automaton import (
    Automaton,
    Case,
    Property,
    Rule,
    UnsupportedProperty,
    split_atom,
)
from orrery.systems.protocols.taco.forms import Atom, Formula, atoms
from orrery.systems.protocols.taco.segments import Walk
from orrery.systems.protocols.taco.solver import OutOfBudget, Solver
from orrery.systems.protocols.taco.trace import Counterexample

# How small a counterexample is looked for first: the number of processes.
SIZES = (2, 3, 4, 5, 6, 8, 10, 14, 20)


def check_smt(automaton: Automaton, asked: Property, solver: Solver) -> Counterexample | None:
    """A counterexample, or None where there is none for any parameters."""
    if not automaton.monotone:
        raise UnsupportedProperty(
            f"the SMT checker takes automata whose counts only grow, and in {automaton.name} "
            f"{automaton.why_not_monotone}; use method='zcs' or 'acs'"
        )
    for case in asked.cases:
        found = _check_case(automaton, case, solver)
        if found is not None:
            return found
    return None


def _check_case(automaton: Automaton, case: Case, solver: Solver) -> Counterexample | None:
    walk = Walk(solver, automaton)
    core = solver.fresh()
    flips = len(rising_or_falling(automaton))
    core.add(*walk.start(), solver.formula(case.before, walk.point(0)))
    places: list[tuple[int, Sequence[Rule]]] = []
    rules = automaton.live_rules
    for turn in range(flips + 1):
        stretch, step = 2 * turn, 2 * turn + 1
        core.add(*walk.stretch(stretch, rules), *_enabled(walk, rules, stretch, stretch + 1))
        places.append((stretch, rules))
        if turn < flips:
            core.add(*walk.step(step, rules, exactly=False), *_enabled(walk, rules, step, step))
            places.append((step, rules))
    last = walk.point(2 * flips + 1)
    core.add(solver.formula(case.bad, last))
    if not solver.check(core):
        return None
    _shrink(walk, core)
    return read_run(walk, places, core)


def rising_or_falling(automaton: Automaton) -> tuple[Atom, ...]:
    """The atoms of guards that can change their truth: those about a shared variable."""
    found: dict[Any, Atom] = {}
    for rule in automaton.live_rules:
        for atom in atoms(rule.guard):
            split = split_atom(automaton, atom)
            if split.form.terms:
                found[split.form, split.scale, split.threshold] = atom
    return tuple(found.values())


def _enabled(walk: Walk, rules: Sequence[Rule], begin: int, end: int) -> list[Any]:
    """Whoever fires has its guard true: rising atoms at the beginning, falling ones at the end."""
    solver, automaton = walk.solver, walk.automaton
    first, last = walk.point(begin), walk.point(end)
    fired = walk.firings(begin)

    def truth(atom: Atom) -> Any:
        return solver.linear(atom.form, first if split_atom(automaton, atom).rises else last) >= 0

    by_guard: dict[Formula, list[Rule]] = {}
    for rule in rules:
        by_guard.setdefault(rule.guard, []).append(rule)
    made = []
    for guard, group in by_guard.items():
        if atoms(guard):
            some = solver.sum((1, fired[rule.name]) for rule in group) >= 1
            made.append(solver.implies(some, solver.mixed(guard, truth)))
    return made


def _shrink(walk: Walk, core: Any) -> None:
    """Prefer a run of few processes, where one is found quickly; the model is left in the core."""
    solver = walk.solver
    total = solver.sum((1, walk.point(0)[name]) for name in walk.automaton.locations)
    for size in SIZES:
        core.push()
        core.add(total <= size)
        try:
            if solver.check(core):
                return
        except OutOfBudget:
            core.pop()
            break
        core.pop()
    solver.checks += 1
    core.set("rlimit", 0)
    core.check()


def read_run(walk: Walk, places: Sequence[tuple[int, Sequence[Rule]]], core: Any) -> Counterexample:
    """The run that the core's model describes."""
    solver, automaton = walk.solver, walk.automaton
    start = walk.point(0)
    names = (*automaton.locations, *automaton.shared)
    return Counterexample(
        tuple(solver.values({p: start[p] for p in automaton.parameters}, core).items()),
        tuple(solver.values({name: start[name] for name in names}, core).items()),
        tuple(walk.schedule(places, core)),
    )
