"""Coroutines of nodes on a real event loop: what they wait for beyond `engines.waits`.

The rules are those of the virtual kernel: a handler runs at once up to its first wait, and a task
that ends is woken with `Cancelled`. Only time is real. Parts therefore cannot see asyncio, and
awaiting something of asyncio's is a named error here as it is in virtual time.
"""

from __future__ import annotations

import types
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from orrery.base.errors import Cancelled, DeadlineExceeded
from orrery.engines.waits import Event, Lock, Queue, Task, Throw

if TYPE_CHECKING:
    from orrery.engines.processes.kernel import Kernel


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


__all__ = ["Call", "Deadline", "Event", "Lock", "Queue", "Task", "Throw"]
