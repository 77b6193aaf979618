"""The problem `dp_decode`: which waiting request goes to which data-parallel decode worker?

Many workers hold the same model and decode in lockstep: a step is over when the last of them is
done, because their experts or their engine loop meet there. Requests wait in one pool; an assigner
gives them to workers, for ever, since moving a cache is expensive.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from orrery.base.errors import KnobError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.parts import Count, Driver, Metric, NonNegative, Outcome, Positive, Problem, Whole
from orrery.systems.serve.problems.dp_decode.audit import (
    METRICS,
    faults_of,
    figures,
    least_seconds,
    overtaken,
)
from orrery.systems.serve.problems.dp_decode.cluster import Admission, Cluster, Ending, Log, Step
from orrery.systems.serve.problems.dp_decode.loads import Load, check_fits, load_of
from orrery.systems.serve.problems.dp_decode.ports import (
    Assigner,
    Live,
    Waiting,
    Workers,
    sealed,
    why_illegal,
)
from orrery.systems.serve.problems.dp_decode.really import Front
from orrery.systems.serve.problems.dp_decode.steptime import RECORDED, StepTime, fit
from orrery.systems.serve.problems.dp_decode.worker import DecodeWorker
from orrery.world import World, machine

__all__ = [
    "Admission", "Assigner", "Cluster", "DPDecode", "DecodeWorker", "Ending", "Live", "Load", "Log",
    "Step", "StepTime", "Waiting", "Workers", "faults_of", "figures", "fit", "least_seconds",
    "overtaken", "why_illegal",
]  # fmt: skip

MOST_REQUESTS = 2_000_000
MEAN_OUTPUT, MEAN_PROMPT = 154.0, 1434.0  # of Azure's conversation and code together


class DPDecode(Problem):
    """Give waiting requests to decode workers that meet at a barrier in every step.

    The cluster: every node of the world is a worker with `slots` and a cache of `kv_tokens`. A step
    takes a + b x (most sequences on a worker) + c x (most tokens in a worker's cache); a, b, c were
    fitted to measured tables of Llama-3.1-8B on one H200; `model`, with `tp` and `ep`, fits them
    anew for another one (to tables where there are some, else to rooflines). `kv_factor` multiplies
    c (0: the cache costs nothing); `barrier` off: no worker waits for another.
    The load: `requests` of Azure's conversation and code services, mixed; `source`, "generated"
    (needs no file), a trace, or a folder with Azure's two traces; `ahead`, how many wait at the
    start (by default more than all slots take, so that the cluster is full from the first step on);
    `load`, at which share of the cluster's capacity the rest arrives (0: as in the trace);
    `most_output`, the longest answer that a client takes, which a worker reserves room for.
    `steps`, after how many steps the run is cut off (0: when all is answered), not counting
    `warm_up`, whose steps are not measured. `detect_s`, how long the front waits for a worker
    before it takes it for dead. `real` lets worker processes decode with a small attention of their
    own; on the processes engine time is then the machine's.

    >>> round(1e3 * DPDecode().time().seconds(32, 41000), 2)
    6.72
    """

    slots: Count = 32
    kv_tokens: Count = 800_000
    model: str = ""
    tp: Count = 1
    ep: Count = 1
    kv_factor: NonNegative = 1.0
    barrier: bool = True
    source: str = "generated"
    requests: Count = 6000
    ahead: Whole = 1700
    load: NonNegative = 1.2
    most_output: Count = 2048
    steps: Whole = 150
    warm_up: Whole = 100
    detect_s: Positive = 0.5
    real: bool = False

    trial: ClassVar[Mapping[str, Any]] = {"requests": 2000, "steps": 60, "warm_up": 40}
    port: ClassVar[type] = Assigner
    metrics: ClassVar[Mapping[str, Metric]] = METRICS
    unique_outcome: ClassVar[bool] = True

    def world(self) -> World:
        return World.lan(36, machine=machine("server").replace(accelerators=("H200",)))

    # -- the question

    def time(self) -> StepTime:
        """What a step takes."""
        found = RECORDED if not self.model else fit(self.model, tp=self.tp, ep=self.ep)[0]
        return found._replace(token_s=found.token_s * self.kv_factor)

    def capacity_per_s(self, workers: int) -> float:
        """Requests a second that full slots answer, if all workers are even."""
        step_s = self.time().seconds(self.slots, self.slots * (MEAN_PROMPT + MEAN_OUTPUT / 2))
        return float(workers * self.slots / step_s / MEAN_OUTPUT)

    def requests_of(self, seed: int, workers: int) -> Load:
        """The requests of a seed."""
        if self.requests > MOST_REQUESTS:
            fix = f"give at most {MOST_REQUESTS}"
            raise KnobError("DPDecode.requests", f"{self.requests} requests", fix)
        rate = self.load * self.capacity_per_s(workers)
        made = load_of(self.source, self.requests, seed, rate_per_s=rate, ahead=self.ahead,
                       limit=self.most_output)  # fmt: skip
        check_fits(made, self.kv_tokens)
        return made

    def host(self, part: Any, world: World) -> Mapping[str, Any]:
        if self.real and not self.barrier:
            fix = "use barrier=True, or real=False"
            raise KnobError("DPDecode.real", "real workers always meet at the barrier", fix)
        self.time()
        self.__dict__["place"] = world
        # In virtual time a fault needs a node to hit, though the model of steps talks to none.
        return {"node": DecodeWorker()} if self.real or world.faults else {}

    def cluster(self, part: Assigner, seed: int, workers: int) -> Cluster:
        """Everything that a run needs but a clock."""
        part.start()
        load = self.requests_of(seed, workers)
        return Cluster(load, part, workers, self.slots, self.kv_tokens, self.time())

    def play(self, part: Assigner, seed: int, workers: int = 36) -> Log:
        """A run without an engine and without faults: what `run` gives, for studies."""
        books = self.cluster(part, seed, workers)
        if not self.barrier:
            return self._free_running(books)
        now_s = 0.0
        while (next_s := self._turn(books, now_s)) is not None:
            now_s = next_s
        return books.log(True, self.warm_up, now_s)

    # -- the run

    async def drive(self, driver: Driver) -> Log:
        world: World = self.__dict__["place"]
        books = self.cluster(driver.part, driver.rng.getrandbits(32), world.size)
        if self.real:
            return await Front(driver, books, self.detect_s, self.steps).run()
        begin_s = driver.now
        await driver.sleep(1e-3)
        # Workers are modelled here, so on a real clock there is nothing to wait for: what is
        # measured there is how long decisions take.
        virtual = abs(driver.now - begin_s - 1e-3) < 1e-9
        if world.faults and not (virtual and self.barrier):
            fix = "use real=True there, and barrier=True"
            raise KnobError("DPDecode.real", "the model of steps has faults in virtual time and "
                            "with a barrier only", fix)  # fmt: skip
        if not self.barrier:
            return self._free_running(books)
        begin_s, now_s = driver.now, 0.0
        while True:
            if virtual and world.faults:
                self._look(driver, books, now_s)
            next_s = self._turn(books, now_s, None if virtual else driver)
            if next_s is None:
                if not (virtual and len(books.pool) and self._may_come_back(driver, books)):
                    break
                next_s = now_s + self.detect_s
            if virtual:
                await driver.sleep(max(begin_s + next_s - driver.now, 0.0))
            now_s = next_s
        return books.log(True, self.warm_up, now_s)

    def _turn(self, books: Cluster, now_s: float, timed: Any = None) -> float | None:
        """Arrivals, decisions and one step; when it ends, or None when there is none left."""
        if books.over or (self.steps and len(books.steps) >= self.steps + self.warm_up):
            return None
        books.arrive(now_s)
        began_s = timed.now if timed is not None else 0.0
        books.decide(now_s)
        if timed is not None:
            books.decided_s.append(timed.now - began_s)
        if books.running.any():
            return books.step(now_s)
        next_s = books.next_arrival_s()
        return None if next_s == math.inf else max(next_s, now_s)

    def _look(self, driver: Driver, books: Cluster, now_s: float) -> None:
        """See who is dead, or back."""
        for worker in range(books.workers):
            alive = driver.alive(worker)
            if books.alive[worker] and not alive:
                books.die(worker, now_s)
            elif alive and not books.alive[worker]:
                books.revive(worker)

    def _may_come_back(self, driver: Driver, books: Cluster) -> bool:
        ends = (getattr(fault, "until_s", None) for fault in self.__dict__["place"].faults)
        return not books.alive.all() and any(
            end is not None and driver.now < end + self.detect_s < math.inf for end in ends
        )

    def _free_running(self, books: Cluster) -> Log:
        """Every worker steps by itself; the assigner is asked whenever one has ended a step."""
        due: list[tuple[float, int]] = []
        now_s, most = 0.0, (self.steps + self.warm_up) * books.workers
        while not books.over and not (self.steps and len(books.steps) >= most):
            books.arrive(now_s)
            books.decide(now_s)
            for worker in np.flatnonzero(books.running > 0).tolist():
                if worker not in books.inside:
                    heapq.heappush(due, (books.begin_one(worker, now_s), worker))
            next_s = books.next_arrival_s()
            if due and (due[0][0] <= next_s or books.running.all()):
                now_s, worker = heapq.heappop(due)
                books.end_one(worker, now_s)
            elif next_s < math.inf:
                now_s = max(next_s, now_s)
            else:
                break
        return books.log(False, self.warm_up, now_s)

    # -- the verdict

    def check(self, outcome: Outcome) -> list[Violation]:
        log = outcome.driven
        if not isinstance(log, Log):
            return []
        found = list(faults_of(log, outcome.part.most_overtaken()))
        left = len(log.open)
        if left and not self.steps and not getattr(outcome.world, "faults", ()):
            text = f"{left} requests were never answered, first {log.open[0]}; nobody decodes"
            found.append(Violation("stuck", text))
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        log = outcome.driven
        if not isinstance(log, Log):
            return {}
        return figures(log, None if self.real else self.time())

    def decisions(self, outcome: Outcome) -> Any:
        """Who went where, in order; None where real time has a say in it."""
        log = outcome.driven
        timed = self.real and self.ahead < self.requests
        if timed or outcome.world.faults or not isinstance(log, Log):
            return None
        return [(each.request, each.worker) for each in log.admissions]

    def views(self, rng: Stream) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
        """A history for the laws: nobody waits, all is full, some are dead, caches are short."""
        for turn in range(24):
            workers = some_workers(rng, 1 + rng.below(8), 4, full=turn % 6 == 1, dead=turn % 4 == 3)
            waiting = some_waiting(rng, 0 if turn % 5 == 0 else 1 + rng.below(20), 100 * turn)
            yield "assign", (waiting, workers, 0.1 * turn), _judge(waiting, workers)


def some_waiting(rng: Stream, count: int, first: int = 0, tokens: int = 3000) -> Waiting:
    """A made-up pool of waiting requests."""
    whole = first + count
    lengths = [1 + rng.below(tokens) for _ in range(whole)]
    answers = [1 + rng.below(200) for _ in range(whole)]
    return Waiting(sealed(range(first, whole)), sealed(lengths), sealed([200] * whole),
                   sealed(np.arange(whole) * 0.01, np.float64), sealed(answers))  # fmt: skip


def some_workers(
    rng: Stream, count: int, slots: int, *, full: bool = False, dead: bool = False,
    capacity: int = 12_000, tokens: int = 3000,
) -> Workers:  # fmt: skip
    """Made-up workers, some of whose slots are in use."""
    used = np.array([[full or rng.below(2) == 0 for _ in range(slots)] for _ in range(count)])
    alive = np.array([not dead or rng.below(3) > 0 for _ in range(count)])
    used &= alive[:, None]
    made = np.array([[rng.below(200) for _ in range(slots)] for _ in range(count)]) * used
    prompt = np.array([[1 + rng.below(tokens) for _ in range(slots)] for _ in range(count)]) * used
    running = used.sum(axis=1)
    kv = (made + prompt).sum(axis=1)
    return Workers(
        sealed(alive, bool), sealed(np.where(alive, slots - running, 0)), sealed(running),
        sealed(kv), sealed(np.maximum(capacity - kv - 200 * running, 0)),
        (sealed(used, bool), sealed(prompt), sealed(made), sealed((200 - made) * used)),
    )  # fmt: skip


def _judge(waiting: Waiting, workers: Workers) -> Any:
    return lambda answer: not why_illegal(answer, waiting, workers)
