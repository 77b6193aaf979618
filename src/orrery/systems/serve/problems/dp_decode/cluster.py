"""The cluster's books: who waits, who decodes where, and what every step took.

One `Cluster` serves all ways of running: the vectorised model of steps with a barrier (`step`), the
one without (`begin_one`, `end_one`), and real processes (`step` again, with the seconds that they
took). It holds grids of workers x slots, so a step costs a few operations on arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from orrery.base.errors import PartError
from orrery.systems.serve.problems.dp_decode.loads import Load
from orrery.systems.serve.problems.dp_decode.ports import (
    I64,
    Assigner,
    Pairs,
    Waiting,
    Workers,
    why_illegal,
)
from orrery.systems.serve.problems.dp_decode.steptime import StepTime


class Step(NamedTuple):
    """One step with a barrier: when it began, its seconds, and the loads that it read."""

    begin_s: float
    seconds: float
    kv_max: int
    kv_mean: float
    most: int  # sequences on the worker that has the most
    tokens: int  # sequences in all: each makes one token
    waiting: int


class Admission(NamedTuple):
    """A request joins its worker's step number `step`, with so many tokens for the cache."""

    step: int
    at_s: float
    request: int
    worker: int
    tokens: int
    again: bool  # after the death of the worker that it was on


class Ending(NamedTuple):
    """A request is gone before its worker's step number `step`: answered, or lost with it."""

    step: int
    at_s: float
    request: int
    worker: int
    done: bool


class Log(NamedTuple):
    """All that a run leaves for the checker and the metrics."""

    load: Load
    workers: int
    slots: int
    capacity: int
    barrier: bool
    steps: list[Step]
    admissions: list[Admission]
    endings: list[Ending]
    warm_up: int
    ended_s: float
    first_s: Any  # [requests] when each made its first token; nan: never
    open: list[int]  # requests that waited or decoded when the run was cut off
    decided_s: list[float]  # wall time of each decision, on a real engine
    faults: list[str]  # what real workers said that is not so
    worker_steps: list[int]  # how many steps each worker has made


def read_only(values: Any) -> Any:
    """The same array, for reading."""
    seen = values.view()
    seen.setflags(write=False)
    return seen


class Cluster:
    """Workers with slots and a cache, a pool of waiting requests, and an assigner between them."""

    def __init__(
        self, load: Load, part: Assigner, workers: int, slots: int, capacity: int, time: StepTime
    ) -> None:
        self.load, self.part, self.time = load, part, time
        self.workers, self.slots, self.capacity = workers, slots, capacity
        shape = (workers, slots)
        self.request = np.full(shape, -1, np.int64)
        self.used = np.zeros(shape, bool)
        self.context, self.prompt = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.made, self.left = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.alive = np.ones(workers, bool)
        self.running, self.reserved = np.zeros(workers, np.int64), np.zeros(workers, np.int64)
        self.pool: I64 = np.zeros(0, np.int64)
        self.arrived = 0
        # What each request brings, and has still to make: a death changes both.
        self.tokens, self.rest = load.prompt.copy(), load.output.copy()
        self.limit = load.limit.copy()
        self._seen = [read_only(each) for each in (self.tokens, self.limit, self.rest)]
        self.before = np.zeros(len(load), bool)
        self.first_s = np.full(len(load), np.nan)
        self.steps: list[Step] = []
        self.admissions: list[Admission] = []
        self.endings: list[Ending] = []
        self.decided_s: list[float] = []
        self.faults: list[str] = []
        self.done = 0
        self.own = np.zeros(workers, np.int64)  # steps that each worker has made
        self.inside: dict[int, Any] = {}  # without a barrier: who takes part in a worker's step

    # -- what comes and goes

    def arrive(self, now_s: float) -> None:
        """Take in all that has come by now."""
        upto = int(np.searchsorted(self.load.arrival_s, now_s, "right"))
        if upto > self.arrived:
            self.pool = np.concatenate([self.pool, np.arange(self.arrived, upto)])
            self.arrived = upto

    def next_arrival_s(self) -> float:
        """When the next request comes; infinite after the last."""
        arrival_s = self.load.arrival_s
        return float(arrival_s[self.arrived]) if self.arrived < len(arrival_s) else float("inf")

    def view(self) -> tuple[Waiting, Workers]:
        """What the assigner may see now, for reading only."""
        tokens, limit, rest = self._seen
        waiting = Waiting(read_only(self.pool), tokens, limit, self.load.arrival_s, rest)
        free = np.where(self.alive, self.slots - self.running, 0)
        workers = Workers(
            self.alive.copy(), free, self.running.copy(), self.context.sum(axis=1),
            self.capacity - self.reserved,
            tuple(read_only(each) for each in (self.used, self.prompt, self.made, self.left)),
        )  # fmt: skip
        return waiting, workers

    def decide(self, now_s: float) -> Pairs:
        """Ask the assigner, refuse what cannot be, admit the rest."""
        waiting, workers = self.view()
        if not len(waiting) or not workers.free_slots.any():
            return []
        pairs = self.part.assign(waiting, workers, now_s)
        wrong = why_illegal(pairs, waiting, workers) if pairs or not isinstance(pairs, list) else ""
        if wrong:
            raise PartError(f"{type(self.part).__name__}.assign: {wrong}")
        for request, worker in pairs:
            self.admit(int(request), int(worker), now_s)
        if pairs:
            chosen = np.array([request for request, _ in pairs], np.int64)
            self.pool = np.delete(self.pool, np.searchsorted(self.pool, chosen))
        return pairs

    def admit(self, request: int, worker: int, now_s: float) -> None:
        slot = int(self.used[worker].argmin())
        tokens = int(self.tokens[request])
        self.used[worker, slot] = True
        self.request[worker, slot] = request
        self.context[worker, slot] = self.prompt[worker, slot] = tokens
        self.made[worker, slot], self.left[worker, slot] = 0, self.rest[request]
        self.running[worker] += 1
        self.reserved[worker] += tokens + self.limit[request]
        again = bool(self.before[request])
        self.before[request] = True
        joins = int(self.own[worker]) + (worker in self.inside)
        self.admissions.append(Admission(joins, now_s, request, worker, tokens, again))

    # -- steps

    def step(self, now_s: float, seconds: float | None = None) -> float:
        """One step of all workers to the barrier; when it ends. `seconds`: as measured."""
        kv, alive = self.context.sum(axis=1), self.alive
        most, top = int(self.running.max()), int(kv.max())
        took_s = float(self.time.seconds(most, top)) if seconds is None else seconds
        total, standing = int(self.running.sum()), int(alive.sum())
        mean = float(kv.sum()) / max(standing, 1)
        self.steps.append(Step(now_s, took_s, top, mean, most, total, len(self.pool)))
        end_s = now_s + took_s
        self._advance(slice(None), self.used, end_s)
        self.own += 1
        ended = np.nonzero(self.used & (self.left == 0))
        for worker, slot in zip(*(each.tolist() for each in ended), strict=True):
            self._leave(worker, slot, end_s, True)
        return end_s

    def begin_one(self, worker: int, now_s: float) -> float:
        """A worker that waits for nobody begins a step; when it will end."""
        self.inside[worker] = self.used[worker].copy()
        kv = self.context.sum(axis=1)
        count, mean = int(self.running[worker]), float(kv.sum()) / max(int(self.alive.sum()), 1)
        took_s = float(self.time.seconds(count, int(kv[worker])))
        self.steps.append(Step(now_s, took_s, int(kv.max()), mean, count, count, len(self.pool)))
        return now_s + took_s

    def end_one(self, worker: int, now_s: float) -> None:
        """The worker's step ends: those that took part have one token more."""
        self._advance(worker, self.inside.pop(worker), now_s)
        self.own[worker] += 1
        for slot in np.flatnonzero(self.used[worker] & (self.left[worker] == 0)).tolist():
            self._leave(worker, slot, now_s, True)

    def _advance(self, where: Any, mask: Any, end_s: float) -> None:
        """One token more for those in the mask, on one worker or, as a slice, on all."""
        self.context[where] += mask
        self.made[where] += mask
        self.left[where] -= mask
        fresh = mask & (self.made[where] == 1)
        if fresh.any():
            who = self.request[where][fresh]
            unseen = np.isnan(self.first_s[who])
            self.first_s[who[unseen]] = end_s

    def _leave(self, worker: int, slot: int, now_s: float, done: bool) -> int:
        request = int(self.request[worker, slot])
        self.endings.append(Ending(int(self.own[worker]), now_s, request, worker, done))
        self.reserved[worker] -= int(self.tokens[request] + self.limit[request])
        self.running[worker] -= 1
        self.used[worker, slot] = False
        self.request[worker, slot] = -1
        self.context[worker, slot] = 0
        self.done += done
        return request

    def die(self, worker: int, now_s: float) -> list[int]:
        """A worker is gone: what it decoded waits again, with what it had made as its prompt."""
        self.alive[worker] = False
        lost = []
        for slot in np.flatnonzero(self.used[worker]).tolist():
            made = int(self.made[worker, slot])
            request = self._leave(worker, slot, now_s, False)
            self.tokens[request] += made
            self.rest[request] -= made
            self.limit[request] -= made
            lost.append(request)
        # The pool stays in the order of age, which is that of the numbers.
        self.pool = np.sort(np.concatenate([self.pool, np.array(lost, np.int64)]))
        return lost

    def revive(self, worker: int) -> None:
        """A worker is back, and empty."""
        self.alive[worker] = True

    @property
    def over(self) -> bool:
        """Whether everything has been answered."""
        return self.done == len(self.load)

    @property
    def stuck(self) -> bool:
        """Whether requests wait, nobody decodes, and nothing more will come."""
        return bool(len(self.pool)) and not self.running.any() and self.arrived == len(self.load)

    def log(self, barrier: bool, warm_up: int, now_s: float) -> Log:
        """The books, closed."""
        decoding = self.request[self.used].tolist()
        return Log(
            self.load, self.workers, self.slots, self.capacity, barrier, self.steps,
            self.admissions, self.endings, warm_up, now_s, self.first_s,
            sorted([*decoding, *self.pool.tolist(), *range(self.arrived, len(self.load))]),
            self.decided_s, self.faults, self.own.tolist(),
        )  # fmt: skip


__all__ = ["Admission", "Cluster", "Ending", "Log", "Step"]
