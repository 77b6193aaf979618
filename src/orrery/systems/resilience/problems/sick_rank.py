"""The problem `sick_rank`: one rank of a training run has a hidden fault; who is it?

The port is `Detector`. Replicas train a small transformer with averaged gradients; from some step
on one of them is sick. The detector hears what each rank's tap tells, just as it does when it is
attached to a run as a monitor, and is judged by whom it blames, how soon, and how often it cries
wolf. The same problem has the ladder of perturbations: how many ranks shuffle on their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from orrery.base.errors import PartError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.models.learn import Language, language
from orrery.models.learn.tasks import Passages
from orrery.parts import (
    Count,
    Driver,
    Fraction,
    Metric,
    Node,
    Outcome,
    Positive,
    Problem,
    Whole,
    cost,
    together,
)  # fmt: skip
from orrery.parts.collectives import Array
from orrery.systems.resilience.problems.detector import NOBODY, Detector, Step, row_of
from orrery.systems.train import DataParallel, Synchronous
from orrery.world import World

Fault = Literal["none", "labels", "scale", "shard", "nan", "zero", "desync"]
COMMON = "common"  # who draws the batches and masks that ranks have in common
# A fault of the data shows when the sick rank's loss is so far above the others', over ten steps.
SHOWS, SHOWS_OVER = 0.1, 10


class Shards(Language):
    """The language task with ranks that shuffle alone or together, and perhaps a sick one.

    Knobs: `fault`, of rank `sick`, from step `from_step` on; `twin`, the rank whose shard a rank
    with the fault "shard" reads; `own_order`, the part of the ranks that shuffle on their own;
    `own_masks`, whether each rank has dropout masks of its own.
    """

    fault: Fault = "none"
    sick: Whole = 1
    twin: Whole = 0
    from_step: Whole = 0
    own_order: Fraction = 1.0
    own_masks: bool = False

    def share(self, rank: int, size: int, rng: Any) -> Shard:
        return Shard(self, rank, rng, size)


class Shard(Passages):
    """Where one rank reads, with its fault."""

    def __init__(self, task: Shards, rank: int, rng: Any, size: int) -> None:
        super().__init__(task, rank, rng)
        self.size = size

    def _sick(self, step: int, fault: Fault) -> bool:
        task = self.task
        return bool(task.fault == fault and self.rank == task.sick and step >= task.from_step)

    def reader(self, step: int) -> int | str:
        """Whose batch this rank reads in a step."""
        if self._sick(step, "shard"):
            return int(self.task.twin)
        own = self.task.own_order
        if self.task.fault == "desync" and step >= self.task.from_step:
            own = 1.0
        return self.rank if self.rank >= self.size - round(own * self.size) else COMMON

    def draw(self, step: int, purpose: str = "batch") -> np.random.Generator:
        return Stream(self.seed, self.reader(step), f"{purpose} {step}").numpy()

    def rows(self, step: int) -> Array:
        rows = super().rows(step)
        if self._sick(step, "labels"):
            # The symbol that is asked for is no longer the one that follows in the text.
            rng = Stream(self.seed, self.rank, f"labels {step}").numpy()
            rows = rng.permuted(rows, axis=1)
        return rows

    def keep(self, step: int) -> Array | None:
        task = self.task
        if not task.dropout:
            return None
        who = self.rank if task.own_masks else COMMON
        rng = Stream(self.seed, who, f"dropout {step}").numpy()
        size = (task.layer_count, task.batch * task.context, 4 * task.width)
        return (rng.random(size) >= task.dropout).astype(np.float32) / np.float32(1 - task.dropout)

    @staticmethod
    def _faulty(calls: Sequence[tuple[Shard, Array]]) -> list[Array]:
        found = Passages._many(calls)
        for place, (share, _) in enumerate(calls):
            step = share.taken - 1
            if share._sick(step, "scale"):
                found[place] = found[place] * np.float32(2.0)
            elif share._sick(step, "zero"):
                found[place] = np.zeros_like(found[place])
            elif share._sick(step, "nan"):
                found[place] = found[place].copy()
                found[place][0] = np.nan
        return found

    @together(lambda calls: Shard._faulty(calls))
    @cost(
        flops=lambda self, weights: (
            self.task.scale
            * language.flops_of(self.task.shape(), self.task.batch, self.task.context)
        )
    )
    def grad(self, weights: Array) -> Array:
        return Shard._faulty([(self, weights)])[0]


class WatchedReplica(Synchronous):
    """A replica that averages every gradient, and lets a detector see it first.

    Knobs: `watcher`, the detector whose tap runs here; `marks`, whether the mark of the weights is
    told after each step.
    """

    watcher: Detector = Detector()
    marks: bool = False

    async def train(self) -> None:
        memory: dict[str, Any] = {}
        # Rank 0 tells the seed of the data, so that ranks can have an order in common.
        seed: Any = await self.broadcast(np.array([self.task.seed], np.uint64), root=0)
        self.task.seed = int(seed[0])
        for step in self.steps():
            gradient = await self.gradient()
            loss = float(self.task.last_loss)
            self.emit(batch_loss=loss, at_step=step - 1)
            self._show(memory, "after", "loss", loss)
            self._show(memory, "before", "all_reduce", gradient)
            mean = await self.mean(gradient)
            self._show(memory, "after", "all_reduce", mean * self.size)
            self.weights = self.inner.step(self.weights, mean)
            if self.marks:
                self.emit(mark=mark(self.weights), at_step=step - 1)

    def _show(self, memory: dict[str, Any], phase: str, kind: str, data: Any) -> None:
        """The detector's tap, as a monitor of the engine would have it."""
        told = self.watcher.at_rank(memory, self.now, phase, kind, "", data)
        if told is not None:
            self.emit(tapped=told, phase=phase)


def mark(weights: Array) -> int:
    """A number that differs where a bit of the weights does."""
    words = np.ascontiguousarray(weights).view(np.uint8).tobytes()
    return Stream(0, words.hex(), "mark").key


class SickRank(Problem):
    """Find the rank with a hidden fault, from what each rank tells before the average.

    Knobs: `fault`: "none", "labels" (the symbols of its passages are shuffled), "scale" (its
    gradient is twice too large), "shard" (it reads what rank `twin` reads), "nan", "zero", or
    "desync" (from `from_step` on all ranks shuffle on their own, before it those that `own_order`
    says); `sick`, the rank that has it; `from_step`; `steps`, `batch`, `rate` of the training (0:
    the task's own); `own_order`, the part of the ranks that shuffle on their own; `own_masks`,
    dropout masks of their own; `dropout`; `marks`: tell the mark of the weights after each step;
    `data_seed`; `more`, further knobs of the task; `patience_s`, after which a rank is lost.

    >>> SickRank(fault="scale").learning().fault
    'scale'
    """

    fault: Fault = "scale"
    sick: Whole = 1
    twin: Whole = 0
    from_step: Whole = 20
    steps: Count = 50
    batch: Count = 4
    rate: float = 0.0
    own_order: Fraction = 1.0
    own_masks: bool = False
    dropout: Fraction = 0.0
    marks: bool = False
    data_seed: Whole = 0
    patience_s: Positive = 60.0
    more: dict[str, int | float | str] = {}

    trial: ClassVar[Mapping[str, Any]] = {"steps": 16, "from_step": 8}
    port: ClassVar[type] = Detector
    metrics: ClassVar[Mapping[str, Metric]] = {
        "right_blame": Metric("", "higher", "1 where the first alarm blames whom it should"),
        "noticed": Metric("", "higher", "1 where any alarm was raised after the fault began"),
        "steps_to_alarm": Metric("", "lower", "from where the fault shows; all steps if never"),
        "false_alarms": Metric("", "lower", "the part of the sound steps with an alarm on"),
        "alarms": Metric("", "", "how many were raised"),
        "loss": Metric("", "lower", "held-out loss of the weights at the end"),
        "tap_B": Metric("B", "lower", "bytes that a rank tells the detector in a step"),
        "effect": Metric(
            "", "higher", "standard deviations by which the watched signal moves at from_step"
        ),
        "loss_std": Metric("", "", "mean dispersion of the losses over the ranks"),
        "loss_cv": Metric("", "", "the same, relative to their mean"),
        "norm_std": Metric("", "", "mean dispersion of the gradients' norms"),
        "norm_cv": Metric("", "", "the same, relative to their mean"),
        "mean_cos": Metric("", "", "mean cosine over all pairs of ranks and steps"),
        "signals": Metric("", "", "of the three metrics, those with a finite value in each step"),
        "time_s": Metric("s", "lower", "until the last replica has trained"),
    }

    def world(self) -> World:
        return World.lan(4)

    def learning(self) -> Shards:
        """The task with its fault."""
        given: dict[str, Any] = {
            "fault": self.fault, "sick": self.sick, "twin": self.twin, "steps": self.steps,
            "from_step": self.from_step, "own_order": self.own_order, "batch": self.batch,
            "own_masks": self.own_masks, "dropout": self.dropout, "data_seed": self.data_seed,
        }  # fmt: skip
        if self.rate:
            given["rate"] = self.rate
        return Shards(**given, **self.more)

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        if self.fault not in ("none", "desync") and self.sick >= world.size:
            raise PartError(f"sick={self.sick}: the world has ranks 0..{world.size - 1}")
        if self.fault == "shard" and (self.twin >= world.size or self.twin == self.sick):
            raise PartError(f"twin={self.twin}: name another rank than sick={self.sick}")
        replica = WatchedReplica(
            watcher=part, marks=self.marks, training=self.learning(), patience_s=self.patience_s
        )
        return {"node": replica}

    async def drive(self, driver: Driver) -> None:
        await DataParallel(patience_s=self.patience_s).drive(driver)

    def check(self, outcome: Outcome) -> list[Violation]:
        if self.fault == "nan":  # the average of all ranks is then bound to be none
            return []
        judge = DataParallel(steps=self.steps)
        return judge.check(_of_replicas(outcome))

    # -- judging

    def watched(self, outcome: Any) -> Detector:
        """The detector after it has heard what the ranks told."""
        watcher: Detector = outcome.part.with_knobs()
        if "_learnt" in vars(outcome.part):
            watcher._learnt = outcome.part._learnt  # type: ignore[attr-defined]
        watcher.start()
        for record in outcome.records:
            watcher.on_emit(record.time_s, record.node, record.values)
            if "tapped" in record.values:
                phase, told = record.values["phase"], record.values["tapped"]
                hear = watcher.before_collective if phase == "before" else watcher.after_collective
                hear(record.time_s, record.node, "all_reduce", "", told)
        watcher.finish()
        return watcher

    def measure(self, outcome: Outcome) -> dict[str, float]:
        watcher = self.watched(outcome)
        found = {k: v for k, v in watcher.metrics().items() if k in self.metrics}
        ends = [r for r in outcome.records if "digest" in r.values]
        found["time_s"] = max((r.values["took_s"] for r in ends), default=outcome.seconds)
        if ends:
            weights = ends[0].values["weights"]
            sound = bool(np.all(np.isfinite(weights)))
            found["loss"] = self.learning().judge(weights) if sound else math.inf
        found |= self._blame(watcher, outcome)
        three = [found.get(name, math.nan) for name in ("loss_std", "norm_std", "mean_cos")]
        found["signals"] = float(np.isfinite(three).sum())
        if self.fault == "desync":
            found["effect"] = effect(watcher.signals, self.from_step)
        return found

    def _blame(self, watcher: Detector, outcome: Outcome) -> dict[str, float]:
        sound = self.steps if self.fault == "none" else min(self.from_step, self.steps)
        wolf = sum(step < sound for step in watcher.in_alarm)
        if self.fault == "desync":
            return {}
        found = {"false_alarms": wolf / max(sound, 1)}
        if self.fault == "none":
            return found | {"right_blame": float(not watcher.alarms)}
        pair = tuple(sorted((self.sick, self.twin)))
        guilty = pair if self.fault == "shard" else (self.sick,)
        late = [alarm for alarm in watcher.alarms if alarm.step >= self.from_step]
        shows = min(self.shows(outcome), self.steps)
        found["noticed"] = float(bool(late))
        found["right_blame"] = float(bool(late) and late[0].ranks == guilty)
        found["steps_to_alarm"] = float(
            max(late[0].step - shows, 0) + 1 if late else self.steps - shows
        )
        return found

    def shows(self, outcome: Any) -> int:
        """The step in which the fault shows in training: for labels, when others have learnt."""
        if self.fault != "labels":
            return self.from_step
        size = len(outcome.alive) if hasattr(outcome, "alive") else outcome.world.size
        table = np.full((self.steps, size), np.nan)
        for record in outcome.records:
            if "batch_loss" in record.values:
                table[record.values["at_step"], record.node] = record.values["batch_loss"]
        gap = table[:, self.sick] / np.mean(np.delete(table, self.sick, axis=1), axis=1) - 1.0
        for step in range(self.from_step, self.steps):
            if np.mean(gap[max(step - SHOWS_OVER + 1, self.from_step) : step + 1]) >= SHOWS:
                return step
        return self.steps

    def samples(self, rng: Any) -> tuple[Array, Array]:
        """(rows, who is sick in each): 200 recorded steps of four ranks, sound in the main."""
        draw = rng.numpy()
        rows, sick = [], []
        for number in range(200):
            who = 2 if number % 50 >= 40 else NOBODY
            losses = 2.0 + 0.1 * draw.standard_normal(4)
            norms = np.exp(0.1 * draw.standard_normal(4))
            if who != NOBODY:
                losses[who], norms[who] = losses[who] + 0.8, norms[who] * 2
            cosines = np.full((4, 4), 0.3) + 0.05 * draw.standard_normal((4, 4))
            rows.append(row_of(Step(number, (0, 1, 2, 3), losses, norms, cosines, 0.7)))
            sick.append(who)
        return np.array(rows), np.array(sick)


def effect(signals: list[tuple[int, float]], at: int) -> float:
    """By how many standard deviations a signal's mean moves, over as many steps on both sides.

    >>> effect([(0, 1.0), (1, 3.0), (2, 5.0), (3, 7.0)], 2)
    4.0
    """
    before = np.array([value for step, value in signals if step < at])
    after = np.array([value for step, value in signals if step >= at])
    wide = min(len(before), len(after))
    if not wide:
        return 0.0
    before, after = before[-wide:], after[:wide]
    scale = math.sqrt((float(np.var(before)) + float(np.var(after))) / 2)
    moved = abs(float(np.mean(after)) - float(np.mean(before)))
    return moved / scale if scale > 0 else 0.0


class _Replicas(Synchronous):
    """Stands for the replicas when the end of their training is checked."""


def _of_replicas(outcome: Outcome) -> Any:
    """The same outcome, whose part is the trainer and not the detector."""
    return msgspec.structs.replace(outcome, part=_Replicas())
