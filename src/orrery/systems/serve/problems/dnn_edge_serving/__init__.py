"""The problem `dnn_edge_serving`: several networks with exits and deadlines on one executor.

Requests of several models come in bursts and have deadlines. One executor, shared in time, runs one
batch after the other; the policy chooses model, exit and batch size of every turn. The same policy
runs in virtual time on profiled tables, and for real: with `real=True` on the processes engine the
networks are computed and the clock is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from orrery.base.errors import KnobError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.check.conservation import exactly_once
from orrery.parts import Driver, Fraction, Metric, NonNegative, Outcome, Positive, Problem
from orrery.systems.serve.problems.dnn_edge_serving import networks
from orrery.systems.serve.problems.dnn_edge_serving.executor import Batch, Executor, Log, Noise
from orrery.systems.serve.problems.dnn_edge_serving.profile import (
    Profile,
    ProfileError,
    find_profile,
    plain_profile,
    read_profile,
)
from orrery.systems.serve.problems.dnn_edge_serving.trace import (
    Trace,
    deadline_factors,
    make_trace,
    rates,
)
from orrery.systems.serve.problems.dnn_edge_serving.turns import (
    Done,
    Drop,
    EdgePolicy,
    FixedDepth,
    Turn,
    View,
    fitting_batch,
    hopeless,
    why_illegal,
)
from orrery.world import World

__all__ = [
    "Batch", "DNNEdgeServing", "Done", "Drop", "EdgePolicy", "Executor", "FixedDepth", "Log",
    "Noise", "Profile", "ProfileError", "Trace", "Turn", "View", "find_profile", "fitting_batch",
    "hopeless", "make_trace", "plain_profile", "rates", "read_profile", "why_illegal",
]  # fmt: skip

SMALL = ("glyphs", "signals", "motions")
MOST_REQUESTS = 2_000_000
WARM_UP = 3


class DNNEdgeServing(Problem):
    """Serve bursts of requests for several networks on one executor; count who came too late.

    The networks: `profile`, a shipped table or a JSON file; `models`, which of it (none: all).
    The traffic: `load`, seconds of work required per second at full depth and the best batch size;
    `seconds` of arrivals; `swing` and `dwell_s`, how far and for how long on average the rate of a
    model departs from its mean; `weights`, the models' shares of the work; `deadline_lo` to
    `deadline_hi`, deadlines in full-depth times of one request, dealt out to the models by the seed
    (`deadlines` gives them one by one); `deadline_spread` within a model; `stale`, the share of
    requests that come too late to begin with.
    The machine: `drift`, factors of the true times by model (one for all), from `drift_s` on;
    `jitter`, the mean of an exponential delay as a share of each batch's time; `overhead_s`
    between batches; `contention`, how much each further batch that runs at the same time slows the
    whole. `real` computes the networks: their outputs are checked, and on the processes engine the
    time is the machine's own.

    >>> DNNEdgeServing(load=0.5).requests(seed=1).slo_s[0] > 0
    True
    """

    profile: str = "cpu"
    models: tuple[str, ...] = SMALL
    load: Positive = 0.6
    seconds: Positive = 0.5
    swing: Fraction = 0.6
    dwell_s: Positive = 0.1
    weights: tuple[Positive, ...] = ()
    deadline_lo: Positive = 3.0
    deadline_hi: Positive = 10.0
    deadlines: tuple[Positive, ...] = ()
    deadline_spread: Fraction = 0.0
    stale: Fraction = 0.0
    drift: tuple[Positive, ...] = (1.0,)
    drift_s: NonNegative = 0.0
    jitter: Fraction = 0.0
    overhead_s: NonNegative = 0.0
    contention: NonNegative = 0.0
    real: bool = False

    trial: ClassVar[Mapping[str, Any]] = {"seconds": 0.2}
    port: ClassVar[type] = EdgePolicy
    metrics: ClassVar[Mapping[str, Metric]] = {
        "violation_ratio": Metric("", "lower", "share of requests late, dropped or rejected"),
        "p50_latency_s": Metric("s", "lower", "of the answered, from arrival to answer"),
        "p95_latency_s": Metric("s", "lower", "of the answered, from arrival to answer"),
        "p99_latency_s": Metric("s", "lower", "of the answered, from arrival to answer"),
        "mean_wait_s": Metric("s", "lower", "of the answered, from arrival to the batch's start"),
        "accuracy": Metric("", "higher", "mean accuracy of the exits that answered"),
        "full_depth": Metric("", "higher", "share of the answers that came from the last exit"),
        "dropped": Metric("", "lower", "share of requests given up"),
        "rejected": Metric("", "lower", "share of requests refused at arrival"),
        "mean_batch": Metric("", "", "requests in a batch"),
        "busy": Metric("", "", "share of the time with a batch running"),
        "energy_J": Metric("J", "lower", "of the machine, by its data sheet and the busy time"),
        "joules_per_answer": Metric("J", "lower", "energy over requests answered in time"),
    }

    def world(self) -> World:
        return World.lan(1, machine="edge_box")

    # -- the question

    def table(self) -> Profile:
        """The profile of the models in question."""
        whole = find_profile(self.profile)
        return whole.chosen(self.models) if self.models else whole

    def requests(self, seed: int) -> Trace:
        """The trace of a seed."""
        table = self.table()
        self._check(table)
        factors = deadline_factors(
            len(table.models), self.deadline_lo, self.deadline_hi, self.deadlines, seed
        )
        return make_trace(
            table, load=self.load, seconds=self.seconds, seed=seed, swing=self.swing,
            dwell_s=self.dwell_s, factors=factors, weights=self.weights,
            spread=self.deadline_spread, stale=self.stale,
        )  # fmt: skip

    def _check(self, table: Profile) -> None:
        count = len(table.models)
        for name in ("weights", "deadlines"):
            given = getattr(self, name)
            if given and len(given) != count:
                fix = f"give {count}, one a model, or none"
                raise KnobError(f"DNNEdgeServing.{name}", f"{len(given)} numbers", fix)
        if len(self.drift) not in (1, count):
            raise KnobError("DNNEdgeServing.drift", f"{len(self.drift)} factors",
                            f"give 1 or {count}")  # fmt: skip
        if self.deadline_lo > self.deadline_hi:
            problem = f"{self.deadline_lo} is above deadline_hi = {self.deadline_hi}"
            raise KnobError("DNNEdgeServing.deadline_lo", problem, "swap them")
        asked = sum(rates(table, self.load, self.weights)) * self.seconds
        if asked > MOST_REQUESTS:
            fix = f"keep load and seconds to {MOST_REQUESTS} requests"
            raise KnobError("DNNEdgeServing.seconds", f"about {asked:.3g} requests", fix)

    def accept(self, part: Any) -> None:
        super().accept(part)
        if self.real and getattr(part, "streams", 1) > 1:
            fix = "use real=False, or a policy that shares in time"
            problem = f"{type(part).__name__} runs several batches at once"
            raise KnobError("DNNEdgeServing.real", f"{problem} on one real executor", fix)

    def host(self, part: Any, world: World) -> Mapping[str, Any]:
        self._check(self.table())
        return {}

    # -- the run

    async def drive(self, driver: Driver) -> Log:
        seed, table = driver.rng.getrandbits(32), self.table()
        policy: EdgePolicy = driver.part
        policy.start()
        factors = self.drift * len(table.models) if len(self.drift) == 1 else self.drift
        executor = Executor(
            self.requests(seed), table, policy, Noise(factors, self.drift_s, self.jitter), seed,
            self.overhead_s, self.contention,
        )  # fmt: skip
        nets = [networks.trained(name) for name in table.models] if self.real else []
        for net, data in nets:  # the first calls of a library are slow, and say nothing
            for exit in range(len(net.stops) * WARM_UP):
                await driver.compute(net.forward, data.test[:2], exit % len(net.stops))
        begin_s = driver.now
        while True:
            now_s = driver.now - begin_s
            executor.finish(now_s)
            executor.arrive(now_s)
            if nets:
                await self._really(driver, executor, nets, begin_s)
                now_s = driver.now - begin_s
            else:
                executor.fill(now_s)
            next_s = executor.next_s(now_s)
            if next_s is None:
                break
            await driver.sleep(max(next_s - now_s, 0.0))
        return executor.log._replace(ended_s=now_s, drifted=executor.drifted)

    async def _really(self, driver: Driver, executor: Executor, nets: Any, begin_s: float) -> None:
        """Run batches on the networks themselves until nothing waits."""
        while True:
            now_s = driver.now - begin_s
            executor.arrive(now_s)
            begun = executor.decide(now_s)
            if begun is None:
                return
            turn, requests = begun
            net, data = nets[turn.model]
            places = [r % len(data.test) for r in requests]
            # A batch is padded to its size, as an engine compiled for that size would.
            rows = data.test[(places + places[:1] * turn.batch)[: turn.batch]]
            began_s = driver.now - begin_s  # for real, the decision has taken its time as well
            logits = await driver.compute(net.forward, rows, turn.exit)
            ended_s = driver.now - begin_s
            if ended_s <= began_s:  # virtual time: the answer is real, its time is the table's
                await driver.sleep(executor.true_s(turn, began_s))
                ended_s = driver.now - begin_s
            executor.end(turn, requests, began_s, ended_s, True, ended_s - now_s)
            said = logits[: len(places)].argmax(axis=1).tolist()
            executor.log.wrong.extend(_differs(net, data, turn, places, said))

    # -- the verdict

    def check(self, outcome: Outcome) -> list[Violation]:
        log = outcome.driven
        return [] if not isinstance(log, Log) else list(faults_of(log))

    def measure(self, outcome: Outcome) -> dict[str, float]:
        log = outcome.driven
        if not isinstance(log, Log):
            return {}
        machine = outcome.world.machine_of(0)
        return measures(log, machine.watts(0.0, 0.0), machine.watts(1.0, 1.0))

    def views(self, rng: Stream) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
        """A history of views for the laws of policies: quiet, busy, late, empty."""
        table = self.table()
        slo_s = tuple(6.0 * table.full_s(m) for m in range(len(table.models)))
        now_s, arrived = 0.0, [0] * len(table.models)
        told: tuple[Done, ...] = ()
        for step in range(40):
            now_s += rng.uniform(0.0, 3.0) * slo_s[0]
            lengths = [0 if step % 5 == 0 else rng.below(1 + 6 * (step % 4)) for _ in slo_s]
            queues = tuple(
                tuple(sorted(now_s + rng.uniform(-0.3, 1.0) * slo for _ in range(length)))
                for slo, length in zip(slo_s, lengths, strict=True)
            )
            arrived = [a + n for a, n in zip(arrived, lengths, strict=True)]
            oldest_s = tuple(
                min((d - slo for d in queue), default=now_s)
                for queue, slo in zip(queues, slo_s, strict=True)
            )
            view = View(now_s, queues, oldest_s, slo_s, tuple(arrived), table, (), told)
            told = (Done(step % len(slo_s), 0, 1, table.seconds[step % len(slo_s)][0][0] * 1.2),)
            yield "next_turn", (view,), _judge(view)


def _judge(view: View) -> Any:
    return lambda answer: not why_illegal(answer, view)


def _differs(net: Any, data: Any, turn: Turn, places: list[int], said: list[int]) -> list[str]:
    key = f"_offline{turn.exit}"
    offline = net.__dict__.get(key)
    if offline is None:
        offline = net.__dict__[key] = net.answers(data.test, turn.exit).tolist()
    return [
        f"model {turn.model} exit {turn.exit} sample {place}: served {answer}, "
        f"offline {offline[place]}"
        for place, answer in zip(places, said, strict=True)
        if offline[place] != answer
    ]


def faults_of(log: Log) -> Iterator[Violation]:
    """What must never happen: a request lost or answered twice, a batch that could not be."""
    answered = [request for batch in log.batches for request in batch.requests]
    given_up = [request for request, _ in (*log.dropped, *log.rejected)]
    yield from exactly_once(range(len(log.trace)), answered, given_up)
    for request, reason in (*log.dropped, *log.rejected):
        if not reason:
            yield Violation(kind="no_reason", message=f"request {request} was refused in silence")
    arrival_s, model = log.trace.arrival_s, log.trace.model
    for place, batch in enumerate(log.batches):
        name = f"batch {place} ({batch.turn})"
        if len(batch.requests) > batch.turn.batch:
            yield Violation(kind="overfull", message=f"{name} holds {len(batch.requests)}")
        for request in batch.requests:
            if not 0 <= request < len(model):
                continue  # `exactly_once` has named it
            if model[request] != batch.turn.model:
                yield Violation(kind="wrong_model", message=f"{name} answers request {request}")
            if arrival_s[request] > batch.began_s + 1e-9:
                yield Violation(kind="before_arrival", message=f"{name} has request {request}")
    yield from _too_many_at_once(log)
    for said in log.wrong:
        yield Violation(kind="wrong_output", message=said)


def _too_many_at_once(log: Log) -> Iterator[Violation]:
    edges = [(batch.began_s, 1) for batch in log.batches]
    edges += [(batch.ended_s, -1) for batch in log.batches]
    running = 0
    for at_s, change in sorted(edges):
        running += change
        if running > log.streams:
            message = f"{running} batches at {at_s:.6f} s on {log.streams} streams"
            yield Violation(kind="shared", message=message)
            return


def measures(log: Log, idle_W: float = 0.0, busy_W: float = 0.0) -> dict[str, float]:
    """The metrics of a log."""
    trace, table = log.trace, log.profile
    count = max(len(trace), 1)
    ids = np.array([r for b in log.batches for r in b.requests], np.int64)
    sizes = [len(b.requests) for b in log.batches]
    ended_s = np.repeat([b.ended_s for b in log.batches], sizes)
    began_s = np.repeat([b.began_s for b in log.batches], sizes)
    latency_s = ended_s - trace.arrival_s[ids]
    in_time = int((ended_s <= trace.deadline_s[ids] + 1e-9).sum())
    right = np.repeat([table.accuracy[b.turn.model][b.turn.exit] for b in log.batches], sizes)
    full = np.repeat([b.turn.exit == table.exits(b.turn.model) - 1 for b in log.batches], sizes)
    busy_s = _covered_s(log.batches)
    length_s = max(log.ended_s, 1e-12)
    energy_J = idle_W * length_s + (busy_W - idle_W) * busy_s
    some = len(ids) > 0
    p50, p95, p99 = np.quantile(latency_s, (0.5, 0.95, 0.99)) if some else (0.0, 0.0, 0.0)
    return {
        "violation_ratio": 1.0 - in_time / count,
        "p50_latency_s": float(p50), "p95_latency_s": float(p95), "p99_latency_s": float(p99),
        "mean_wait_s": float((began_s - trace.arrival_s[ids]).mean()) if some else 0.0,
        "accuracy": float(right.mean()) if some else 0.0,
        "full_depth": float(full.mean()) if some else 0.0,
        "dropped": len(log.dropped) / count, "rejected": len(log.rejected) / count,
        "mean_batch": len(ids) / max(len(sizes), 1), "busy": busy_s / length_s,
        "energy_J": energy_J, "joules_per_answer": energy_J / max(in_time, 1),
    }  # fmt: skip


def _covered_s(batches: list[Batch]) -> float:
    """Seconds with at least one batch running."""
    total_s, until_s = 0.0, -1.0
    for batch in sorted(batches, key=lambda each: each.began_s):
        begin_s = max(batch.began_s, until_s)
        total_s += max(batch.ended_s - begin_s, 0.0)
        until_s = max(until_s, batch.ended_s)
    return total_s
