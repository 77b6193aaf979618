"""The processes engine: one run of parts in a world, on real processes, sockets and time.

The parent holds the driver, the object store and the fault schedule; nodes live in child processes
(see `zygote`). The meaning of everything is that of the virtual engine; only time, arithmetic speed
and the disk are the machine's own, and the order of events is not repeatable.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from orrery.base.codec import MAX_FRAME_B
from orrery.base.errors import PartError, PlatformLacks, UsageError, did_you_mean
from orrery.base.units import to_ns
from orrery.engines.bind import cast
from orrery.engines.processes import faults as faulting
from orrery.engines.processes.bill import rent
from orrery.engines.processes.folders import run_folders
from orrery.engines.processes.loops import new_loop, outside_loops, settle
from orrery.engines.processes.parent import ParentPlace
from orrery.engines.processes.reports import OnLog, Reports
from orrery.engines.processes.spec import (
    COUNTERS,
    Counters,
    RunSpec,
    check_options,
    group_nodes,
    need_unix,
)
from orrery.engines.processes.supervise import Boss, Supervisor, pick_start
from orrery.parts.monitor import Monitor
from orrery.parts.problem import Driver, Outcome, Problem
from orrery.world import World

_START_LEAD_S = 0.02
_QUIET_EVERY_S = 0.05
_QUIET_TIMES = 4
LOOPBACK = "127.0.0.1"


class ProcessEngine:
    """A run in the making: build it, `run()` it, read its `Outcome`.

    nodes_per_process   how many nodes share a process; left out, so many that there are about 16
                        processes. A node that a fault signals (Crash, Pause, Slow, SpotReclaim) is
                        always alone in its process.
    raw                 leave the links and the store as fast as this machine has them; faults are
                        still applied. Otherwise the world's latency, jitter, loss and bandwidth
                        are added by a shim at the sender.
    start               "fork": children are forked from this process, so parts defined anywhere
                        can run; "spawn": children begin in a fresh interpreter, so parts must be
                        importable; "auto": fork on Linux unless CUDA is in use here.
    address             where to listen; anything but the loopback must be asked for.
    """

    name = "processes"
    share_option = "nodes_per_process"
    most_groups = faulting.MOST_PROCESSES
    ready_s = 60.0

    def __init__(
        self,
        roles: Mapping[str, Any],
        *,
        world: World,
        problem: Problem | None = None,
        part: Any = None,
        seed: int = 0,
        monitors: Sequence[Monitor] = (),
        on_log: OnLog | None = None,
        nodes_per_process: int | None = None,
        raw: bool = False,
        start: str = "auto",
        address: str = LOOPBACK,
        max_frame_B: int = MAX_FRAME_B,
    ) -> None:
        need_unix()
        check_options(nodes_per_process=nodes_per_process, max_frame_B=max_frame_B)
        if start not in ("auto", "fork", "spawn"):
            fix = did_you_mean(start, ("auto", "fork", "spawn"))
            raise UsageError(f"ProcessEngine(start={start!r}): {fix}")
        self.world = world
        self.problem = problem
        self.part = part
        self.seed = seed
        self.monitors = tuple(monitors)
        self.cast = cast(roles, world)
        self.size = world.size
        self.schedule = world.schedule(seed)
        faulting.refuse_unreal(world, self.schedule)
        alone = faulting.signalled(self.schedule) if self.cast else frozenset()
        self.groups = group_nodes(len(self.cast), alone, nodes_per_process)
        if len(self.groups) > self.most_groups:
            raise PlatformLacks(
                f"{len(self.groups)} processes are more than {self.most_groups}; raise "
                f"{self.share_option}, aim faults at fewer nodes, or use the virtual engine"
            )
        self.reports = Reports(self.size, seed, self.schedule, self.monitors, on_log)
        make_driver: Any = Driver
        self._driver = make_driver()
        self.driven: Any = None
        self.drive_ended = problem is None
        self.restarts = 0
        self._incarnations: dict[int, int] = {}
        self._start = pick_start(start)
        self._options: dict[str, Any] = {"raw": raw, "host": address, "max_frame_B": max_frame_B}
        self._ready: dict[int, tuple[str, int, int]] = {}
        self._pids: dict[int, list[int]] = {}
        self._expected: set[int] = set()  # groups whose process a fault has just killed
        self._running = False
        self._asks_left = 0

    # -- the run

    def run(self, until_s: float | None = None) -> Outcome:
        """Run until the workload ends, the time is up, or all is quiet."""
        if until_s is not None and not (until_s >= 0 and math.isfinite(until_s)):
            raise UsageError(f"until_s = {until_s!r} is not a time; give a number of seconds >= 0")
        return outside_loops(lambda: self._run(until_s))

    def _run(self, until_s: float | None) -> Outcome:
        for monitor in self.monitors:
            monitor.start()
        with run_folders() as (folder, arenas):
            spec = RunSpec(
                world=self.world, seed=self.seed, cast=self.cast, groups=self.groups,
                faults=self.schedule, folder=folder, arenas=arenas, driver=self._driver,
                monitors=self.reports.tapping,
                secret=secrets.token_bytes(32), **self._options,
            )  # fmt: skip
            self.counters = Counters(
                folder, len(self.groups) + 1, len(self.groups), len(self.schedule)
            )
            try:
                return self._supervise(spec, until_s)
            finally:
                self.counters.close()

    def _supervise(self, spec: RunSpec, until_s: float | None) -> Outcome:
        # The zygote is made before the loop, so that it inherits none.
        self._boss = self._make_boss(spec)
        loop: asyncio.AbstractEventLoop | None = None
        try:
            loop = new_loop()
            return loop.run_until_complete(self._main(spec, loop, until_s))
        finally:
            self._boss.close()
            if loop is not None:
                loop.run_until_complete(settle(loop))
                loop.close()

    def _make_boss(self, spec: RunSpec) -> Boss:
        return Supervisor(spec, self._start, self._hear, self._ended)

    async def _main(
        self, spec: RunSpec, loop: asyncio.AbstractEventLoop, until_s: float | None
    ) -> Outcome:
        self._finish: asyncio.Future[str] = loop.create_future()
        self.place = ParentPlace(spec, loop, self.counters, self)
        try:
            ports = await self.place.post.net.listen(), await self.place.bulk.listen()
            self._ready[spec.driver_group] = (spec.host, *ports)
            await self._boss.attach(loop)
            await self._start_all(spec, loop)
            ended = await self._drive(loop, until_s)
            seconds = self._seconds()
            await self._find_stuck(ended, loop)
            await self._boss.stop()
            self._end_monitors(seconds)
            return self._outcome(ended, seconds)
        except PartError:
            self._end_monitors(self._seconds())
            raise
        finally:
            self.place.close()

    def _seconds(self) -> float:
        return max(self.place.kernel.now_ns(), 0) / 1e9

    def _end_monitors(self, seconds: float) -> None:
        """What was tapped has arrived by now; a run that never began has nothing to end."""
        if self._running:
            for monitor in self.monitors:
                monitor.on_end(seconds, {*self.nemesis.down, *self._incarnations})

    async def _start_all(self, spec: RunSpec, loop: asyncio.AbstractEventLoop) -> None:
        self._all_ready: asyncio.Future[None] = loop.create_future()
        for group in range(len(self.groups)):
            self._boss.spawn(group, 0)
        if self.groups:
            either: set[asyncio.Future[Any]] = {self._all_ready, self._finish}
            await asyncio.wait(
                either,
                timeout=self.ready_s, return_when=asyncio.FIRST_COMPLETED,
            )  # fmt: skip
            if self._finish.done():
                self._finish.result()
            if not self._all_ready.done():
                missing = [g for g in range(len(self.groups)) if g not in self._ready]
                raise PartError(
                    f"{len(missing)} of {len(self.groups)} processes did not start within "
                    f"{self.ready_s:g} s; start fewer with {self.share_option}"
                )
        await self._boss.settle()
        kernel = self.place.kernel
        kernel.start_ns = time.monotonic_ns() + to_ns(_START_LEAD_S)
        self.place.set_peers(self._ready)
        self._running = True
        for group in range(len(self.groups)):
            self._boss.say(group, "peers", self._ready)
            self._boss.say(group, "start", kernel.start_ns)
        self.nemesis = faulting.Nemesis(
            kernel, self.schedule, self.counters, self._signal, self._respawn, self._command
        )
        self.nemesis.install()

    async def _drive(self, loop: asyncio.AbstractEventLoop, until_s: float | None) -> str:
        kernel, driver, problem = self.place.kernel, self.place.driver, self.problem

        async def drive() -> None:
            assert problem is not None
            self.driven = await problem.drive(driver)
            self.drive_ended = True
            self._stop("driven")

        def begin() -> None:
            if problem is not None:
                driver.start()
                kernel.spawn(driver, drive())
            kernel.release(driver)

        kernel.call_at(0, begin)
        if until_s is not None:
            # On the loop, not in the kernel: a time limit does not keep a run from being quiet.
            left_s = until_s - kernel.now_ns() / 1e9
            loop.call_later(left_s, self._stop, "until")
        watch = loop.create_task(self._watch_for_quiet())
        try:
            return await self._finish
        finally:
            watch.cancel()

    def _stop(self, ended: str) -> None:
        if not self._finish.done():
            self._finish.set_result(ended)

    def fail(self, error: BaseException) -> None:
        """End the run with an error."""
        if not self._finish.done():
            self._finish.set_exception(error)

    async def _watch_for_quiet(self) -> None:
        """Quiet is: no process can do anything of itself, and none has, for a while."""
        before, times = None, 0
        while True:
            await asyncio.sleep(_QUIET_EVERY_S)
            kernel, counters = self.place.kernel, self.counters
            living = [g for g in range(len(self.groups)) if g in self._boss.pids]
            idle = all(counters.get("idle", group) for group in living)
            moves = [counters.total(name) for name in ("messages", "delivered", "steps")]
            now = (kernel.steps, *living, *moves)
            if idle and kernel.idle and not self.nemesis.pending and now == before:
                times += 1
                if times >= _QUIET_TIMES:
                    self._stop("quiet")
                    return
            else:
                times = 0
            before = now

    # -- what children say

    def _hear(self, group: int, words: Any) -> None:
        word, *rest = words
        reports = self.reports
        if word == "emit":
            reports.emit(*rest)
        elif word == "log":
            reports.log(*rest)
        elif word == "tap":
            reports.tap(*rest)
        elif word == "ready":
            self._is_ready(group, *rest)
        elif word == "store":
            number, op, key, data, tag = rest
            self._boss.say(group, "stored", number, self.place.shelves.serve(op, key, data, tag))
        elif word == "failed":
            self.fail(reports.blame(*rest))
        elif word == "malformed":
            reports.malformed(*rest)
        elif word == "asks":
            self._asks_left -= 1
            reports.unanswered(self.place.kernel.now_ns() / 1e9, rest[0])

    def blame_driver(self, error: BaseException) -> None:
        """The workload itself broke."""
        what = f"{type(error).__name__}: {error}"
        failure = self.reports.blame(self.size, self.place.kernel.now_ns() / 1e9, what)
        failure.__cause__ = error
        self.fail(failure)

    def _is_ready(self, group: int, again: int, port: int, bulk_port: int) -> None:
        pid = self._boss.pids.get(group)
        if pid is None or again != self._incarnations.get(self.groups[group][0], 0):
            return  # it was killed before this word of it was read
        self._ready[group] = (self._boss.host_of(group), port, bulk_port)
        self._pids.setdefault(group, []).append(pid)
        if not self._running:
            if len(self._ready) == len(self.groups) + 1 and not self._all_ready.done():
                self._all_ready.set_result(None)
            return
        # A restarted process learns where everybody is, and everybody where it is.
        self._boss.say(group, "peers", self._ready)
        self._boss.say(group, "start", self.place.kernel.start_ns)
        moved = {group: self._ready[group]}
        self.place.set_peers(moved)
        for other in self._boss.pids:
            if other != group:
                self._boss.say(other, "peers", moved)
        self.nemesis.started(self.groups[group][0])

    def _ended(self, group: int, code: int) -> None:
        if group in self._expected and code == -signal.SIGKILL:
            self._expected.discard(group)
            return
        if self._finish.done():
            return
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        self._blame_end(group, how)

    def _blame_end(self, group: int, how: str) -> None:
        """A process ended, and no fault had asked for it."""
        who = "the process that starts nodes" if group < 0 else f"the process of {self._who(group)}"
        tail = self._boss.log_tail(group)
        self.fail(
            PartError(f"{who} {how}, which no fault asked for" + (f"\n{tail}" if tail else ""))
        )

    def _who(self, group: int) -> str:
        nodes = self.groups[group]
        return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {nodes[0]} to {nodes[-1]}"

    # -- what faults do

    def group_of(self, node: int) -> int:
        return next(g for g, nodes in enumerate(self.groups) if node in nodes)

    def _signal(self, node: int, signum: int) -> None:
        group = self.group_of(node)
        if signum == signal.SIGKILL:
            self._expected.add(group)
        self._boss.signal(group, signum)

    def _respawn(self, node: int) -> None:
        self.restarts += 1
        self._incarnations[node] = self._incarnations.get(node, 0) + 1
        self._boss.spawn(self.group_of(node), self._incarnations[node])

    def _command(self, node: int, *words: Any) -> None:
        self._boss.say(self.group_of(node), *words)

    # -- the end

    async def _find_stuck(self, ended: str, loop: asyncio.AbstractEventLoop) -> None:
        if ended != "quiet":
            return
        time_s = self.place.kernel.now_ns() / 1e9
        if not self.drive_ended:
            self.reports.stuck(time_s)
        self.reports.unanswered(time_s, self.place.kernel.open_asks())
        self._asks_left = len(self._boss.pids)
        for group in list(self._boss.pids):
            self._boss.say(group, "asks")
        give_up_s = loop.time() + 1.0
        while self._asks_left > 0 and loop.time() < give_up_s:
            await asyncio.sleep(0.005)

    def _outcome(self, ended: str, seconds: float) -> Outcome:
        money = self.place.shelves.bill(seconds)
        money += rent(self.world, seconds, self.schedule, self.counters)
        totals = {name: self.counters.total(name) for name in COUNTERS}
        extra = {
            "start": self._start, "processes": len(self.groups), "restarts": self.restarts,
            "incarnations": dict(self._incarnations),
            "pids": {n: self._pids.get(g, []) for g, ns in enumerate(self.groups) for n in ns},
            **faulting.effects(self.schedule, self.counters),
            **{name: totals[name] for name in COUNTERS if name not in ("steps", "idle")},
        }  # fmt: skip
        return Outcome(
            part=self.part, world=self.world, seed=self.seed, engine=self.name,
            seconds=seconds, ended=ended, driven=self.driven,
            records=sorted(self.reports.records, key=lambda record: record.time_s),
            messages=totals["messages"], bytes=totals["bytes"] + totals["transfer_bytes"],
            events=totals["delivered"],
            alive=[node not in self.nemesis.down for node in range(self.size)],
            money=money, violations=self.reports.violations, extra=extra,
        )  # fmt: skip
