"""Linearizability: does every operation seem to happen at one instant between call and return?

Herlihy and Wing (1990). Keys are independent objects, so each is judged alone: a history is
linearizable exactly when each object's part is (locality). Registers with unique written values,
also with compare-and-swap, take O(n log n) (see `unique`); all else is searched, up to a budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orrery.base.errors import SpecError
from orrery.check.history import History, Operation
from orrery.check.models import CasRegister, Model, Register
from orrery.check.refusals import explained, wrong_refusal
from orrery.check.search import Search, search
from orrery.check.unique import UniqueRegister
from orrery.check.violation import Verdict, Violation

LEAST_BUDGET = 1_000_000
STEPS_PER_OPERATION = 30
"""The budget unless one is given: steps of search over all keys, about two microseconds each."""

_TRIM_LIMIT = 200
"""Evidence with more operations than this is not trimmed: each try costs a search."""


def linearizable(
    history: History, model: Model | None = None, budget: int | None = None
) -> Verdict:
    """Judge whether a history is linearizable: True, False with evidence, or None for unknown.

    The evidence is a set of operations that is not linearizable by itself:
    ``linearizable(History.of(verdict.violation.evidence), model).ok`` is False again.

    Unique-value registers: O(n log n). Others: a search, exponential in the overlap at worst, that
    gives up after `budget` steps in all (unless given: 30 for each operation, at least a million).

    >>> h = History()
    >>> h.ok(h.invoke("a", "write", "x", 1))
    >>> h.ok(h.invoke("b", "read", "x"), None)
    >>> print(linearizable(h).violation.kind)
    stale_read
    """
    model = Register() if model is None else model
    if budget is None:
        budget = max(LEAST_BUDGET, STEPS_PER_OPERATION * len(history))
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
        raise SpecError("budget", f"{budget!r} is no number of steps", "give a whole number >= 0")
    _check_operations(history, model)
    hard: list[list[int]] = []
    explored = 0
    for indices in history.by_key().values():
        violation, near = _quick(history, indices, model, budget - explored)
        explored += near.explored
        if violation is not None:
            return Verdict(ok=False, violation=violation, explored=explored)
        if not near.ok:
            hard.append(indices)
    # Small objects first, so that one hard object does not use up what the others need.
    hard.sort(key=len)
    unknown = False
    for indices in hard:
        ops = relevant(history, indices, model)
        found = search(ops, model, budget - explored)
        explored += found.explored
        if found.ok is False:
            violation = _stuck(ops, found.stuck_at, model)
            return Verdict(ok=False, violation=violation, explored=explored)
        unknown = unknown or found.ok is None
    return Verdict(ok=None if unknown else True, explored=explored)


def _check_operations(history: History, model: Model) -> None:
    for i, (f, value) in enumerate(zip(history.fs, history.values, strict=True)):
        try:
            model.check(f, value, history.results[i])
        except SpecError as error:
            raise SpecError(f"operation {i}.{error.path}", error.problem, error.fix) from None


def _quick(
    history: History, indices: list[int], model: Model, budget: int
) -> tuple[Violation | None, Search]:
    """The near-linear algorithm where it applies: a violation, or whether the object is proved."""
    undecided = Search(None, 0)
    if type(model) not in (Register, CasRegister):
        return None, undecided
    register = UniqueRegister(history, indices, model.initial())
    violation = register.phantom()
    if violation is not None or not register.is_unique():
        return violation, undecided
    violation = register.solve() or wrong_refusal(register)
    if violation is not None:
        return violation, undecided
    # Half of the budget stays for the full search, which alone can refute what is left.
    return None, explained(register, model, budget // 2)


def relevant(history: History, indices: Iterable[int], model: Model) -> list[Operation]:
    """The operations that a search must place: not the failed, nor what can never matter.

    An indefinite observer changes nothing and tells nothing. An indefinite write to a register
    whose value nobody looked for can be left out of any linearisation, unless a swap was refused:
    then a hidden value may be the reason.
    """
    ops = [history[i] for i in indices if history.states[i] != "fail"]
    ops = [op for op in ops if op.state == "ok" or op.f not in model.observers]
    if type(model) not in (Register, CasRegister):
        return ops
    if any(op.f == "cas" and op.state == "ok" and op.result is False for op in ops):
        return ops
    looked_for: set[Any] = {op.result for op in ops if op.f == "read"}
    looked_for |= {op.value[0] for op in ops if op.f == "cas"}
    return [op for op in ops if op.state == "ok" or _new_value(op) in looked_for]


def _new_value(op: Operation) -> Any:
    return op.value[1] if op.f == "cas" else op.value


def _stuck(ops: list[Operation], stuck_at: int, model: Model) -> Violation:
    """The operations called before the return that no order passes, less the needless looks."""
    prefix = [op for op in ops if op.call < stuck_at]
    culprit = next(op for op in prefix if op.ret == stuck_at)
    evidence = _trimmed(prefix, model) if len(prefix) <= _TRIM_LIMIT else prefix
    key = "" if culprit.key is None else f"key {culprit.key!r}: "
    text = f"{key}no order of the operations explains {culprit}"
    return Violation("not_linearizable", text, tuple(evidence))


def _trimmed(ops: list[Operation], model: Model) -> list[Operation]:
    """Leave out what only looked, one by one, while the rest is still refuted in a small search."""
    kept = list(ops)
    for op in ops:
        if op.state == "ok" and model.only_looks(op.f, op.result):
            fewer = [other for other in kept if other is not op]
            if search(fewer, model, 10_000).ok is False:
                kept = fewer
    return kept
