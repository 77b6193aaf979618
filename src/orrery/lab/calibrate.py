"""This machine as a world: what messages, arrays, disk calls and arithmetic cost here.

A probe runs on three real processes over the loopback (see `probe`). Costs are processor time; what
is not processor time (a wake-up, the disk's own wait) is the rest of the measured time, after the
same probe in virtual time has taken its share. Sizes are 1 KB, and larger ones for what a byte
costs. Nothing is fitted to any system.
"""

from __future__ import annotations

import contextlib
import datetime
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orrery.base.errors import PlatformLacks, UsageError
from orrery.lab.probe import (
    FULL,
    HUGE_B,
    NODES,
    QUICK,
    REPORT_SIZES,
    SIZES,
    SMALL_B,
    Effort,
    Probe,
    Samples,
    probing,
    quiet_part,
    usable_cores,
)
from orrery.lab.run import run
from orrery.lab.stats import mean_interval, p50
from orrery.parts import Problem
from orrery.world import Disk, World, machine
from orrery.world.processors import Bend, Cost, Processors

# A wire that costs nothing: on one machine the bytes cost processor time alone.
NO_WIRE_BPS = 1e15
LIMIT_S = 240.0
# Where a part's own computing is measured: a size near nothing, and one that shows the bytes.
OWN_SIZES = (1 << 10, 128 << 10)


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


# -- from samples to a world


def measure(
    effort: Effort = FULL,
    folder: Path | None = None,
    on_step: Callable[[str], None] | None = None,
) -> Samples:
    """Raw samples of this machine, from three processes that speak over the loopback."""
    with _temporary_in(folder):
        outcome = _engine(World.lan(NODES), probing(effort, on_step), "processes").run(LIMIT_S)
    if outcome.driven is None:
        raise PlatformLacks(f"the probe did not end ({outcome.ended}); check that loopback works")
    return quiet_part(outcome.driven, max(2, (effort.repeats + 1) // 2))


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
    wake_s = max(m[f"receive_{SMALL_B}"] - m["receive_awake"], 0.0)
    receive = _cost_of({size_B: m[f"receive_{size_B}"] - wake_s for size_B in SIZES})
    # A ping costs its sender the sending of the data, and waking up for an empty answer.
    note_s = wake_s + receive.fixed_s
    send = _cost_of({size_B: m[f"ping_cpu_{size_B}"] - note_s for size_B in SIZES})
    # Who passes arrays on sends one, takes one in, and sends and gets a small message for each.
    note_s += send.fixed_s
    half = _cost_of({size_B: (m[f"pass_cpu_{size_B}"] - note_s) / 2 for size_B in SIZES})
    syncs = {size_B: m[f"sync_cpu_{size_B}"] - m[f"write_{size_B}"] for size_B in SIZES}
    return Processors(
        cores=cores, send=send, receive=receive,
        wake_s=wake_s,
        transfer_out=half, transfer_in=half,
        write=_cost_of({size_B: m[f"write_{size_B}"] for size_B in SIZES}),
        sync=_cost_of(syncs),
        report=_cost_of({size_B: m[f"report_{size_B}"] for size_B in REPORT_SIZES}),
        hear=_cost_of({size_B: m[f"hear_{size_B}"] for size_B in REPORT_SIZES}),
    )  # fmt: skip


def _cost_of(seconds: Mapping[int, float]) -> Cost:
    """The cost whose bends lie at the measured sizes; it never falls, whatever the noise says."""
    sizes = sorted(seconds)
    rising = np.maximum.accumulate([max(seconds[size_B], 0.0) for size_B in sizes])
    slopes = [float(slope) for slope in np.diff(rising) / np.diff(sizes)]
    return Cost(
        fixed_s=max(float(rising[0]) - slopes[0] * sizes[0], 0.0), per_B_s=slopes[0],
        bends=tuple(
            Bend(from_B=float(size_B), per_B_s=slope)
            for size_B, slope in zip(sizes[1:-1], slopes[1:], strict=True)
        ),
    )  # fmt: skip


def own_work(world: World, work: Callable[[int], tuple[Any, Problem]]) -> Cost:
    """What a part itself computes for each message and each byte that it gets.

    `work(size_B)` gives the part and a problem whose values have that size. In virtual time a
    part's code runs as it is, so what it needs is measured there, on three nodes.
    """
    small, large = (_computed(world, *work(size_B)) for size_B in OWN_SIZES)
    fixed_s = small.cpu_s / small.messages
    more_B = large.bytes / large.messages - small.bytes / small.messages
    per_B_s = (large.cpu_s / large.messages - fixed_s) / more_B
    return Cost(fixed_s=fixed_s, per_B_s=max(per_B_s, 0.0))


class Computed(NamedTuple):
    """What a virtual run needed: processor seconds, and what its nodes got."""

    cpu_s: float
    messages: int
    bytes: int


def _computed(world: World, part: Any, problem: Problem) -> Computed:
    """The least of a few runs, as whatever else happens can only add to it."""
    found = []
    for _ in range(5):
        began = time.process_time()
        done = run(part, problem=problem, world=at_size(world, NODES), seed=1)
        spent_s = time.process_time() - began
        found.append(Computed(spent_s, done.messages + done.extra["transfers"], done.bytes))
    return min(found)


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
    # Three nodes that ask at once need more than their processor time: a process that is woken
    # waits for the system's scheduler. That wait is the latency.
    latency_s = _find_latency(world, m["cross"])
    sync_s = _virtual(world, "disk")[f"sync_{SMALL_B}"]
    fsync_s = max(m[f"sync_{SMALL_B}"] - sync_s, 0.0)
    world = _world(spec, m, latency_s, fsync_s, folder)
    noted = {"source": _source(samples)}
    flush_Bps = _find_flush(world, m[f"sync_{HUGE_B}"])
    return world.with_(processors=noted if flush_Bps is None else noted | {"flush_Bps": flush_Bps})


def _find_latency(world: World, measured_s: float) -> float:
    """The latency at which three nodes that ask one another at once take the measured time."""
    low, high = 0.0, measured_s
    for _ in range(12):
        middle = (low + high) / 2
        took_s = _virtual(world.with_(network={"latency_s": middle}), "messages")["cross"]
        low, high = (low, middle) if took_s > measured_s else (middle, high)
    return low


def _find_flush(world: World, measured_s: float) -> float | None:
    """The speed of one disk under all nodes at which big syncs take the measured time.

    None where processor time alone takes as long: then the disk is never what one waits for.
    """
    if _virtual(world, "disk")[f"sync_{HUGE_B}"] >= measured_s:
        return None
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
    kept = [f"{size_B >> 10} KB: {_spread(samples, size_B)}" for size_B in SIZES]
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
    fsync_s, trips = world.machine_of(0).disk.fsync_s, samples[f"ping_{SMALL_B}"]
    lows = samples[f"ping_low_{SMALL_B}"]
    cross_s, sync_s = p50(samples["cross"]), p50(samples[f"sync_{SMALL_B}"])

    def each(name: str, unit: str, how: str, values: list[float]) -> Figure:
        return figure(name, unit, how, values)

    def around(value: float, seen: list[float], middle: float) -> list[float]:
        """A solved figure has the relative spread of the samples that it was solved from."""
        return [value * x / middle for x in seen]

    latency_s = world.network.latency_s
    return [
        each("latency_s", "s", "3 nodes ask at once with 1 KB; what the processors do not explain",
             around(latency_s, samples["cross"], cross_s)),
        each("jitter", "", "twice what the median round trip is above the least, as a share of it",
             [2 * (a - b) / b for a, b in zip(trips, lows, strict=True)]),
        each("bandwidth_Bps", "B/s", "an array of 2 MB from rank to rank",
             [HUGE_B / s for s in samples[f"move_{HUGE_B}"]]),
        each("fsync_s", "s", "append 1 KB and fsync, 3 nodes at once; beyond processor time",
             around(fsync_s, samples[f"sync_{SMALL_B}"], sync_s)),
        each("write_Bps", "B/s", "3 nodes append 2 MB each and fsync, all together",
             [NODES * HUGE_B / s for s in samples[f"sync_{HUGE_B}"]]),
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
    "FULL", "QUICK", "Effort", "Figure", "at_size", "calibrate", "cost_figures", "figure",
    "figures", "measure", "own_work", "processors_of", "solve",
]  # fmt: skip
