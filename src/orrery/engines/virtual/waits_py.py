"""What the tasks of the pure-Python kernel wait for; twins of the awaitables in `_kernel.c`.

What a coroutine yields is either a whole number (sleep so many nanoseconds) or one of these, which
parks the task. Every wait carries the task's generation, so that a stale wake-up (a timer after a
cancellation, an answer after a deadline) is recognised and dropped without searching any queue.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from orrery.base.errors import Cancelled, DeadlineExceeded

if TYPE_CHECKING:
    from orrery.engines.virtual.kernel_py import Host, Kernel
    from orrery.engines.virtual.sending_py import Slot

DEADLINE = 3  # the mark of a deadline's entry


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

    def __init__(self, host: Host, coro: Any) -> None:
        self.host = host
        self.coro = coro
        self.gen = 0
        self.state = 0  # 0 running, 1 ended, 2 failed or cancelled
        self.value: Any = None
        self.error: BaseException | None = None
        self.joiners: list[tuple[Task, int]] | None = None
        self.call: Call | None = None  # the ask that this task answers, if it is a handler
        self.slot: Slot | None = None
        self.waits: Call | None = None

    @property
    def done(self) -> bool:
        return self.state != 0

    def cancel(self) -> None:
        """End the task: it is woken with `Cancelled` before time goes on."""
        if self.state == 0:
            self.gen += 1
            self.host._kernel.ready.append((self, self.gen, Throw(Cancelled()), None))

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
    """An `ask` that waits for its answer."""

    __slots__ = ("asker", "gen", "name", "peer", "task")

    def __init__(self, asker: Host, peer: int, name: str) -> None:
        self.asker = asker
        self.peer = peer
        self.name = name
        self.task: Task | None = None
        self.gen = -1

    def _park(self, task: Task) -> None:
        self.task = task
        self.gen = task.gen
        task.waits = self


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
        ready = self._kernel.ready
        for task, gen in self._waiters:
            ready.append((task, gen, value, None))
        self._waiters = []

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
        getters = self._getters
        while getters:
            task, gen = getters.popleft()
            if task.gen == gen:
                # The getter is marked as served, so that a second put finds the next one.
                task.gen += 1
                self._kernel.ready.append((task, task.gen, item, self))
                return
        self._items.append(item)

    def _bounce(self, item: Any) -> None:
        """An item handed to a task that was cancelled before it ran goes to the next in line."""
        getters = self._getters
        while getters:
            task, gen = getters.popleft()
            if task.gen == gen:
                task.gen += 1
                self._kernel.ready.append((task, task.gen, item, self))
                return
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
                self._kernel.ready.append((task, task.gen, None, self))
                return
        self._held = False


class Deadline:
    """`async with host.deadline(s)`: ends the block with `DeadlineExceeded`."""

    __slots__ = ("_fired", "_kernel", "_live", "_ns", "_task")

    def __init__(self, kernel: Kernel, ns: int) -> None:
        self._kernel = kernel
        self._ns = ns
        self._task: Task | None = None
        self._live = False
        self._fired = False

    def _park(self, task: Task) -> None:
        # A handler that never waited has no task yet; it gets one here and goes straight on.
        self._arm(task)
        self._kernel.ready.append((task, task.gen, None, None))

    def _arm(self, task: Task) -> None:
        kernel = self._kernel
        self._task = task
        self._live = True
        kernel.seq = seq = kernel.seq + 1
        kernel.push(kernel.now + self._ns, (seq, DEADLINE, self))

    def _expire(self) -> None:
        task = self._task
        assert task is not None
        self._fired = True
        self._live = False
        task.gen += 1
        self._kernel.ready.append((task, task.gen, Throw(Cancelled(self)), None))

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
        if self._live:
            self._live = False
            self._kernel.note_cancelled()
        if self._fired and isinstance(error, Cancelled) and error.args == (self,):
            raise DeadlineExceeded(f"deadline of {self._ns / 1e9:g} s exceeded") from None
        return
        yield


class Timer:
    """A call that the engine scheduled; `cancel()` forgets it."""

    __slots__ = ("fn", "live", "node")

    def __init__(self, fn: Callable[[], None], node: int) -> None:
        self.fn = fn
        self.live = True
        self.node = node

    def cancel(self) -> None:
        self.live = False
