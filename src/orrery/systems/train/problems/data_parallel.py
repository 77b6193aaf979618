"""The problem `data_parallel`: many replicas of one model train on their own data.

The port is `Trainer`. Each rank reads batches of its own, which depend on the seeds of the data and
of the run, the rank and the step alone, so all rivals see the same samples. What counts is the loss
on held-out data of the weights averaged over the ranks, and what it took: time, bytes, energy,
money.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from orrery.base.violation import Violation
from orrery.models.learn import TASKS, LearningTask
from orrery.parts import (
    Count,
    Driver,
    Metric,
    Node,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    Whole,
)
from orrery.parts.worker import Task
from orrery.systems.train.problems.trainer import Trainer, spread
from orrery.world import World


class DataParallel(Problem):
    """Train one model with many replicas; then see how good it is, when, at which cost.

    Knobs: `task`, what is learned; `steps` of each replica; `batch`, rows that a replica reads in
    a step; `rate`, the step size of the task (0: its own); `scale`, how many times larger the
    model is that the small one stands for in virtual time; `jitter`, the sigma by which the time
    of a step varies (log-normal); `look_every` steps the loss is looked at; `target`, the loss
    whose time is wanted (0: none); `data_seed`; `more`, further knobs of the task by name; `own`,
    a task of one's own instead.

    >>> DataParallel(task="quadratic", steps=5).learning().steps
    5
    """

    task: Literal["language", "experts", "digits", "logistic", "quadratic"] = "language"
    steps: Count = 16
    batch: Count = 4
    rate: NonNegative = 0.0
    scale: Positive = 1.0
    jitter: NonNegative = 0.0
    look_every: Whole = 0
    target: NonNegative = 0.0
    data_seed: Whole = 0
    patience_s: Positive = 600.0
    more: dict[str, bool | int | float | str] = {}
    own: Task = Task()

    port: ClassVar[type] = Trainer
    metrics: ClassVar[Mapping[str, Metric]] = {
        "loss": Metric("", "lower", "held-out loss of the weights averaged over the replicas"),
        "time_s": Metric("s", "lower", "until the last replica has trained"),
        "step_s": Metric("s", "lower", "the time over the steps of a replica"),
        "exposed": Metric("", "lower", "the part of the time in which a replica did not compute"),
        "waited_s": Metric(
            "s", "lower", "seconds a replica did not compute, for each of its steps"
        ),
        "widest": Metric("", "lower", "ranks of the largest group that a collective ran in"),
        "sent_B": Metric("B", "lower", "bytes that a replica sent for each of its steps"),
        "optimiser_B": Metric("B", "lower", "bytes of optimiser state that a replica keeps"),
        "up_B": Metric(
            "B", "lower", "bytes that a replica hands in at a synchronisation, if it tells"
        ),
        "down_B": Metric(
            "B", "lower", "bytes that a replica gets back from a synchronisation, if it tells"
        ),
        "spread": Metric("", "lower", "distance of the replicas from their mean, root mean square"),
        "samples_per_s": Metric("1/s", "higher", "rows read by all replicas in a second"),
        "target_rate": Metric(
            "", "higher", "one over the steps that rank 0 took to the target loss"
        ),
        "target_s": Metric("s", "lower", "until rank 0 was first seen at the target loss"),
        "energy_J": Metric("J", "lower", "energy of the machines"),
        "money": Metric("USD", "lower", "what the machines cost"),
    }

    def world(self) -> World:
        return World.lan(4)

    def learning(self) -> LearningTask:
        """The task that the knobs name."""
        given = {"steps": self.steps, "scale": self.scale}
        if type(self.own) is not Task:
            return self.own.with_knobs(**given)  # type: ignore[return-value]
        given |= {
            "batch": self.batch, "data_seed": self.data_seed, "look_every": self.look_every,
            "jitter": self.jitter,
        }  # fmt: skip
        if self.rate:
            given["rate"] = self.rate
        return TASKS[self.task](**given, **self.more)

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        return {"node": part.with_knobs(training=self.learning(), patience_s=self.patience_s)}

    async def drive(self, driver: Driver) -> None:
        await driver.until_all(Trainer.ended, self.patience_s)

    # -- judging

    def check(self, outcome: Outcome) -> list[Violation]:
        found = outcome.lost_ranks()
        if outcome.ended != "driven":
            return found
        ends = final(outcome)
        missing = [n for n, up in enumerate(outcome.alive) if up and n not in ends]
        if missing:
            found.append(Violation(
                kind="not_trained", node=missing[0], evidence=missing,
                message=f"{len(missing)} live replicas did not end their training"))  # fmt: skip
        for node, values in ends.items():
            if not np.all(np.isfinite(values["weights"])):
                found.append(Violation(
                    kind="not_finite", node=node,
                    message=f"node {node} ended with weights that are not finite; it diverged",
                ))  # fmt: skip
            # A replica that died and came back cannot have taken all steps in its present life.
            whole = outcome.part.counts_steps and values["lives"] == 1
            if whole and values["taken"] != self.steps:
                found.append(Violation(
                    kind="steps_lost", node=node,
                    message=f"node {node} took {values['taken']} steps, asked were {self.steps}",
                ))  # fmt: skip
        kinds = {values["digest"] for values in ends.values()}
        if outcome.part.agrees and len(kinds) > 1:
            found.append(Violation(
                kind="replicas_differ", evidence={n: v["digest"] for n, v in ends.items()},
                message=f"{len(kinds)} different models among {len(ends)} replicas"))  # fmt: skip
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        ends = final(outcome)
        costs = {"energy_J": outcome.energy_J, "money": outcome.money}
        if not ends:
            return {"time_s": outcome.seconds, **costs}
        vectors = [values["weights"] for values in ends.values()]
        time_s = max(values["took_s"] for values in ends.values())
        taken = [values["taken"] for values in ends.values()]
        idle = [
            1 - values["busy_s"] / values["took_s"] if values["took_s"] > 0 else 0.0
            for values in ends.values()
        ]
        sent = [values["sent_B"] * self.scale / max(values["taken"], 1) for values in ends.values()]
        learning = self.learning()
        rows = getattr(learning, "batch", 1)
        found = {
            "loss": self._loss(learning, vectors),
            "time_s": time_s,
            "step_s": time_s / max(float(np.mean(taken)), 1.0),
            "exposed": float(np.mean(idle)),
            "waited_s": float(np.mean([
                (values["took_s"] - values["busy_s"]) / max(values["taken"], 1)
                for values in ends.values()
            ])),
            "widest": float(max(values["widest"] for values in ends.values())),
            "sent_B": float(np.mean(sent)),
            "spread": spread(vectors),
            "samples_per_s": sum(taken) * rows / time_s if time_s > 0 else 0.0,
            **costs,
        }  # fmt: skip
        for name in ("optimiser_B", "up_B", "down_B"):
            told = [values[name] for values in ends.values() if name in values]
            if told:
                found[name] = float(np.mean(told)) * self.scale
        reached = self._reached(outcome)
        if reached is not None:
            found["target_s"], step = reached
            found["target_rate"] = 1.0 / max(step, 1)
        return found

    def _loss(self, learning: LearningTask, vectors: list[Any]) -> float:
        """The loss of the mean; infinite where a replica diverged."""
        if not all(np.all(np.isfinite(vector)) for vector in vectors):
            return float("inf")
        mean = np.mean(vectors, axis=0, dtype=np.float64)
        return learning.judge(mean.astype(vectors[0].dtype))

    def _reached(self, outcome: Outcome) -> tuple[float, int] | None:
        """When rank 0 was first seen at the target loss, and at which step; None if never."""
        if not self.target:
            return None
        return next(
            ((time_s, step) for time_s, step, loss in curve(outcome) if loss <= self.target), None
        )

    def decisions(self, outcome: Outcome) -> dict[int, str]:
        """The mark of each replica's weights."""
        return {node: values["digest"] for node, values in sorted(final(outcome).items())}


def final(outcome: Any) -> dict[int, dict[str, Any]]:
    """What each replica reported at its end, in a run or its outcome."""
    return {r.node: r.values for r in outcome.records if "digest" in r.values}


def curve(outcome: Any) -> list[tuple[float, int, float]]:
    """(time, step, loss) of rank 0 whenever it was looked at."""
    return [
        (r.time_s, r.values["step"], r.values["loss"])
        for r in outcome.records
        if "step" in r.values and "loss" in r.values
    ]
