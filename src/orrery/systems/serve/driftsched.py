"""DriftSched: finished requests teach the queue how wrong its estimates are."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Literal

from orrery.base.errors import KnobError
from orrery.models.ports import Batch, EngineView
from orrery.models.requests import Request, Running
from orrery.parts import Fraction, NonNegative, Positive, Whole
from orrery.systems.serve.baselines.queueing import Queueing
from orrery.systems.serve.problems.tenant_desk import Gatekeeper
from orrery.systems.serve.problems.tenant_loads import category_of, tenant_of

# One request moves the average no further than if it had been half or one and a half times as
# long as expected: answers have heavy tails, and the median is what a queue should expect.
MOST_SURPRISE = 0.5
# The memory of the tracking signal (Trigg and Leach, 1967), and the level at which errors have
# been on one side for so long that the past is no guide.
SIGNAL_GAIN, TURNED = 0.1, 0.7
# After a turn each surprise counts this much.
FAST = 0.4
# Errors smaller than this are as good as none: where all were, a single large one is no turn.
LEAST_SIZE = 0.1
# Marks the kinds of requests that bring no estimate: theirs is our guess, with a drift of its own.
GUESSED = "?"


class Bias:
    """What observed / estimated is like for one kind of work: an exponential average.

    `learn` takes in one ratio. Early ratios count 1 / (seen + prior), later ones `gain`. With
    `forget`, errors that stay on one side make the average fast until they no longer do.

    >>> bias = Bias()
    >>> for _ in range(50):
    ...     bias.learn(3.0)
    >>> 2.9 < bias.factor < 3.1
    True
    """

    __slots__ = ("factor", "seen", "signal", "size")

    def __init__(self, factor: float = 1.0) -> None:
        self.factor, self.seen = factor, 0
        self.signal = self.size = 0.0  # averages of the error, and of its size

    def learn(
        self, ratio: float, gain: float = 0.03, prior: float = 4.0, forget: bool = True
    ) -> None:
        """Take in what one finished request had: its length over its estimate."""
        error = min(max(ratio / self.factor - 1.0, -MOST_SURPRISE), MOST_SURPRISE)
        self.seen += 1
        self.signal += SIGNAL_GAIN * (error - self.signal)
        self.size += SIGNAL_GAIN * (abs(error) - self.size)
        step = max(gain, 1.0 / (self.seen + prior))
        one_sided = abs(self.signal) / max(self.size, LEAST_SIZE)
        if forget and one_sided > TURNED and self.seen > prior:
            step = max(step, FAST * one_sided)
        self.factor *= 1.0 + step * error


class Drift:
    """The biases of all kinds of work, by category or by tenant and category.

    What cannot be learnt from (no output, no estimate, not a number) is counted in `ignored`.
    """

    def __init__(
        self, by: str = "tenant", gain: float = 0.03, prior: float = 4.0, forget: bool = True
    ) -> None:
        self.by, self.gain, self.prior, self.forget = by, gain, prior, forget
        self.biases: dict[str, Bias] = {}
        self.ignored = 0

    def key(self, kind: str) -> str:
        """The name under which a kind of request is learnt."""
        return kind if self.by == "tenant" else category_of(kind)

    def factor(self, kind: str) -> float:
        """By what an estimate for this kind is multiplied; 1 for one never seen."""
        bias = self.biases.get(self.key(kind))
        return bias.factor if bias is not None else 1.0

    def learn(self, kind: str, estimate: float, observed: float) -> None:
        """A request of this kind is finished."""
        usable = math.isfinite(estimate) and math.isfinite(observed)
        if not usable or estimate <= 0 or observed <= 0:
            self.ignored += 1
            return
        key = self.key(kind)
        bias = self.biases.get(key)
        if bias is None:
            bias = self.biases[key] = Bias()
        bias.learn(observed / estimate, self.gain, self.prior, self.forget)


class DriftSched(Queueing, Gatekeeper):
    """Orders the queue of a shared endpoint by answer lengths that finished requests correct.

    "DriftSched: Adaptive QoS-Aware Scheduling under Runtime Token Drift for Multi-Tenant GPU
    Inference", 2026. A request has a tenant and a category (its kind, "tenant/category") and an
    estimate of its answer. Drift is what was observed over what was estimated; an exponential
    average of it for each kind multiplies later estimates. Every policy uses the product.

    policy        fifo; priority (then shortest); weighted (each tenant its share of the service);
                  sjf (least expected work first); aging (priority that rises by one each `age_s`,
                  then shortest; whoever waited `age_limit_s` goes first, in order of arrival)
    correct       off, estimates are used as they are given: the mechanism switched off
    gain          weight of the newest ratio, once many were seen
    prior         requests that count for "no drift" at the start
    forget        errors that stay on one side make the average forget
    by            tenant: one bias for each tenant and category; category: tenants share it
    guess_tokens  the estimate where a request brings none; it has biases of its own
    weights       of tenants, 1 unless told; `limit`, waiting requests of one tenant, 0: any number
    prompt_weight work of a prompt token, in decode tokens

    Costs O(1) for a finished request, and O(w log s) for a queue of w when s slots are free.

    **Differs from the paper**: only its abstract was at hand, so the form of the average is our
    design: in ratios, with surprises cut at a half (it follows the median), and with Trigg and
    Leach's tracking signal for forgetting. The engine behind it is modelled, or our own real one.

    >>> from orrery.models.requests import Request
    >>> sched = DriftSched(guess_tokens=100)
    >>> sched.start()
    >>> asked = Request(0, 0.0, 10, 50, kind="acme/chat")
    >>> done = Running(asked, 0.0)
    >>> done.generated = 50
    >>> for _ in range(60):
    ...     sched.finished(done, 1.0)
    >>> round(sched.expected(asked))
    50
    """

    policy: Literal["fifo", "priority", "weighted", "sjf", "aging"] = "sjf"
    correct: bool = True
    gain: Fraction = 0.03
    prior: NonNegative = 4.0
    forget: bool = True
    by: Literal["tenant", "category"] = "tenant"
    guess_tokens: Positive = 200.0
    weights: dict[str, Positive] = {}
    limit: Whole = 0
    prompt_weight: NonNegative = 0.05
    age_s: Positive = 30.0
    age_limit_s: Positive = 60.0

    def start(self) -> None:
        if self.gain <= 0:
            raise KnobError("DriftSched.gain", "0 learns nothing", "give more, or correct=False")
        self.drift = Drift(self.by, self.gain, self.prior, self.forget)
        self.served: dict[str, float] = {}  # by tenant: work, divided by its weight
        self.charged: dict[int, float] = {}  # by request that runs: what its tenant paid for it
        self.queued: frozenset[str] = frozenset()

    # -- what is expected

    def estimate(self, request: Request) -> tuple[str, float]:
        """What it is learnt under, and the answer's length as estimated at admission."""
        given = getattr(request, "estimate", 0.0)
        if given > 0 and math.isfinite(given):
            return request.kind, float(given)
        return f"{request.kind}{GUESSED}", self.guess_tokens

    def expected(self, request: Request) -> float:
        """The corrected estimate."""
        name, estimate = self.estimate(request)
        return estimate * self.drift.factor(name) if self.correct else estimate

    def work(self, seq: Running) -> float:
        """What is still to be computed, in decode tokens."""
        left = max(self.expected(seq.request) - seq.generated, 1.0)
        return self.prompt_weight * seq.missing + left

    def finished(self, seq: Running, now_s: float) -> None:
        """Learn from an answer; an empty one teaches nothing."""
        request, made = seq.request, seq.generated
        self.drift.learn(*self.estimate(request), made)
        paid = self.charged.pop(request.id, None)
        if paid is not None:
            # The tenant pays for what it had, not for what it was expected to have.
            self._charge(request, self.prompt_weight * request.prompt_tokens + made - paid)

    # -- who is let in

    def refuse(self, request: Request, waiting: Sequence[Running]) -> str:
        if not self.limit:
            return ""
        tenant = tenant_of(request.kind)
        queued = sum(tenant_of(seq.request.kind) == tenant for seq in waiting)
        if queued < self.limit:
            return ""
        return f"tenant {tenant} has {queued} requests waiting, its limit is {self.limit}"

    def next_batch(self, view: EngineView) -> Batch:
        if len(self.charged) > 2 * len(view.running) + 64:
            # Cancelled requests never finish; what was paid for them stays paid.
            here = {seq.request.id for seq in view.running}
            self.charged = {number: paid for number, paid in self.charged.items() if number in here}
        return super().next_batch(view)

    def queue(self, view: EngineView) -> Sequence[Running]:
        """As many of the queue as there are slots; nobody behind them can be let in."""
        room = self.max_seqs - len(view.running)
        return self.order(view.waiting, view.now_s, room) if room > 0 else ()

    def order(
        self, waiting: Sequence[Running], now_s: float, most: int | None = None
    ) -> Sequence[Running]:
        """The first `most` of the queue by the policy; among equals the one that came first."""
        most = len(waiting) if most is None else most
        if self.policy == "weighted":
            return self._by_turns(waiting, most)
        keys: dict[str, Callable[[Running], tuple[float, ...]]] = {
            "fifo": _came,
            "sjf": lambda seq: (self.work(seq), *_came(seq)),
            "priority": lambda seq: (seq.request.priority, self.work(seq), *_came(seq)),
            "aging": lambda seq: self._aged(seq, now_s),
        }
        return heapq.nsmallest(most, waiting, key=keys[self.policy])

    def _aged(self, seq: Running, now_s: float) -> tuple[float, ...]:
        waited_s = now_s - seq.arrived_s
        if waited_s >= self.age_limit_s:
            return (0.0, 0.0, 0.0, *_came(seq))
        level = seq.request.priority - math.floor(waited_s / self.age_s)
        return (1.0, float(level), self.work(seq), *_came(seq))

    def _by_turns(self, waiting: Sequence[Running], most: int) -> list[Running]:
        """The tenants' queues by turns: each turn to the one with the least service so far."""
        queues: dict[str, list[Running]] = {}
        for seq in waiting:
            queues.setdefault(tenant_of(seq.request.kind), []).append(seq)
        here = [self.served.get(tenant, 0.0) for tenant in queues if tenant in self.queued]
        for tenant in queues if here else ():
            # A tenant that comes back cannot have saved up service while it was away.
            if tenant not in self.queued:
                self.served[tenant] = max(self.served.get(tenant, 0.0), min(here))
        self.queued = frozenset(queues)
        firsts = {tenant: heapq.nsmallest(most, each, key=_came) for tenant, each in queues.items()}
        counted = {tenant: self.served.get(tenant, 0.0) for tenant in queues}
        places, order = dict.fromkeys(queues, 0), []
        while len(order) < min(most, len(waiting)):
            tenant = min(
                (each for each in queues if places[each] < len(queues[each])),
                key=lambda each: (counted[each], each),
            )
            seq = firsts[tenant][places[tenant]]
            places[tenant] += 1
            order.append(seq)
            counted[tenant] += self.work(seq) / self.weights.get(tenant, 1.0)
        return order

    def let_in(self, seq: Running) -> None:
        """A tenant pays for what it is expected to use, before it uses it."""
        if self.policy == "weighted" and seq.request.id not in self.charged:
            paid = self.charged[seq.request.id] = self.work(seq)
            self._charge(seq.request, paid)

    def _charge(self, request: Request, work: float) -> None:
        tenant = tenant_of(request.kind)
        self.served[tenant] = self.served.get(tenant, 0.0) + work / self.weights.get(tenant, 1.0)

    def steady(self, view: EngineView) -> bool:
        """Ages change the order by themselves; any other order only when someone comes or ends."""
        if self.policy == "aging" and view.waiting and len(view.running) < self.max_seqs:
            return False
        return super().steady(view)


def _came(seq: Running) -> tuple[float, int]:
    return (seq.arrived_s, seq.request.id)


__all__ = ["Bias", "Drift", "DriftSched"]
