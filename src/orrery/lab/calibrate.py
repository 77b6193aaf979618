"""This machine as a world: what messages, arrays, disk calls and arithmetic cost here.

A probe runs on three real processes over the loopback. Costs are processor time, which other work
on the machine hardly changes; what is not processor time (a wake-up, the disk's own wait) is the
rest of the measured time, after the same probe in virtual time has taken its share. Sizes are 1 KB,
and two larger ones for what a byte costs. Nothing is fitted to any system.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from orrery.base.errors import UsageError
from orrery.lab.stats import mean_interval, p50, quantile
from orrery.parts import Driver, Outcome, Problem, Worker, rpc
from orrery.world import Disk, World, machine
from orrery.world.processors import Cost, Processors

NODES = 3
SMALL_B, LARGE_B, HUGE_B = 1 << 10, 128 << 10, 2 << 20
SIZES = (SMALL_B, LARGE_B, HUGE_B)
# Records are small, and must fit into what the line to the parent holds.
REPORT_SIZES = (SMALL_B, 16 << 10)
# A wire that costs nothing: on one machine the bytes cost processor time alone.
NO_WIRE_BPS = 1e15

Samples = dict[str, list[float]]


class Figure(NamedTuple):
    """A measured figure: the median of n repeats, the 95 % interval of their mean, its unit."""

    name: str
    value: float
    lo: float
    hi: float
    unit: str
    n: int
    how: str

    def text(self) -> str:
        """As it stands in a file: value, interval, repeats, method."""
        half = (self.hi - self.lo) / 2
        return f"{self.name} = {self.value:.4g} ± {half:.2g} {self.unit}, n = {self.n}: {self.how}"


def figure(name: str, unit: str, how: str, samples: list[float]) -> Figure:
    """The median of repeats with an interval around it that stays on the positive side."""
    if not samples:
        raise UsageError(f"figure({name!r}): no samples; measure at least once")
    value, found = p50(samples), mean_interval(samples)
    half = (found.hi - found.lo) / 2 if found.known else value
    return Figure(name, value, max(value - half, value * 0.01), value + half, unit,
                  len(samples), how)  # fmt: skip


class Effort(msgspec.Struct, frozen=True):
    """How long to measure: repeats, and calls of each kind for each repeat."""

    repeats: int = 5
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
    async def pass_on(self, size_B: int, count: int) -> None:
        """Arrays to the next rank while others come from the one before: all ranks are busy."""
        array = np.zeros(size_B, np.uint8)
        for _ in range(count):
            sent = self.spawn(self.send((self.rank + 1) % self.size, array, tag="on"))
            await self.recv((self.rank - 1) % self.size, tag="on")
            await sent

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
        chosen = [name for name in steps if not self.only or name in self.only]
        for repeat in range(self.effort.repeats + 1):
            for name in chosen:
                samples = await steps[name](driver)
                self.on_step(name)
                if repeat:  # the first time opens connections and warms up
                    for key, value in samples.items():
                        found.setdefault(key, []).append(value)
        return found

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
            _, cpu_0, cpu_1 = await self._cost(driver, passing)
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


# -- from samples to a world


def measure(
    effort: Effort = FULL,
    folder: Path | None = None,
    on_step: Callable[[str], None] | None = None,
) -> Samples:
    """Raw samples of this machine, from three processes that speak over the loopback."""
    with _temporary_in(folder):
        outcome = _engine(World.lan(NODES), probing(effort, on_step), "processes").run()
    found: Samples = outcome.driven
    return found


def _engine(world: World, problem: Problem, engine: str) -> Any:
    """The raw outcome is wanted, not a judged run, so the engine is built here."""
    if engine == "virtual":
        from orrery.engines.virtual.engine import Engine

        return Engine({"node": Probe()}, world=world, problem=problem)
    from orrery.engines.processes.engine import ProcessEngine

    return ProcessEngine(
        {"node": Probe()}, world=world, problem=problem, raw=True, nodes_per_process=1
    )


@contextlib.contextmanager
def _temporary_in(folder: Path | None) -> Iterator[None]:
    """Let the engine keep the nodes' files under this folder."""
    before = tempfile.tempdir
    if folder is not None:
        tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def processors_of(samples: Samples, cores: int) -> Processors:
    """The costs of the samples' medians, as the world's processors."""
    m = {name: p50(values) for name, values in samples.items()}
    receive = _cost_of({size_B: m[f"receive_{size_B}"] for size_B in SIZES})
    # A ping costs its sender the sending of the data and the receiving of an empty answer.
    send = _cost_of(
        {size_B: m[f"ping_cpu_{size_B}"] - receive.fixed_s for size_B in SIZES}
    )  # fmt: skip
    # Who passes arrays on sends one, takes one in, and sends and gets a small message for each.
    note_s = send.fixed_s + receive.fixed_s
    half = _cost_of({size_B: (m[f"pass_cpu_{size_B}"] - note_s) / 2 for size_B in SIZES})
    syncs = {size_B: m[f"sync_cpu_{size_B}"] - m[f"write_{size_B}"] for size_B in SIZES}
    return Processors(
        cores=cores, send=send, receive=receive,
        transfer_out=half, transfer_in=half,
        write=_cost_of({size_B: m[f"write_{size_B}"] for size_B in SIZES}),
        sync=_cost_of(syncs), report=_line_of(m, "report"), hear=_line_of(m, "hear"),
        large_B=float(LARGE_B),
    )  # fmt: skip


def _cost_of(seconds: dict[int, float]) -> Cost:
    """A fixed cost and two slopes through three sizes; none of them below nothing."""
    small_s, large_s, huge_s = (max(seconds[size_B], 0.0) for size_B in SIZES)
    per_B_s = max(large_s - small_s, 0.0) / (LARGE_B - SMALL_B)
    return Cost(
        fixed_s=max(small_s - per_B_s * SMALL_B, 0.0), per_B_s=per_B_s,
        large_per_B_s=max(huge_s - large_s, 0.0) / (HUGE_B - LARGE_B),
    )  # fmt: skip


def _line_of(m: dict[str, float], name: str) -> Cost:
    """A fixed cost and one slope through the two sizes of records."""
    low_B, high_B = REPORT_SIZES
    low_s, high_s = m[f"{name}_{low_B}"], m[f"{name}_{high_B}"]
    per_B_s = max(high_s - low_s, 0.0) / (high_B - low_B)
    return Cost(fixed_s=max(low_s - per_B_s * low_B, 0.0), per_B_s=per_B_s)


def usable_cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def calibrate(
    nodes: int = NODES,
    *,
    effort: Effort = FULL,
    folder: Path | None = None,
    on_step: Callable[[str], None] | None = None,
) -> tuple[World, list[Figure]]:
    """(this machine as a world of so many processes, the figures behind it)."""
    samples = measure(effort, folder, on_step)
    world = solve(samples, usable_cores(), folder)
    return at_size(world, nodes), figures(samples, world)


def solve(samples: Samples, cores: int, folder: Path | None = None) -> World:
    """The world of three nodes in which the probe takes the time that it took here."""
    spec = processors_of(samples, cores)
    m = {name: p50(values) for name, values in samples.items()}
    world = _world(spec, m, 0.0, 0.0, folder)
    # What the processors do not explain of a round trip is twice the way from one to the other.
    trip_s = _virtual(world, "messages")[f"ping_{SMALL_B}"]
    latency_s = max(m[f"ping_{SMALL_B}"] - trip_s, 0.0) / 2
    sync_s = _virtual(world, "disk")[f"sync_{SMALL_B}"]
    fsync_s = max(m[f"sync_{SMALL_B}"] - sync_s, 0.0)
    world = _world(spec, m, latency_s, fsync_s, folder)
    flush_Bps = _find_flush(world, m[f"sync_{HUGE_B}"])
    return world.with_(processors={"flush_Bps": flush_Bps, "source": _source(samples)})


def _find_flush(world: World, measured_s: float) -> float:
    """The speed of one disk under all nodes at which big syncs take the measured time."""
    slow, fast = 1e6, 1e12
    for _ in range(24):
        middle = (slow * fast) ** 0.5
        tried = world.with_(processors={"flush_Bps": middle})
        slower = _virtual(tried, "disk")[f"sync_{HUGE_B}"] > measured_s
        slow, fast = (middle, fast) if slower else (slow, middle)
    return (slow * fast) ** 0.5


def _virtual(world: World, only: str) -> dict[str, float]:
    """The same probe in virtual time."""
    problem = probing(Effort(repeats=1, calls=20, large_calls=4, syncs=6), None, only)
    outcome = _engine(world, problem, "virtual").run()
    return {name: values[0] for name, values in outcome.driven.items()}


def _world(
    spec: Processors, m: dict[str, float], latency_s: float, fsync_s: float, folder: Path | None
) -> World:
    place = folder or Path(tempfile.gettempdir())
    like, share = machine("laptop"), min(NODES, spec.cores)
    disk = Disk(
        read_Bps=like.disk.read_Bps, write_Bps=NO_WIRE_BPS, latency_s=0.0, fsync_s=fsync_s,
        capacity_B=shutil.disk_usage(place).total,
        source=f"measured in {place}; a write costs processors.write, the disk's own speed is "
        "processors.flush_Bps; read_Bps is the catalogue's",
    )  # fmt: skip
    process = like.replace(
        cores=1, cpu_flops=m["core_flops"], memory_Bps=m["memory_Bps"],
        nic_Bps=None, disk=disk,
        idle_W=like.idle_W / share, active_W=like.active_W / share,
        source=f"measured: one core of {spec.cores}; power is the catalogue's laptop's",
    )  # fmt: skip
    return World.lan(
        NODES, machine="process", machines={"process": process}, processors=spec,
        latency_s=latency_s, jitter=0.0, bandwidth_Bps=NO_WIRE_BPS,
        title=f"this machine: {platform.system()} {platform.machine()}, {spec.cores} cores",
    )  # fmt: skip


def at_size(world: World, nodes: int) -> World:
    """The same machine with another number of processes on it."""
    return world.replace(groups=(world.groups[0].replace(count=nodes),))


def _source(samples: Samples) -> str:
    n = len(samples["idle"])
    kept = [f"{SMALL_B >> 10} KB: {_spread(samples, SMALL_B)}", f"{LARGE_B >> 10} KB: "
            f"{_spread(samples, LARGE_B)}", f"{HUGE_B >> 20} MB: {_spread(samples, HUGE_B)}"]  # fmt: skip
    today = datetime.date.today().isoformat()
    return f"measured {today}, {NODES} processes, {n} repeats, us of a core: " + "; ".join(kept)


def _spread(samples: Samples, size_B: int) -> str:
    told = []
    for name in ("ping_cpu", "receive", "pass_cpu", "write", "sync_cpu"):
        found = figure(name, "s", "", samples[f"{name}_{size_B}"])
        told.append(f"{name} {found.value * 1e6:.0f}±{(found.hi - found.lo) / 2 * 1e6:.0f}")
    return ", ".join(told)


def figures(samples: Samples, world: World) -> list[Figure]:
    """The figures that people ask for, with their intervals."""
    spec = world.processors
    assert spec is not None
    fsync_s, trips = world.machine_of(0).disk.fsync_s, samples[f"ping_{SMALL_B}"]
    lows = samples[f"ping_low_{SMALL_B}"]
    trip_s, sync_s = p50(trips), p50(samples[f"sync_{SMALL_B}"])
    flush_Bps = spec.flush_Bps or NO_WIRE_BPS
    big_s = p50(samples[f"sync_{HUGE_B}"])

    def each(name: str, unit: str, how: str, values: list[float]) -> Figure:
        return figure(name, unit, how, values)

    def around(value: float, seen: list[float], middle: float) -> list[float]:
        """A solved figure has the relative spread of the samples that it was solved from."""
        return [value * x / middle for x in seen]

    latency_s = world.network.latency_s
    return [
        each("latency_s", "s", "of a round trip of 1 KB, what the processors do not explain",
             around(latency_s, trips, trip_s)),
        each("jitter", "", "twice what the median round trip is above the least, as a share of it",
             [2 * (a - b) / b for a, b in zip(trips, lows, strict=True)]),
        each("bandwidth_Bps", "B/s", "an array of 2 MB from rank to rank",
             [HUGE_B / s for s in samples[f"move_{HUGE_B}"]]),
        each("fsync_s", "s", "append 1 KB and fsync, 3 nodes at once; beyond processor time",
             around(fsync_s, samples[f"sync_{SMALL_B}"], sync_s)),
        each("write_Bps", "B/s", "the disk under all nodes, from fsyncs of 2 MB",
             around(flush_Bps, samples[f"sync_{HUGE_B}"], big_s)),
        each("core_flops", "flop/s", "numpy fp32 512x512 product on one core",
             samples["core_flops"]),
        each("memory_Bps", "B/s", "copy of 16 MiB by one core", samples["memory_Bps"]),
    ]  # fmt: skip


def cost_figures(samples: Samples) -> list[Figure]:
    """What each operation costs a processor, at each size that was measured."""
    names = ("ping_cpu", "receive", "pass_cpu", "write", "sync_cpu")
    keys = [f"{name}_{size_B}" for name in names for size_B in SIZES]
    keys += [f"{name}_{size_B}" for name in ("report", "hear") for size_B in REPORT_SIZES]
    return [figure(key, "s", "processor seconds", samples[key]) for key in keys]


__all__ = [
    "FULL", "QUICK", "Effort", "Figure", "Probe", "Probing", "at_size", "calibrate",
    "cost_figures", "figures", "measure", "solve",
]  # fmt: skip
