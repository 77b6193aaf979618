"""Coroutines of nodes on a real event loop: the tasks, events, queues, locks and deadlines.

The twin of the virtual kernel, with the same rules: a coroutine is driven by `send`, what it yields
parks it, every wait carries the task's generation so that a stale wake-up is dropped, a handler
runs at once up to its first wait, and a task that ends is woken with `Cancelled`. Only time is
real. Parts therefore cannot see asyncio, and awaiting something of asyncio's is a named error here
as it is in virtual time.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from orrery.base.errors import Cancelled, DeadlineExceeded

if TYPE_CHECKING:
    from orrery.engines.processes.kernel import Kernel


class Throw:
    """Wakes a task with an error instead of a value."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Task:
    """A coroutine of one node."""

    __slots__ = ("answers", "coro", "error", "gen", "host", "joiners", "state", "value", "waits")

    def __init__(self, host: Any, coro: Any) -> None:
        self.host = host
        self.coro = coro
        self.gen = 0
        self.state = 0  # 0 running, 1 ended, 2 failed or cancelled
        self.value: Any = None
        self.error: BaseException | None = None
        self.joiners: list[tuple[Task, int]] | None = None
        self.answers: Any = None  # the incoming ask that this task answers, if it is a handler
        self.waits: Call | None = None

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


class Call:
    """Something outside the kernel that one task waits for: an answer, a write, a transfer."""

    __slots__ = ("busy", "early", "gen", "kernel", "name", "number", "peer", "task")

    def __init__(self, kernel: Kernel, peer: int = -1, name: str = "", busy: bool = False) -> None:
        self.kernel = kernel
        self.peer = peer
        self.name = name
        self.number = 0
        self.task: Task | None = None
        self.early: tuple[Any] | None = None  # the value, when it came before the wait began
        self.gen = -1
        # Whether the machine itself is at work for it, so that a waiting node is not a quiet one.
        self.busy = busy
        if busy:
            kernel.busy += 1

    def _park(self, task: Task) -> None:
        self.task = task
        self.gen = task.gen
        task.waits = self

    def resolve(self, value: Any) -> None:
        """Wake the task that waits, if it still does."""
        if self.busy:
            self.busy = False
            self.kernel.busy -= 1
        if self.task is None:
            self.early = (value,)
        else:
            self.kernel.enqueue(self.task, self.gen, value, None)

    @types.coroutine
    def wait(self) -> Generator[Any, Any, Any]:
        if self.early is None:
            return (yield self)
        (value,) = self.early
        if type(value) is Throw:
            raise value.error
        return value


class Event:
    """A flag that tasks wait for."""

    __slots__ = ("_flag", "_kernel", "_limit", "_value", "_waiters")

    def __init__(self, kernel: Kernel) -> None:
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

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._items: deque[Any] = deque()
        self._getters: deque[tuple[Task, int]] = deque()

    def __len__(self) -> int:
        return len(self._items)

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

    def __init__(self, kernel: Kernel) -> None:
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


class Deadline:
    """`async with host.deadline(s)`: ends the block with `DeadlineExceeded`."""

    __slots__ = ("_fired", "_kernel", "_ns", "_task", "_timer")

    def __init__(self, kernel: Kernel, ns: int) -> None:
        self._kernel = kernel
        self._ns = ns
        self._task: Task | None = None
        self._timer: Any = None
        self._fired = False

    def _park(self, task: Task) -> None:
        # A handler that never waited has no task yet; it gets one here and goes straight on.
        self._arm(task)
        self._kernel.enqueue(task, task.gen, None, None)

    def _arm(self, task: Task) -> None:
        self._task = task
        kernel = self._kernel
        self._timer = kernel.call_at(kernel.now_ns() + self._ns, self._expire, task.host)

    def _expire(self) -> None:
        task = self._task
        assert task is not None
        self._fired = True
        self._timer = None
        task.gen += 1
        self._kernel.enqueue(task, task.gen, Throw(Cancelled(self)), None)

    @types.coroutine
    def __aenter__(self) -> Generator[Any, Any, Deadline]:
        task = self._kernel.current
        if task is None:
            yield self
        else:
            self._arm(task)
        return self

    @types.coroutine
    def __aexit__(self, kind: Any, error: Any, trace: Any) -> Generator[Any, Any, None]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fired and isinstance(error, Cancelled) and error.args == (self,):
            raise DeadlineExceeded(f"deadline of {self._ns / 1e9:g} s exceeded") from None
        return
        yield
