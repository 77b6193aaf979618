"""The probe behind `calibrate`: three nodes that do what they are told and say what it cost.

It runs on both engines. On processes, costs are processor time, which other work on the machine
hardly changes; in virtual time only the elapsed times mean something.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from orrery.lab.stats import p50, quantile
from orrery.parts import Driver, Outcome, Problem, Worker, rpc
from orrery.world import World

NODES = 3
SMALL_B, HUGE_B = 1 << 10, 2 << 20
# What a byte costs is far from constant: it jumps where buffers are mapped anew each time.
SIZES = (SMALL_B, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, HUGE_B)
# Records are small, and must fit into what the line to the parent holds.
REPORT_SIZES = (SMALL_B, 16 << 10)

STEPS = ("messages", "transfers", "reports", "disk", "arithmetic")

Samples = dict[str, list[float]]


class Effort(msgspec.Struct, frozen=True):
    """How long to measure: repeats, and calls of each kind for each repeat."""

    repeats: int = 8
    calls: int = 100
    large_calls: int = 12
    syncs: int = 15

    def count(self, size_B: int) -> int:
        return self.calls if size_B == SMALL_B else self.large_calls


FULL, QUICK = Effort(), Effort(repeats=2, calls=30, large_calls=4, syncs=5)


# -- the probe


class Probe(Worker):
    """A node that does what it is told to, and says how long it took and what it cost."""

    @rpc
    async def echo(self, data: bytes) -> None:
        """Take bytes; the answer is empty."""

    @rpc
    async def sink(self, data: bytes) -> None:
        """Take bytes and say nothing."""

    @rpc
    async def used(self) -> tuple[float, float]:
        """Processor seconds of this process so far, and the time."""
        return time.process_time(), self.now

    @rpc
    async def pings(self, peer: int, size_B: int, count: int) -> list[float]:
        """Round trips, one after the other."""
        data, took = bytes(size_B), []
        for _ in range(count):
            began_s = self.now
            await self.ask(peer, Probe.echo, data)
            took.append(self.now - began_s)
        return took

    @rpc
    async def drip(self, peer: int, size_B: int, count: int, gap_s: float) -> None:
        """One-way messages, so rare that each wakes its receiver."""
        data = bytes(size_B)
        for _ in range(count):
            self.tell(peer, Probe.sink, data)
            await self.sleep(gap_s)

    @rpc
    async def give(self, rank: int, size_B: int, count: int) -> list[float]:
        """Arrays to another rank, one after the other."""
        array, took = np.zeros(size_B, np.uint8), []
        for _ in range(count):
            began_s = self.now
            await self.send(rank, array)
            took.append(self.now - began_s)
        return took

    @rpc
    async def take(self, rank: int, count: int) -> None:
        """Receive what `give` sends."""
        for _ in range(count):
            await self.recv(rank)

    @rpc
    async def pass_on(self, size_B: int, count: int) -> list[float]:
        """Arrays to the next rank while others come from the one before: all ranks are busy."""
        array, took = np.zeros(size_B, np.uint8), []
        for _ in range(count):
            began_s = self.now
            sent = self.spawn(self.send((self.rank + 1) % self.size, array, tag="on"))
            await self.recv((self.rank - 1) % self.size, tag="on")
            await sent
            took.append(self.now - began_s)
        return took

    @rpc
    async def shout(self, size_B: int, count: int, gap_s: float) -> None:
        """Emit records."""
        for _ in range(count):
            self.emit(record=bytes(size_B))
            await self.sleep(gap_s)

    @rpc
    async def writes(self, size_B: int, count: int) -> float:
        """Processor seconds of one append."""
        data, began = bytes(size_B), time.process_time()
        for _ in range(count):
            await self.disk.append("written", data)
        took_s = time.process_time() - began
        await self.disk.delete("written")
        return took_s / count

    @rpc
    async def syncs(self, size_B: int, count: int) -> tuple[list[float], float]:
        """Seconds of each append with fsync, and the processor seconds of one."""
        data, took, began = bytes(size_B), [], time.process_time()
        for _ in range(count):
            began_s = self.now
            await self.disk.append("synced", data)
            await self.disk.fsync("synced")
            took.append(self.now - began_s)
        return took, (time.process_time() - began) / count

    @rpc
    async def arithmetic(self, side: int, copy_B: int) -> tuple[float, float]:
        """(flop/s, bytes/s copied, read and written) of one core."""
        a = np.full((side, side), 0.5, np.float32)
        source, target = np.ones(copy_B // 8), np.ones(copy_B // 8)
        flops = _rate(lambda: a @ a, 2.0 * side**3)
        return flops, _rate(lambda: np.copyto(target, source), 2.0 * copy_B)


def _rate(work: Callable[[], object], amount: float) -> float:
    """Amount for each processor second; over all threads, so it is the rate of one core."""
    work()
    began = time.process_time()
    for _ in range(3):
        work()
    return 3 * amount / max(time.process_time() - began, 1e-9)


class Probing(Problem):
    """Drives the probe through everything that is to be measured; the outcome is raw samples."""

    port: ClassVar[type] = Probe
    effort: ClassVar[Effort] = FULL
    on_step: ClassVar[Callable[[str], None]] = staticmethod(lambda what: None)
    only: ClassVar[tuple[str, ...]] = ()

    def world(self) -> World:
        return World.lan(NODES)

    def measure(self, outcome: Outcome) -> dict[str, float]:
        return {}

    async def drive(self, driver: Driver) -> Samples:
        """Every measure in turn, so that none disturbs another; then all of it again."""
        found: Samples = {}
        # A driver with a timer is never quiet, so a node that computes long is not taken for idle.
        driver.spawn(self._stay_awake(driver))
        steps = {
            "messages": self._messages, "transfers": self._transfers, "reports": self._reports,
            "disk": self._disk, "arithmetic": self._arithmetic,
        }  # fmt: skip
        chosen = [name for name in STEPS if not self.only or name in self.only]
        for repeat in range(self.effort.repeats + 1):
            before = await self._used(driver)
            samples: dict[str, float] = {}
            for name in chosen:
                samples |= await steps[name](driver)
                self.on_step(name)
            samples["others_cores"] = others_cores(before, await self._used(driver))
            if repeat:  # the first time opens connections and warms up
                for key, value in samples.items():
                    found.setdefault(key, []).append(value)
        return found

    async def _used(self, driver: Driver) -> tuple[float, float, float]:
        told = await driver.all(*(driver.ask(node, Probe.used) for node in driver.nodes))
        own_s = time.process_time() + sum(cpu_s for cpu_s, _ in told)
        return time.monotonic(), machine_busy_s(), own_s

    async def _stay_awake(self, driver: Driver) -> None:
        while True:
            await driver.sleep(1.0)

    async def _messages(self, driver: Driver) -> dict[str, float]:
        found: dict[str, float] = {}
        _, _, idle_s = await self._cost(driver, driver.sleep(0.1))
        found["idle"] = idle_s / 0.1
        for size_B in SIZES:
            count = self.effort.count(size_B)
            asks = driver.ask(0, Probe.pings, 1, size_B, count)
            took, cpu_0, cpu_1 = await self._cost(driver, asks)
            found[f"ping_{size_B}"] = p50(took)
            found[f"ping_low_{size_B}"] = quantile(took, 0.05)
            found[f"ping_cpu_{size_B}"] = cpu_0 / count
            found[f"pong_cpu_{size_B}"] = cpu_1 / count
            gap_s = 0.0005 + size_B * 10e-9
            drips = driver.ask(0, Probe.drip, 1, size_B, count, gap_s)
            _, _, cpu_1 = await self._cost(driver, drips)
            found[f"receive_{size_B}"] = max(cpu_1 / count - found["idle"] * gap_s, 0.0)
        # Messages without a pause find their receiver awake.
        count = self.effort.calls
        _, _, cpu_1 = await self._cost(driver, driver.ask(0, Probe.drip, 1, SMALL_B, count, 0.0))
        found["receive_awake"] = cpu_1 / count
        told = await driver.all(
            *(driver.ask(node, Probe.pings, (node + 1) % NODES, SMALL_B, self.effort.calls)
              for node in driver.nodes)
        )  # fmt: skip
        found["cross"] = p50([took for each in told for took in each])
        return found

    async def _transfers(self, driver: Driver) -> dict[str, float]:
        found: dict[str, float] = {}
        for size_B in SIZES:
            count = self.effort.count(size_B)

            async def both(size_B: int = size_B, count: int = count) -> Any:
                took, _ = await driver.all(
                    driver.ask(0, Probe.give, 1, size_B, count),
                    driver.ask(1, Probe.take, 0, count),
                )
                return took

            found[f"move_{size_B}"] = p50(await both())
            passing = driver.all(
                *(driver.ask(node, Probe.pass_on, size_B, count) for node in driver.nodes)
            )
            told, cpu_0, cpu_1 = await self._cost(driver, passing)
            found[f"pass_{size_B}"] = p50([took for each in told for took in each])
            found[f"pass_cpu_{size_B}"] = (cpu_0 + cpu_1) / 2 / count
        return found

    async def _reports(self, driver: Driver) -> dict[str, float]:
        found: dict[str, float] = {}
        for size_B in REPORT_SIZES:
            count, gap_s = max(self.effort.calls // 3, 2), 0.001
            before = time.process_time()
            _, cpu_0, _ = await self._cost(driver, driver.ask(0, Probe.shout, size_B, count, gap_s))
            found[f"report_{size_B}"] = cpu_0 / count
            found[f"hear_{size_B}"] = (time.process_time() - before) / count
        return found

    async def _disk(self, driver: Driver) -> dict[str, float]:
        found: dict[str, float] = {}
        for size_B in SIZES:
            count = max(self.effort.syncs if size_B == SMALL_B else self.effort.syncs // 3, 2)
            found[f"write_{size_B}"] = await driver.ask(0, Probe.writes, size_B, count)
            told = await driver.all(
                *(driver.ask(node, Probe.syncs, size_B, count) for node in driver.nodes)
            )
            found[f"sync_{size_B}"] = p50([took for each, _ in told for took in each])
            found[f"sync_cpu_{size_B}"] = p50([cpu for _, cpu in told])
        return found

    async def _arithmetic(self, driver: Driver) -> dict[str, float]:
        # On a node whose costs are not asked for: threads of a product spin for a while after it.
        flops, copied_Bps = await driver.ask(2, Probe.arithmetic, 512, 16 << 20)
        return {"core_flops": flops, "memory_Bps": copied_Bps}

    async def _cost(self, driver: Driver, what: Any) -> tuple[Any, float, float]:
        """(the result, processor seconds of node 0, of node 1) of something."""
        before = await driver.all(*(driver.ask(node, Probe.used) for node in (0, 1)))
        result = await what
        after = await driver.all(*(driver.ask(node, Probe.used) for node in (0, 1)))
        # What asking costs is asked for once more, and taken off.
        again = await driver.all(*(driver.ask(node, Probe.used) for node in (0, 1)))
        spent = [max(b[0] - a[0] - (c[0] - b[0]), 0.0)
                 for a, b, c in zip(before, after, again, strict=True)]  # fmt: skip
        return result, spent[0], spent[1]


def probing(effort: Effort, on_step: Callable[[str], None] | None = None, *only: str) -> Probing:
    """The problem that measures with this effort, and perhaps only some of it."""
    body: dict[str, Any] = {"effort": effort, "only": only, "__doc__": Probing.__doc__}
    if on_step is not None:
        body["on_step"] = staticmethod(on_step)
    made: Probing = type("Probing", (Probing,), body)()
    return made


# -- what else the machine does


def usable_cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def machine_busy_s() -> float:
    """Processor seconds of everything on this machine since it started; 0 where nothing tells."""
    try:
        words = Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
        user, nice, system, _idle, _wait, irq, softirq, steal = (int(word) for word in words)
    except (OSError, ValueError):
        return 0.0
    # One tick is a hundredth of a second in /proc, whatever the kernel's own rate.
    return (user + nice + system + irq + softirq + steal) / 100


def others_cores(before: tuple[float, float, float], after: tuple[float, float, float]) -> float:
    """How many cores other work used between two times of (clock, all, ours) in seconds."""
    wall_s, all_s, own_s = (b - a for a, b in zip(before, after, strict=True))
    return min(max(all_s - own_s, 0.0) / max(wall_s, 1e-9), float(usable_cores()))


def quiet_part(samples: Samples, count: int) -> Samples:
    """The repeats that other work disturbed least; their own values have no say."""
    order = sorted(range(len(samples["others_cores"])), key=samples["others_cores"].__getitem__)
    keep = sorted(order[:count])
    return {name: [values[i] for i in keep] for name, values in samples.items()}
