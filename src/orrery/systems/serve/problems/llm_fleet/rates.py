"""The throughput of a replica: the highest Poisson rate at which 95 % of requests meet the SLO.

It is found by bisection over virtual-time replays of one replica. All replays of a bisection have
the same lengths and the same draws for arrivals, only faster or slower, so the result is a
function of its inputs alone. Two more replays, with other draws, must then keep the promise too,
else the rate is lowered: a planner looks for the best of many rates, and would find those that had
luck with their draws. These are long: a queue that grows slowly breaks no promise within a minute,
and answers of 20 seconds fill no batch. A replica of one role answers for half of the misses each:
97.5 % of first tokens on time (prefill), 97.5 % of the further ones (decode).
"""

from __future__ import annotations

import functools

import msgspec
import numpy as np

from orrery.base.errors import UsageError, did_you_mean
from orrery.inputs import Poisson, azure_like
from orrery.models.replica import NEVER, Replica
from orrery.models.requests import Request, Served, Target
from orrery.systems.serve.baselines.vllm_v1 import VllmV1
from orrery.systems.serve.problems.llm_fleet.data import read_data
from orrery.systems.serve.problems.llm_fleet.strategy import (
    DecodeSteps,
    PipelineSteps,
    Strategy,
    kv_tokens,
)

BLOCK_TOKENS = 16
SERVICES = {"azure-conv": "conv", "azure-code": "code"}
# A replay of the bisection lasts about this long, within these counts of requests; one that
# confirms lasts until batches are full and queues show.
SPAN_S, FEWEST, MOST = 40.0, 160, 1600
LONG_S, MOST_LONG = 120.0, 12_000
# The first part of a replay only fills the batch, and is not judged.
WARM = 0.25
STEP = 1.03  # two rates of a bisection end this close
LOWER = 0.94  # a rate that other draws refute becomes this much of it
HOPELESS = 4.0  # lowered by more than this factor, it keeps no promise at any rate
OTHERS = (1, 2)  # the seeds of those draws


class Target95(msgspec.Struct, frozen=True):
    """What a fleet promises for a model: the service target, and whose requests these are."""

    workload: str = "azure-conv"
    ttft_s: float = 2.0
    tpot_s: float = 0.1
    share: float = 0.95

    @property
    def target(self) -> Target:
        return Target(self.ttft_s, self.tpot_s)

    @property
    def text(self) -> str:
        return f"{self.workload} {self.ttft_s:g} {self.tpot_s:g} {self.share:g}"


@functools.lru_cache(maxsize=64)
def lengths(workload: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(arrivals at one a second, prompts, answers) of a workload."""
    if workload not in SERVICES:
        raise UsageError(f"workload={workload!r}: unknown; {did_you_mean(workload, SERVICES)}")
    arrivals = Poisson(rate_per_s=1.0)
    made = azure_like(SERVICES[workload], count, arrivals=arrivals, seed=seed)
    return made.arrival_s, made.input_tokens, made.output_tokens


def most_context(workload: str) -> int:
    """The longest request that a replica must be able to hold."""
    _, prompts, answers = lengths(workload, 4000, 0)
    return int((prompts + answers).max())


def requests_at(workload: str, rate_per_s: float, count: int, seed: int) -> list[Request]:
    """Poisson arrivals at a rate, with the lengths of a workload."""
    arrival, prompts, answers = lengths(workload, count, seed)
    rows = zip((arrival / rate_per_s).tolist(), prompts.tolist(), answers.tolist(), strict=True)
    return [Request(i, at, prompt, answer) for i, (at, prompt, answer) in enumerate(rows)]


def replica_of(strategy: Strategy, index: int = 0, tables: str | None = None) -> Replica:
    """A new replica that runs by a strategy."""
    decode = strategy.role == "decode"
    steps = (DecodeSteps if decode else PipelineSteps)(strategy, tables)
    # A decode replica takes a prompt's KV in at once; others compute prompts in chunks.
    budget = 1 << 16 if decode else 2048
    return Replica(
        steps, VllmV1(max_seqs=strategy.max_seqs, max_tokens=budget),
        blocks=kv_tokens(strategy) // BLOCK_TOKENS, block_tokens=BLOCK_TOKENS, caching=False,
        index=index,
    )  # fmt: skip


def in_role(request: Request, role: str) -> Request:
    """What a replica of a role sees of a request: a prefill replica makes one token of it."""
    if role != "prefill":
        return request
    return Request(request.id, request.arrival_s, request.prompt_tokens, 1, kind=request.kind)


def on_time(served: Served, target: Target, role: str) -> bool:
    """Whether a replica of this role did its part in time."""
    if role == "prefill":
        return served.ttft_s <= target.ttft_s
    if role == "decode":
        # Waiting for a place in the batch delays the second token, so it counts here.
        made = max(served.output_tokens - 1, 1)
        return (served.last_s - served.arrival_s) / made <= target.tpot_s
    return target.met(served.ttft_s, served.tpot_s)


def attains(
    strategy: Strategy, promise: Target95, rate_per_s: float, *, seed: int = 0,
    tables: str | None = None, span_s: float = SPAN_S, most: int = MOST,
) -> bool:  # fmt: skip
    """Whether a replica on its own meets its promise at a rate; stops once that is decided."""
    role = strategy.role
    count = int(min(max(rate_per_s * span_s, FEWEST), most))
    first = int(count * WARM)
    share = promise.share if role == "mixed" else (1 + promise.share) / 2
    allowed = int((count - first) * (1 - share))
    replica = replica_of(strategy, tables=tables)
    target, missed, left = promise.target, 0, count - first
    coming = [in_role(r, role) for r in requests_at(promise.workload, rate_per_s, count, seed)]
    at = 0
    while left > 0:
        due_s = replica.next_s
        if at < count and coming[at].arrival_s < due_s:
            replica.submit(coming[at], coming[at].arrival_s)
            at += 1
            continue
        if due_s == NEVER:
            break
        for served in replica.advance(due_s):
            if served.id >= first:
                left -= 1
                missed += not on_time(served, target, role)
        if missed > allowed or _overdue(replica, target, due_s, first, role) > allowed - missed:
            return False
    return missed <= allowed


def _overdue(replica: Replica, target: Target, now_s: float, first: int, role: str) -> int:
    """Requests that wait for their first step and are late already: they will be missed."""
    if role == "decode":
        return 0
    late = 0
    for seq in replica.waiting:
        if now_s - seq.request.arrival_s <= target.ttft_s:
            break
        late += seq.request.id >= first and not seq.preempted
    return late


def guess_per_s(strategy: Strategy, promise: Target95, tables: str | None = None) -> float:
    """About the rate at which a replica would be busy all the time; a start for the bisection."""
    _, prompts, answers = lengths(promise.workload, 4000, 0)
    prompt, answer = float(prompts.mean()), float(answers.mean())
    context = prompt + answer / 2
    steps = PipelineSteps(strategy, tables)
    batch = int(min(strategy.max_seqs, max(kv_tokens(strategy) / context, 1)))
    chunk_s = steps.seconds([(2048, 0)], 0, 0) / 2048
    while batch > 1 and steps.decode_run(batch, int(batch * context), 1) > promise.tpot_s:
        batch = batch * 3 // 4
    decode_s = steps.decode_run(batch, int(batch * context), 1) / batch
    if strategy.role == "prefill":
        return 1.0 / (prompt * chunk_s)
    prefill_s = 0.0 if strategy.role == "decode" else prompt * chunk_s
    return 1.0 / (prefill_s + answer * decode_s)


@functools.cache
def measured_rate(strategy: Strategy, promise: Target95, tables: str | None = None) -> float:
    """The throughput of a strategy, by replays; 0 where it cannot keep the promise at all."""
    if kv_tokens(strategy) < most_context(promise.workload) + BLOCK_TOKENS:
        return 0.0
    high = guess_per_s(strategy, promise, tables)
    low, tries = high, 0
    if attains(strategy, promise, high, tables=tables):
        while attains(strategy, promise, high := high * 1.25, tables=tables):
            low = high
    else:
        while not attains(strategy, promise, low := low * 0.7, tables=tables):
            high, tries = low, tries + 1
            if tries == 12:
                return 0.0
    while high / low > STEP:
        middle = (low * high) ** 0.5
        if attains(strategy, promise, middle, tables=tables):
            low = middle
        else:
            high = middle
    return confirmed(strategy, promise, low, tables)


def confirmed(
    strategy: Strategy, promise: Target95, rate_per_s: float, tables: str | None = None
) -> float:
    """A rate, lowered until long replays with other draws keep the promise; 0 where none does."""
    least = rate_per_s / HOPELESS
    for seed in OTHERS:
        while not attains(strategy, promise, rate_per_s, seed=seed, tables=tables,
                          span_s=LONG_S, most=MOST_LONG):  # fmt: skip
            rate_per_s *= LOWER
            if rate_per_s < least:  # some prompts are late even when they are alone
                return 0.0
    return round(rate_per_s, 6)


# -- the table of stage 1


@functools.cache
def shipped() -> dict[str, float]:
    """Rates found before, by the text of promise and strategy: the off-line half of stage 1."""
    return msgspec.json.decode(read_data("rates.json"), type=dict[str, dict[str, float]])["rates"]


def key_of(strategy: Strategy, promise: Target95) -> str:
    """The name of a strategy's rate in the table."""
    return f"{promise.text} | {strategy.text}"


def rate_of(strategy: Strategy, promise: Target95, tables: str | None = None) -> float:
    """The throughput of a strategy in requests a second: from the table, else by replays."""
    if tables is None:
        found = shipped().get(key_of(strategy, promise))
        if found is not None:
            return found
    return measured_rate(strategy, promise, tables)


__all__ = [
    "BLOCK_TOKENS", "Target95", "attains", "confirmed", "guess_per_s", "in_role", "key_of",
    "measured_rate", "most_context", "on_time", "rate_of", "replica_of", "requests_at", "shipped",
]  # fmt: skip
