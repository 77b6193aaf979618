"""What tasks wait for: events, queues, locks and each other; the same in every engine.

A coroutine is driven by `send`, and what it yields parks its task. Every wait carries the task's
generation, so that a stale wake-up (a timer after a cancellation, an answer after a deadline) is
recognised and dropped without searching any queue. A kernel gives `enqueue`, which wakes a task
before time goes on. `_kernel.c` has the same classes in C.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Generator
from typing import Any, Protocol

from orrery.base.errors import Cancelled


class Waker(Protocol):
    """What these classes need of a kernel."""

    def enqueue(self, task: Task, gen: int, value: Any, source: Any) -> None:
        """Wake the task with the value, if its generation is still this one."""


class Throw:
    """Wakes a task with an error instead of a value; also a refusal on its way back."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Task:
    """A coroutine of one node."""

    __slots__ = (
        "call", "coro", "error", "gen", "host", "joiners", "slot", "state", "value", "waits",
    )  # fmt: skip

    def __init__(self, host: Any, coro: Any) -> None:
        self.host = host
        self.coro = coro
        self.gen = 0
        self.state = 0  # 0 running, 1 ended, 2 failed or cancelled
        self.value: Any = None
        self.error: BaseException | None = None
        self.joiners: list[tuple[Task, int]] | None = None
        self.call: Any = None  # the ask that this task answers, if it is a handler
        self.slot: Any = None  # and the rpc that was asked
        self.waits: Any = None  # the ask of its own that it waits for

    @property
    def done(self) -> bool:
        return self.state != 0

    def cancel(self) -> None:
        """End the task: it is woken with `Cancelled` before anything else of its node."""
        if self.state == 0:
            self.gen += 1
            self.host._kernel.enqueue(self, self.gen, Throw(Cancelled()), None)

    def _park(self, waiter: Task) -> None:
        if self.joiners is None:
            self.joiners = []
        self.joiners.append((waiter, waiter.gen))

    def __await__(self) -> Generator[Any, Any, Any]:
        if self.state == 0:
            yield self
        if self.error is not None:
            raise self.error
        return self.value


class Event:
    """A flag that tasks wait for."""

    __slots__ = ("_flag", "_kernel", "_limit", "_value", "_waiters")

    def __init__(self, kernel: Waker) -> None:
        self._kernel = kernel
        self._flag = False
        self._value: Any = None
        self._waiters: list[tuple[Task, int]] = []
        self._limit = 32

    def set(self, value: Any = None) -> None:
        if self._flag:
            return
        self._flag = True
        self._value = value
        waiters, self._waiters = self._waiters, []
        for task, gen in waiters:
            self._kernel.enqueue(task, gen, value, None)

    def clear(self) -> None:
        self._flag = False
        self._value = None

    def is_set(self) -> bool:
        return self._flag

    def _park(self, task: Task) -> None:
        waiters = self._waiters
        waiters.append((task, task.gen))
        if len(waiters) > self._limit:  # waits that a deadline ended leave stale entries
            self._waiters = [(t, g) for t, g in waiters if t.gen == g]
            self._limit = max(32, 2 * len(self._waiters))

    @types.coroutine
    def wait(self) -> Generator[Any, Any, Any]:
        if self._flag:
            return self._value
        return (yield self)


class Queue:
    """First in, first out, between the tasks of one node."""

    __slots__ = ("_getters", "_items", "_kernel")

    def __init__(self, kernel: Waker) -> None:
        self._kernel = kernel
        self._items: deque[Any] = deque()
        self._getters: deque[tuple[Task, int]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def waiting(self) -> bool:
        """Whether a task waits for the next item."""
        return any(task.gen == gen for task, gen in self._getters)

    def put(self, item: Any) -> None:
        if not self._hand(item):
            self._items.append(item)

    def _hand(self, item: Any) -> bool:
        getters = self._getters
        while getters:
            task, gen = getters.popleft()
            if task.gen == gen:
                # The getter is marked as served, so that a second put finds the next one.
                task.gen += 1
                self._kernel.enqueue(task, task.gen, item, self)
                return True
        return False

    def _bounce(self, item: Any) -> None:
        """An item handed to a task that was cancelled before it ran goes to the next in line."""
        if not self._hand(item):
            self._items.appendleft(item)

    def _park(self, task: Task) -> None:
        self._getters.append((task, task.gen))

    @types.coroutine
    def get(self) -> Generator[Any, Any, Any]:
        if self._items:
            return self._items.popleft()
        return (yield self)


class Lock:
    """Mutual exclusion, in order of arrival."""

    __slots__ = ("_held", "_kernel", "_waiters")

    def __init__(self, kernel: Waker) -> None:
        self._kernel = kernel
        self._held = False
        self._waiters: deque[tuple[Task, int]] = deque()

    def _park(self, task: Task) -> None:
        self._waiters.append((task, task.gen))

    @types.coroutine
    def __aenter__(self) -> Generator[Any, Any, Lock]:
        if self._held:
            yield self
        self._held = True
        return self

    @types.coroutine
    def __aexit__(self, *exc: object) -> Generator[Any, Any, None]:
        self._bounce(None)
        return
        yield

    def _bounce(self, _: Any) -> None:
        waiters = self._waiters
        while waiters:
            task, gen = waiters.popleft()
            if task.gen == gen:
                task.gen += 1
                self._kernel.enqueue(task, task.gen, None, self)
                return
        self._held = False
