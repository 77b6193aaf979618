"""Virtual time against measured time: does the calibrated world foretell real runs?

The machine is measured with a probe on three processes (see `calibrate`). Then Raft's commits and
the ring all-reduce run on real processes with other numbers of nodes and other sizes, and in
virtual time in the calibrated world. Nothing is fitted on those points. A point whose repeats
scatter by more than half the bar decides nothing, and says so.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from orrery.base.errors import DeadlineExceeded, Refused, UsageError
from orrery.base.violation import Violation
from orrery.lab.calibrate import at_size, own_work
from orrery.lab.probe import NODES, machine_busy_s, others_cores, usable_cores
from orrery.lab.run import run
from orrery.lab.stats import mean_interval, p50
from orrery.parts import Count, Driver, Metric, Node, Outcome, Problem, Whole, Worker, rpc
from orrery.parts.collectives import Collective, Ring
from orrery.systems.protocols.baselines.raft import Raft
from orrery.systems.protocols.problems.replicated_store import Op, Reply, StoreNode
from orrery.world import World

BAR = 0.25
KB, MB = 1 << 10, 1 << 20
MOST_WAKE_S = 1e-3
OWN_TIMES = 100
Verdict = Literal["within", "outside", "inconclusive"]


# -- the two workloads


class QuietRaft(Raft):
    """Raft that reports only who leads.

    The records for the checker would carry every value to the driver's process once more for each
    node, which is the cost of watching Raft and not of running it.
    """

    def start(self) -> None:
        super().start()
        report = self.emit

        def only_leads(**values: Any) -> None:
            if "leads" in values:
                report(**values)

        self.__dict__["emit"] = only_leads


class Commits(Problem):
    """Clients that write values of one size to a replicated store, one after the other each.

    The store's values are numbers, so the bytes travel in the key, which goes the same way.
    """

    value_B: Whole = KB
    commits: Count = 30
    clients: Count = 1

    port: ClassVar[type] = StoreNode
    metrics: ClassVar[Mapping[str, Metric]] = {
        "latency_p50_s": Metric("s", "lower", "of a commit, as its client sees it"),
        "commits_per_s": Metric("1/s", "higher", "of all clients together"),
    }

    def world(self) -> World:
        return World.lan(3)

    async def drive(self, driver: Driver) -> tuple[list[float], float]:
        """(seconds of each commit, seconds of all): after some commits that nobody times."""
        self.leader = 0
        for number in (1, 2):
            await self._commit(driver, self.clients, number)
        took: list[float] = []
        began_s = driver.now
        await driver.all(*(self._client(driver, name, took) for name in range(self.clients)))
        return took, driver.now - began_s

    async def _client(self, driver: Driver, name: int, took: list[float]) -> None:
        for number in range(1, self.commits + 1):
            began_s = driver.now
            await self._commit(driver, name, number)
            took.append(driver.now - began_s)

    async def _commit(self, driver: Driver, client: int, number: int) -> None:
        op = Op("write", f"k{client}".ljust(self.value_B, "."), number)
        while True:
            try:
                async with driver.deadline(5.0):
                    reply: Reply = await driver.ask(
                        self.leader, StoreNode.command, client, number, op
                    )
            except (DeadlineExceeded, Refused):
                reply = Reply(False)
            if reply.done:
                return
            other = (self.leader + 1) % len(driver.nodes)
            self.leader = reply.leader if reply.leader >= 0 else other
            await driver.sleep(0.02)

    def check(self, outcome: Outcome) -> list[Violation]:
        if outcome.driven is None or len(outcome.driven[0]) != self.clients * self.commits:
            return [Violation(kind="unfinished", message="not every write was acknowledged")]
        return []

    def measure(self, outcome: Outcome) -> dict[str, float]:
        if outcome.driven is None:
            return {}
        took, all_s = outcome.driven
        return {"latency_p50_s": p50(took), "commits_per_s": len(took) / all_s}


class Sums(Problem):
    """All ranks sum an array, some times over; the median round counts, without the first one.

    The first round opens connections. Only times are reported, not the sums: see `all_reduce`
    for the problem that checks them.
    """

    array_B: Whole = 64 * KB
    rounds: Count = 8

    port: ClassVar[type] = Collective
    metrics: ClassVar[Mapping[str, Metric]] = {
        "time_s": Metric("s", "lower", "from the first rank's entry to the last rank's exit")
    }

    def world(self) -> World:
        return World.lan(3)

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        return {"node": Rank(collective=part, items=self.array_B // 4, rounds=self.rounds)}

    async def drive(self, driver: Driver) -> bool:
        await driver.all(*(driver.ask(node, Rank.ended) for node in driver.nodes))
        return True

    def check(self, outcome: Outcome) -> list[Violation]:
        wrong = [node for _, node, right in outcome.emitted("right") if not right]
        if outcome.driven is None or wrong:
            where = f"nodes {wrong} have a wrong sum" if wrong else "the rounds did not end"
            return [Violation(kind="wrong_sum" if wrong else "unfinished", message=where)]
        return []

    def measure(self, outcome: Outcome) -> dict[str, float]:
        spans: dict[int, list[tuple[float, float]]] = {}
        for _, _, (number, began_s, ended_s) in outcome.emitted("span"):
            spans.setdefault(number, []).append((began_s, ended_s))
        took = [
            max(end for _, end in each) - min(start for start, _ in each)
            for number, each in sorted(spans.items()) if number
        ]  # fmt: skip
        return {"time_s": p50(took)} if took else {}


class Rank(Worker):
    """A rank that sums an array of ones again and again."""

    items: Whole = 0
    rounds: Count = 1

    def start(self) -> None:
        self.over = self.event()

    @rpc
    async def ended(self) -> bool:
        """Answers when all rounds are done."""
        await self.over.wait()
        return True

    async def main(self) -> None:
        array, right = np.ones(self.items, np.float32), True
        for number in range(self.rounds):
            await self.barrier(tag="between")
            began_s = self.now
            total = await self.sum(array)
            self.emit(span=(number, began_s, self.now))
            right = right and bool((total == self.size).all())
        self.emit(right=right)
        self.over.set()


# -- the points


class Point(msgspec.Struct, frozen=True):
    """One thing to foretell: which workload, how many nodes, how many bytes."""

    what: Literal["raft_latency", "raft_throughput", "ring"]
    nodes: int
    size_B: int

    @property
    def name(self) -> str:
        size = f"{self.size_B // MB} MB" if self.size_B >= MB else f"{self.size_B // KB} KB"
        return f"{self.what}, {self.nodes} nodes, {size}"

    @property
    def metric(self) -> str:
        return {"raft_latency": "latency_p50_s", "raft_throughput": "commits_per_s",
                "ring": "time_s"}[self.what]  # fmt: skip

    def work(self, times: int = 0) -> tuple[Any, Problem]:
        """The part and the problem, the same for both engines; `times` to do it, if it matters."""
        if self.what == "ring":
            return Ring(), Sums(array_B=self.size_B, rounds=times or 13)
        clients = 4 if self.what == "raft_throughput" else 1
        commits = times or (40 if self.size_B <= KB else 24 if self.size_B < MB else 8)
        # Timeouts far above the time of a commit, so that a busy machine calls no election.
        part = QuietRaft(election_s=0.8, heartbeat_s=0.2)
        return part, Commits(value_B=self.size_B, commits=commits, clients=clients)


def points(quick: bool = False) -> list[Point]:
    """Raft with 5 and 7 nodes and three sizes, the ring with 3, 5 and 7 nodes and two sizes."""
    if quick:
        return [Point("raft_latency", 5, KB), Point("ring", 5, 64 * KB)]
    found = [
        Point(what, nodes, size_B)
        for what in ("raft_latency", "raft_throughput")
        for nodes in (5, 7) for size_B in (KB, 64 * KB, MB)
    ]  # fmt: skip
    return found + [Point("ring", n, size_B) for n in (3, 5, 7) for size_B in (64 * KB, MB)]


class Sample(msgspec.Struct, frozen=True):
    """One real run: its value, and how many cores other work on the machine used meanwhile."""

    value: float
    others_cores: float


class Row(msgspec.Struct, frozen=True):
    """A point, foretold and measured."""

    name: str
    metric: str
    predicted: float
    measured: float
    noise: float
    error: float
    verdict: Verdict
    others_cores: float
    samples: list[float]


def judge_row(point: Point, predicted: float, kept: Sequence[Sample], bar: float = BAR) -> Row:
    """The verdict of a point: noise first, then the error.

    `noise` is the half-width of the 95 % interval of the repeats' mean, as a share of the median.
    A busy machine may be slow in the same way each time, so other work counts as noise too: where
    it used more than half the bar of the cores, the point decides nothing.
    """
    if len(kept) < 2:
        raise UsageError(f"{point.name}: {len(kept)} repeats tell no noise; give at least 2")
    values = [sample.value for sample in kept]
    measured, found = p50(values), mean_interval(values)
    noise = (found.hi - found.lo) / 2 / measured
    error = predicted / measured - 1
    verdict: Verdict = "within" if abs(error) <= bar else "outside"
    others = float(np.mean([sample.others_cores for sample in kept]))
    if noise > bar / 2 or others / usable_cores() > bar / 2:
        verdict = "inconclusive"
    return Row(
        name=point.name, metric=point.metric, predicted=predicted, measured=measured, noise=noise,
        error=error, verdict=verdict, samples=values,
        others_cores=others,
    )  # fmt: skip


def calibrated_for(world: World, what: Any, *, repeats: int = 5, patience_s: float = 10.0) -> World:
    """The calibrated world in which the workload's part computes too.

    What it computes is measured in virtual time, where its code runs too. That code is warm there;
    on real nodes that wait most of the time it is not. So waking up costs so much that three real
    nodes with 1 KB take the time that they take.
    """
    spec = world.processors
    if spec is None:
        raise UsageError("calibrated_for: the world shares no processors; take one of `calibrate`")
    own = own_work(world, lambda size_B: Point(what, NODES, size_B).work(OWN_TIMES))
    seen, point = [], Point(what, NODES, KB)
    for seed in range(1, repeats + 1):
        wait_for_quiet(patience_s)
        seen.append(observe(point, seed).value)
    measured = p50(seen)

    def tried(wake_s: float) -> World:
        return world.replace(processors=spec.replace(own=own, wake_s=wake_s))

    low_s, high_s = 0.0, MOST_WAKE_S
    for _ in range(14):
        middle_s = (low_s + high_s) / 2
        ratio = predict(point, tried(middle_s)) / measured
        slow = ratio < 1 if what == "raft_throughput" else ratio > 1
        low_s, high_s = (low_s, middle_s) if slow else (middle_s, high_s)
    return tried(low_s)


def predict(point: Point, world: World) -> float:
    """What the calibrated world says."""
    part, problem = point.work()
    done = run(part, problem=problem, world=at_size(world, point.nodes), seed=1)
    return _value(point, done)


def observe(point: Point, seed: int = 1) -> Sample:
    """What one real run on this machine says."""
    part, problem = point.work()
    before = _busy()
    done = run(
        part, problem=problem, world=World.lan(point.nodes), seed=seed, engine="processes",
        raw=True, nodes_per_process=1, until_s=120.0,
    )  # fmt: skip
    return Sample(_value(point, done), others_cores(before, _busy()))


def _value(point: Point, done: Any) -> float:
    if done.violations or point.metric not in done.metrics:
        told = done.violations[0].message if done.violations else "no metric"
        raise UsageError(f"{point.name} on {done.engine}: {told}; try again on a quieter machine")
    return float(done.metrics[point.metric])


def _busy() -> tuple[float, float, float]:
    """(the time, processor seconds of all processes, of ours)."""
    own = sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    return time.monotonic(), machine_busy_s(), own


def wait_for_quiet(patience_s: float, most_cores: float = 0.2) -> bool:
    """Wait until other work uses less than this; False when it still does after `patience_s`."""
    until_s = time.monotonic() + patience_s
    while True:
        before = _busy()
        time.sleep(0.25)
        if others_cores(before, _busy()) <= most_cores:
            return True
        if time.monotonic() >= until_s:
            return False


def quietest(samples: Iterable[Sample], count: int) -> list[Sample]:
    """The runs that other work disturbed least; their own values have no say."""
    return sorted(samples, key=lambda sample: sample.others_cores)[:count]


def compare_points(
    world: World,
    chosen: Sequence[Point],
    *,
    repeats: int = 5,
    tries: int | None = None,
    patience_s: float = 10.0,
    on_row: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Foretell and measure each point: of `tries` runs the `repeats` quietest count.

    Each run waits up to `patience_s` for a moment at which nothing else is busy.
    """
    tries = 2 * repeats if tries is None else tries
    if not 2 <= repeats <= tries:
        raise UsageError(f"repeats={repeats}, tries={tries}: give 2 <= repeats <= tries")
    worlds = {
        what: calibrated_for(world, what, repeats=repeats, patience_s=patience_s)
        for what in dict.fromkeys(point.what for point in chosen)
    }
    rows = []
    for point in chosen:
        # Foretold first, so that nothing measured can leak into it.
        predicted = predict(point, worlds[point.what])
        seen = []
        for seed in range(1, tries + 1):
            wait_for_quiet(patience_s)
            seen.append(observe(point, seed))
        rows.append(judge_row(point, predicted, quietest(seen, repeats)))
        if on_row is not None:
            on_row(rows[-1])
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    lines = [
        f"{'point':34}{'predicted':>11}{'measured':>11}{'noise':>8}{'error':>8}  "
        f"{'verdict':14}others"
    ]
    for row in rows:
        scale, unit = (1.0, "/s") if row.metric == "commits_per_s" else (1e3, "ms")
        told = [f"{value * scale:>9.3g}{unit}" for value in (row.predicted, row.measured)]
        lines.append(
            f"{row.name:34}{''.join(told)}{row.noise:>8.0%}{row.error:>+8.0%}  "
            f"{row.verdict:14}{row.others_cores:.1f} cores"
        )
    return "\n".join(lines)


def tally(rows: Sequence[Row]) -> dict[str, int]:
    """How many rows have each verdict."""
    words = ("within", "outside", "inconclusive")
    return {word: sum(row.verdict == word for row in rows) for word in words}
