"""How many branches of an answer may a decode step carry?"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from orrery.base.errors import KnobError, UsageError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.check.conservation import exactly_once
from orrery.models.specs import spec
from orrery.models.steps import steps_for
from orrery.models.weights import Layout
from orrery.parts import Count, Driver, Fraction, Metric, Outcome, Positive, Problem, Whole
from orrery.systems.serve.problems.branch_engine import Answered, BranchEngine, Live, StepNote
from orrery.systems.serve.problems.branch_requests import (
    BranchPolicy,
    BranchView,
    Forked,
    Stage,
    make_requests,
)
from orrery.systems.serve.problems.clocked import play_out
from orrery.world import World, worlds

Span = tuple[Count, Count]
_STEPS: dict[tuple[Any, ...], Any] = {}
_STAGE = Stage(200, (40,) * 8)


class Log(NamedTuple):
    """What a run leaves behind."""

    requests: list[Forked]
    answered: list[Answered]
    refused: list[tuple[int, str]]
    faults: list[str]
    times_s: np.ndarray
    mean_width: float
    made: int
    busy_s: float
    seconds: float
    extrapolated: int
    notes: list[StepNote] | None


class LLMBranches(Problem):
    """Serve chats and answers that fork into branches on one replica; regulate the branches.

    At each decode step the policy (`BranchPolicy`) says how many open branches of each request
    compute a token. More branches finish a forked answer sooner and make the step longer for all.
    A serial request is on target when its first token and its mean time a token are; one with
    branches when its first token is, and its last one comes within
    ttft_s + tpot_s x (serial tokens + `allowed` x longest branch).

    The engine: `model` on the first accelerator of the world; step times from measured tables
    (`tables`: a path; "auto": those that are installed, else rooflines); `chunk`, prompt tokens in
    a step; `slots`, requests at once.
    The load: `rate_per_s`, bursty by `burst` (coefficient of variation of the gaps), a share of
    `branchy` requests with `branches` of `lengths` tokens between `before` and `after` tokens; all
    prompts, and the answers of the others, are like Azure's conversations.
    The targets: `ttft_s`; `tpot_factor`, times the decode step of a quarter-full batch (`quarter`
    sequences with contexts of the mean length), or `tpot_s` itself where it is given; `allowed`,
    how many longest branches in a row the deadline of a fork leaves time for, at most as many as
    it has.

    >>> 0.02 < LLMBranches().quarter_step_s() < 0.04
    True
    """

    model: str = "Qwen3-32B"
    tables: str = "auto"
    requests: Count = 150
    rate_per_s: Positive = 1.5
    burst: Positive = 1.5
    branchy: Fraction = 0.5
    branches: Span = (8, 32)
    lengths: Span = (40, 150)
    before: Span = (20, 60)
    after: Span = (30, 100)
    allowed: Positive = 2.0
    ttft_s: Positive = 2.0
    tpot_factor: Positive = 1.5
    tpot_s: Positive | None = None
    quarter: Count = 64
    chunk: Count = 512
    slots: Count = 256
    most_prompt: Count = 8192
    blocks: Whole = 0
    block_tokens: Count = 16

    trial: ClassVar[Mapping[str, Any]] = {"requests": 40}
    port: ClassVar[type] = BranchPolicy
    metrics: ClassVar[Mapping[str, Metric]] = {
        "goodput_per_s": Metric("1/s", "higher", "requests on target, by the time of arrivals"),
        "attainment": Metric("", "higher", "share of requests on target"),
        "serial_attainment": Metric("", "higher", "share of serial requests on target"),
        "branchy_attainment": Metric("", "higher", "share of requests with branches on target"),
        "tokens_per_s": Metric("1/s", "higher", "made, while the device computed"),
        "mean_width": Metric("", "", "branches of a forked request in a step"),
        "step_p50_s": Metric("s", "lower", "of a step"),
        "step_p99_s": Metric("s", "lower", "of a step"),
        "ttft_p95_s": Metric("s", "lower", "to the first token"),
        "tpot_p95_s": Metric("s", "lower", "of each further token of serial requests"),
        "branchy_p50_s": Metric("s", "lower", "latency of requests with branches"),
        "target_tpot_s": Metric("s", "", "seconds a token that users expect"),
        "measured_tables": Metric("", "", "1: step times are from measured tables"),
        "extrapolated": Metric("", "lower", "steps beyond the measured tables"),
    }

    def world(self) -> World:
        return worlds.get("h200_pod:1")

    # -- the engine

    def device(self, world: World | None = None) -> Any:
        """The accelerator that serves."""
        found = (world or self.world()).machine_of(0).accelerators
        if not found:
            raise UsageError("node 0 has no accelerator to serve on; take a world with one")
        return found[0]

    def steps(self, world: World | None = None) -> Any:
        """What a step takes on the world's accelerator."""
        device = self.device(world)
        key = (self.model, self.tables, device)
        if key not in _STEPS:
            # Tables take seconds to read; steps hold no state but counters.
            _STEPS[key] = steps_for(self.model, device, 1, tables=self.tables or None)
        return _STEPS[key]

    def quarter_step_s(self, world: World | None = None) -> float:
        """Seconds of a decode step of a quarter-full batch of chats in the middle of their answer.

        Azure's conversations have 1155 prompt and 211 answer tokens on average.
        """
        steps = self.steps(world)
        before = steps.extrapolated
        took_s = steps.seconds((), self.quarter, self.quarter * (1155 + 211 // 2))
        steps.extrapolated = before
        return float(took_s)

    def pace_s(self, world: World | None = None) -> float:
        """Seconds a token that users expect."""
        return self.tpot_s or self.tpot_factor * self.quarter_step_s(world)

    def engine(
        self, part: BranchPolicy, world: World | None = None, notes: bool = False
    ) -> BranchEngine:
        """A new replica with a new policy like the part."""
        device = self.device(world)
        fits = spec(self.model).kv_tokens_that_fit(device.memory_B, Layout(tp=1), share=0.9)
        blocks = self.blocks or fits // self.block_tokens
        if blocks < 1:
            problem = f"{self.model} leaves no room for a cache on {device.name}"
            raise KnobError("LLMBranches.model", problem, "take a smaller one, or a larger device")
        return BranchEngine(
            self.steps(world), part.with_knobs(), blocks=blocks, block_tokens=self.block_tokens,
            chunk=self.chunk, slots=self.slots, notes=notes,
        )  # fmt: skip

    # -- the load

    def load(self, seed: int, world: World | None = None) -> list[Forked]:
        """The requests of a seed; at another rate the same ones come faster or slower."""
        for name in ("branches", "lengths", "before", "after"):
            low, high = getattr(self, name)
            if low > high:
                raise KnobError(f"LLMBranches.{name}", f"{low} is above {high}", "swap them")
        for name in ("rate_per_s", "burst", "allowed", "ttft_s", "tpot_factor"):
            least = 1.0 if name == "allowed" else 0.0
            if not least <= getattr(self, name) < float("inf"):
                fix = f"give a number, {least:g} or more"
                raise KnobError(f"LLMBranches.{name}", f"{getattr(self, name)} is refused", fix)
        return make_requests(
            self.requests, seed, rate_per_s=self.rate_per_s, burst=self.burst,
            branchy=self.branchy, branches=self.branches, lengths=self.lengths,
            before=self.before, after=self.after, ttft_s=self.ttft_s, tpot_s=self.pace_s(world),
            widths=self.allowed, most_prompt=self.most_prompt,
        )  # fmt: skip

    # -- the run

    def play(
        self, part: BranchPolicy, seed: int, world: World | None = None, notes: bool = False,
        requests: list[Forked] | None = None,
    ) -> Log:  # fmt: skip
        """Everything to the end, without an engine's clock."""
        run = Session(self, part, self.load(seed, world) if requests is None else requests, world,
                      notes)  # fmt: skip
        while (due_s := run.next_s()) < float("inf"):
            run.step(due_s)
        return run.log()

    async def drive(self, driver: Driver) -> Log:
        world, seed = self.__dict__.get("place"), driver.rng.getrandbits(32)
        run = Session(self, driver.part, self.load(seed, world), world, False)
        await play_out(driver, run)
        return run.log()

    def host(self, part: Any, world: World) -> Mapping[str, Any]:
        self.steps(world)
        self.__dict__["place"] = world
        return {}

    def check(self, outcome: Outcome) -> list[Violation]:
        log = outcome.driven
        return faults_of(log) if isinstance(log, Log) else []

    def measure(self, outcome: Outcome) -> dict[str, float]:
        log = outcome.driven
        return self.figures(log, outcome.world) if isinstance(log, Log) else {}

    def figures(self, log: Log, world: World | None = None) -> dict[str, float]:
        """The metrics of a log."""
        span_s = max(max((each.arrival_s for each in log.requests), default=0.0), 1e-9)
        met = [each.met for each in log.answered]
        kinds = {
            kind: [each for each in log.answered if each.branchy == kind] for kind in (True, False)
        }
        counts = {kind: sum(each.branchy == kind for each in log.requests) for kind in kinds}
        share = {
            kind: sum(each.met for each in kinds[kind]) / max(counts[kind], 1) for kind in kinds
        }
        found = {
            "goodput_per_s": sum(met) / span_s, "attainment": sum(met) / max(len(log.requests), 1),
            "serial_attainment": share[False], "branchy_attainment": share[True],
            "tokens_per_s": log.made / max(log.busy_s, 1e-9), "mean_width": log.mean_width,
            "target_tpot_s": self.pace_s(world), "extrapolated": float(log.extrapolated),
            "measured_tables": float(getattr(self.steps(world), "measured", False)),
        }  # fmt: skip
        if len(log.times_s):
            p50, p99 = np.quantile(log.times_s, (0.5, 0.99))
            found |= {"step_p50_s": float(p50), "step_p99_s": float(p99)}
        if log.answered:
            found["ttft_p95_s"] = float(np.quantile([e.ttft_s for e in log.answered], 0.95))
        if kinds[False]:
            found["tpot_p95_s"] = float(np.quantile([e.tpot_s for e in kinds[False]], 0.95))
        if kinds[True]:
            found["branchy_p50_s"] = float(np.median([e.last_s - e.arrival_s for e in kinds[True]]))
        return found

    def views(self, rng: Stream) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
        """A history for the laws of policies: empty, serial, forked, late, and what steps took."""
        for step in range(30):
            count = 0 if step % 6 == 0 else rng.below(14)
            rows = [_some_row(rng, number, 2.0 * step) for number in range(count)]
            prefill = ((1 + rng.below(500), 0),) if step % 3 == 0 else ()
            yield "widths", (BranchView(2.0 * step, rows, prefill, _seconds),), _judge(rows)
            kv = 100 * rng.below(1000)
            yield "observe", (0, 10, kv, _seconds((), 10, kv)), lambda answer: answer is None


def _seconds(prefill: Any, sequences: int, kv_tokens: int) -> float:
    """A step of a made-up device."""
    return 0.02 + 1e-4 * (sequences + sum(new for new, _ in prefill)) + 1e-7 * kv_tokens


def _some_row(rng: Stream, number: int, now_s: float) -> Live:
    row = Live(Forked(number, max(now_s - 5 * rng.random(), 0.0), 10 + rng.below(2000), [_STAGE],
                      ttft_s=1.0, tpot_s=0.04))  # fmt: skip
    row.context = row.request.prompt_tokens
    row.due_s = now_s + rng.uniform(-0.5, 0.5)
    if rng.below(2):
        row.open = list(range(rng.below(8), 8))
        row.made = [rng.below(30) for _ in range(8)]
        row.own_tokens = sum(row.made[at] for at in row.open)
        row.phase_tokens, row.ended = sum(row.made), 8 - len(row.open)
    return row


def _judge(rows: list[Live]) -> Any:
    most = [len(row.open) or 1 for row in rows]

    def legal(answer: Any) -> bool:
        widths = [int(each) for each in answer]
        fits = all(1 <= w <= m for w, m in zip(widths, most, strict=False))
        return len(widths) == len(most) and fits

    return legal


class Session:
    """Requests that come to one replica; a host moves the clock."""

    def __init__(
        self, problem: LLMBranches, part: BranchPolicy, requests: list[Forked],
        world: World | None, notes: bool,
    ) -> None:  # fmt: skip
        self.requests = sorted(requests, key=lambda each: (each.arrival_s, each.id))
        self.engine = problem.engine(part, world, notes)
        self.before = copy.copy(getattr(self.engine.steps, "extrapolated", 0))
        self.place, self.now_s = 0, 0.0
        self.answered: list[Answered] = []
        self.refused: list[tuple[int, str]] = []

    def next_s(self) -> float:
        """When the next thing happens."""
        left = self.requests[self.place :][:1]
        return min(left[0].arrival_s if left else float("inf"), self.engine.next_s)

    def step(self, now_s: float) -> None:
        """Do what is due: a step that ends, then requests that come."""
        self.now_s = now_s
        while self.engine.next_s <= now_s:
            self.answered += self.engine.advance()
        while self.place < len(self.requests) and self.requests[self.place].arrival_s <= now_s:
            request = self.requests[self.place]
            self.place += 1
            reason = self.engine.refuse(request)
            if reason:
                self.refused.append((request.id, reason))
            else:
                self.engine.submit(request, now_s)

    def log(self) -> Log:
        """What happened."""
        engine, faults = self.engine, self.engine.faults()
        if engine.in_use and not (engine.running or engine.filling or engine.waiting):
            faults.append(f"{engine.in_use} blocks are still in use when all is done")
        return Log(
            self.requests, self.answered, self.refused, faults, np.array(engine.times_s),
            engine.width_sum / max(engine.fork_rows, 1), engine.made, engine.busy_s, self.now_s,
            getattr(engine.steps, "extrapolated", 0) - self.before, engine.notes,
        )  # fmt: skip


def faults_of(log: Log) -> list[Violation]:
    """What must never happen: a request lost or answered twice, tokens missing, blocks lost."""
    found = list(exactly_once(
        [each.id for each in log.requests], [each.id for each in log.answered],
        [number for number, _ in log.refused],
    ))  # fmt: skip
    asked = {each.id: each for each in log.requests}
    for each in log.answered:
        wanted = asked[each.id].tokens if each.id in asked else each.tokens
        if each.tokens != wanted:
            found.append(Violation(kind="tokens", message=f"request {each.id} made {each.tokens} "
                                   f"tokens of {wanted}"))  # fmt: skip
        if not each.arrival_s < each.first_s <= each.last_s:
            found.append(Violation(kind="out_of_time", message=f"request {each.id}: {each}"))
    for number, reason in log.refused:
        if not reason:
            found.append(Violation(kind="no_reason", message=f"request {number} was refused"))
    found += [Violation(kind="cache_books", message=text) for text in log.faults]
    return found


__all__ = ["LLMBranches", "Log", "Session", "faults_of"]
