"""Devices in virtual time: rooflines, processor sharing, energy and money.

A computation takes max(flops / peak, bytes / memory bandwidth) of a whole device (Williams et al.,
"Roofline", 2009). A device with several jobs shares its rate max-min fairly: each gets no more than
its `share`, and what one leaves the others take. Only jobs on the same device are touched when one
comes or goes, and a job alone costs one timer.

Energy is the idle power for the whole run plus the power above idle for the time that a device is
busy; a machine whose node has crashed stays on. Money: where a machine or its accelerators have a
price, the rent covers the power; where none has, the electricity is paid, with the cooling (PUE). A
machine that a `SpotReclaim` took costs nothing until it comes back.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from orrery.base.errors import OrreryError, PartError, PlatformLacks, did_you_mean
from orrery.engines.virtual.bill import Bill
from orrery.engines.virtual.tally import Chance
from orrery.parts.shapes import Work
from orrery.world import Accelerator, Machine
from orrery.world.hardware import DTYPE_B

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine

CPU = -1
# Which dtype serves for one that has no published peak: the next wider one that has.
_WIDER = {
    "fp4": "fp6", "fp6": "fp8", "fp8": "fp16", "int4": "int8", "int8": "fp16",
    "fp16": "tf32", "bf16": "tf32", "tf32": "fp32", "fp32": "fp64",
}  # fmt: skip
_TWIN = {"fp16": "bf16", "bf16": "fp16"}


def peak_of(device: Accelerator, dtype: str) -> tuple[float, str]:
    """The peak in flop/s and the dtype whose figure it is.

    A dtype without a published peak runs as its twin (fp16 and bf16), else as the next wider one;
    where none is wider, the widest one's peak falls in proportion to the element's size.
    """
    peaks = device.peak_flops
    if dtype in peaks:
        return peaks[dtype], dtype
    if _TWIN.get(dtype) in peaks:
        return peaks[_TWIN[dtype]], _TWIN[dtype]
    wider = _WIDER.get(dtype)
    while wider is not None:
        for name in (wider, _TWIN.get(wider)):
            if name in peaks:
                return peaks[name], name
        wider = _WIDER.get(wider)
    widest = max(peaks, key=lambda name: (DTYPE_B[name], -peaks[name]))
    return peaks[widest] * min(1.0, DTYPE_B[widest] / DTYPE_B[dtype]), widest


class _Job:
    """One computation: `left_s` seconds of the whole device are still to do."""

    __slots__ = ("done", "due_ns", "left_s", "rate", "share")

    def __init__(self, left_s: float, share: float, done: Any) -> None:
        self.left_s = left_s
        self.share = share
        self.done = done
        self.rate = 0.0
        self.due_ns = 0


class Device:
    """One device and its jobs; `speed` is 1 for a healthy one."""

    def __init__(self, kernel: Any, on_idle: Callable[[Device], None]) -> None:
        self._kernel = kernel
        self._on_idle = on_idle
        self._jobs: dict[_Job, None] = {}
        self._since_ns = 0
        self._timer: Any = None
        self.speed = 1.0
        self.power = 1.0  # what a power cap leaves of the power above idle
        self.busy_s = 0.0  # device-seconds at full power above idle

    def start(self, job: _Job) -> None:
        self._settle()
        self._jobs[job] = None
        self._schedule()

    def drop(self, job: _Job) -> None:
        """Forget a job whose node no longer waits for it."""
        if job in self._jobs:
            self._settle()
            del self._jobs[job]
            self._schedule()

    def set_speed(self, speed: float, power: float) -> None:
        self._settle()
        self.speed, self.power = speed, power
        self._schedule()

    def fail_all(self, error: OrreryError) -> int:
        """The device is gone: every job on it ends with the error."""
        self._settle()
        jobs, self._jobs = list(self._jobs), {}
        for job in jobs:
            job.done.set(error)
        self._schedule()
        return len(jobs)

    def settle(self) -> None:
        """Bring `busy_s` up to now."""
        self._settle()

    def _settle(self) -> None:
        now = self._kernel.now
        elapsed_s = (now - self._since_ns) / 1e9
        if elapsed_s > 0:
            used = 0.0
            for job in self._jobs:
                job.left_s = max(job.left_s - elapsed_s * job.rate * self.speed, 0.0)
                used += job.rate
            self.busy_s += elapsed_s * used * self.power
        self._since_ns = now

    def _share_out(self) -> None:
        """Max-min fair rates: the smallest wishes first, the rest is split evenly."""
        left, waiting = 1.0, len(self._jobs)
        in_order = self._jobs if waiting == 1 else sorted(self._jobs, key=lambda job: job.share)
        for job in in_order:
            job.rate = min(job.share, left / waiting)
            left -= job.rate
            waiting -= 1

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._jobs:
            self._on_idle(self)
            return
        self._share_out()
        first_ns: int | None = None
        for job in self._jobs:
            rate = job.rate * self.speed
            if rate > 0 and job.left_s / rate < 9e9:
                job.due_ns = self._kernel.now + math.ceil(job.left_s / rate * 1e9 - 1e-3)
                first_ns = job.due_ns if first_ns is None else min(first_ns, job.due_ns)
            else:
                job.due_ns = -1  # stands still until a fault ends
        if first_ns is not None:
            self._timer = self._kernel.call_at(first_ns, self._complete)

    def _complete(self) -> None:
        self._timer = None
        self._settle()
        now = self._kernel.now
        for job in [job for job in self._jobs if 0 <= job.due_ns <= now]:
            del self._jobs[job]
            job.done.set(None)
        self._schedule()


class Health:
    """What faults have done to the devices of one node; each list is a stack."""

    def __init__(self) -> None:
        self.slow: list[float] = []
        self.caps_W: list[float] = []
        self.stragglers: list[tuple[Chance, float]] = []
        self.lost: list[int] = []


class Devices:
    """Every device of a run, made when first used and forgotten when idle and healthy."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._devices: dict[tuple[int, int], Device] = {}
        self._health: dict[int, Health] = {}
        self._bill = Bill(engine, self._all_busy)
        self._busy_s: dict[tuple[int, int], float] = {}
        # Where nodes share processors: waits until the node has one for so many seconds.
        self.turn: Callable[[int, float], Awaitable[None]] | None = None
        # What was computed with a figure that is not published: "fp8 on V100 as fp16" -> times.
        self.substituted: dict[str, int] = {}

    # -- what the host calls

    async def work(self, index: int, work: Work, device: str, share: float) -> None:
        """Wait as long as the device takes for this work, in its share of the device."""
        if index >= self._engine.size:
            return  # the driver stands outside the world; its arithmetic costs nothing
        if not 0.0 < share <= 1.0:
            raise PartError(f"compute(share={share!r}): give a part of the device in (0, 1]")
        machine = self._engine.world.machine_of(index)
        which = self._pick(index, machine, device)
        seconds = busy_s = self._seconds(machine, which, work)
        health = self._health.get(index)
        for chance, factor in health.stragglers if health else ():
            if chance.hits():
                seconds *= factor
        if seconds <= 0.0:
            return
        if self.turn is not None and which == CPU:
            await self.turn(index, busy_s)
        on = self._device(index, which)
        job = _Job(seconds, share, self._engine.kernel_module.Event(self._engine.kernel))
        on.start(job)
        try:
            error = await job.done.wait()
        finally:
            on.drop(job)  # also when a deadline or a crash ended the wait
        if error is not None:
            raise error

    def node_lost(self, index: int) -> None:
        """A crash ends the jobs of a node; their waiting tasks are already gone."""
        for place in range(CPU, len(self._engine.world.machine_of(index).accelerators)):
            device = self._devices.get((index, place))
            if device is not None:
                device.fail_all(PlatformLacks("the node crashed"))

    def bill(self, seconds: float) -> tuple[float, float]:
        """(energy in J at the plug of the machines, money), up to now."""
        return self._bill.total()

    def extra(self) -> dict[str, Any]:
        """What a reader of the run should know of its devices."""
        return {"substituted_dtypes": dict(sorted(self.substituted.items()))}

    # -- rooflines

    def _pick(self, index: int, machine: Machine, device: str) -> int:
        have = len(machine.accelerators)
        health = self._health.get(index)
        lost = set(health.lost) if health else set()
        if device == "cpu" or (device == "" and not have):
            return CPU
        if device == "":
            left = [place for place in range(have) if place not in lost]
            if not left:
                raise PlatformLacks(
                    f"node {index} has lost all of its {have} accelerators; "
                    'compute with device="cpu", or wait'
                )
            return left[0]
        if not (isinstance(device, str) and device.isdecimal() and int(device) < have):
            known = ["cpu", *(str(place) for place in range(have))]
            raise PartError(
                f"compute(device={device!r:.40}): node {index} has no such device; "
                f"{did_you_mean(str(device), known)}"
            )
        if int(device) in lost:
            raise self._lost_error(index, int(device))
        return int(device)

    def _lost_error(self, index: int, place: int) -> PlatformLacks:
        return PlatformLacks(
            f"accelerator {place} of node {index} is lost; compute on another device, or wait"
        )

    def _seconds(self, machine: Machine, which: int, work: Work) -> float:
        for name in ("flops", "bytes"):
            value = getattr(work, name)
            if not 0 <= value < math.inf:
                raise PartError(f"cost({name}={value!r}): give a finite number >= 0")
        if work.dtype not in DTYPE_B:
            fix = did_you_mean(str(work.dtype), DTYPE_B)
            raise PartError(f"cost(dtype={work.dtype!r:.40}): unknown dtype; {fix}")
        if which == CPU:  # the CPU has one figure for all dtypes
            return max(work.flops / machine.cpu_flops, work.bytes / machine.memory_Bps)
        device = machine.accelerators[which]
        peak, used = peak_of(device, work.dtype)
        if used != work.dtype and work.flops:
            note = f"{work.dtype} on {device.name} as {used}"
            self.substituted[note] = self.substituted.get(note, 0) + 1
        return max(work.flops / peak, work.bytes / device.memory_Bps)

    # -- devices and their health

    def _device(self, index: int, place: int) -> Device:
        key = (index, place)
        device = self._devices.get(key)
        if device is None:
            device = Device(self._engine.kernel, lambda one: self._idle(key, one))
            device.settle()
            device.speed, device.power = self._speed(index)
            self._devices[key] = device
        return device

    def _idle(self, key: tuple[int, int], device: Device) -> None:
        # The figure is kept, the device is not: 100,000 nodes may each compute once.
        if device.busy_s:
            self._busy_s[key] = self._busy_s.get(key, 0.0) + device.busy_s
        if self._devices.get(key) is device:
            del self._devices[key]

    def _all_busy(self) -> dict[tuple[int, int], float]:
        """Busy device-seconds up to now, by (node, device)."""
        found = dict(self._busy_s)
        for key, device in self._devices.items():
            device.settle()
            found[key] = found.get(key, 0.0) + device.busy_s
        return found

    def health(self, index: int) -> Health:
        """The faults of a node's devices; call `changed` after a change."""
        health = self._health.get(index)
        if health is None:
            health = self._health[index] = Health()
        return health

    def changed(self, index: int) -> None:
        """Let the running jobs of a node feel its present health."""
        speed, power = self._speed(index)
        for place in range(CPU, len(self._engine.world.machine_of(index).accelerators)):
            device = self._devices.get((index, place))
            if device is not None:
                device.set_speed(speed, power)

    def _speed(self, index: int) -> tuple[float, float]:
        health = self._health.get(index)
        if health is None:
            return 1.0, 1.0
        power = 1.0
        if health.caps_W:
            machine = self._engine.world.machine_of(index)
            idle_W, active_W = machine.watts(0.0, 0.0), machine.watts(1.0, 1.0)
            above_W = min(health.caps_W) - idle_W
            if above_W < active_W - idle_W:
                power = max(above_W, 0.0) / (active_W - idle_W)
        return power / math.prod(health.slow), power

    def lose(self, index: int, place: int) -> int:
        """An accelerator is gone; gives how many jobs died with it."""
        self.health(index).lost.append(place)
        device = self._devices.get((index, place))
        return device.fail_all(self._lost_error(index, place)) if device is not None else 0

    # -- money

    def reclaim(self, index: int, taken: bool) -> None:
        """The provider takes the machine (or gives it back): it stops (or starts) to cost."""
        self._bill.reclaim(index, taken)

    def set_prices(self, factor: float) -> None:
        """From now on, machines and energy cost `factor` times their price."""
        self._bill.set_prices(factor)
