"""The virtual engine: one run of parts in a world, in virtual time.

Joins the kernel (events, tasks, messages) to the modelled things around it: links, clocks, disks,
devices, the object store, faults. Everything belongs to one `Engine` object, so many runs can live
in one process.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orrery.base.errors import PartError, UsageError
from orrery.base.garbage import rare_collections
from orrery.base.rand import key_of
from orrery.base.units import FOREVER_NS, to_ns
from orrery.base.violation import Violation
from orrery.engines.bind import bound_class, cast
from orrery.engines.virtual import kernel as kernels
from orrery.engines.virtual import net, processors
from orrery.engines.virtual.accelerator import Devices
from orrery.engines.virtual.arena import Arena
from orrery.engines.virtual.clock import Clocks
from orrery.engines.virtual.disk import Disks
from orrery.engines.virtual.faults import Faults
from orrery.engines.virtual.host import host_class
from orrery.engines.virtual.store import Store
from orrery.engines.virtual.together import Together
from orrery.parts.monitor import Monitor
from orrery.parts.problem import Driver, Outcome, Problem, Record
from orrery.parts.rpc import resolve
from orrery.world import World


class Engine:
    """A run in the making: build it, `run()` it, read its `Outcome`."""

    def __init__(
        self,
        roles: Mapping[str, Any],
        *,
        world: World,
        problem: Problem | None = None,
        part: Any = None,
        seed: int = 0,
        monitors: Sequence[Monitor] = (),
        wire: bool = False,
        trace: bool = False,
        kernel: str | None = None,
        schedule: Sequence[int] | None = None,
        choose: Callable[[Any], int] | None = None,
        on_log: Callable[[float, int, str], None] | None = None,
    ) -> None:
        self.world = world
        self.problem = problem
        self.part = part
        self.seed = seed
        self.monitors = tuple(monitors)
        self.cast = cast(roles, world)
        self.size = len(self.cast) if roles else world.size
        self.wiring = world.wiring()
        chosen = world.network.model == "chosen" or kernel == "chosen"
        self.kernel_module = kernels.load("chosen" if chosen else kernel)
        self.incarnations: dict[int, int] = {}
        self.records: list[Record] = []
        self.violations: list[Violation] = []
        self.driven: Any = None
        self.drive_ended = problem is None
        self._on_log = on_log
        self._arenas: dict[str, Arena] = {}
        hosts = self.size + 1  # the driver's place is always there, so it shifts nobody
        self.hasher = hashlib.blake2b(digest_size=16)
        self.kernel = self.kernel_module.Kernel(
            hosts, [key_of(seed, i, "net") for i in range(hosts)], self.hasher, resolve, self._emit
        )
        self.kernel.make_rng = self.stream
        if chosen:
            self._choose(schedule, choose)
        elif schedule is not None:
            raise UsageError("a schedule needs a world of chosen order: World.chosen(n)")
        net.configure(self)
        if wire:
            self.kernel.wire = net.wire_codec(self.kernel_module)
        if trace:
            self.kernel.trace = []
        self.flows = net.Transfers(self)
        self.clocks = Clocks(world, seed)
        self.disks = Disks(self)
        self.devices = Devices(self)
        processors.install(self)
        self.store = Store(self)
        self.together = Together()
        self.faults = Faults(self)
        self._classes: dict[int, type] = {}
        self._bind()

    # -- building

    def _choose(self, schedule: Sequence[int] | None, choose: Callable[[Any], int] | None) -> None:
        module: Any = self.kernel_module
        if choose is None:
            by_script = schedule is not None
            choose = module.by_script(schedule) if by_script else module.by_seed(self.seed)
        self.kernel.choose = choose

    def _bind(self) -> None:
        base = host_class(self.kernel_module)
        classes: dict[int, Any] = {}
        for index, (_, part) in enumerate(self.cast):
            cls: Any = classes.get(id(part))
            if cls is None:
                cls = classes[id(part)] = bound_class(base, part)
                cls._engine = self
            self.kernel.bind(cls.__new__(cls), index, index)
        if self.problem is not None:
            cls = bound_class(host_class(self.kernel_module, driver=True), Driver())
            cls._engine = self
            self.kernel.bind(cls.__new__(cls), self.size, self.size)

    def role_of(self, node: int) -> str:
        return self.cast[node][0] if node < len(self.cast) else "driver"

    def stream(self, index: int) -> Any:
        """The node's own random stream; a restarted node continues with fresh numbers."""
        again = self.incarnations.get(index, 0)
        purpose = f"node#{again}" if again else "node"
        return self.kernel_module.Stream(self.seed, index, purpose)

    def arena(self, name: str, size: int) -> Arena:
        """Named memory that the nodes share; a crash of one does not touch it."""
        if name not in self._arenas:
            self._arenas[name] = Arena(name, size)
        self._arenas[name].check_size(size)
        return self._arenas[name]

    # -- life of nodes

    def start_node(self, index: int) -> None:
        host: Any = self.kernel.hosts[index]
        try:
            host.start()
        except Exception as error:
            self._raise(index, error)
        host.spawn(host.main())

    def crash(self, index: int) -> None:
        """The node stops at once: tasks end, memory is gone, unsynced writes are at risk."""
        if not self.kernel.state[index]:
            return
        self.kernel.kill(index)
        host: Any = self.kernel.hosts[index]
        host.__dict__.clear()
        self.flows.node_lost(index)
        self.devices.node_lost(index)
        self.disks.crash(index)

    def restart(self, index: int) -> None:
        if self.kernel.state[index]:
            return
        self.incarnations[index] = self.incarnations.get(index, 0) + 1
        self.kernel.revive(index)
        self.start_node(index)

    # -- what nodes report

    def _emit(self, now_ns: int, node: int, values: dict[str, Any]) -> None:
        time_s = now_ns / 1e9
        self.records.append(Record(time_s, node, values))
        for monitor in self.monitors:
            monitor.on_emit(time_s, node, values)

    def log(self, node: int, words: str) -> None:
        if self._on_log is not None:
            self._on_log(self.kernel.now / 1e9, node, words)

    def _raise(self, node: int, error: BaseException) -> None:
        where = f"node {node}" if node < self.size else "the driver"
        last = traceback.extract_tb(error.__traceback__)[-1:] if error.__traceback__ else []
        at = f" ({last[0].filename}:{last[0].lineno})" if last else ""
        raise PartError(
            f"{where} failed at {self.kernel.now / 1e9:.9f} s with "
            f"{type(error).__name__}: {error}{at}; seed {self.seed}: the same seed replays it"
        ) from error

    # -- the run

    def run(self, until_s: float | None = None) -> Outcome:
        with rare_collections():
            return self._run(until_s)

    def _run(self, until_s: float | None) -> Outcome:
        until_ns = FOREVER_NS if until_s is None else to_ns(until_s)
        for monitor in self.monitors:
            monitor.start()
        self.faults.install()
        for index in range(len(self.cast)):
            self.start_node(index)
        if self.problem is not None:
            self._start_drive(self.problem)
        ended = self.kernel.run(until_ns)
        for monitor in self.monitors:
            monitor.on_end(self.kernel.now / 1e9, {*self.faults.down, *self.incarnations})
        if self.kernel.failure is not None:
            self._raise(*self.kernel.failure)
        if ended == "stopped" and self.drive_ended:
            ended = "driven"
        self._find_stuck(ended)
        self.close()
        return self._outcome(ended)

    def _start_drive(self, problem: Problem) -> None:
        driver: Any = self.kernel.hosts[self.size]

        async def drive() -> None:
            self.driven = await problem.drive(driver)
            self.drive_ended = True
            self.kernel.stop()

        driver.start()
        driver.spawn(drive())

    def _find_stuck(self, ended: str) -> None:
        if ended != "quiet":
            return
        if not self.drive_ended:
            self.violations.append(Violation(
                kind="stuck", time_s=self.kernel.now / 1e9,
                message="nothing is left to happen, yet the workload has not ended"))  # fmt: skip
        for asker, asked, method in self.kernel.open_asks():
            who = f"node {asker}" if asker < self.size else "the driver"
            self.violations.append(Violation(
                kind="unanswered_ask", node=asker, time_s=self.kernel.now / 1e9,
                message=f"{who} asked node {asked} for {method!r} and can never be answered; "
                        "wrap the ask in deadline(s)"))  # fmt: skip

    def close(self) -> None:
        """End what still waits, so that no coroutine outlives its run."""
        for index, host in enumerate(self.kernel.hosts):
            if host is not None:
                self.kernel.kill(index)

    def _choices(self) -> dict[str, Any]:
        """The schedule of a run in chosen order, so that it can be replayed."""
        made = getattr(self.kernel, "choices", None)
        return {} if made is None else {"schedule": list(made)}

    def _outcome(self, ended: str) -> Outcome:
        kernel = self.kernel
        seconds = kernel.now / 1e9
        energy_J, money = self.devices.bill(seconds)
        return Outcome(
            part=self.part, world=self.world, seed=self.seed, engine="virtual", seconds=seconds,
            ended=ended, driven=self.driven, records=self.records, messages=kernel.messages,
            bytes=kernel.bytes + self.flows.bytes, events=kernel.events,
            alive=[i not in self.faults.down for i in range(self.size)],
            energy_J=energy_J, money=money + self.store.bill(),
            digest=self.hasher.hexdigest(), spans=kernel.trace or [],
            violations=self.violations,
            extra={
                "kernel": self.kernel_module.NAME, "transfers": self.flows.count,
                "transfer_bytes": self.flows.bytes, "incarnations": dict(self.incarnations),
                **self._choices(), **self.faults.extra(), **self.devices.extra(),
            },
        )  # fmt: skip
