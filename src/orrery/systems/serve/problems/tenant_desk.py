"""The desk of a shared endpoint: it takes requests in or refuses them, and keeps the log."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from orrery.base.errors import PartError
from orrery.models.ports import Scheduler
from orrery.models.replica import NEVER, Replica
from orrery.models.requests import Request, Running, Served
from orrery.systems.serve.problems.tenant_loads import Offer, tenant_of


class Gatekeeper(Scheduler):
    """A scheduler that also says what it expects of a request, and which it refuses at the door."""

    def expected(self, request: Request) -> float:
        """Tokens that it expects of the answer, at this moment."""
        return float(getattr(request, "estimate", 0.0))

    def refuse(self, request: Request, waiting: Sequence[Running]) -> str:
        """Why a request may not even wait; empty: it may."""
        return ""


class LinearSteps:
    """A step takes a + b x tokens + c x context: weights are read, tokens computed, KV read."""

    extrapolated, spread, tp, model = 0, False, 1, None

    def __init__(self, fixed_s: float, token_s: float, kv_s: float) -> None:
        self.fixed_s, self.token_s, self.kv_s = fixed_s, token_s, kv_s

    def seconds(
        self, prefill: Sequence[tuple[int, int]], decodes: int, decode_kv: int, spread: Any = None
    ) -> float:
        """One step; a prompt chunk reads the context before it once."""
        tokens, context = decodes, decode_kv
        for new, past in prefill:
            tokens += new
            context += past
        return self.fixed_s + self.token_s * tokens + self.kv_s * context if tokens else 0.0

    def decode_run(self, decodes: int, decode_kv: int, steps: int, spread: Any = None) -> float:
        """So many decode steps in a row, in closed form."""
        context = steps * decode_kv + decodes * steps * (steps - 1) / 2
        return steps * (self.fixed_s + self.token_s * decodes) + self.kv_s * context


class Log(NamedTuple):
    """What a run of the desk leaves behind."""

    offers: list[Offer]
    served: list[Served]
    refused: list[tuple[int, str]]
    cancelled: list[int]
    expected: dict[int, float]
    faults: list[str]
    preemptions: int
    busy_s: float
    made: int
    seconds: float


class Desk:
    """One replica behind a door. A host moves the clock: `next_s` tells when something is due."""

    def __init__(
        self, offers: list[Offer], replica: Replica, cancels: Sequence[tuple[float, int]] = ()
    ) -> None:
        self.offers, self.replica = offers, replica
        self.scheduler = replica.scheduler
        self.cancels = list(cancels)
        heapq.heapify(self.cancels)
        self.place = 0
        self.now_s = 0.0
        self.given_up: set[int] = set()
        self.log = Log(offers, [], [], [], {}, [], 0, 0.0, 0, 0.0)

    def next_s(self) -> float:
        """When the next thing happens."""
        come_s = self.offers[self.place].arrival_s if self.place < len(self.offers) else NEVER
        gone_s = self.cancels[0][0] if self.cancels else NEVER
        return min(come_s, gone_s, self.replica.next_s)

    def step(self, now_s: float) -> None:
        """Do what is due: steps that end, then clients who leave, then requests that come."""
        self.now_s = now_s
        log, replica = self.log, self.replica
        while replica.next_s <= now_s:
            for served in replica.advance(replica.next_s):
                whole = served.output_tokens == self.offers[served.id]._output_tokens
                if served.id in self.given_up and not whole:
                    log.cancelled.append(served.id)
                else:
                    log.served.append(served)
        while self.cancels and self.cancels[0][0] <= now_s:
            self._cancel(heapq.heappop(self.cancels)[1], now_s)
        while self.place < len(self.offers) and self.offers[self.place].arrival_s <= now_s:
            self._come(self.offers[self.place], now_s)
            self.place += 1

    def _cancel(self, number: int, now_s: float) -> None:
        waits = any(seq.request.id == number for seq in self.replica.waiting)
        if not self.replica.cancel(number, now_s):
            return  # it was served, refused, or never came
        if waits:
            self.log.cancelled.append(number)
        else:
            self.given_up.add(number)

    def _come(self, offer: Offer, now_s: float) -> None:
        scheduler, reason = self.scheduler, ""
        if isinstance(scheduler, Gatekeeper):
            self.log.expected[offer.id] = scheduler.expected(offer)
            reason = scheduler.refuse(offer, self.replica.waiting)
        if not reason:
            try:
                self.replica.submit(offer, now_s)
                return
            except PartError as error:  # longer than the whole cache
                reason = str(error)
        self.log.refused.append((offer.id, reason))

    def play(self) -> Log:
        """Everything to the end, without an engine."""
        while (due_s := self.next_s()) < NEVER:
            self.step(due_s)
        return self.end()

    def end(self) -> Log:
        """The log, with the books of the replica."""
        replica = self.replica
        last_s = max((each.last_s for each in self.log.served), default=self.now_s)
        return self.log._replace(
            faults=replica.faults(), preemptions=replica.preemptions, busy_s=replica.busy_s,
            made=replica.made, seconds=max(last_s, self.now_s),
        )  # fmt: skip


# -- what a log says


def errors_of(log: Log, skip: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(kind number, observed - expected, observed - estimated) of what was served whole."""
    kinds = {name: at for at, name in enumerate(sorted({each.kind for each in log.offers}))}
    rows = []
    for each in log.served:
        if each.id < skip:
            continue
        offer = log.offers[each.id]
        told = log.expected.get(each.id, offer.estimate)
        rows.append((kinds[each.kind], each.output_tokens - told,
                     each.output_tokens - offer.estimate))  # fmt: skip
    table = np.array(rows, float).reshape(-1, 3)
    return table[:, 0].astype(int), table[:, 1], table[:, 2]


def overtaken(served: Sequence[Served], age_limit_s: float) -> list[tuple[int, int]]:
    """(older, younger) where the younger was let in while the older was past the age limit.

    O(n^2) at worst, vectorised: for each one let in, those before it that are old enough.
    """
    order = sorted(served, key=lambda each: (each.arrival_s, each.id))
    arrival = np.array([each.arrival_s for each in order])
    started = np.array([each.started_s for each in order])
    found = []
    for place, each in enumerate(order):
        old = np.searchsorted(arrival, each.started_s - age_limit_s, "right")
        before = min(int(old), place)
        older = np.flatnonzero(
            (started[:before] > each.started_s) & (arrival[:before] < arrival[place])
        )
        found += [(order[at].id, each.id) for at in older.tolist()]
    return found


def service_shares(
    served: Sequence[Served], begin_s: float, end_s: float, prompt_weight: float
) -> dict[str, float]:
    """Each tenant's share of the service between two moments.

    Tokens count evenly over the time from a request's start to its end, prompt tokens by weight.
    """
    got: dict[str, float] = {}
    for each in served:
        length_s = max(each.last_s - each.started_s, 1e-12)
        inside_s = min(each.last_s, end_s) - max(each.started_s, begin_s)
        if inside_s > 0:
            work = each.output_tokens + prompt_weight * each.prompt_tokens
            tenant = tenant_of(each.kind)
            got[tenant] = got.get(tenant, 0.0) + work * inside_s / length_s
    whole = math.fsum(got.values())
    return {tenant: work / whole for tenant, work in sorted(got.items())} if whole else {}


__all__ = [
    "Desk", "Gatekeeper", "LinearSteps", "Log", "errors_of", "overtaken", "service_shares",
]  # fmt: skip
