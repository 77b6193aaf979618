"""`Place`: one process of a run, with its kernel, its post office and the nodes that live there.

The parent's place holds the driver; a child's place holds its nodes. They differ only in where
reports go, so everything that a node can touch is here once.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from orrery.base.rand import Stream
from orrery.engines.bind import bound_class
from orrery.engines.processes.arena import Arena
from orrery.engines.processes.bulk import Bulk
from orrery.engines.processes.clock import SkewedClock
from orrery.engines.processes.disk import RealDisk
from orrery.engines.processes.host import ProcessHost
from orrery.engines.processes.kernel import Kernel
from orrery.engines.processes.post import Post
from orrery.engines.processes.spec import Counters, RunSpec
from orrery.engines.processes.tasks import Call
from orrery.world import BitFlip, Crash, PowerCap, SpotReclaim, Straggler


class Place:
    """What the nodes of one process stand on."""

    part: Any = None

    def __init__(
        self,
        spec: RunSpec,
        group: int,
        again: int,
        loop: asyncio.AbstractEventLoop,
        counters: Counters,
    ) -> None:
        self.spec = spec
        self.group = group
        self.again = again
        self.counters = counters
        self.kernel = Kernel(loop, self.fail, self._answer)
        self.post = Post(spec, group, again, self.kernel, counters, self.malformed)
        self.bulk = Bulk(self.post)
        self.store: Any = None
        self._classes: dict[int, Any] = {}
        self._clocks: dict[int, SkewedClock] = {}
        self._disks: dict[int, RealDisk] = {}
        self._arenas: dict[str, Arena] = {}
        self._slowing: list[tuple[int, Any, Stream, float]] | None = None

    # -- what a kind of place says for itself

    def emit(self, time_s: float, node: int, values: dict[str, Any]) -> None:
        """A node reports values."""
        raise AssertionError("each kind of place reports in its own way")

    def tap(self, time_s: float, node: int, *what: Any) -> None:
        """A rank shows what goes in or out of a collective."""

    def log(self, time_s: float, node: int, words: str) -> None:
        """A node says something to people."""

    def fail(self, host: Any, error: BaseException) -> None:
        """A part broke."""

    def malformed(self, why: str) -> None:
        """A message could not be read."""

    def is_alive(self, node: int) -> bool:
        now_s = self.kernel.now_ns() / 1e9
        return not any(
            isinstance(f, (Crash, SpotReclaim)) and f.during(now_s) and node in _nodes(f)
            for f in self.spec.faults
        )

    # -- nodes

    def add(self, part: Any, index: int) -> Any:
        """Bind a part as the node `index` of this place; it is held until it is started."""
        cls: Any = self._classes.get(id(part))
        if cls is None:
            cls = self._classes[id(part)] = bound_class(ProcessHost, part)
        host: Any = cls.__new__(cls)
        host._kernel = self.kernel
        host._place = self
        host._index = index
        host._tasks = {}
        host._held = []
        self.kernel.hosts.append(host)
        self.post.hosts[index] = host
        return host

    def start(self, host: Any) -> None:
        """`start()`, then `main()` as a task, then whatever came in before."""
        try:
            host.start()
        except Exception as error:
            self.fail(host, error)
            return
        self.kernel.spawn(host, host.main())
        self.kernel.release(host)

    def _answer(self, host: Any, answers: Any, result: Any) -> None:
        self.post.answer(host, answers, result)

    # -- things that nodes use

    def clock_of(self, index: int) -> SkewedClock:
        clock = self._clocks.get(index)
        if clock is None:
            spec = self.spec
            clock = self._clocks[index] = SkewedClock(spec, index, self.counters)
        return clock

    def disk_of(self, host: Any) -> RealDisk:
        disk = self._disks.get(host._index)
        if disk is None:
            disk = self._disks[host._index] = RealDisk(
                self.spec, host._index, self.kernel, self.counters, self.again
            )
        return disk

    def arena(self, name: str, size: int) -> Arena:
        arena = self._arenas.get(name)
        if arena is None:
            arena = self._arenas[name] = Arena.open(self.spec.arenas, name, size)
        arena.check_size(size)
        return arena

    # -- compute

    async def compute(self, host: Any, fn: Any, args: Any, kwargs: Any, device: str) -> Any:
        slowing = self._slowing
        if slowing is None:
            slowing = self._slowing = self._find_slowing()
        now_s = self.kernel.now_ns() / 1e9
        factor = 1.0
        for place, fault, rng, times in slowing:
            if host._index not in _nodes(fault) or not fault.during(now_s):
                continue
            if isinstance(fault, BitFlip):
                flipped = flip_in_arrays(args, fault.p, rng)
                if flipped is not args:
                    args = flipped
                    self.counters.fire(place)
            elif rng.random() < getattr(fault, "p", 1.0):
                factor *= times
                self.counters.fire(place)
        began_ns = time.perf_counter_ns()
        value = fn(*args, **kwargs)
        took_ns = time.perf_counter_ns() - began_ns
        await _pause(self.kernel, int(took_ns * (factor - 1.0)), host)
        return self.post.liars.computed(host._index, value) if self.post.liars else value

    def _find_slowing(self) -> list[tuple[int, Any, Stream, float]]:
        spec, found = self.spec, []
        for place, fault in enumerate(spec.faults):
            times = 1.0
            if isinstance(fault, PowerCap):
                if fault.node is None:
                    fault = fault.replace(node=tuple(range(spec.size)))
                times = capped(spec.world.machine_of(_nodes(fault)[0]), fault.watts)
            elif isinstance(fault, Straggler):
                times = fault.factor
            elif not (isinstance(fault, BitFlip) and fault.where == "memory"):
                continue
            rng = Stream(spec.seed, f"{place}:{self.group}:{self.again}", "compute")
            found.append((place, fault, rng, times))
        return found

    def close(self) -> None:
        self.kernel.close()
        self.post.net.close()
        self.bulk.close()
        for disk in self._disks.values():
            disk.close()
        for arena in self._arenas.values():
            arena.shut()


async def _pause(kernel: Kernel, ns: int, host: Any) -> None:
    """Let the node's other tasks in, and wait `ns` if a fault says so."""
    call = Call(kernel)
    kernel.call_at(kernel.now_ns() + ns, lambda: call.resolve(None), host)
    await call.wait()


def capped(machine: Any, watts: float) -> float:
    """How many times slower a machine is under a power cap, in proportion above its idle power."""
    above = machine.active_W - machine.idle_W
    left = watts - machine.idle_W
    if left >= above or above <= 0:
        return 1.0
    return float(above / left) if left > 0 else 1e6


def flip_in_arrays(args: tuple[Any, ...], p: float | None, rng: Stream) -> tuple[Any, ...]:
    """The arguments with one bit of each array flipped with chance `p` (the fault `BitFlip`)."""
    found, hit = [], False
    for arg in args:
        if hasattr(arg, "nbytes") and arg.nbytes and rng.random() < (1.0 if p is None else p):
            arg = arg.copy()
            raw = arg.reshape(-1).view("u1")
            bit = rng.below(8 * raw.size)
            raw[bit // 8] ^= 1 << (bit % 8)
            hit = True
        found.append(arg)
    return tuple(found) if hit else args


def _nodes(fault: Any) -> tuple[int, ...]:
    node = fault.node
    return node if isinstance(node, tuple) else (node,)
