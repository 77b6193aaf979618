"""Sequential gradient coding: gradients may be a few rounds late, and so need less redundancy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from orrery.base.errors import PartError
from orrery.parts import Count, Whole
from orrery.parts.collectives import Array
from orrery.systems.resilience.problems.coding import (
    Bursty,
    Code,
    CodeCourse,
    Course,
    GradientScheme,
    Mini,
    Recipe,
)


class SequentialGradientCoding(GradientScheme):
    """Compute a sequence of gradients on workers of which some straggle in bursts.

    Krishnan, Ebrahimi and Khisti, "Sequential gradient coding for straggler mitigation", ICLR 2023.
    Job t starts in round t and may end by round t + T. Stragglers are bursty: in any W = `window`
    rounds at most `most` workers straggle, each within a burst of B = `burst` rounds.

    `scheme` "multiplexed" (M-SGC): a job has W - 1 plain mini-tasks for each worker and B coded
    ones. In the first W - 1 rounds of a job a worker does its plain mini-tasks; in the next B
    rounds it repeats those that failed, and else does the coded one of the round, which forgives
    `most` workers. T = W - 2 + B, and the load of a round is
    (most + 1)(W - 1 + B) / (n (B + (W - 1)(most + 1))).

    `scheme` "selective" (SR-SGC): a gradient code that forgives s = ceil(B most / (W - 1 + B)). If
    too few answered for job t - B, then in round t just as many of those who straggled repeat that
    task instead of the new one. T = B, W - 1 is a multiple of B, and the load is (s + 1)/n.

    While the stragglers obey the model, every job is decoded in time. When they break it so that
    some job could no longer be decoded, the round does not fit (`fits`), and whoever runs it must
    wait for more answers; a gradient is given only if the answers make it exactly. Planning and
    judging a round take O(n (W - 1 + B)).

    Knobs: `scheme`; `burst`; `window`; `most`. With `burst` 0 nothing may be late and both schemes
    are the gradient code that forgives `most`: the mechanism switched off.

    Differs from the paper: a round is waited out only when a job is at stake, and not whenever the
    stragglers leave the model; none of its special cases for most = n; the parameters come from
    `tune` in `problems.rounds`, which replays a profile of delays.

    >>> SequentialGradientCoding(burst=1, window=2, most=2).course(8).load
    0.1875
    """

    scheme: Literal["multiplexed", "selective"] = "multiplexed"
    burst: Whole = 1
    window: Count = 2
    most: Whole = 1

    def course(self, workers: int) -> Course:
        if self.most >= workers:
            raise PartError(
                f"most = {self.most} stragglers of {workers} workers; allow fewer than there are"
            )
        if self.burst == 0:
            return CodeCourse(workers, self.most)
        if self.window <= self.burst:
            raise PartError(
                f"window = {self.window} must be above burst = {self.burst}: a burst ends within it"
            )
        model = Bursty(burst=self.burst, window=self.window, most=self.most)
        if self.scheme == "multiplexed":
            return Multiplexed(workers, model)
        if (self.window - 1) % self.burst:
            raise PartError(
                f"window - 1 = {self.window - 1} must be a multiple of burst = {self.burst} for "
                "the selective scheme; change either, or take the multiplexed one"
            )
        return Selective(workers, model)


class Multiplexed(Course):
    """M-SGC: chunk (w, j) of the plain part is number w (W - 1) + j; coded chunks follow."""

    def __init__(self, workers: int, model: Bursty) -> None:
        early, late = model.window - 1, model.burst
        unit = 1.0 / (workers * (late + early * (model.most + 1)))
        sizes = [(model.most + 1) * unit] * (workers * early) + [unit] * (workers * late)
        super().__init__(workers, sizes)
        self.early, self.late = early, late
        # For each job under way, how many plain mini-tasks each worker still owes.
        self.owed: dict[int, Array] = {}
        self.delay = early + late - 1
        self.load = (model.most + 1) * (early + late) * unit
        self.code = Code(workers, model.most)

    def plan(self, number: int) -> list[list[Mini]]:
        plans: list[list[Mini]] = [[] for _ in range(self.workers)]
        for age in range(min(self.early + self.late, number + 1)):
            job = number - age
            if age < self.early:
                for worker in range(self.workers):
                    plans[worker].append(self._plain(job, worker, age))
                continue
            have = set(self.answered.get(job, ()))
            coded = self._coded(job, age - self.early)
            for worker in range(self.workers):
                # A plain mini-task that failed comes first; it is nobody else's.
                again = next(
                    (mini for mini in (self._plain(job, worker, j) for j in range(self.early))
                     if (worker, mini) not in have), None,
                )  # fmt: skip
                plans[worker].append(again or coded[worker])
        return plans

    def fits(self, number: int, heard: Iterable[int]) -> bool:
        """Whether every job under way can still be decoded if all answer from now on."""
        came = np.zeros(self.workers, bool)
        came[list(heard)] = True
        for age in range(min(self.early + self.late, number + 1)):
            owed = self.owed.get(number - age, np.zeros(self.workers, int))
            left = self.early + self.late - 1 - age
            if age < self.early:
                owed, left = owed + ~came, self.late
            elif self.code.suffices(came & (owed == 0)):
                owed = owed - (came & (owed > 0))
            else:
                return False
            # Who owes k plain mini-tasks is missing from the next k coded ones.
            if (owed > left).any() or not all(
                self.code.suffices(owed <= step) for step in range(left)
            ):
                return False
        return True

    def note(self, number: int, heard: Iterable[int]) -> None:
        came = np.zeros(self.workers, bool)
        came[list(heard)] = True
        self.owed[number] = np.zeros(self.workers, int)
        for job in list(self.owed):
            if number - job < self.early:
                self.owed[job] = self.owed[job] + ~came
            else:
                self.owed[job] = self.owed[job] - (came & (self.owed[job] > 0))
            if number - job >= self.delay:
                del self.owed[job]

    def _plain(self, job: int, worker: int, place: int) -> Mini:
        return Mini(job, "plain", (worker * self.early + place,), (1.0,))

    def _coded(self, job: int, place: int) -> list[Mini]:
        first = self.workers * (self.early + place)
        return self.code.minis(job, f"coded {place}", first)

    def recipe(self, job: int) -> Recipe | None:
        have = set(self.answered.get(job, ()))
        found: Recipe = {}
        for worker in range(self.workers):
            for place in range(self.early):
                key = (worker, self._plain(job, worker, place))
                if key not in have:
                    return None
                found[key] = 1.0
        for place in range(self.late):
            coded = self._coded(job, place)
            heard = [w for w in range(self.workers) if (w, coded[w]) in have]
            factors = self.code.factors(heard)
            if factors is None:
                return None
            found |= {(w, coded[w]): factor for w, factor in factors.items()}
        return found


class Selective(Course):
    """SR-SGC: those who straggled for job t - B repeat it in round t, as many as are needed."""

    def __init__(self, workers: int, model: Bursty) -> None:
        forgiven = -(-model.burst * model.most // (model.window - 1 + model.burst))
        super().__init__(workers, [1.0 / workers] * workers)
        self.model = model
        self.delay = model.burst
        # For each job not yet decodable: who sent it, and who repeats it in its last round.
        self.sent: dict[int, Array] = {}
        self.repeating: dict[int, Array] = {}
        self.load = (forgiven + 1) / workers
        self.code = Code(workers, forgiven)

    def plan(self, number: int) -> list[list[Mini]]:
        plans = [[mini] for mini in self.code.minis(number, "coded")]
        old = self.code.minis(number - self.delay, "coded")
        for worker in np.flatnonzero(self._repeaters(number)).tolist():
            plans[worker] = [old[worker]]
        return plans

    def _repeaters(self, number: int) -> Array:
        """Who repeats job t - B in round t: as many as it lacks, those who straggled first."""
        if number not in self.repeating:
            again: Array = np.zeros(self.workers, bool)
            job = number - self.delay
            sent = self.sent.get(job)
            if sent is not None and not self.code.suffices(sent):
                lacking = self.workers - self.code.missing - int(sent.sum())
                # Those who themselves repeated an older job in that round never did this one.
                own = ~sent & ~self._repeaters(job)
                order = np.concatenate([np.flatnonzero(own), np.flatnonzero(~sent & ~own)])
                again[order[: max(lacking, 0)]] = True
            self.repeating[number] = again
            self.repeating.pop(number - 2 * self.delay - 1, None)
        return self.repeating[number]

    def fits(self, number: int, heard: Iterable[int]) -> bool:
        """Whether the job that is due in this round can be decoded."""
        came = np.zeros(self.workers, bool)
        came[list(heard)] = True
        sent = self.sent.get(number - self.delay)
        return sent is None or self.code.suffices(sent | (came & self._repeaters(number)))

    def note(self, number: int, heard: Iterable[int]) -> None:
        came = np.zeros(self.workers, bool)
        came[list(heard)] = True
        again = self._repeaters(number)
        self.sent[number] = came & ~again
        self.sent.pop(number - self.delay, None)

    def recipe(self, job: int) -> Recipe | None:
        found = dict(self.answered.get(job, ()))
        factors = self.code.factors(sorted(found))
        return None if factors is None else {(w, found[w]): f for w, f in factors.items()}
