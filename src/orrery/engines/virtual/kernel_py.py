"""The event kernel in pure Python: the contract, and the twin of `_kernel.c`.

A heap of times, a bucket of entries (sequence, what, …) for each, and one queue of tasks that can
run now. Buckets fill in sequence order, so the order is (time, sequence), as in C; comparing whole
numbers instead of tuples is what makes it quick. Both kernels push the same entries in the same
order, draw the same random words and feed the same bytes to the digest; `tests/parity` holds them
to it. The waits are in `waits_py`, the network in `sending_py`.
"""

from __future__ import annotations

import struct
import types
from collections import deque
from collections.abc import Callable, Generator
from heapq import heapify, heappop, heappush
from typing import Any

from orrery.base import rand
from orrery.base.codec import size_of
from orrery.base.errors import Cancelled, PartError, Refused
from orrery.base.units import FOREVER_NS
from orrery.engines.virtual.sending_py import ARRIVED, MESSAGE, SIZES, Sending, Slot
from orrery.engines.virtual.waits_py import (
    DEADLINE,
    Call,
    Deadline,
    Event,
    Lock,
    Queue,
    Task,
    Throw,
    Timer,
)

NAME = "python"
Stream = rand.Stream

TIMER, CALL = 0, 2  # marks of heap entries, beside MESSAGE and DEADLINE
DEAD, ALIVE, PAUSED = 0, 1, 2
_ASYNC, _SENDER = 1, 2
_MASK32 = 0xFFFFFFFF
_DIGEST_EVERY = 6 * 1024


class Host:
    """What a bound node has of the kernel: time, messages, tasks."""

    # Slots, so that a crash can wipe the instance's dictionary and keep its identity.
    __slots__ = ("_index", "_kernel", "_rng", "_tasks", "id")

    _kernel: Kernel
    _index: int
    _tasks: dict[Task, None]
    _rng: Any  # made when first asked for, forgotten in a crash
    id: int

    @property
    def rng(self) -> Any:
        rng = self._rng
        if rng is None:
            rng = self._rng = self._kernel.make_rng(self._index)
        return rng

    @property
    def now(self) -> float:
        return self._kernel.now / 1e9

    @types.coroutine
    def sleep(self, s: float) -> Generator[Any, Any, None]:
        if not s >= 0:
            raise PartError(f"sleep({s!r}): give a number of seconds >= 0")
        yield int(s * 1e9 + 0.5)

    def tell(self, peer: int, method: Any, *args: Any, **kwargs: Any) -> None:
        kernel = self._kernel
        index = self._index
        if not kernel.state[index]:  # dead: only its clean-up still speaks
            return
        try:
            slot = kernel.host_slots[peer][method]
        except (KeyError, TypeError):
            slot = kernel.slot(peer, method)
        if kwargs or len(args) != slot.n_params:
            args = slot.rpc.arguments(args, kwargs)
        plain = kernel.plain
        if plain is None or peer == index:
            kernel.post(index, peer, slot, args, None)
            return
        # The same arithmetic as `send`, for a uniform network with nothing special on it.
        size, latency, drop32, ns_per_byte = plain
        try:
            for item in args:
                size += SIZES[type(item)]
        except KeyError:
            size = plain[0] - 4 + size_of(args)
        kernel.sizes.append(size)
        if drop32:
            draws = kernel._draws[index]
            if ((draws.pop() if draws else kernel._draw(index)) >> 32) < drop32:
                return
        now = when = kernel.now
        if ns_per_byte:
            nic_free = kernel._nic_free
            free = nic_free[index]
            if free > now:
                when = free
            busy = kernel.busy_ns.get(size)
            if busy is None:
                busy = kernel.busy_ns[size] = int(size * ns_per_byte)
            nic_free[index] = when = when + busy
        kernel.seq = seq = kernel.seq + 1
        when += latency
        entry = (seq, MESSAGE, index, peer, slot, args, None, False, size, now)
        bucket = kernel.buckets.get(when)
        if bucket is None:
            kernel.buckets[when] = [entry]
            heappush(kernel.times, when)
        else:
            bucket.append(entry)

    @types.coroutine
    def ask(self, peer: int, method: Any, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        kernel = self._kernel
        index = self._index
        slot = kernel.slot(peer, method)
        if kwargs or len(args) != slot.n_params:
            args = slot.rpc.arguments(args, kwargs)
        call = Call(self, peer, slot.name)
        if kernel.state[index] != DEAD:
            kernel.post(index, peer, slot, args, call)
        return (yield call)

    def deadline(self, s: float) -> Deadline:
        if not s >= 0:
            raise PartError(f"deadline({s!r}): give a number of seconds >= 0")
        return Deadline(self._kernel, int(s * 1e9 + 0.5))

    def spawn(self, task: Any) -> Task:
        kernel = self._kernel
        if not hasattr(task, "send"):
            task = _drive(task)
        made = Task(self, task)
        if kernel.state[self._index] == DEAD:
            task.close()
            made.state = 2
            return made
        self._tasks[made] = None
        kernel.ready.append((made, 0, None, None))
        return made

    def event(self) -> Event:
        return Event(self._kernel)

    def queue(self) -> Queue:
        return Queue(self._kernel)

    def lock(self) -> Lock:
        return Lock(self._kernel)

    def emit(self, **values: Any) -> None:
        kernel = self._kernel
        if kernel.state[self._index] != DEAD:
            kernel.on_emit(kernel.now, self.id, values)


async def _drive(awaitable: Any) -> Any:
    return await awaitable


class Kernel(Sending):
    """Events in time order, messages over a modelled network, tasks that belong to nodes."""

    def __init__(
        self,
        hosts: int,
        net_keys: list[int],
        hasher: Any,
        resolve: Callable[[type, Any], Any],
        on_emit: Callable[[int, int, dict[str, Any]], None],
    ) -> None:
        super().__init__(hosts, net_keys, resolve)
        self.now = 0
        self.seq = 0
        self.events = 0
        self.ready: deque[Any] = deque()
        self.current: Task | None = None
        self.hosts: list[Host | None] = [None] * hosts
        self.state = bytearray(b"\x01" * hosts)
        self.failure: tuple[int, BaseException] | None = None
        self.stopped = False
        self.halted = False  # stopped or failed: one flag for the loop to look at
        self.on_emit = on_emit
        self.make_rng: Callable[[int], Any] = lambda index: Stream(0, index, "node")
        self.trace: list[Any] | None = None
        self._hasher = hasher
        self._buffer: list[int] = []
        self._delivered = 0
        self._cancelled = 0
        self._paused: dict[int, list[Any]] = {}
        # The constants of a network on which every message travels alike, or None.
        self.plain: tuple[int, int, int, float] | None = None
        self.busy_ns: dict[int, int] = {}  # size -> how long it keeps the line, on that network

    # -- identity and life of hosts

    def bind(self, host: Host, index: int, public_id: int) -> None:
        host._kernel = self
        host._index = index
        host._tasks = {}
        host._rng = None
        host.id = public_id
        self.hosts[index] = host
        self.host_slots[index] = self.class_slots.setdefault(type(host), {})

    def add_host(self, net_key: int) -> int:
        """Room for one more host (a twin, say); gives its index."""
        self.hosts.append(None)
        self.state.append(ALIVE)
        self._grow_network(net_key)
        return len(self.hosts) - 1

    def kill(self, index: int) -> None:
        """End every task of a node, in order of creation; nothing of it runs again."""
        host = self.hosts[index]
        self.state[index] = DEAD
        self._paused.pop(index, None)
        if host is None:
            return
        host._rng = None
        tasks, host._tasks = list(host._tasks), {}
        for task in tasks:
            task.gen += 1
            task.state = 2
            try:
                task.coro.close()
            except Exception:
                pass  # a dying node's clean-up may fail; it is dead all the same

    def revive(self, index: int) -> None:
        self.state[index] = ALIVE

    def pause(self, index: int) -> None:
        if self.state[index] == ALIVE:
            self.state[index] = PAUSED
            self._paused.setdefault(index, [])

    def resume(self, index: int) -> None:
        """Everything that waited for a paused node happens now, in its order."""
        if self.state[index] != PAUSED:
            return
        self.state[index] = ALIVE
        for entry in self._paused.pop(index, []):
            self.seq += 1
            self.push(self.now, (self.seq, *entry[1:]))

    def enqueue(self, task: Task, gen: int, value: Any, source: Any) -> None:
        """Wake a task before time goes on, unless its generation has changed by then."""
        self.ready.append((task, gen, value, source))

    # -- time

    def call_at(self, when: int, fn: Callable[[], None], node: int = -1) -> Timer:
        """Call `fn()` at an absolute time (not before now); a dead node's calls are dropped."""
        timer = Timer(fn, node)
        self.seq = seq = self.seq + 1
        self.push(max(when, self.now), (seq, CALL, timer))
        return timer

    def note_cancelled(self) -> None:
        """Count dead deadlines, and sweep them when they are most of the heap."""
        self._cancelled += 1
        if self._cancelled > 1024 and self._cancelled * 2 > len(self.times):
            now = self.now
            for when, bucket in self.buckets.items():
                if when != now:  # the main loop is reading that one
                    bucket[:] = [e for e in bucket if e[1] != DEADLINE or e[2]._live]
            gone = {when for when, bucket in self.buckets.items() if not bucket and when != now}
            for when in gone:
                del self.buckets[when]
            # In place: the main loop holds a reference to this very list.
            self.times[:] = [when for when in self.times if when not in gone]
            heapify(self.times)
            self._cancelled = 0

    def stop(self) -> None:
        self.stopped = self.halted = True

    def open_asks(self) -> list[tuple[int, int, str]]:
        """The (asker, asked, method) of every ask that still waits."""
        found = []
        for host in self.hosts:
            for task in host._tasks if host is not None else ():
                call = task.waits
                if call is not None and call.gen == task.gen:
                    found.append((call.asker.id, call.peer, call.name))
        return found

    @property
    def delivered(self) -> int:
        """How many messages have reached a living node."""
        return self._delivered + len(self._buffer) // 6

    def digest_flush(self) -> None:
        self._delivered += len(self._buffer) // 6
        self._count_sizes()
        self._hasher.update(struct.pack(f"<{len(self._buffer)}q", *self._buffer))
        self._buffer.clear()

    # -- the loop

    def _refresh(self) -> None:
        """Whether `tell` may take its short path; only the engine's own calls can change it."""
        plain = (
            self.mode == 0 and self.wire is None and self.charge is None
            and not self.cut and 1 not in self.special
            and not self.jitter_ns and (self.egress or not self.ns_per_byte)
            # The driver is never told anything, but its own messages are not lost.
            and (not self.drop32 or self.hosts[-1] is None or self.immune >= len(self.hosts))
        )  # fmt: skip
        self.busy_ns = {}
        self.plain = (
            (self.header + 4, self.latency_ns, self.drop32, self.ns_per_byte) if plain else None
        )

    def run(self, until_ns: int = FOREVER_NS, max_events: int = FOREVER_NS) -> str:
        """Run events until the time, a stop, a failure, or quiet; says which."""
        times, buckets, ready = self.times, self.buckets, self.ready
        limit = self.events + max_events if max_events < FOREVER_NS else FOREVER_NS
        self._refresh()
        try:
            while True:
                while ready:
                    self._run_ready(*ready.popleft())
                ended = self._ended(limit)
                if ended:
                    return ended
                if not times:
                    return "quiet"
                when = times[0]
                if when > until_ns:
                    self.now = until_ns
                    return "until"
                heappop(times)
                bucket = buckets[when]
                done = self._run_bucket(when, bucket, limit)
                if done == len(bucket):
                    del buckets[when]
                else:
                    buckets[when] = bucket[done:]
                    heappush(times, when)
        finally:
            self.digest_flush()

    def _ended(self, limit: int) -> str:
        if self.failure is not None:
            return "failed"
        if self.stopped:
            return "stopped"
        return "budget" if self.events >= limit else ""

    def _run_bucket(self, when: int, bucket: list[Any], limit: int) -> int:
        """Everything of one instant, in order; the bucket may grow meanwhile. How many ran."""
        ready, state, hosts, buffer = self.ready, self.state, self.hosts, self._buffer
        watched = self.trace is not None or self.wire is not None
        charge = self.charge
        events, alive = self.events, ALIVE
        done = 0
        for entry in bucket:
            done += 1
            what = entry[1]
            if what == MESSAGE:
                seq, _, src, dst, slot, args, call, is_reply, size, sent = entry
                self.now = when
                if state[dst] != alive:
                    self._not_alive(dst, entry)
                    continue
                if charge is not None and src != dst:
                    wait = charge(dst, size, True)
                    if wait > 0:  # the receiver's processor has to take it in first
                        self.seq += 1
                        self.push(when + wait, (self.seq, ARRIVED, *entry[2:]))
                        continue
                events += 1
                if is_reply or watched or slot.flags:
                    self._deliver(seq, src, dst, slot, args, call, is_reply, size, sent)
                else:  # a handler that never waits and wants no sender: the common short path
                    buffer.extend((when, seq, src, dst, slot.mark, size))
                    try:
                        if slot.n_params == 1:  # a call with a star costs a tuple more
                            result = slot.fn(hosts[dst], args[0])
                        else:
                            result = slot.fn(hosts[dst], *args)
                    except Exception as error:
                        self._refuse(dst, slot, call, error)
                    else:
                        if call is not None:
                            self.reply(dst, call, slot, result)
            elif what == TIMER:
                task = entry[2]
                if task.gen != entry[3]:
                    continue
                index = task.host._index
                if state[index] != alive:
                    self._not_alive(index, entry)
                    continue
                self.now = when
                events += 1
                self._resume(task, None)
            else:
                events += self._rarer(when, entry)
            while ready:
                self._run_ready(*ready.popleft())
            if self.halted or events >= limit:
                break
        self.events = events
        if len(buffer) >= _DIGEST_EVERY:
            self.digest_flush()
        return done

    def _rarer(self, when: int, entry: Any) -> int:
        """A call, the end of a deadline, a message taken in. How many events: none or one."""
        what, target = entry[1], entry[2]
        if what == ARRIVED:
            self.now = when
            dst = entry[3]
            if self.state[dst] != ALIVE:
                self._not_alive(dst, entry)
                return 0
            self._deliver(entry[0], *entry[2:])
            return 1
        if what == CALL:
            if not target.live:
                return 0
            index = target.node
        else:
            if not target._live:
                self._cancelled -= 1
                return 0
            index = target._task.host._index
        if index >= 0 and self.state[index] != ALIVE:
            self._not_alive(index, entry)
            return 0
        self.now = when
        if what == CALL:
            target.live = False
            target.fn()
            self._refresh()
        else:
            target._expire()
        return 1

    def _not_alive(self, index: int, entry: Any) -> None:
        if self.state[index] == PAUSED:
            self._paused[index].append(entry)

    def _deliver(
        self, seq: int, src: int, dst: int, slot: Slot, args: Any, call: Call | None,
        is_reply: bool, size: int, sent: int,
    ) -> None:  # fmt: skip
        now = self.now
        mark = slot.mark ^ _MASK32 if is_reply else slot.mark
        self._buffer.extend((now, seq, src, dst, mark, size))
        if self.trace is not None:
            self.trace.append((sent, now, seq, src, dst, slot.name, size, is_reply))
        if self.wire is not None:
            self.digest_flush()
            self._hasher.update(args)
            args = self.wire[1](slot, args, is_reply)
        if is_reply:
            assert call is not None
            task = call.task
            if task is not None and task.gen == call.gen:
                self._resume(task, args)
            return
        host = self.hosts[dst]
        assert host is not None
        flags = slot.flags
        if flags & _SENDER:
            args = (*args, src)
        self.current = None
        try:
            result = slot.fn(host, *args)
            if flags & _ASYNC:
                try:
                    wanted = result.send(None)
                except StopIteration as end:
                    result = end.value
                else:
                    task = Task(host, result)
                    task.call = call
                    task.slot = slot
                    host._tasks[task] = None
                    self._park(task, wanted)
                    return
        except Exception as error:
            self._refuse(dst, slot, call, error)
            return
        if call is not None:
            self.reply(dst, call, slot, result)

    def _refuse(self, dst: int, slot: Slot, call: Call | None, error: Exception) -> None:
        """A handler raised: a refusal goes back to who asked, anything else ends the run."""
        if call is not None and isinstance(error, Refused):
            self.reply(dst, call, slot, Throw(error))
        else:
            self._fail(self.hosts[dst], error)

    def _run_ready(self, task: Task, gen: int, value: Any, source: Any) -> None:
        if task.gen != gen or task.state:
            if source is not None and task.host._kernel.state[task.host._index] != DEAD:
                source._bounce(value)
            return
        index = task.host._index
        state = self.state[index]
        if state == ALIVE:
            self._resume(task, value)
        elif state == PAUSED:
            self._paused[index].append((0, CALL, Timer(
                lambda: self._run_ready(task, gen, value, source), index)))  # fmt: skip

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

    def _park(self, task: Task, wanted: Any) -> None:
        if type(wanted) is int:
            self.seq = seq = self.seq + 1
            when = self.now + wanted
            bucket = self.buckets.get(when)
            if bucket is None:
                self.buckets[when] = [(seq, TIMER, task, task.gen)]
                heappush(self.times, when)
            else:
                bucket.append((seq, TIMER, task, task.gen))
            return
        try:
            park = wanted._park
        except AttributeError:
            self._end(task, None, PartError(
                f"a node awaited {wanted!r}, which is not of this engine; await only what "
                "self gives (no asyncio, no threads)"))  # fmt: skip
            task.coro.close()
            return
        park(task)

    def _end(self, task: Task, value: Any, error: BaseException | None) -> None:
        task.gen += 1
        task.state = 1 if error is None else 2
        task.value = value
        task.error = error
        host = task.host
        host._tasks.pop(task, None)
        self.current = None
        if task.call is not None and (error is None or isinstance(error, Refused)):
            assert task.slot is not None
            self.reply(host._index, task.call, task.slot, value if error is None else Throw(error))
        elif error is not None and task.joiners is None and not isinstance(error, Cancelled):
            self._fail(host, error)
        if task.joiners:
            ready = self.ready
            for waiter, gen in task.joiners:
                ready.append((waiter, gen, None, None))

    def _fail(self, host: Any, error: BaseException) -> None:
        """An unhandled error of a part ends the run."""
        if self.failure is None:
            self.failure = (host.id, error)
            self.halted = True
