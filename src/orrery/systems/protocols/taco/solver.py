"""The SMT solver behind the checkers: Z3, in a context of its own, with a budget of work.

The budget is counted in Z3's resource units, not in seconds, so that the same question gives the
same answer on every machine, busy or not. A core does about a hundred thousand to a million of them
in a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orrery.base.errors import PlatformLacks
from orrery.systems.protocols.taco.forms import All, Atom, Formula, Linear

try:
    import z3
except ImportError:  # pragma: no cover - the extra is installed where the tests run
    z3 = None


# What a call costs beside the solving, in the same units.
CALL_UNITS = 500


class OutOfBudget(Exception):
    """The work that the user allowed is done, and the question is still open."""


class Solver:
    """A Z3 solver that counts its checks and stops when the budget is spent."""

    def __init__(self, budget: int = 0) -> None:
        if z3 is None:
            raise PlatformLacks(
                "checking threshold automata needs Z3; pip install 'orrery[verify]' (z3-solver)"
            )
        self.context = z3.Context()
        self.budget = budget
        self.spent = 0
        self.checks = 0
        self.core = self.fresh()

    def fresh(self) -> Any:
        """A new, empty core in the same context, for a question beside the main one."""
        return z3.Solver(ctx=self.context)

    # -- building

    def number(self, name: str) -> Any:
        return z3.Int(name, ctx=self.context)

    def sum(self, terms: Iterable[tuple[int, Any]], constant: int = 0) -> Any:
        """The sum of factors times expressions."""
        parts = [each if factor == 1 else factor * each for factor, each in terms]
        if constant or not parts:
            parts.append(z3.IntVal(constant, ctx=self.context))
        return parts[0] if len(parts) == 1 else z3.Sum(parts)

    def linear(self, form: Linear, values: Mapping[str, Any]) -> Any:
        return self.sum(((factor, values[name]) for name, factor in form.terms), form.constant)

    def formula(self, formula: Formula, values: Mapping[str, Any]) -> Any:
        """A formula over expressions."""
        return self.mixed(formula, lambda atom: self.linear(atom.form, values) >= 0)

    def mixed(self, formula: Formula, atom: Any) -> Any:
        """A formula in which the caller says what each atom becomes."""
        if isinstance(formula, Atom):
            return atom(formula)
        parts = [self.mixed(part, atom) for part in formula.parts]
        return self.all(parts) if isinstance(formula, All) else self.any(parts)

    def all(self, parts: Iterable[Any]) -> Any:
        made = list(parts)
        return z3.And(made) if made else z3.BoolVal(True, ctx=self.context)

    def any(self, parts: Iterable[Any]) -> Any:
        made = list(parts)
        return z3.Or(made) if made else z3.BoolVal(False, ctx=self.context)

    def implies(self, one: Any, other: Any) -> Any:
        return z3.Implies(one, other)

    # -- asking

    def check(self, core: Any = None, *assumed: Any) -> bool:
        """Whether the constraints can be met; `OutOfBudget` where the work ran out first."""
        core = self.core if core is None else core
        self.charge(CALL_UNITS)
        if self.budget:
            core.set("rlimit", max(self.budget - self.spent, 1))
        before = _work(core)
        answer = core.check(*assumed)
        self.checks += 1
        self.spent += max(_work(core) - before, 0)
        if answer == z3.unknown:
            raise OutOfBudget
        return bool(answer == z3.sat)

    def charge(self, units: int) -> None:
        """Take work that Z3 does not count, such as handing it formulas, from the budget."""
        self.spent += units
        if self.budget and self.spent > self.budget:
            raise OutOfBudget

    def values(self, wanted: Mapping[str, Any], core: Any = None) -> dict[str, int]:
        """What the last check gave each of these numbers."""
        model = (self.core if core is None else core).model()
        return {
            name: model.eval(each, model_completion=True).as_long() for name, each in wanted.items()
        }


def _work(core: Any) -> int:
    found = core.statistics()
    for place in range(len(found)):
        key, value = found[place]
        if key == "rlimit count":
            return int(value)
    return 0
