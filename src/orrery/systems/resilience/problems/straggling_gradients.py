"""The problem `straggling_gradients`: a sequence of exact gradients from workers that straggle.

The port is `GradientScheme`. A master trains several models in turn on the same workers: job t is
the gradient of model t mod `models` over all data. The scheme says who computes what; the checker
computes every gradient again, directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from orrery.base.errors import DeadlineExceeded, PartError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.parts import (
    Count,
    Driver,
    Metric,
    Node,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    Whole,
    cost,
    rpc,
)
from orrery.parts.collectives import Array
from orrery.systems.resilience.problems.coding import GradientScheme, Mini
from orrery.systems.resilience.problems.rounds import profile
from orrery.world import World

Order = tuple[int, list[int], list[float]]  # job, chunks, factors


class Regression:
    """Least squares with rows that are cut into chunks; the gradient is the sum over rows."""

    def __init__(self, rows: int, numbers: int, seed: int, models: int) -> None:
        rng = Stream(seed, "regression", "rows").numpy()
        self.x = rng.standard_normal((rows, numbers))
        self.y = self.x @ rng.standard_normal(numbers) + 0.1 * rng.standard_normal(rows)
        self.starts = rng.standard_normal((models, numbers))
        # A step that suits the steepest direction.
        self.rate = 1.0 / float(np.linalg.norm(self.x, 2) ** 2)

    def gradient(self, weights: Array, begin: int, end: int) -> Array:
        """The gradient over some rows."""
        x = self.x[begin:end]
        return np.asarray(x.T @ (x @ weights - self.y[begin:end]))

    def whole(self, weights: Array) -> Array:
        """The gradient over all rows."""
        return self.gradient(weights, 0, len(self.y))


class StragglingGradients(Problem):
    """Train some models in turn; every gradient must be exact, and in time.

    Knobs: `jobs`, how many gradients; `models`, trained in turn (0: as many as the scheme's delay
    asks for); `rows` and `numbers` of the data; `mu`: who takes more than 1 + mu times as long as
    the fastest straggles; `startup_flops` of a round, and `flops`, what all data cost; `slow`,
    `share`, `burst`, `steady`: the profile of stragglers (`slow` 1: none but the world's faults);
    `wait_s`, after which the work of a silent worker is given to another; `data_seed`.

    >>> StragglingGradients(jobs=3).jobs
    3
    """

    jobs: Count = 12
    models: Whole = 0
    rows: Count = 240
    numbers: Count = 8
    mu: Positive = 1.0
    startup_flops: NonNegative = 3e9
    flops: Positive = 6e10
    slow: Positive = 5.0
    share: NonNegative = 0.1
    burst: Positive = 1.5
    steady: bool = False
    wait_s: Positive = 20.0
    data_seed: Whole = 0

    port: ClassVar[type] = GradientScheme
    metrics: ClassVar[Mapping[str, Metric]] = {
        "time_s": Metric("s", "lower", "until the last gradient was decoded"),
        "round_s": Metric("s", "lower", "mean time of a round while the pipeline of jobs is full"),
        "load": Metric("", "lower", "the part of all data that a worker reads in a round"),
        "waited_rounds": Metric("", "lower", "rounds that had to be waited out"),
        "stood_in": Metric("", "lower", "tasks of silent workers that others did"),
        "error": Metric("", "lower", "largest deviation of a gradient, relative"),
    }

    def world(self) -> World:
        return World.lan({"master": 1, "worker": 8})

    def data(self, models: int) -> Regression:
        """The data that all workers hold."""
        return Regression(self.rows, self.numbers, self.data_seed, models)

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        given = {
            "scheme": part, "jobs": self.jobs, "rows": self.rows, "numbers": self.numbers,
            "data_seed": self.data_seed,
        }  # fmt: skip
        master = Master(models=self.models, mu=self.mu, wait_s=self.wait_s, **given)
        hand = Hand(
            startup_flops=self.startup_flops, flops=self.flops, slow=self.slow, share=self.share,
            burst=self.burst, steady=self.steady, **given,
        )  # fmt: skip
        return {"master": master, "worker": hand}

    def views(self, rng: Any) -> list[tuple[str, tuple[Any, ...], Any]]:
        """Calls for the laws of policies: outlines for some numbers of workers."""

        def legal(outline: Any) -> bool:
            load, delay, plans = outline
            return (
                0 < load <= 1 and delay >= 0 and all(len(plan) == len(plans[0]) for plan in plans)
            )

        rounds: list[list[list[int]]] = [[], [list(range(12))] * 6]
        rounds.append([[w for w in range(12) if w != number] for number in range(6)])
        return [("outline", (12, heard), legal) for heard in rounds]

    async def drive(self, driver: Driver) -> None:
        while True:
            try:
                async with driver.deadline(60.0):
                    await driver.ask(0, Master.ended)
                return
            except DeadlineExceeded:
                if not driver.alive(0):
                    return

    def check(self, outcome: Outcome) -> list[Violation]:
        found = [
            Violation(kind="gave_up", time_s=time_s, message=str(why))
            for time_s, _, why in outcome.emitted("gave_up")
        ]
        done = {r.values["job"]: r.values for r in outcome.records if "gradient" in r.values}
        data = self.data(1)
        for job, values in sorted(done.items()):
            wrong = _deviation(values["gradient"], data.whole(values["weights"]))
            if outcome.part.exact and wrong > 1e-6:
                found.append(Violation(
                    kind="wrong_gradient", evidence={"job": job, "off": wrong},
                    message=f"the gradient of job {job} is off by {wrong:.3g}"))  # fmt: skip
            if values["late"] > 0:
                found.append(Violation(
                    kind="late_gradient",
                    message=f"job {job} came {values['late']} rounds too late"))  # fmt: skip
        lost = [job for job in range(self.jobs) if job not in done]
        if lost and not found and outcome.ended == "driven":
            found.append(Violation(
                kind="lost_gradient", evidence=lost, message=f"{len(lost)} jobs never ended",
            ))  # fmt: skip
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        rounds = [r.values for r in outcome.records if "round_s" in r.values]
        full = [r["round_s"] for r in rounds if r["full"]]
        done = [r for r in outcome.records if "gradient" in r.values]
        data = self.data(1)
        workers = len(outcome.alive) - 1
        return {
            "time_s": max((r.time_s for r in done), default=outcome.seconds),
            "round_s": float(np.mean(full)) if full else 0.0,
            "load": outcome.part.course(workers).load,
            "waited_rounds": float(sum(r["waited"] for r in rounds)),
            "stood_in": float(sum(r["stood_in"] for r in rounds)),
            "error": max(
                (_deviation(r.values["gradient"], data.whole(r.values["weights"])) for r in done),
                default=0.0,
            ),
        }

    def decisions(self, outcome: Outcome) -> list[int]:
        """Which jobs were decoded."""
        return sorted(job for _, _, job in outcome.emitted("job"))


def _deviation(found: Array, truth: Array) -> float:
    return float(np.linalg.norm(np.asarray(found) - truth) / max(float(np.linalg.norm(truth)), 1.0))


class _Player(Node):
    """What master and workers know alike."""

    scheme: GradientScheme = GradientScheme()
    jobs: Count = 1
    rows: Count = 1
    numbers: Count = 1
    data_seed: Whole = 0

    def _ends(self, sizes: list[float]) -> list[int]:
        """Where the chunks end, in rows."""
        return [0, *np.rint(np.cumsum(sizes) * self.rows).astype(int).tolist()]


class Master(_Player):
    """Leads the rounds, decodes, and steps the models."""

    models: Whole = 0
    mu: Positive = 1.0
    wait_s: Positive = 20.0

    def start(self) -> None:
        self.over = self.event()
        self.vectors: dict[tuple[int, Mini], Array] = {}
        self.heard: dict[int, dict[int, float]] = {}
        self.news = self.queue()

    @rpc
    async def ended(self) -> bool:
        await self.over.wait()
        return True

    @rpc
    def answer(self, number: int, as_worker: int, told: list[tuple[Order, bytes]]) -> None:
        """A worker's vectors for its tasks of a round."""
        if number != self.number or as_worker in self.heard.setdefault(number, {}):
            return
        for (job, chunks, factors), raw in told:
            key = (as_worker, self.kinds[job, tuple(chunks), tuple(factors)])
            self.vectors[key] = np.frombuffer(raw, np.float64)
        self.heard[number][as_worker] = self.now - self.began_s
        self.news.put(as_worker)

    async def main(self) -> None:
        self.hands = list(self.members("worker"))
        self.course = self.scheme.course(len(self.hands))
        count = self.models or self.course.delay + 1
        if count <= self.course.delay:
            raise PartError(
                f"{count} models are too few for a delay of {self.course.delay} rounds: a model's "
                "last gradient must be there before its next job; train more in turn"
            )
        self.data = Regression(self.rows, self.numbers, self.data_seed, count)
        self.weights = [start.copy() for start in self.data.starts]
        self.asked: dict[int, Array] = {}
        self.number = 0
        while self.number < self.jobs + self.course.delay and await self._round():
            self.number += 1
        self.over.set()

    async def _round(self) -> bool:
        number, course = self.number, self.course
        self.began_s, self.stood_in = self.now, 0
        plans = [[m for m in plan if m.job < self.jobs] for plan in course.assign(number)]
        self.kinds = {(m.job, m.chunks, m.factors): m for plan in plans for m in plan}
        if number < self.jobs:
            self.asked[number] = self.weights[number % len(self.weights)].copy()
        for worker, plan in enumerate(plans):
            self._send(worker, worker, plan)
        waited = await self._collect(plans)
        heard = sorted(self.heard.get(number, ()))
        if not course.fits(number, heard):
            self.emit(gave_up=f"round {number}: only {len(heard)} of {len(plans)} answered, and "
                              "their work could not be given to others")  # fmt: skip
            return False
        course.finish(number, heard)
        full = course.delay <= number < self.jobs
        self.emit(round_s=self.now - self.began_s, waited=waited, stood_in=self.stood_in, full=full)
        for job in [job for job in self.asked if job <= number]:
            self._decode(job)
        return True

    def _send(self, worker: int, as_worker: int, plan: list[Mini]) -> None:
        jobs = sorted({mini.job for mini in plan})
        orders = [(m.job, list(m.chunks), list(m.factors)) for m in plan]
        weights = [(job, self.asked[job].tobytes()) for job in jobs]
        # The master's stream stands for the seed of the run, which no worker knows.
        luck = self.rng.key % (1 << 31)
        self.tell(self.hands[worker], Hand.work, self.number, as_worker, orders, weights, luck)

    async def _collect(self, plans: list[list[Mini]]) -> bool:
        """Hear the workers until the round may end; gives whether it was waited out."""
        heard = self.heard.setdefault(self.number, {})
        limit_s, waited = self.wait_s, False
        while len(heard) < len(plans):
            left_s = self.began_s + limit_s - self.now
            try:
                async with self.deadline(max(left_s, 1e-9)):
                    await self.news.get()
            except DeadlineExceeded:
                if self.course.fits(self.number, heard):
                    break
                waited = True
                if self.now - self.began_s >= 3 * self.wait_s:
                    break
                if self.now - self.began_s >= self.wait_s:
                    self._replace(plans)
                    limit_s = 3 * self.wait_s
                else:
                    limit_s = self.wait_s  # every next answer is looked at, up to this
                continue
            if len(heard) == 1:
                limit_s = min((1.0 + self.mu) * (self.now - self.began_s), self.wait_s)
            elif waited and self.course.fits(self.number, heard):
                break
        return waited

    def _replace(self, plans: list[list[Mini]]) -> None:
        """Give the work of silent workers to the quickest of the others."""
        heard = self.heard[self.number]
        quick = sorted(heard, key=lambda worker: heard[worker])
        silent = [worker for worker in range(len(plans)) if worker not in heard]
        for place, worker in enumerate(silent):
            if quick:
                self.stood_in += 1
                self._send(quick[place % len(quick)], worker, plans[worker])

    def _decode(self, job: int) -> None:
        recipe = self.course.recipe(job)
        late = self.number - job - self.course.delay
        if recipe is None and late < 0:
            return
        weights = self.asked.pop(job)
        if recipe is not None:
            found = sum(factor * self.vectors[key] for key, factor in recipe.items())
            model = job % len(self.weights)
            self.weights[model] = self.weights[model] - self.data.rate * np.asarray(found)
            self.emit(job=job, gradient=np.asarray(found), weights=weights, late=max(late, 0),
                      model=self.weights[model])  # fmt: skip
        self.course.forget(job)
        for key in [key for key in self.vectors if key[1].job == job]:
            del self.vectors[key]


class Hand(_Player):
    """A worker: does what the newest round asks of it, and drops what it is too late for."""

    startup_flops: NonNegative = 0.0
    flops: Positive = 1.0
    slow: Positive = 1.0
    share: NonNegative = 0.0
    burst: Positive = 1.0
    steady: bool = False

    def start(self) -> None:
        self.inbox = self.queue()
        self.newest = -1
        self.called_off = self.event()

    @rpc
    def work(
        self, number: int, as_worker: int, orders: list[Order], weights: list[tuple[int, bytes]],
        luck: int,
    ) -> None:  # fmt: skip
        """Tasks of a round, perhaps in the place of another worker; `luck` seeds the profile."""
        if number > self.newest:
            # What an older round asked for is too late to be of use.
            self.called_off.set()
            self.called_off = self.event()
            self.newest = number
        self.luck = luck
        self.inbox.put((number, as_worker, orders, weights))

    async def main(self) -> None:
        hands = list(self.members("worker"))
        me, master = hands.index(self.id), self.members("master")[0]
        course = self.scheme.course(len(hands))
        data = Regression(self.rows, self.numbers, self.data_seed, 1)
        ends = self._ends(course.sizes)
        factors: Array | None = None
        while True:
            number, as_worker, orders, weights = await self.inbox.get()
            if number < self.newest:
                continue
            if factors is None:
                factors = self._factors(len(hands), me, self.jobs + course.delay)
            load = sum(course.sizes[chunk] for _, chunks, _ in orders for chunk in chunks)
            work = float(factors[number]) * (self.startup_flops + load * self.flops)
            at = {job: np.frombuffer(raw, np.float64) for job, raw in weights}
            place, told = await self.first(
                self.compute(combine, work, data, ends, orders, at), self.called_off.wait()
            )
            if place == 0:
                self.tell(master, Master.answer, number, as_worker, told)

    def _factors(self, workers: int, me: int, rounds: int) -> Array:
        """How much slower each round is here: all draw one profile and read their own column."""
        if self.slow <= 1:
            return np.ones(rounds)
        drawn = profile(
            workers, rounds, self.data_seed + self.luck, slow=self.slow, share=self.share,
            burst=self.burst, steady=self.steady,
        )  # fmt: skip
        return np.asarray(drawn[:, me])


@cost(flops=lambda work, *rest: work)
def combine(
    work: float, data: Regression, ends: list[int], orders: list[Order], weights: dict[int, Array]
) -> list[tuple[Order, bytes]]:
    """The vector of each order: factors times the gradients of its chunks."""
    found = []
    for order in orders:
        job, chunks, factors = order
        total = np.zeros_like(weights[job])
        for chunk, factor in zip(chunks, factors, strict=True):
            total = total + factor * data.gradient(weights[job], ends[chunk], ends[chunk + 1])
        found.append((order, total.tobytes()))
    return found
