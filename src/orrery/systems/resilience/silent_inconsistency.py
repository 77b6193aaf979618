"""Silent Inconsistency: what ranks disagree about before an average hides it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from orrery.base.errors import PartError
from orrery.base.rand import Stream
from orrery.parts import Count, NonNegative, Positive, Worker
from orrery.parts.collectives import Array
from orrery.systems.resilience.problems.detector import (
    Detector,
    Step,
    relative_spread,
    spread,
)
from orrery.systems.resilience.problems.scores import RankScores

Found = tuple[str, tuple[int, ...], float]


class SilentInconsistency(Detector):
    """Sees which rank of a data-parallel run pulls elsewhere, before the all-reduce hides it.

    After "Silent Inconsistency in Data-Parallel Full Fine-Tuning: Diagnosing Worker-Level
    Optimization Misalignment" (2026). Each rank tells the loss of its batch, the norm of its
    gradient and its direction; taps read and change nothing. From these come, for every step, the
    dispersion of the losses and of the norms (standard deviation and coefficient of variation) and
    the mean cosine over all pairs of ranks. Attach it to any run:

        run(Synchronous(), problem=DataParallel(), monitors=[SilentInconsistency()])

    The direction is a count-sketch of `numbers` numbers, O(weights) to make. Coordinates are laid
    in blocks over the buckets, each block turned by a random amount, each coordinate with a random
    sign; so two coordinates meet with chance 1/numbers at most and inner products are unbiased. In
    the `exact` mode it is the whole unit vector u_r, which costs as many bytes as one more vector
    in the all-reduce: mean cosine = (|sum u_r|^2 - N) / (N (N - 1)). `cosine_together` finds that
    number by such an all-reduce, without a monitor.

    Alarms: a rank's loss, logarithm of the norm, and mean cosine with the others are each held
    against those of all other ranks (leave-one-out). The deviation is averaged with exponential
    weights, its scale is the spread of the others alone, and a z-score above `threshold` blames the
    rank. Two ranks whose cosine stays above 1 - `twin_gap` for `twin_steps` steps read the same
    data: the pair is named. A gradient of zeros, one that is not finite, a run of a single rank and
    a lost rank have alarms of their own (`zero_gradient`, `not_finite`, `one_rank`, `rank_lost`).

    Knobs: `mode`; `numbers` of a sketch, 4 bytes each; `threshold`, in standard deviations;
    `weight` of the newest step in the averages; `warmup` steps before a rank can be blamed;
    `twin_gap`, `twin_steps`; `sketch_seed`, common to the ranks; `per_rank`: off, it sees only what
    the average over the ranks shows, which is no disagreement at all.

    Differs from the paper: the abstract gives neither formulas nor alarms; the sketch, the z-scores
    and the blame are ours. The scale of a z-score comes from the other ranks in the same steps and
    not from the past, so that a fault that was there from the first step is found too; shards that
    differ by nature are therefore blamed as well. With two ranks nobody can be blamed. In the exact
    mode the unit vectors travel to the monitor, which adds them up.

    >>> SilentInconsistency(mode="exact").report()
    'exact: 1 more vector all-reduce in each step'
    """

    mode: Literal["sketch", "exact"] = "sketch"
    numbers: Count = 4096
    threshold: Positive = 6.0
    weight: Positive = 0.1
    warmup: Count = 10
    twin_gap: NonNegative = 0.01
    twin_steps: Count = 3
    sketch_seed: int = 0
    per_rank: bool = True

    def report(self) -> str:
        """What the mode costs."""
        if self.mode == "exact":
            return "exact: 1 more vector all-reduce in each step"
        return f"sketch: {4 * self.numbers + 24} bytes of a rank in each step"

    # -- at the rank

    def sketch(self, tag: str, vector: Array) -> Array:
        if self.mode == "exact":
            return np.array(vector, np.float64)
        return count_sketch(vector, self.numbers, self.sketch_seed, tag)

    def join(self, one: Array, other: Array) -> Array:
        # Sketches add up; whole vectors stand one behind the other, in the same order everywhere.
        return np.concatenate([one, other]) if self.mode == "exact" else super().join(one, other)

    # -- at the monitor

    def begin(self) -> None:
        if not 0 < self.weight <= 1:
            raise PartError(f"weight={self.weight}: give more than 0 and at most 1")
        learnt = self.__dict__.get("_learnt", {})
        self._scores = {
            name: RankScores(self.weight, self.warmup, learnt.get(name, 0.0))
            for name in ("loss", "norm", "direction")
        }
        self._twins: dict[tuple[int, int], int] = {}
        self.seen: list[dict[str, float]] = []

    def look(self, step: Step) -> list[Found]:
        if not self.per_rank:
            step = _averaged(step)
        self.seen.append(summary(step))
        self.signal = self.seen[-1]["mean_cos"]
        found: list[Found] = []
        for kind, bad in (("not_finite", step.norms < 0), ("zero_gradient", step.norms == 0)):
            if bad.any():
                blamed = tuple(r for r, each in zip(step.ranks, bad, strict=True) if each)
                found.append((kind, blamed, float(bad.sum())))
        if len(step.ranks) == 1:
            found.append(("one_rank", step.ranks, 0.0))
        if not step.usable or len(step.ranks) < 2:
            return found
        same = self._same_data(step)
        found += same
        # Of ranks that read the same data one stands for all, or the rest would seem the odd ones.
        doubles = {pair[1] for _, pair, _ in same}
        apart = [place for place, rank in enumerate(step.ranks) if rank not in doubles]
        if len(apart) < len(step.ranks):
            step = _only(step, apart)
        for name, values in signals_of(step).items():
            scores = self._scores[name].add(step.ranks, values)
            # A rank that is more in line than the others is not sick.
            odd = -scores if name == "direction" else np.abs(scores)
            worst = int(np.argmax(odd))
            kind, who = f"{name}_outlier", (step.ranks[worst],)
            # An alarm that is on stays on until the score has fallen to half.
            if odd[worst] >= self.threshold * (0.5 if self.is_on(kind, who) else 1.0):
                found.append((kind, who, float(odd[worst])))
        return found

    def _same_data(self, step: Step) -> list[Found]:
        """Pairs of ranks whose gradients have been one for some steps."""
        if step.cosines is None:
            return []
        close = np.argwhere(np.triu(step.cosines > 1.0 - self.twin_gap, 1))
        now = {(step.ranks[int(i)], step.ranks[int(j)]): step.cosines[i, j] for i, j in close}
        self._twins = {pair: self._twins.get(pair, 0) + 1 for pair in now}
        return [
            ("same_data", pair, float(now[pair]))
            for pair, times in self._twins.items()
            if times >= self.twin_steps
        ]

    def learn(self, steps: list[Step]) -> None:
        """The scale of each deviation: how far sound ranks lie from one another."""
        learnt: dict[str, float] = {}
        for name in ("loss", "norm", "direction"):
            values = [signals_of(step).get(name) for step in steps if step.usable]
            variances = [float(np.var(v, ddof=1)) for v in values if v is not None and v.size > 1]
            learnt[name] = math.sqrt(float(np.mean(variances))) if variances else 0.0
        self._learnt = learnt

    def metrics(self) -> dict[str, float]:
        found = super().metrics()
        for name in SUMMARY:
            values = [each[name] for each in self.seen]
            found[name] = float(np.mean(values)) if values else 0.0
        found["vector_reduces"] = 1.0 if self.mode == "exact" else 0.0
        return found


SUMMARY = ("loss_std", "loss_cv", "norm_std", "norm_cv", "mean_cos")


def summary(step: Step) -> dict[str, float]:
    """The dispersions and the mean cosine of a step, over its ranks with finite gradients.

    A single rank agrees with itself: its dispersions are 0 and its cosine is 1. Where no rank has
    a gradient with a direction the cosine is 0.
    """
    good = step.norms >= 0
    norms = step.norms[good]
    losses = step.losses[good & np.isfinite(step.losses)]
    return {
        "loss_std": spread(losses), "loss_cv": relative_spread(losses),
        "norm_std": spread(norms), "norm_cv": relative_spread(norms),
        "mean_cos": _mean_pair(step.cosines[np.ix_(good, good)], norms)
        if step.cosines is not None else float(bool(np.any(norms > 0)) and norms.size == 1),
    }  # fmt: skip


def _mean_pair(cosines: Array, norms: Array) -> float:
    if not np.any(norms > 0):
        return 0.0
    size = len(cosines)
    return float(np.mean(cosines[np.triu_indices(size, 1)])) if size > 1 else 1.0


def signals_of(step: Step) -> dict[str, Array]:
    """What a rank is judged by; without losses or directions, by what is there."""
    found = {"norm": np.log(step.norms)}
    if np.all(np.isfinite(step.losses)):
        found["loss"] = step.losses
    if step.cosines is not None and len(step.ranks) > 1:
        found["direction"] = (step.cosines.sum(axis=1) - 1.0) / (len(step.ranks) - 1)
    return found


def _only(step: Step, places: list[int]) -> Step:
    """The step as some of its ranks see it."""
    cosines = None if step.cosines is None else step.cosines[np.ix_(places, places)]
    ranks = tuple(step.ranks[place] for place in places)
    return Step(step.number, ranks, step.losses[places], step.norms[places], cosines, step.sum_norm)


def _averaged(step: Step) -> Step:
    """The step as it looks when only averages over the ranks are known."""
    size = len(step.ranks)
    alike = np.ones(size)
    return Step(
        step.number, step.ranks, alike * np.mean(step.losses), alike * np.mean(step.norms),
        np.ones((size, size)), step.sum_norm,
    )  # fmt: skip


# -- directions


@lru_cache(maxsize=256)
def _plan(size: int, numbers: int, seed: int, tag: str) -> tuple[Array, Array]:
    """(sign of each coordinate, turn of each block) of a vector of this size."""
    rng = Stream(seed, f"{tag} {size}", "count sketch").numpy()
    signs = rng.integers(0, 2, size, dtype=np.int8).astype(np.float32) * 2 - 1
    turns = rng.integers(0, numbers, -(-size // numbers))
    signs.flags.writeable = turns.flags.writeable = False
    return signs, turns


def count_sketch(vector: Array, numbers: int, seed: int = 0, tag: str = "") -> Array:
    """`numbers` numbers whose inner products are, on average, those of the vectors. O(size).

    >>> count_sketch(np.array([3.0, 0.0]), 2)[[0, 1]].__abs__().sum()
    np.float64(3.0)
    """
    signs, turns = _plan(vector.size, numbers, seed, tag)
    with np.errstate(over="ignore", invalid="ignore"):
        signed = vector * signs
        found = np.zeros(numbers, signed.dtype)
        for block, turn in enumerate(turns):
            part = signed[block * numbers : (block + 1) * numbers]
            first = min(numbers - turn, part.size)
            found[turn : turn + first] += part[:first]
            found[: part.size - first] += part[first:]
    return found


def mean_cosine(total: Array, ranks: int) -> float:
    """The mean cosine over all pairs, from the sum of the ranks' unit vectors alone.

    >>> mean_cosine(np.array([1.0, 1.0]), 2)
    0.0
    """
    if ranks < 2:
        return 1.0
    return (float(np.dot(total, total)) - ranks) / (ranks * (ranks - 1))


async def cosine_together(worker: Worker, gradient: Array, tag: str = "cosine") -> float:
    """The mean cosine of all ranks' gradients, at each rank, by one more vector all-reduce.

    A rank whose gradient is zero or not finite counts as one that is orthogonal to all others.
    """
    wide = np.asarray(gradient, np.float64).reshape(-1)
    norm = float(np.linalg.norm(wide))
    sound = math.isfinite(norm) and norm > 0
    unit = wide / norm if sound else np.zeros_like(wide)
    total: Any = await worker.sum(np.append(unit, float(sound)), tag=tag)
    counted, ranks = float(total[-1]), worker.size
    if ranks < 2:
        return 1.0
    return (float(np.dot(total[:-1], total[:-1])) - counted) / (ranks * (ranks - 1))
