"""The problem `outer_training`: DiLoCo, whose outer step is an elastic all-reduce.

Each peer takes some inner steps on its own data, then all reduce what they changed, and an outer
optimiser with momentum moves the shared weights (Douillard et al., "DiLoCo", 2023). A part may
block at the reduction, or let it run under the inner steps of the next round and take the result
one round late. The question is how much of the communication shows in the time of a round, and
what the delay does to the loss.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.parts import Count, Fraction, Metric, Outcome, Positive, Whole
from orrery.parts.collectives import Array
from orrery.systems.collectives.problems.churned_all_reduce import ChurnedAllReduce, attempts_of
from orrery.systems.collectives.problems.elastic_peer import COMMITTED, Attempt, Elastic, Work

INPUTS, TEST_POINTS = 16, 512
# Rounds at the beginning that show no steady state: nothing is under way yet.
WARM_UP = 2


class Learning(Work):
    """A round of DiLoCo: inner steps of SGD here, Nesterov momentum on what all peers changed.

    The model has one hidden layer and learns what a teacher of the same kind says, with noise; each
    peer sees inputs of its own slant. Knobs: `inner_steps` of `batch` points at `rate`, which take
    `inner_s` of time; `outer_rate` and `momentum` of the outer step; `hidden` units.
    """

    inner_steps: Count = 8
    inner_s: Positive = 1.0
    batch: Count = 32
    rate: Positive = 0.05
    outer_rate: Positive = 0.4
    momentum: Fraction = 0.6
    hidden: Count = 24

    def fresh(self) -> dict[str, Array]:
        weights = Stream(self.data_seed, 0, "start").numpy().standard_normal(self.size) * 0.3
        return {"weights": weights, "velocity": np.zeros(self.size)}

    @property
    def size(self) -> int:
        """How many numbers the model has."""
        return (INPUTS + 2) * self.hidden + 1

    async def give(self, peer: Elastic, step: int) -> Array:
        start = peer.state["weights"]
        weights = start.copy()
        rng = Stream(self.data_seed, peer.id, f"batches {step}").numpy()
        slant = Stream(self.data_seed, peer.id, "slant").numpy().standard_normal(INPUTS) * 0.3
        for _ in range(self.inner_steps):
            points = rng.standard_normal((self.batch, INPUTS)) + slant
            wanted = self.teacher(points) + 0.1 * rng.standard_normal(self.batch)
            weights -= self.rate * self.gradient(weights, points, wanted)
        await peer.sleep(self.inner_s)
        return (start - weights).astype(np.float32)

    def take(self, peer: Elastic, step: int, done: Attempt) -> None:
        mean = done.value.astype(np.float64) / len(done.members)
        velocity = self.momentum * peer.state["velocity"] + mean
        weights = peer.state["weights"] - self.outer_rate * (mean + self.momentum * velocity)
        peer.state = {"weights": weights, "velocity": velocity}
        peer.emit(loss=self.loss(weights), outer=step)

    def teacher(self, points: Array) -> Array:
        """What the model is to learn."""
        return self._forward(_teacher(self.data_seed, self.size), points)[1]

    def _forward(self, weights: Array, points: Array) -> tuple[Array, Array]:
        wide = INPUTS * self.hidden
        first = weights[:wide].reshape(INPUTS, self.hidden)
        units = np.tanh(points @ first + weights[wide : wide + self.hidden])
        return units, units @ weights[wide + self.hidden : -1] + weights[-1]

    def gradient(self, weights: Array, points: Array, wanted: Array) -> Array:
        """The gradient of the mean squared error."""
        units, said = self._forward(weights, points)
        off = 2.0 * (said - wanted) / len(wanted)
        wide = INPUTS * self.hidden
        back = off[:, None] * weights[wide + self.hidden : -1] * (1.0 - units**2)
        parts = ((points.T @ back).reshape(-1), back.sum(axis=0), units.T @ off, [off.sum()])
        return np.concatenate(parts)

    def loss(self, weights: Array) -> float:
        """The mean squared error on points that no peer sees."""
        points = Stream(self.data_seed, 0, "test").numpy().standard_normal((TEST_POINTS, INPUTS))
        return float(np.mean((self._forward(weights, points)[1] - self.teacher(points)) ** 2))


@functools.lru_cache(maxsize=8)
def _teacher(seed: int, size: int) -> Any:
    return Stream(seed, 0, "teacher").numpy().standard_normal(size) * 0.5


class OuterTraining(ChurnedAllReduce):
    """Train by rounds: how long a round takes beyond its inner steps, and where the loss ends.

    Knobs: those of `Learning`; `ops`, the rounds; `scale`, how many times larger the model is that
    this one stands for, in virtual time; `timeout_s` of any call; `data_seed`.

    >>> OuterTraining(ops=5).job().inner_steps
    8
    """

    ops: Count = 12
    inner_s: Positive = 1.0
    inner_steps: Count = 8
    rate: Positive = 0.05
    outer_rate: Positive = 0.4
    momentum: Fraction = 0.6
    scale: Positive = 1e5
    data_seed: Whole = 0

    metrics: ClassVar[Mapping[str, Metric]] = {
        "step_s": Metric("s", "lower", "median time of a round once it runs steadily"),
        "exposed": Metric("", "lower", "what a round takes beyond its inner steps, as their part"),
        "reduce_s": Metric("s", "lower", "median time of a committed reduction"),
        "loss": Metric("", "lower", "mean squared error at the end, on unseen points"),
        "committed": Metric("", "higher", "rounds that committed"),
        "stall_s": Metric("s", "lower", "the longest call of any peer"),
    }

    def job(self) -> Work:
        return Learning(
            ops=self.ops, inner_s=self.inner_s, inner_steps=self.inner_steps, rate=self.rate,
            outer_rate=self.outer_rate, momentum=self.momentum, scale=self.scale,
            data_seed=self.data_seed,
        )  # fmt: skip

    def _wrong(self, tries: dict[str, dict[int, dict[str, Any]]]) -> list[Violation]:
        """What peers learn is not known beforehand; that all hold the same bits is checked."""
        return []

    def measure(self, outcome: Outcome) -> dict[str, float]:
        base = super().measure(outcome)
        steps = [r.values["step_s"] for r in outcome.records
                 if "step_s" in r.values and r.values["step"] >= WARM_UP]  # fmt: skip
        step_s = float(np.median(steps)) if steps else outcome.seconds
        losses = [loss for _, _, loss in outcome.emitted("loss")]
        took = [max(v["took_s"] for v in said.values()) for said in attempts_of(outcome).values()
                if any(v["said"] == COMMITTED for v in said.values())]  # fmt: skip
        return {
            "step_s": step_s,
            "exposed": step_s / self.inner_s - 1.0,
            "reduce_s": float(np.median(took)) if took else outcome.seconds,
            "loss": losses[-1] if losses else float("inf"),
            "committed": base["committed"],
            "stall_s": base["stall_s"],
        }


__all__ = ["Learning", "OuterTraining"]
