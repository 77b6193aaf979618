"""The event kernel of one process: runs the tasks of its nodes on the asyncio loop.

One heap of timers, one queue of tasks that can run now, one pump that the loop calls. Nodes that
are held (not started yet, or hung by a fault) keep what happens to them for later, in its order.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from orrery.base.errors import Cancelled, PartError, Refused
from orrery.engines.processes.clock import Alarm
from orrery.engines.processes.tasks import Task, Throw

# How much runs before sockets are served again.
_BATCH = 512
# Timers that were cancelled are swept out when there are many of them.
_SWEEP_AT = 1024


class Timer:
    """A call that is due; `cancel()` forgets it."""

    __slots__ = ("fn", "host", "kernel", "live")

    def __init__(self, kernel: Kernel, fn: Callable[[], None], host: Any) -> None:
        self.kernel = kernel
        self.fn = fn
        self.host = host
        self.live = True

    def cancel(self) -> None:
        if self.live:
            self.live = False
            self.kernel.note_cancelled()


class Kernel:
    """Tasks, timers and deliveries of the nodes of one process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_failure: Callable[[Any, BaseException], None],
        on_answer: Callable[[Any, Any, Any], None],
    ) -> None:
        self.loop = loop
        self.start_ns = time.monotonic_ns()
        self.ready: deque[tuple[Task, int, Any, Any]] = deque()
        self.current: Task | None = None
        self.busy = 0  # waits for the machine itself: disk, store, frames not sent yet
        self.steps = 0
        self.hosts: list[Any] = []
        self.closed = False
        self._heap: list[tuple[int, int, Any, Any]] = []
        self._seq = 0
        self._cancelled = 0
        self._scheduled = False
        self._pumping = False
        self._alarm = Alarm(loop, self._pump)
        self._on_failure = on_failure
        self._on_answer = on_answer

    # -- time

    def now_ns(self) -> int:
        """Nanoseconds since the common start of the run."""
        return time.monotonic_ns() - self.start_ns

    def call_at(self, due_ns: int, fn: Callable[[], None], host: Any = None) -> Timer:
        """Call `fn()` at a time of the run; a call for a held node waits with its node."""
        timer = Timer(self, fn, host)
        self._push(due_ns, timer, None)
        return timer

    def _push(self, due_ns: int, what: Any, gen: Any) -> None:
        self._seq += 1
        heapq.heappush(self._heap, (due_ns, self._seq, what, gen))
        if not self._pumping:
            self._arm()

    def note_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > _SWEEP_AT and 2 * self._cancelled > len(self._heap):
            self._heap = [e for e in self._heap if type(e[2]) is not Timer or e[2].live]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def _arm(self) -> None:
        if self._heap and not self.closed:
            self._alarm.set(self._heap[0][0] + self.start_ns)

    # -- tasks

    def enqueue(self, task: Task, gen: int, value: Any, source: Any) -> None:
        self.ready.append((task, gen, value, source))
        self.wake()

    def wake(self) -> None:
        if not (self._scheduled or self._pumping or self.closed):
            self._scheduled = True
            self.loop.call_soon(self._pump)

    def spawn(self, host: Any, coro: Any) -> Task:
        if not hasattr(coro, "send"):
            coro = _drive(coro)
        task = Task(host, coro)
        if self.closed:
            coro.close()
            task.state = 2
            return task
        host._tasks[task] = None
        self.enqueue(task, 0, None, None)
        return task

    def _pump(self) -> None:
        if self._pumping or self.closed:
            return
        self._scheduled = False
        self._pumping = True
        ready, left = self.ready, _BATCH
        try:
            while left > 0:
                now = self.now_ns()
                while self._heap and self._heap[0][0] <= now and left > 0:
                    left -= 1
                    self._fire(heapq.heappop(self._heap))
                if not ready:
                    break
                while ready and left > 0:
                    left -= 1
                    self._run_ready(*ready.popleft())
        finally:
            self._pumping = False
            self.steps += 1
        if ready:
            self.wake()
        self._arm()

    def _fire(self, entry: tuple[int, int, Any, Any]) -> None:
        _, _, what, gen = entry
        if type(what) is Timer:
            if not what.live:
                self._cancelled -= 1
                return
            host = what.host
            if host is not None and host._held is not None:
                host._held.append(lambda: self._fire(entry))
                return
            what.live = False
            what.fn()
            return
        if what.gen == gen:
            if what.host._held is not None:
                what.host._held.append(lambda: self._fire(entry))
                return
            self._resume(what, None)

    def _run_ready(self, task: Task, gen: int, value: Any, source: Any) -> None:
        if task.gen != gen or task.state:
            if source is not None:
                source._bounce(value)
            return
        held = task.host._held
        if held is not None:
            held.append(lambda: self._run_ready(task, gen, value, source))
            return
        self._resume(task, value)

    def _resume(self, task: Task, value: Any) -> None:
        task.gen += 1
        self.current = task
        try:
            if type(value) is Throw:
                wanted = task.coro.throw(value.error)
            else:
                wanted = task.coro.send(value)
        except StopIteration as end:
            self._end(task, end.value, None)
        except (Cancelled, Exception) as error:
            self._end(task, None, error)
        else:
            self._park(task, wanted)
        finally:
            self.current = None

    def _park(self, task: Task, wanted: Any) -> None:
        if type(wanted) is int:
            self._push(self.now_ns() + wanted, task, task.gen)
            return
        try:
            park = wanted._park
        except AttributeError:
            task.coro.close()
            self._end(task, None, PartError(
                f"a node awaited {wanted!r}, which is not of this engine; await only what "
                "self.… gives (no asyncio, no threads)"))  # fmt: skip
            return
        park(task)

    def _end(self, task: Task, value: Any, error: BaseException | None) -> None:
        task.gen += 1
        task.state = 1 if error is None else 2
        task.value = value
        task.error = error
        host = task.host
        host._tasks.pop(task, None)
        if task.call is not None and (error is None or isinstance(error, Refused)):
            self._answer(host, task.call, value if error is None else Throw(error))
        elif error is not None and task.joiners is None and not isinstance(error, Cancelled):
            self._on_failure(host, error)
        for waiter, gen in task.joiners or ():
            self.enqueue(waiter, gen, None, None)

    def _answer(self, host: Any, answers: Any, result: Any) -> None:
        try:
            self._on_answer(host, answers, result)
        except Exception as error:  # a value that cannot travel is the part's error
            self._on_failure(host, error)

    # -- messages

    def deliver(self, host: Any, rpc: Any, args: tuple[Any, ...], answers: Any) -> None:
        """Run a handler now, up to its first wait; `answers` is the ask to be answered, if any."""
        if host._held is not None:
            host._held.append(lambda: self.deliver(host, rpc, args, answers))
            return
        self.current = None
        try:
            result = rpc.fn(host, *args)
            if rpc.flags & 1:
                try:
                    wanted = result.send(None)
                except StopIteration as end:
                    result = end.value
                else:
                    task = Task(host, result)
                    task.call = answers
                    host._tasks[task] = None
                    self._park(task, wanted)
                    return
        except Refused as no:
            if answers is None:
                self._on_failure(host, no)
                return
            result = Throw(no)
        except Exception as error:
            self._on_failure(host, error)
            return
        if answers is not None:
            self._answer(host, answers, result)

    # -- holding and ending

    def hold(self, host: Any) -> None:
        """Whatever happens to the node from now on waits."""
        if host._held is None:
            host._held = []

    def release(self, host: Any) -> None:
        """What waited happens now, in its order."""
        held, host._held = host._held, None
        for again in held or ():
            if host._held is not None:
                host._held.append(again)
            else:
                again()
        self.wake()

    @property
    def idle(self) -> bool:
        """Whether nothing can happen here unless a message comes in."""
        if self.ready or self.busy or any(host._held for host in self.hosts):
            return False
        return not any((type(w) is Timer and w.live) or (type(w) is Task and w.gen == g)
                       for _, _, w, g in self._heap)  # fmt: skip

    def open_asks(self) -> list[tuple[int, int, str]]:
        """The (asker, asked, method) of every ask that still waits."""
        found = []
        for host in self.hosts:
            for task in host._tasks:
                call = task.waits
                if call is not None and call.gen == task.gen and call.peer >= 0 and call.name:
                    found.append((host.id, call.peer, call.name))
        return found

    def close(self) -> None:
        """End what still waits, so that no coroutine outlives its run."""
        self.closed = True
        self._alarm.close()
        for host in self.hosts:
            tasks, host._tasks = list(host._tasks), {}
            for task in tasks:
                task.gen += 1
                task.state = 2
                try:
                    task.coro.close()
                except Exception:
                    pass  # clean-up code of a part that is being ended may fail; it ends anyway


async def _drive(awaitable: Any) -> Any:
    return await awaitable
