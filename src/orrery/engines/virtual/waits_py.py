"""What the tasks of the pure-Python kernel wait for beyond `engines.waits`: asks and deadlines."""

from __future__ import annotations

import types
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from orrery.base.errors import Cancelled, DeadlineExceeded, PartError
from orrery.engines.waits import Event, Lock, Queue, Task, Throw

if TYPE_CHECKING:
    from orrery.engines.virtual.kernel_py import Host, Kernel

DEADLINE = 3  # the mark of a deadline's entry


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
        if self._task is not None:
            raise PartError("a deadline is entered once; ask for another")
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


__all__ = [
    "DEADLINE", "Call", "Deadline", "Event", "Lock", "Queue", "Task", "Throw", "Timer",
]  # fmt: skip
