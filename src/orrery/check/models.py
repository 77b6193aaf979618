"""Sequential objects: what each operation does when it runs alone.

A model is deterministic: from a state and an operation it gives the next state and the answer. That
is all a linearizability checker needs to know of an object. States are hashable and never change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any

from orrery.base.errors import SpecError, did_you_mean


class _Anything:
    """The answer of an operation that tells nothing, such as a write: every result agrees."""

    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING = _Anything()


class Model(ABC):
    """A deterministic sequential object.

    `operations` are the words it understands. `observers` are those that never change the state.
    """

    operations: tuple[str, ...] = ()
    observers: tuple[str, ...] = ()

    @abstractmethod
    def initial(self) -> Hashable:
        """The state before the first operation."""

    @abstractmethod
    def apply(self, state: Any, f: str, value: Any) -> tuple[Any, Any]:
        """The next state and the answer."""

    def agrees(self, f: str, answer: Any, result: Any) -> bool:
        """Whether a recorded result is the model's answer."""
        return answer is ANYTHING or answer == result

    def only_looks(self, f: str, result: Any) -> bool:
        """Whether an operation with this result changed nothing, whatever the state was."""
        return f in self.observers

    def check(self, f: str, value: Any, result: Any = None) -> None:
        """Refuse an operation that the object does not understand."""
        if f not in self.operations:
            raise SpecError(
                "f",
                f"{type(self).__name__} has no operation {f!r}",
                did_you_mean(f, self.operations),
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Register(Model):
    """A variable: `write` value, `read` -> value. It starts as `start`."""

    operations: tuple[str, ...] = ("read", "write")
    observers = ("read",)

    def __init__(self, start: Hashable = None) -> None:
        self.start = start

    def initial(self) -> Hashable:
        return self.start

    def apply(self, state: Any, f: str, value: Any) -> tuple[Any, Any]:
        return (state, state) if f == "read" else (value, ANYTHING)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.start!r})"


class CasRegister(Register):
    """A register with `cas` (expected, new) -> bool.

    ``ok(op, True)`` or ``ok(op)`` is a swap that happened; ``ok(op, False)`` says that the register
    held something else. ``fail(op)`` says only that the swap did not happen.
    """

    operations = ("read", "write", "cas")

    def apply(self, state: Any, f: str, value: Any) -> tuple[Any, Any]:
        if f == "read":
            return state, state
        if f == "write":
            return value, ANYTHING
        expected, new = value
        return (new, True) if state == expected else (state, False)

    def agrees(self, f: str, answer: Any, result: Any) -> bool:
        if f == "cas" and result is None:
            return answer is True
        return answer is ANYTHING or answer == result

    def only_looks(self, f: str, result: Any) -> bool:
        return f == "read" or (f == "cas" and result is False)

    def check(self, f: str, value: Any, result: Any = None) -> None:
        super().check(f, value, result)
        if f == "cas" and not (isinstance(value, tuple) and len(value) == 2):
            raise SpecError("value", f"cas of {value!r}", "give the pair (expected, new)")
        if f == "cas" and not (result is None or isinstance(result, bool)):
            raise SpecError("result", f"cas -> {result!r}", "give True, False or None")


class Queue(Model):
    """First in, first out: `enqueue` value, `dequeue` -> value, or None when empty."""

    operations = ("enqueue", "dequeue")

    def initial(self) -> Hashable:
        return ()

    def apply(self, state: Any, f: str, value: Any) -> tuple[Any, Any]:
        if f == "enqueue":
            return (*state, value), ANYTHING
        return (state[1:], state[0]) if state else (state, None)


class Stack(Model):
    """Last in, first out: `push` value, `pop` -> value, or None when empty."""

    operations = ("push", "pop")

    def initial(self) -> Hashable:
        return ()

    def apply(self, state: Any, f: str, value: Any) -> tuple[Any, Any]:
        if f == "push":
            return (*state, value), ANYTHING
        return (state[:-1], state[-1]) if state else (state, None)


class Counter(Model):
    """A number: `add` amount, `fetch_add` amount -> the number before, `read` -> the number."""

    operations = ("add", "fetch_add", "read")
    observers = ("read",)

    def initial(self) -> Hashable:
        return 0

    def apply(self, state: Any, f: str, value: Any) -> tuple[Any, Any]:
        if f == "read":
            return state, state
        return state + value, (ANYTHING if f == "add" else state)

    def check(self, f: str, value: Any, result: Any = None) -> None:
        super().check(f, value, result)
        if f != "read" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise SpecError("value", f"{f} of {value!r}", "give the amount as a number")


class SetModel(Model):
    """A set: `add` and `remove` value, `contains` value -> bool, `read` -> frozenset."""

    operations = ("add", "remove", "contains", "read")
    observers = ("contains", "read")

    def initial(self) -> Hashable:
        return frozenset()

    def apply(self, state: Any, f: str, value: Any) -> tuple[Any, Any]:
        if f == "add":
            return state | {value}, ANYTHING
        if f == "remove":
            return state - {value}, ANYTHING
        return (state, value in state) if f == "contains" else (state, state)

    def agrees(self, f: str, answer: Any, result: Any) -> bool:
        if f == "read" and isinstance(result, tuple):
            return len(result) == len(answer) and frozenset(result) == answer
        return super().agrees(f, answer, result)


class Mutex(Model):
    """A lock: `acquire` and `release` by the value, which names the holder; each -> bool.

    An answer of False says that it was refused. An ``ok`` without a result counts as True.
    """

    operations = ("acquire", "release")

    def initial(self) -> Hashable:
        return None

    def apply(self, state: Any, f: str, value: Any) -> tuple[Any, Any]:
        if f == "acquire":
            return (("held", value), True) if state is None else (state, False)
        return (None, True) if state == ("held", value) else (state, False)

    def agrees(self, f: str, answer: Any, result: Any) -> bool:
        return answer is (result is None or result is True)

    def only_looks(self, f: str, result: Any) -> bool:
        return result is False
