"""The problem `sick_communication`: a training job hangs or crawls; which rank is it, and why?

The port is `Watcher`. Jobs of ranks in tensor, pipeline and data parallel groups train for ever,
with jitter and batches that differ. In each job one rank or link falls ill; the watcher is judged
by the ailment and the ranks that it names first, how soon, and whether it cries wolf.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from orrery.base.errors import PartError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.parts import (
    Count,
    DeadlineExceeded,
    Driver,
    Fraction,
    Metric,
    Node,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    Whole,
)
from orrery.parts.collectives import Collective, Ring
from orrery.parts.worker import Task
from orrery.systems.collectives import Tree
from orrery.systems.resilience.problems.training_job import JobRank, Layout, Misstep
from orrery.systems.resilience.problems.watcher import Ailment, Report, Watcher, levels
from orrery.world import Clocks, Clog, Crash, Fault, Pause, Slow, World

Kind = Literal[
    "none", "crash", "stop", "stuck", "skip", "size", "op", "link", "slow", "periodic", "nic",
]  # fmt: skip
KINDS: tuple[Kind, ...] = (
    "crash", "stop", "stuck", "skip", "size", "op", "link", "slow", "periodic", "nic",
)  # fmt: skip
TRUTH: dict[Kind, Ailment] = {
    "crash": "crashed", "stop": "stopped", "stuck": "stuck", "skip": "skipped",
    "size": "size_mismatch", "op": "op_mismatch", "link": "hung_link", "slow": "slow_compute",
    "periodic": "periodic_compute", "nic": "slow_nic",
}  # fmt: skip
# A link that carries so little of its bandwidth does not carry anything in the time of a run.
NOTHING = 1e-9
# NVIDIA ConnectX-7 data sheet: 400 Gb/s; a switch and two adapters take some microseconds.
NIC_Bps, LATENCY_s = 50e9, 5e-6


class Case(msgspec.Struct, frozen=True):
    """What is wrong in one job: the ailment, the ranks that have it, and from when on."""

    kind: Kind
    ranks: tuple[int, ...]
    at_s: float


class SickCommunication(Problem):
    """Find the rank that makes a training job hang or crawl, and say what ails it.

    Knobs: `kind` of the fault ("all": job j has kind j of the ten); `place`, which of the random
    places and times it has, and which batches come; `tp`, `pp`, `dp`, the groups of a job; `jobs`
    side by side, each with watchers of its own; `fan_in`, how many a watcher hears; `step_s` that
    the stages compute in a step; `pace_s` that each half of it waits for data; `grinds`, real
    products in each half; `jitter` (log-normal sigma of a rank's time) and `batch_spread` (by how
    much batches of replicas differ); `collective`; `scale`, how many bytes one byte of an array
    stands for in virtual time; `width`, how many times longer arrays are; `after_s`, before which
    nothing is wrong, and `within_s`, the time after it in which the fault begins; `factor` and
    `period` (steps) of slow computing; `nic_fraction` of the bandwidth that a sick NIC has left;
    `limit_s`, how long the watcher may search; `calm_s`, how long a sound job runs; `launcher_s`,
    how often the launcher looks after its processes; `probe_loss`, the chance that a message is
    lost (arrays of the job are no messages); `skew_s`, how far clocks are off; `dead_watcher`, the
    place in the tree of a watcher that crashes before the fault (-1: none).

    >>> SickCommunication(kind="nic").cases()[0].kind
    'nic'
    """

    kind: Kind | Literal["all"] = "crash"
    place: Whole = 0
    tp: Count = 2
    pp: Count = 2
    dp: Count = 2
    jobs: Count = 1
    fan_in: Count = 16
    step_s: Positive = 5.0
    pace_s: NonNegative = 0.1
    grinds: Whole = 0
    jitter: NonNegative = 0.02
    batch_spread: Fraction = 0.3
    collective: Literal["ring", "tree"] = "tree"
    scale: Positive = 1.6e6
    width: Count = 1
    after_s: NonNegative = 30.0
    within_s: NonNegative = 10.0
    factor: Positive = 2.0
    period: Count = 3
    nic_fraction: Fraction = 0.05
    limit_s: Positive = 900.0
    calm_s: Positive = 300.0
    launcher_s: Positive = 2.0
    probe_loss: Fraction = 0.0
    skew_s: NonNegative = 0.0
    dead_watcher: int = -1

    port: ClassVar[type] = Watcher
    metrics: ClassVar[Mapping[str, Metric]] = {
        "right": Metric("", "higher", "the part of the jobs whose ailment and ranks are named"),
        "right_rank": Metric("", "higher", "the part whose ranks are named, whatever the ailment"),
        "wrong": Metric("", "lower", "the part in which somebody else is blamed"),
        "located_s": Metric("s", "lower", "from fault to first report, mean; the limit if none"),
        "slowest_s": Metric("s", "lower", "the same, of the job that took longest"),
        "false_alarms": Metric("", "lower", "reports before the fault, or in a sound job"),
        "victims": Metric("", "lower", "ranks that were blamed and had no fault, over all jobs"),
        "inflow_B": Metric("B", "lower", "the most bytes that a watcher got between two beats"),
        "depth": Metric("", "lower", "levels of watchers above the ranks"),
        "probe_share": Metric("", "lower", "time inside the recorder over the time of the job"),
        "steps": Metric("", "higher", "that rank 0 has ended"),
    }

    # -- the case

    @property
    def layout(self) -> Layout:
        """How the ranks of a job are laid out."""
        return Layout(self.tp, self.pp, self.dp)

    def cases(self) -> list[Case]:
        """What is wrong in each job."""
        return [self._case(job) for job in range(self.jobs)]

    def _case(self, job: int) -> Case:
        kind: Kind = KINDS[job % len(KINDS)] if self.kind == "all" else self.kind
        layout, first = self.layout, job * self.layout.size
        draw = Stream(self.place, f"{kind} {job}", "sick communication")
        sick = draw.below(layout.size)
        at_s = self.after_s + draw.random() * self.within_s
        ranks: tuple[int, ...] = (first + sick,)
        if kind == "none":
            ranks = ()
        if kind == "link":
            # A link that is in use: of neighbours in a ring or pipe, of parent and child in a tree.
            groups = [(name, each) for name, each in layout.groups(sick).items() if len(each) > 1]
            name, group = groups[draw.below(len(groups))]
            at = group.index(sick) or 1
            wide = self.collective == "tree" and name != "pp"
            ends = (group[at], group[at & (at - 1) if wide else at - 1])
            ranks = tuple(sorted(first + end for end in ends))
        return Case(kind, ranks, at_s)

    def faults(self) -> list[Fault]:
        """What the engine does to machines and links."""
        found: list[Fault] = []
        if self.dead_watcher >= 0:
            block = sum(levels(self.layout.size, self.fan_in))
            if self.dead_watcher >= block:
                raise PartError(f"dead_watcher={self.dead_watcher}: a job has {block} watchers")
            dead = [self.jobs * self.layout.size + job * block + self.dead_watcher
                    for job in range(self.jobs)]  # fmt: skip
            found.append(Crash(node=tuple(dead), at_s=self.after_s / 2))
        for case in self.cases():
            if case.kind == "crash":
                found.append(Crash(node=case.ranks[0], at_s=case.at_s))
            elif case.kind == "stop":
                found.append(Pause(node=case.ranks[0], at_s=case.at_s))
            elif case.kind == "slow":
                found.append(Slow(node=case.ranks[0], factor=self.factor, at_s=case.at_s))
            elif case.kind == "link":
                link = (case.ranks[0], case.ranks[1])
                found.append(Clog(link=link, fraction=NOTHING, at_s=case.at_s))
            elif case.kind == "nic":
                found.append(
                    Clog(node=case.ranks[0], fraction=self.nic_fraction, at_s=case.at_s)
                )  # fmt: skip
        return found

    def missteps(self) -> dict[int, tuple[Misstep, float]]:
        """What ranks do wrong by themselves, and from when on."""
        own: tuple[Misstep, ...] = ("skip", "size", "op", "stuck", "periodic")
        return {
            case.ranks[0]: (kind, case.at_s)
            for case in self.cases() for kind in own if case.kind == kind
        }  # fmt: skip

    def world(self) -> World:
        ranks = self.jobs * self.layout.size
        watchers = self.jobs * sum(levels(self.layout.size, self.fan_in))
        return World.lan(
            {"rank": ranks, "watcher": watchers}, latency_s=LATENCY_s, bandwidth_Bps=NIC_Bps,
            drop=self.probe_loss, clocks=Clocks(skew_s=self.skew_s),
        ).with_faults(*self.faults())  # fmt: skip

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        size = self.layout.size
        if size < 2:
            raise PartError(f"tp={self.tp}, pp={self.pp}, dp={self.dp}: give at least 2 ranks")
        ranks = world.members("rank") if "rank" in world.roles else range(0)
        if len(ranks) != self.jobs * size or "watcher" not in world.roles:
            raise PartError(
                f"the world has {len(ranks)} of role rank; give {{'rank': {self.jobs * size}, "
                f"'watcher': {self.jobs * sum(levels(size, self.fan_in))}}}"
            )
        if self.tp < 2 and "skip" in {case.kind for case in self.cases()}:
            raise PartError('kind="skip" needs tp >= 2: elsewhere all operations are alike')
        how: Collective = Tree() if self.collective == "tree" else Ring()
        rank = JobRank(
            watch=part.with_knobs(job_ranks=size), tp=self.tp, pp=self.pp, dp=self.dp,
            step_s=self.step_s, pace_s=self.pace_s, grinds=self.grinds, jitter=self.jitter,
            batch_spread=self.batch_spread, factor=self.factor, period=self.period, collective=how,
            missteps={str(node): what for node, what in self.missteps().items()},
            width=self.width, training=Task(scale=self.scale), data_seed=self.place,
        )  # fmt: skip
        return {"rank": rank, "watcher": part.with_knobs(job_ranks=size)}

    # -- the launcher

    async def drive(self, driver: Driver) -> dict[int, Report | None]:
        await driver.sleep(0.0)
        ends_s = self.calm_s if self.kind == "none" else self.after_s + self.within_s + self.limit_s
        size, told = self.layout.size, set[int]()
        watchers = driver.members("watcher")
        block = len(watchers) // self.jobs
        root = Watcher.tree_for(driver.part.with_knobs(job_ranks=size),
                                driver.members("rank"), watchers).root  # fmt: skip
        roots = [watchers[0] + job * block + root for job in range(self.jobs)]
        open_jobs = dict.fromkeys(range(self.jobs))
        found: dict[int, Report | None] = dict.fromkeys(range(self.jobs))
        while open_jobs and driver.now < ends_s:
            await driver.sleep(self.launcher_s)
            for rank in range(self.jobs * size):
                if rank not in told and not driver.alive(rank):
                    told.add(rank)
                    await self._tell(driver, roots[rank // size], rank)
            for job in list(open_jobs):
                found[job] = await self._ask(driver, roots[job])
                if found[job] is not None:
                    del open_jobs[job]
        for job in open_jobs:
            # Where the watchers themselves are gone, the one who asked them must say so.
            if self.kind != "none" and not driver.alive(roots[job]):
                driver.emit(no_answer=job)
        for rank in range(0, self.jobs * size, size):
            if driver.alive(rank):
                driver.tell(rank, JobRank.sum_up)
        await driver.sleep(self.launcher_s)
        return found

    async def _tell(self, driver: Driver, root: int, rank: int) -> None:
        """Tell a watcher that a process has ended; its answer shows that it came through."""
        for _ in range(8):
            try:
                async with driver.deadline(self.launcher_s):
                    await driver.ask(root, Watcher.exited, rank)
                    return
            except DeadlineExceeded:
                continue

    async def _ask(self, driver: Driver, root: int) -> Report | None:
        try:
            async with driver.deadline(self.launcher_s):
                found: Report | None = await driver.ask(root, Watcher.found)
                return found
        except DeadlineExceeded:
            return None

    # -- judging

    def check(self, outcome: Outcome) -> list[Violation]:
        return [
            Violation(kind="false_alarm", time_s=time_s, node=node,
                      message=f"{what}: ranks {blamed} were blamed though nothing was wrong")
            for time_s, node, what, blamed, case in self._said(outcome)
            if blamed and time_s < case.at_s
        ]  # fmt: skip

    def _said(self, outcome: Any) -> list[tuple[float, int, str, tuple[int, ...], Case]]:
        """(when, who, ailment, ranks, the case of that job) of each report."""
        cases = self.cases()
        watchers = outcome.world.members("watcher")
        block = len(watchers) // self.jobs
        found = []
        for record in outcome.records:
            if "ailment" in record.values:
                case = cases[min((record.node - watchers[0]) // block, self.jobs - 1)]
                if case.kind == "none":
                    case = Case("none", (), math.inf)
                blamed = tuple(record.values["blamed"])
                found.append((record.time_s, record.node, record.values["ailment"], blamed, case))
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        said = self._said(outcome)
        right = right_rank = wrong = victims = 0
        took_s: list[float] = []
        block = len(outcome.world.members("watcher")) // self.jobs
        first = outcome.world.members("watcher")[0]
        for job, case in enumerate(self.cases()):
            mine = [each for each in said if (each[1] - first) // block == job]
            if case.kind == "none":
                right += not mine
                continue
            late = [each for each in mine if each[0] >= case.at_s]
            blamed = [each for each in late if each[3]]
            if not blamed:
                took_s.append(self.limit_s)
                continue
            time_s, _, ailment, ranks, _ = blamed[0]
            same = ranks == case.ranks
            right += same and ailment == TRUTH[case.kind]
            right_rank += same
            wrong += not same
            victims += len(set(ranks) - set(case.ranks))
            took_s.append(time_s - case.at_s if same else self.limit_s)
        found = {
            "right": right / self.jobs, "right_rank": right_rank / self.jobs,
            "wrong": wrong / self.jobs, "victims": float(victims),
            "false_alarms": float(len(self.check(outcome))),
            "depth": float(len(levels(self.layout.size, self.fan_in))),
            "inflow_B": max((v for _, _, v in outcome.emitted("inflow_B")), default=0.0),
        }  # fmt: skip
        if took_s:
            found["located_s"] = sum(took_s) / len(took_s)
            found["slowest_s"] = max(took_s)
        for _, _, (share, steps) in outcome.emitted("probe")[:1]:
            found["probe_share"], found["steps"] = share, float(steps)
        return found
