"""Calls of `compute` that are made at once: many replicas of a model cost one pass over a stack.

A computation in virtual time has a beginning and an end, and nobody sees its value before the end.
So a call whose function says how many of it are made `together` waits in a batch, and the first
call of the batch that ends makes them all. A call keeps a copy of its arrays, as they were when it
began. Which calls share a batch changes no value, because `together` promises the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# So many are made at once at most: the stack of their arrays should stay within the caches.
MOST = 64


class _Call:
    __slots__ = ("args", "done", "error", "value")

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = args
        self.done = False
        self.value: Any = None
        self.error: Exception | None = None


class Together:
    """The open batches of a run, by function."""

    def __init__(self) -> None:
        self._open: dict[Any, list[_Call]] = {}

    def add(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kw: dict[str, Any]
    ) -> Callable[[], Any] | None:
        """A function that gives the value when it is time, or None where calls go one by one."""
        many = getattr(fn, "__together__", None)
        if many is None or kw:
            return None
        owner = getattr(fn, "__self__", None)
        held = tuple(arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args)
        call = _Call(held if owner is None else (owner, *held))
        # Objects that can be taken together say so by an equal `alike`.
        key = getattr(fn, "__func__", fn), getattr(owner, "alike", None)
        batch = self._open.setdefault(key, [])
        batch.append(call)
        if len(batch) == MOST:
            del self._open[key]

        def value() -> Any:
            if not call.done:
                if self._open.get(key) is batch:
                    del self._open[key]
                _make(many, batch)
            if call.error is not None:
                raise call.error
            return call.value

        return value


def _make(many: Callable[..., Any], calls: list[_Call]) -> None:
    """Give every call its value; an error is the error of them all."""
    for call in calls:
        call.done = True
    try:
        values = list(many([call.args for call in calls]))
    except Exception as error:
        for call in calls:
            call.error = error
        return
    for call, value in zip(calls, values, strict=True):
        call.value = value
