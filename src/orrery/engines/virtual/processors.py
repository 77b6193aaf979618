"""Shared processors in virtual time: nodes wait for a core before anything of theirs happens.

All nodes and the driver share the cores of one machine. A piece of work begins when its node has
done the earlier ones and a core is free, and holds that core to its end: a queue with several
servers, first come first served, in whole nanoseconds, so both kernels tell the same story.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from orrery.base.codec import size_of
from orrery.base.units import to_ns
from orrery.engines.virtual.disk import Disks, VirtualDisk
from orrery.engines.virtual.net import Transfers
from orrery.world.processors import Cost, Processors

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine


def install(engine: Engine) -> None:
    """Let this run's nodes share processors, where its world says so."""
    spec = engine.world.processors
    if spec is None:
        return
    cores = SharedCores(engine, spec)
    engine.kernel.charge = cores.charge
    engine.kernel.on_emit = partial(_emit, engine, cores)
    engine.flows = ChargedTransfers(engine, cores)
    engine.disks = ChargedDisks(engine, cores)
    engine.devices.turn = cores.turn


class SharedCores:
    """When the cores, and the nodes that use them, are free again."""

    def __init__(self, engine: Engine, spec: Processors) -> None:
        self.spec = spec
        self._size = engine.size
        self._kernel = engine.kernel
        self._core_free_ns = [0] * spec.cores
        self._node_free_ns: dict[int, int] = {}
        self._device_free_ns = 0

    def charge(self, host: int, size_B: int, receiving: bool) -> int:
        """What a kernel asks at each end of a message: how many ns it has to wait."""
        spec, now_ns = self.spec, int(self._kernel.now)
        if not receiving:
            return self.work(host, size_B, spec.send) - now_ns
        return self.take(host, size_B, spec.receive) - now_ns

    def take(self, host: int, size_B: int, cost: Cost) -> int:
        """Take a message or an array in, and do with it what the part does; the time of its end.

        The driver is not a part, so it has no work of its own.
        """
        own = (self.spec.own,) if host < self._size else ()
        return self.work(host, size_B, cost, *own, wakes=True)

    def work(
        self, host: int, size_B: int, *costs: Cost, beside: bool = False, wakes: bool = False
    ) -> int:
        """Do a piece of work as soon as possible; the time at which it ends.

        Work `beside` is done by another thread of the node, so it waits for a core alone. Work
        that `wakes` its node costs more where the node was idle.
        """
        woken_s = self.spec.wake_s if wakes and self._idle(host) else 0.0
        took_ns = to_ns(sum(cost.seconds(size_B) for cost in costs) + woken_s)
        return self._hold(host, took_ns, beside)

    def _idle(self, host: int) -> bool:
        return self._node_free_ns.get(host, 0) <= int(self._kernel.now)

    def _hold(self, host: int, took_ns: int, beside: bool = False) -> int:
        """Keep a core, and the node, from when both are free; the time of the end."""
        start_ns = int(self._kernel.now)
        if not beside:
            start_ns = max(start_ns, self._node_free_ns.get(host, 0))
        if took_ns:
            core, start_ns = self._find_core(start_ns)
            self._core_free_ns[core] = start_ns + took_ns
        if not beside:
            self._node_free_ns[host] = start_ns + took_ns
        return start_ns + took_ns

    def _find_core(self, start_ns: int) -> tuple[int, int]:
        """The core that was free for the shortest time by then, else the first to be free.

        A node that does one thing after the other so stays on one core, and does not block a
        second one by work that has yet to begin.
        """
        free = self._core_free_ns
        fit, first = -1, 0
        for core, free_ns in enumerate(free):
            if free_ns <= start_ns and (fit < 0 or free_ns > free[fit]):
                fit = core
            if free_ns < free[first]:
                first = core
        return (fit, start_ns) if fit >= 0 else (first, free[first])

    def flush(self, size_B: int) -> int:
        """Write to the one disk under all nodes, after what others write; the time of its end."""
        now = int(self._kernel.now)
        if self.spec.flush_Bps is None or not size_B:
            return now
        start_ns = max(now, self._device_free_ns)
        self._device_free_ns = start_ns + to_ns(size_B / self.spec.flush_Bps)
        return self._device_free_ns

    async def turn(self, host: int, seconds: float) -> None:
        """Wait until a node may compute for so long on a core; messages to it wait meanwhile."""
        took_ns = to_ns(seconds)
        await self.until(host, self._hold(host, took_ns) - took_ns)

    async def until(self, host: int, end_ns: int) -> None:
        """Let the running task of a node sleep until then."""
        left_ns = end_ns - int(self._kernel.now)
        if left_ns > 0:
            node: Any = self._kernel.hosts[host]
            await node.sleep(left_ns / 1e9)


def _emit(
    engine: Engine, cores: SharedCores, now_ns: int, node: int, values: dict[str, Any]
) -> None:
    """What nodes emit goes to the driver's process, which costs both of them time."""
    if node < engine.size:
        size_B = size_of(values)
        cores.work(node, size_B, cores.spec.report)
        cores.work(engine.size, size_B, cores.spec.hear)
    engine._emit(now_ns, node, values)


class ChargedTransfers(Transfers):
    """Bulk transfers whose ends need processors; in between they are flows as ever.

    An array leaves when its sender's processor has sent all of it, and is there when its
    receiver's has taken all of it in. The sender learns of it by a small message.
    """

    def __init__(self, engine: Engine, cores: SharedCores) -> None:
        super().__init__(engine)
        self._cores = cores

    async def send(self, src: int, dst: int, array: Any, tag: str, scale: float) -> None:
        if src != dst:
            cores = self._cores
            nbytes = round(array.nbytes * scale)
            await cores.until(src, cores.work(src, nbytes, cores.spec.transfer_out))
        await super().send(src, dst, array, tag, scale)

    def _arrive(self, src: int, dst: int, tag: str, array: Any, arrived: Any, nbytes: int) -> None:
        kernel = self._engine.kernel
        if src == dst:
            super()._arrive(src, dst, tag, array, arrived, nbytes)
        elif kernel.state[dst]:
            cores = self._cores
            end_ns = cores.take(dst, nbytes, cores.spec.transfer_in)
            kernel.call_at(end_ns, partial(self._taken, src, dst, tag, array, arrived))

    def _taken(self, src: int, dst: int, tag: str, array: Any, arrived: Any) -> None:
        engine = self._engine
        if not engine.kernel.state[dst]:
            return
        self.inbox(dst, src, tag).put(array)
        end_ns = self._cores.work(dst, 0, self._cores.spec.send)
        inside = src < engine.size and dst < engine.size
        latency_ns = to_ns(engine.wiring.latency(dst, src)) if inside else 0
        engine.kernel.call_at(end_ns + latency_ns, partial(self._told, src, arrived))

    def _told(self, src: int, arrived: Any) -> None:
        if self._engine.kernel.state[src]:
            end_ns = self._cores.work(src, 0, self._cores.spec.receive)
            self._engine.kernel.call_at(end_ns, arrived.set)


class ChargedDisk(VirtualDisk):
    """A disk whose calls need a processor, and whose syncs share one device with the others'."""

    def __init__(self, engine: Engine, index: int, key: int | str, cores: SharedCores) -> None:
        super().__init__(engine, index, key)
        self._cores = cores
        self._dirty_B: dict[str, int] = {}

    async def _store(self, name: str, data: bytes, append: bool) -> None:
        size_B = len(data) if isinstance(data, bytes | bytearray | memoryview) else 0
        end_ns = self._cores.work(self._index, size_B, self._cores.spec.write)
        await super()._store(name, data, append)
        self._dirty_B[name] = self._dirty_B.get(name, 0) + size_B
        await self._cores.until(self._index, end_ns)

    async def fsync(self, name: str) -> None:
        cores = self._cores
        dirty_B = self._dirty_B.pop(name, 0)
        end_ns = cores.work(self._index, dirty_B, cores.spec.sync, beside=True)
        await cores.until(self._index, end_ns)
        await cores.until(self._index, cores.flush(dirty_B))
        await super().fsync(name)


class ChargedDisks(Disks):
    """Every charged disk of a run, made when first used."""

    def __init__(self, engine: Engine, cores: SharedCores) -> None:
        super().__init__(engine)
        self._cores = cores

    def _make(self, index: int, key: int | str) -> VirtualDisk:
        return ChargedDisk(self._engine, index, key, self._cores)

    def at(self, index: int) -> VirtualDisk:
        if index not in self._disks:
            self._disks[index] = self._make(index, index)
        return self._disks[index]

    def twin_of(self, index: int) -> VirtualDisk:
        if index not in self._twins:
            self._twins[index] = self._make(index, f"{index} twin")
        return self._twins[index]
