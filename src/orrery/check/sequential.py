"""Sequential consistency (Lamport, 1979): one order of everything that suits every process.

Real time does not count, only each process's own order. Unlike linearizability it cannot be judged
key by key, and it is NP-complete even for unique values, so the search is for small histories.
"""

from __future__ import annotations

from typing import Any

from orrery.base.errors import SpecError
from orrery.check.history import History, Operation
from orrery.check.models import Model, Register
from orrery.check.violation import Verdict, Violation

_TRIM_LIMIT = 60


def sequentially_consistent(
    history: History, model: Model | None = None, budget: int = 200_000
) -> Verdict:
    """Judge whether a history is sequentially consistent: True, False, or None for unknown.

    An indefinite operation may take effect at any point after its process's earlier operations, or
    never. Exponential at worst; the search gives up after `budget` steps. Every key is an object of
    the model.

    >>> h = History()
    >>> h.ok(h.invoke("a", "write", "x", 1))
    >>> h.ok(h.invoke("b", "read", "x"), None)      # stale in real time, yet in order
    >>> sequentially_consistent(h).ok
    True
    """
    model = Register() if model is None else model
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
        raise SpecError("budget", f"{budget!r} is no number of steps", "give a whole number >= 0")
    ops = sorted((op for op in history if op.state != "fail"), key=lambda op: op.call)
    for op in ops:
        model.check(op.f, op.value, op.result)
    ops = [op for op in ops if op.state == "ok" or op.f not in model.observers]
    ok, explored = _search(ops, model, budget)
    if ok is not False:
        return Verdict(ok=ok, explored=explored)
    kept = list(ops)
    for op in ops if len(ops) <= _TRIM_LIMIT else ():
        # Only what cannot have changed anything may go, or the rest would prove nothing.
        if op.state == "ok" and model.only_looks(op.f, op.result):
            fewer = [other for other in kept if other is not op]
            if _search(fewer, model, 5_000)[0] is False:
                kept = fewer
    text = f"no order of {len(kept)} operations agrees with every process"
    return Verdict(
        ok=False, violation=Violation("not_sequential", text, tuple(kept)), explored=explored
    )


class _Plan:
    """The operations as one line for each process, and the indefinite ones on the side."""

    def __init__(self, ops: list[Operation]) -> None:
        by_process: dict[Any, list[Operation]] = {}
        self.maybe: list[tuple[int, int, Operation]] = []  # process, how many must be done, op
        number: dict[Any, int] = {}
        for op in ops:
            line = by_process.setdefault(op.process, [])
            who = number.setdefault(op.process, len(number))
            if op.state == "ok":
                line.append(op)
            else:
                self.maybe.append((who, len(line), op))
        self.lines = list(by_process.values())
        keys: dict[Any, int] = {}
        for op in ops:
            keys.setdefault(op.key, len(keys))
        self.keys = keys


def _search(ops: list[Operation], model: Model, budget: int) -> tuple[bool | None, int]:
    plan = _Plan(ops)
    apply, agrees = model.apply, model.agrees
    goal = tuple(len(line) for line in plan.lines)
    first = (tuple(0 for _ in goal), 0, tuple(model.initial() for _ in plan.keys))
    seen = {first}
    stack = [first]
    explored = 0
    while stack:
        places, used, states = stack.pop()
        if places == goal:
            return True, explored
        moves: list[tuple[tuple[int, ...], int, tuple[Any, ...]]] = []
        for who, line in enumerate(plan.lines):
            if places[who] == len(line):
                continue
            op = line[places[who]]
            at = plan.keys[op.key]
            explored += 1
            after, answer = apply(states[at], op.f, op.value)
            if agrees(op.f, answer, op.result):
                move = (_put(places, who, places[who] + 1), used, _put(states, at, after))
                if model.only_looks(op.f, op.result):
                    # A look that is legal now costs nothing, so no other choice is needed.
                    moves = [move]
                    break
                moves.append(move)
        else:
            for n, (who, needed, op) in enumerate(plan.maybe):
                if used >> n & 1 or places[who] < needed:
                    continue
                at = plan.keys[op.key]
                explored += 1
                after, _ = apply(states[at], op.f, op.value)
                if after != states[at]:
                    moves.append((places, used | 1 << n, _put(states, at, after)))
        for move in reversed(moves):
            if move not in seen:
                seen.add(move)
                stack.append(move)
        if explored > budget:
            return None, explored
    return False, explored


def _put(items: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*items[:at], value, *items[at + 1 :])
