"""The executor: queues by model, batches that run alone or share it, and a log of all that ends.

One object serves both kinds of time. In virtual time a batch lasts what the true table says, times
its noise; for real, the network itself is computed and the clock is read.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple

from orrery.base.errors import PartError
from orrery.base.rand import Stream
from orrery.systems.serve.problems.dnn_edge_serving.profile import Profile
from orrery.systems.serve.problems.dnn_edge_serving.trace import Trace
from orrery.systems.serve.problems.dnn_edge_serving.turns import (
    Done,
    Drop,
    EdgePolicy,
    Turn,
    View,
    why_illegal,
)

# Two events nearer than this are one: the clock counts whole nanoseconds.
TICK_S = 1e-9


class Batch(NamedTuple):
    """One batch of the log: what ran from when to when, for which requests."""

    turn: Turn
    requests: tuple[int, ...]
    began_s: float
    ended_s: float


class Log(NamedTuple):
    """All that a run left: every ending in the order in which it happened."""

    trace: Trace
    profile: Profile
    batches: list[Batch]
    dropped: list[tuple[int, str]]  # (request, reason)
    rejected: list[tuple[int, str]]
    wrong: list[str]  # answers of a real network that differ from its offline evaluation
    ended_s: float
    streams: int
    drifted: int = -1  # how many batches had begun when the true times changed


class Noise(NamedTuple):
    """How true times differ from the profile: factors by model, from when on, and jitter."""

    factors: tuple[float, ...]
    from_s: float
    jitter: float


class Executor:
    """Queues and running batches; `arrive`, `finish`, `fill` at each event, then `next_s`."""

    def __init__(
        self, trace: Trace, profile: Profile, policy: EdgePolicy, noise: Noise, seed: int,
        overhead_s: float = 0.0, contention: float = 0.0,
    ) -> None:  # fmt: skip
        self.trace, self.profile, self.policy, self.noise = trace, profile, policy, noise
        self.overhead_s, self.contention = overhead_s, contention
        self.stream = Stream(seed, "dnn_edge_serving", "times")
        count = len(profile.models)
        # Deadlines by model, ascending, and whose they are: the earliest of a model goes first.
        self.queues: list[list[float]] = [[] for _ in range(count)]
        self.owners: list[list[int]] = [[] for _ in range(count)]
        self.arrivals_s: list[float] = trace.arrival_s.tolist()
        self.deadlines_s: list[float] = trace.deadline_s.tolist()
        self.models: list[int] = trace.model.tolist()
        self.next = 0
        self.arrived = [0] * count
        self.finished: list[Done] = []
        # Running batches: [turn, requests, began, seconds of work left, alone so far].
        self.running: list[list[Any]] = []
        self.at_s = 0.0
        self.log = Log(trace, profile, [], [], [], [], 0.0, policy.streams)
        self.drifted = -1

    # -- what happens by itself

    def arrive(self, now_s: float) -> None:
        """Take in all that has come by now; what comes with its deadline past is rejected."""
        while self.next < len(self.arrivals_s) and self.arrivals_s[self.next] <= now_s:
            request, model = self.next, self.models[self.next]
            self.next += 1
            if self.deadlines_s[request] <= self.arrivals_s[request]:
                self.log.rejected.append((request, "deadline past at arrival"))
                continue
            self.arrived[model] += 1
            place = bisect_right(self.queues[model], self.deadlines_s[request])
            self.queues[model].insert(place, self.deadlines_s[request])
            self.owners[model].insert(place, request)

    def finish(self, now_s: float) -> None:
        """Let running batches work until now, and end those that are through."""
        if self.running:
            worked_s = (now_s - self.at_s) * self.speed()
            still = []
            for each in self.running:
                each[3] -= worked_s
                if each[3] <= TICK_S:
                    self.end(each[0], each[1], each[2], now_s, each[4])
                else:
                    still.append(each)
            self.running = still
        self.at_s = now_s

    def speed(self) -> float:
        """How fast each running batch goes: they share, and may hinder one another."""
        count = len(self.running)
        return 1.0 / (count * (1.0 + self.contention * (count - 1)))

    def end(
        self, turn: Turn, requests: tuple[int, ...], began_s: float, now_s: float, alone: bool,
        held_s: float | None = None,
    ) -> None:  # fmt: skip
        """Log a batch that is through; it held the executor for `held_s`, decision included."""
        self.log.batches.append(Batch(turn, requests, began_s, now_s))
        took_s = now_s - began_s if held_s is None else held_s
        self.finished.append(Done(turn.model, turn.exit, turn.batch, took_s, alone))

    def next_s(self, now_s: float) -> float | None:
        """When something happens next of itself; None when nothing will."""
        soonest = None
        if self.running:
            left_s = min(each[3] for each in self.running)
            soonest = now_s + max(left_s, TICK_S) / self.speed()
        if self.next < len(self.arrivals_s):
            comes_s = self.arrivals_s[self.next]
            # A single stream cannot begin anything before its batch ends, so it need not wake.
            if soonest is None or (self.policy.streams > 1 and comes_s < soonest):
                return comes_s
        return soonest

    # -- what the policy decides

    def view(self, now_s: float) -> View:
        """The policy's view; what finished is told once."""
        told, self.finished = tuple(self.finished), []
        return View(
            now_s,
            tuple(map(tuple, self.queues)),
            # Requests are numbered by arrival, so the least number waits longest.
            tuple(self.arrivals_s[min(ids)] if ids else now_s for ids in self.owners),
            self.trace.slo_s, tuple(self.arrived), self.profile,
            tuple(each[0].model for each in self.running), told,
        )  # fmt: skip

    def decide(self, now_s: float) -> tuple[Turn, tuple[int, ...]] | None:
        """Ask the policy until it starts a batch or waits; (turn, requests) of a batch."""
        while len(self.running) < self.policy.streams and any(self.queues):
            view = self.view(now_s)
            answer = self.policy.next_turn(view)
            fault = why_illegal(answer, view)
            if fault:
                raise PartError(f"{type(self.policy).__name__} at {now_s:.6f} s: {fault}; "
                                "answer with a legal Turn, Drop or None")  # fmt: skip
            if answer is None:
                return None
            if isinstance(answer, Drop):
                gone = self._take(answer.model, 0, answer.number)
                self.log.dropped.extend((r, "no exit would have been in time") for r in gone)
                continue
            return answer, self._take(answer.model, answer.skip, answer.batch)
        return None

    def _take(self, model: int, skip: int, count: int) -> tuple[int, ...]:
        """Requests out of a queue, by the order of their deadlines."""
        these = slice(skip, skip + count)
        taken = tuple(self.owners[model][these])
        del self.queues[model][these], self.owners[model][these]
        return taken

    def fill(self, now_s: float) -> None:
        """Start batches in modelled time, as many as the policy wants and the streams allow."""
        while (begun := self.decide(now_s)) is not None:
            turn, requests = begun
            if self.running:
                for each in self.running:
                    each[4] = False
            seconds = self.true_s(turn, now_s)
            self.running.append([turn, requests, now_s, seconds, not self.running])

    def true_s(self, turn: Turn, now_s: float) -> float:
        """What a batch really takes alone: the table, drifted and jittered, and the overhead."""
        seconds = self.profile.seconds[turn.model][turn.exit][self.profile.place(turn.batch)]
        if now_s >= self.noise.from_s:
            seconds *= self.noise.factors[turn.model]
            if self.drifted < 0:
                self.drifted = len(self.log.batches)
        if self.noise.jitter:
            # Never faster than the quiet machine by much, sometimes slower: a shifted exponential.
            seconds *= 1.0 + self.noise.jitter * (self.stream.expovariate() - 1.0)
        return seconds + self.overhead_s
