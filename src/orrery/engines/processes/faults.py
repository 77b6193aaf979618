"""The fault schedule on real processes: which faults are signals, and what cannot be real here.

Crash is SIGKILL and a new process on the same disk folder; Pause is SIGSTOP and SIGCONT; Slow is
both by turns. A node that a signal must hit lives alone in its process. Traffic faults are the
shim's, clock faults the clock's, disk faults the disk's: those follow the schedule by themselves in
each process. What has no real counterpart is refused before anything starts.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from orrery.base.errors import FaultError, PlatformLacks
from orrery.base.units import to_ns
from orrery.engines.processes.kernel import Kernel
from orrery.engines.processes.spec import Counters
from orrery.world import Byzantine, Crash, DeviceLoss, Hang, Pause, Slow, SpotReclaim, World
from orrery.world.faults import Fault

_SIGNALLED = (Crash, Pause, Slow, SpotReclaim)
SLOW_PERIOD_S = 0.04
MOST_PROCESSES = 512


def nodes_of(fault: Any) -> tuple[int, ...]:
    """The nodes that a settled fault names."""
    node = fault.node
    return node if isinstance(node, tuple) else (node,)


def signalled(faults: Iterable[Fault]) -> frozenset[int]:
    """The nodes that need a process of their own."""
    return frozenset(n for f in faults if isinstance(f, _SIGNALLED) for n in nodes_of(f))


def refuse_unreal(world: World, faults: Iterable[Fault]) -> None:
    """Name what this engine cannot do, before anything starts."""
    if world.network.model == "chosen":
        raise PlatformLacks(
            'network.model = "chosen" picks each delivery, which real sockets cannot; use the '
            'virtual engine, or network.model = "messages"'
        )
    for fault in faults:
        if isinstance(fault, (Pause, Slow)) and not hasattr(signal, "SIGSTOP"):
            raise PlatformLacks(
                f"{fault.kind} needs SIGSTOP, which this platform lacks; use Linux or macOS"
            )
        if isinstance(fault, Byzantine) and "twins" in fault.strategies:
            raise FaultError(
                "Byzantine.strategies", "twins cannot be played on real processes",
                "use the virtual engine, or other strategies",
            )  # fmt: skip
        if isinstance(fault, DeviceLoss):
            raise FaultError(
                "DeviceLoss.device", "this engine computes on the machine's own processor",
                "use the virtual engine, which models accelerators",
            )  # fmt: skip


class Nemesis:
    """Makes the schedule happen from the parent: signals, restarts, notices."""

    def __init__(
        self,
        kernel: Kernel,
        faults: Iterable[Fault],
        counters: Counters,
        kill: Callable[[int, int], None],
        respawn: Callable[[int], None],
        command: Callable[..., None],
    ) -> None:
        self.down: dict[int, int] = {}
        self.pending = 0
        self._paused: dict[int, int] = {}
        self._kernel = kernel
        self._counters = counters
        self._faults = tuple(faults)
        self._kill = kill
        self._respawn = respawn
        self._command = command

    def install(self) -> None:
        for fault in self._faults:
            if not isinstance(fault, (*_SIGNALLED, Hang)):
                continue  # followed by each process on its own
            if isinstance(fault, SpotReclaim):
                self._at(max(fault.at_s - fault.notice_s, 0.0), self._notice, fault)
            begin, end = self._actions(fault)
            self._at(fault.at_s, begin, fault)
            if fault.until_s is not None and end is not None:
                self._at(fault.until_s, end, fault)

    def _actions(self, fault: Fault) -> tuple[Any, Any]:
        if isinstance(fault, (Crash, SpotReclaim)):
            return self._crash, self._restart
        if isinstance(fault, Pause):
            return self._pause, self._resume
        if isinstance(fault, Slow):
            return self._slow, None
        return self._hang, self._unhang

    def _at(self, time_s: float, fn: Callable[[Any], None], fault: Fault) -> None:
        self.pending += 1

        def happen() -> None:
            self.pending -= 1
            fn(fault)

        self._kernel.call_at(to_ns(time_s), happen)

    def _note(self, fault: Any) -> None:
        self._counters.fire(next(i for i, each in enumerate(self._faults) if each is fault))

    # -- crash and restart

    def _crash(self, fault: Any) -> None:
        self._note(fault)
        for node in nodes_of(fault):
            self.down[node] = self.down.get(node, 0) + 1
            if self.down[node] == 1:
                self._kill(node, signal.SIGKILL)

    def _restart(self, fault: Any) -> None:
        for node in nodes_of(fault):
            self.down[node] -= 1
            if not self.down[node]:
                del self.down[node]
                self._respawn(node)

    def started(self, node: int) -> None:
        """A node's new process runs; it may have to stand still at once."""
        if self._paused.get(node):
            self._kill(node, signal.SIGSTOP)

    def _notice(self, fault: Any) -> None:
        left_s = min(fault.notice_s, fault.at_s)
        for node in nodes_of(fault):
            if node not in self.down:
                self._command(node, "notice", node, left_s)

    # -- pause, slow, hang

    def _pause(self, fault: Any) -> None:
        self._note(fault)
        for node in nodes_of(fault):
            self._stop(node)

    def _resume(self, fault: Any) -> None:
        for node in nodes_of(fault):
            self._go(node)

    def _stop(self, node: int) -> None:
        self._paused[node] = self._paused.get(node, 0) + 1
        if self._paused[node] == 1 and node not in self.down:
            self._kill(node, signal.SIGSTOP)

    def _go(self, node: int) -> None:
        self._paused[node] -= 1
        if not self._paused[node] and node not in self.down:
            self._kill(node, signal.SIGCONT)

    def _slow(self, fault: Any) -> None:
        """The process runs one part in `factor` of each period."""
        self._note(fault)
        run_s = max(SLOW_PERIOD_S / fault.factor, 0.001)
        stop_s = run_s * (fault.factor - 1.0)
        # The turns are taken on the loop, not in the kernel: they keep no run from being quiet.
        loop = self._kernel.loop

        def stop() -> None:
            if fault.during(self._kernel.now_ns() / 1e9) and stop_s > 0:
                for node in nodes_of(fault):
                    self._stop(node)
                loop.call_later(stop_s, go)

        def go() -> None:
            for node in nodes_of(fault):
                self._go(node)
            loop.call_later(run_s, stop)

        stop()

    def _hang(self, fault: Any) -> None:
        self._note(fault)
        for node in nodes_of(fault):
            self._command(node, "hang", node, True)

    def _unhang(self, fault: Any) -> None:
        for node in nodes_of(fault):
            self._command(node, "hang", node, False)


def effects(faults: Sequence[Fault], counters: Counters) -> dict[str, Any]:
    """How often each kind had an effect, and which faults had none."""
    fired: dict[str, int] = {}
    for place, fault in enumerate(faults):
        fired[fault.kind] = fired.get(fault.kind, 0) + counters.fired(place)
    idle = [f"{f.kind} at {f.at_s:g} s" for i, f in enumerate(faults) if not counters.fired(i)]
    return {"faults_fired": fired, "faults_never_fired": idle}
