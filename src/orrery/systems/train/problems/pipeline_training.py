"""The problem `pipeline_training`: a model cut into stages, one worker each, learns from batches.

The port is `Stage`. Batch n holds the same rows whoever trains, so what differs between rivals is
the order of their passes, which weights each pass read, and what it took.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from orrery.base.violation import Violation
from orrery.models.learn import TASKS, LearningTask
from orrery.parts import (
    Count,
    Driver,
    Fraction,
    Metric,
    Node,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    Whole,
)
from orrery.parts.worker import Task
from orrery.systems.train.problems.cuts import Cut, Turned, cut
from orrery.systems.train.problems.data_parallel import final
from orrery.systems.train.problems.pipeline_referee import Notes, faults, replay
from orrery.systems.train.problems.stage import Stage
from orrery.systems.train.problems.trainer import FORWARD, Trainer
from orrery.world import World

KINDS: Mapping[str, type[LearningTask]] = {
    "quadratic": Turned, "logistic": TASKS["logistic"], "language": TASKS["language"],
}  # fmt: skip


class PipelineTraining(Problem):
    """Train a model that is cut into as many stages as there are nodes.

    Knobs: `task`, what is learned; `steps`, how many batches there are; `batch`, rows of each
    (0: the task's own); `rate`, the step size (0: the task's own); `scale`, how many times larger
    the model is that the small one stands for in virtual time: its arithmetic counts that
    often, activations by its root; `forward_share`, the part of a batch's arithmetic in the forward
    pass (0.5: both passes take one tick); `look_every` updates of a block it is kept for the judge
    (0: never; the metrics `stale2` and `excess_by` need 1); `by_s`, the time for `excess_by`;
    `audit`, whether the referee replays the whole training without stages; `data_seed`; `more`,
    further knobs of the task by name; `own`, a task of one's own instead.

    >>> PipelineTraining(task="logistic", steps=5).learning().steps
    5
    """

    task: Literal["quadratic", "logistic", "language"] = "language"
    steps: Count = 16
    batch: Whole = 0
    rate: NonNegative = 0.0
    scale: Positive = 1e5  # billions of weights: smaller models need no pipeline
    forward_share: Fraction = FORWARD
    look_every: Whole = 0
    by_s: NonNegative = 0.0
    audit: bool = True
    data_seed: Whole = 0
    patience_s: Positive = 600.0
    more: dict[str, int | float | str] = {}
    own: Task = Task()

    port: ClassVar[type] = Stage
    metrics: ClassVar[Mapping[str, Metric]] = {
        "loss": Metric("", "lower", "held-out loss of the weights at the end"),
        "excess": Metric("", "lower", "loss on the data trained on above the least possible"),
        "excess_by": Metric("", "lower", "the same for the weights as they were by `by_s`"),
        "time_s": Metric("s", "lower", "from the first pass to the end of the last one"),
        "batches_per_s": Metric("1/s", "higher", "batches that were learned from in a second"),
        "bubble": Metric("", "lower", "the part of the workers' time without a pass"),
        "updates": Metric("", "", "updates of a block by all stages together"),
        "delay": Metric("", "lower", "block updates between the read and the write of a batch"),
        "delay_max": Metric("", "lower", "the largest such delay"),
        "delay_first": Metric("", "lower", "the delay at the first stage of a full pipeline"),
        "staleness": Metric("", "lower", "the mean delay by updates of other batches"),
        "stale2": Metric("", "lower", "squared distance from the weights read to those updated"),
        "sent_B": Metric("B", "lower", "bytes that a worker sent for each batch"),
        "stash_B": Metric("B", "lower", "most bytes of weights beside the newest at a stage"),
        "kept": Metric("", "lower", "most batches whose activations a stage kept"),
        "kept_B": Metric("B", "lower", "most bytes of activations that a stage kept"),
        "energy_J": Metric("J", "lower", "energy of the machines"),
        "money": Metric("USD", "lower", "what the machines cost"),
    }  # fmt: skip
    unique_outcome: ClassVar[bool] = True

    def world(self) -> World:
        return World.lan(4)

    def learning(self) -> LearningTask:
        """The task that the knobs name."""
        given: dict[str, Any] = {"steps": self.steps, "scale": self.scale}
        given["look_every"] = self.look_every
        if type(self.own) is not Task:
            return self.own.with_knobs(**given)  # type: ignore[return-value]
        given["data_seed"] = self.data_seed
        for name in ("rate", "batch"):
            if getattr(self, name):
                given[name] = getattr(self, name)
        return KINDS[self.task](**self.more | given)

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        learning = self.learning()
        cut(learning, world.size)  # what cannot be cut is refused before anything runs
        return {"node": part.with_knobs(
            training=learning, patience_s=self.patience_s, forward_share=self.forward_share
        )}  # fmt: skip

    async def drive(self, driver: Driver) -> None:
        await driver.until_all(Trainer.ended, self.patience_s)

    # -- judging

    def check(self, outcome: Outcome) -> list[Violation]:
        found = outcome.lost_ranks()
        if outcome.ended != "driven" or found:
            return found
        ends = final(outcome)
        missing = [n for n, up in enumerate(outcome.alive) if up and n not in ends]
        if missing or not all(outcome.alive):
            gone = missing or [n for n, up in enumerate(outcome.alive) if not up]
            return [Violation(
                kind="not_trained", node=gone[0], evidence=gone,
                message=f"{len(gone)} stages did not end their training")]  # fmt: skip
        weights, notes = self._weights(outcome), self._notes(outcome)
        cut = self._cut(notes)
        if not np.all(np.isfinite(weights)):
            return [Violation(
                kind="not_finite", message="the weights are not finite; training diverged",
            )]  # fmt: skip
        found = faults(notes, cut, outcome.part, self.steps)
        if not found and self.audit and outcome.part.goes_back_as_forth:
            again = np.concatenate(replay(notes, cut, outcome.part, cut.task.rate, self.steps))
            apart = float(np.max(np.abs(again - weights)))
            size = float(np.max(np.abs(weights), initial=1.0))
            if not apart <= size * (1e-6 if weights.dtype == np.float64 else 1e-4):
                found.append(Violation(
                    kind="replay_differs",
                    message=f"the weights lie {apart:.3g} from those that the noted versions give",
                ))  # fmt: skip
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        costs = {"energy_J": outcome.energy_J, "money": outcome.money}
        ends = final(outcome)
        if not ends or len(ends) < len(outcome.alive):
            return {"time_s": outcome.seconds, **costs}
        notes = self._notes(outcome)
        cut, workers = self._cut(notes), len(ends)
        time_s = notes.span_s()
        delays = notes.delays(outcome.part.updates_one)
        per_stage = [delay for _, _, delay, _ in delays]
        found = {
            "loss": _finite(cut.task.judge, self._weights(outcome)),
            "excess": _finite(cut.excess, self._weights(outcome)),
            "time_s": time_s,
            "batches_per_s": self.steps / time_s if time_s > 0 else 0.0,
            "bubble": notes.bubble(workers),
            "updates": float(len(np.unique(notes.used[notes.used[:, 3] >= 0][:, :3], axis=0))),
            "delay": float(np.mean(per_stage)),
            "delay_max": float(max(per_stage)),
            "staleness": float(np.mean([other for *_, other in delays])),
            "sent_B": float(np.mean([each["sent_B"] for each in ends.values()])) / self.steps,
            "stash_B": float(max(each["stash_B"] for each in notes.said)),
            "kept": float(max(each["most_kept"] for each in notes.said)),
            "kept_B": float(max(each["kept_B"] * each["most_kept"] for each in notes.said)),
            **costs,
        }
        first = self.first_delays(delays, workers, outcome.part.updates_one)
        if first:
            found["delay_first"] = float(np.mean(first))
        if self.look_every == 1:
            with np.errstate(over="ignore", invalid="ignore"):  # where training diverged
                found["stale2"] = float(np.mean(self.distances(outcome)))
            if self.by_s:
                found["excess_by"] = _finite(cut.excess, self.weights_by(outcome, self.by_s))
        return found

    def first_delays(self, delays: Any, stages: int, one_block: bool) -> list[int]:
        """The delays at the first stage of batches that found the pipeline full, and left it so."""
        margin = max((delay for _, _, delay, _ in delays), default=0) if one_block else stages
        return [
            delay for stage, batch, delay, _ in delays
            if (one_block or stage == 0) and margin <= batch < self.steps - (not one_block) * margin
        ]  # fmt: skip

    # -- the trail

    def trail(self, outcome: Any) -> list[tuple[float, int, int, int, Any]]:
        """(time, stage, replica, version, block) of each update that was looked at, in order."""
        rows = [
            (float(look[0]), int(look[1]), int(look[2]), int(look[3]), look[4:])
            for record in outcome.records if "looks" in record.values
            for look in record.values["looks"]
        ]  # fmt: skip
        return sorted(rows, key=lambda row: row[:4])

    def weights_by(self, outcome: Any, time_s: float) -> Any:
        """The weights as they stood at a time after the first pass: the mean of the replicas."""
        notes = self._notes(outcome)
        cut = self._cut(notes)
        until_s = float(notes.began_s.min()) + time_s
        replicas = int(notes.used[:, 1].max(initial=0)) + 1
        now = {(s, q): cut.block(s) for s in range(cut.stages) for q in range(replicas)}
        for at_s, stage, replica, _, block in self.trail(outcome):
            if at_s <= until_s:
                now[stage, replica] = block
        mean = [
            np.mean([now[stage, q] for q in range(replicas)], axis=0) for stage in range(cut.stages)
        ]
        return np.concatenate(mean).astype(cut.whole.dtype)

    def distances(self, outcome: Any) -> list[float]:
        """Of each batch: the squared distance from the weights it read to those it updated last.

        What the batch itself has changed by then is left out. In the order of writing; where each
        iteration updates one block, in order of iteration.
        """
        notes = self._notes(outcome)
        cut, versions = self._cut(notes), notes.read_versions()
        owner = dict(zip(notes.batch.tolist(), notes.replica.tolist(), strict=True))
        blocks = {
            (stage, q, 0): cut.block(stage)
            for stage in range(cut.stages) for q in np.unique(notes.replica).tolist()
        }  # fmt: skip
        for _, stage, replica, version, block in self.trail(outcome):
            blocks[stage, replica, version] = block
        made = {(stage, batch): v for stage, _, v, batch, _ in notes.used.tolist()}
        order = np.lexsort((-notes.used[:, 0], notes.used_s))
        if outcome.part.updates_one:
            order = np.argsort(notes.used[:, 3], kind="stable")
        last = {batch: row for row, batch in zip(order, notes.used[order, 3], strict=True)}
        now = {(stage, q): 0 for stage, q, _ in blocks}

        def moved(s: int, q: int, batch: int) -> Any:
            """How far a block is from what the batch read, without its own step."""
            own = made.get((s, batch), now[s, q] + 1)
            way = blocks[s, q, now[s, q]] - blocks[s, q, int(versions[s, batch])]
            return way - (blocks[s, q, own] - blocks[s, q, own - 1]) if own <= now[s, q] else way

        found = []
        for row in order:
            stage, replica, version, batch, _ = notes.used[row].tolist()
            if batch >= 0 and last[batch] == row:
                q = owner[batch]
                found.append(sum(float(np.sum(moved(s, q, batch) ** 2)) for s in range(cut.stages)))
            now[stage, replica] = version
        return found

    def _notes(self, outcome: Any) -> Notes:
        return Notes(outcome, len(final(outcome)))

    def _cut(self, notes: Notes) -> Cut:
        return cut(self.learning(), notes.stages, notes.key)

    def _weights(self, outcome: Any) -> Any:
        """The weights at the end, put together from the stages."""
        ends = final(outcome)
        return np.concatenate([
            ends[node]["weights"] for node in sorted(ends) if ends[node]["weights"].size
        ])  # fmt: skip

    def decisions(self, outcome: Outcome) -> dict[int, str]:
        """The mark of each stage's weights."""
        return {node: values["digest"] for node, values in sorted(final(outcome).items())}


def _finite(judge: Callable[[Any], float], weights: Any) -> float:
    """What the judge says; infinite where training diverged."""
    if not np.all(np.isfinite(weights)):
        return float("inf")
    with np.errstate(over="ignore", invalid="ignore"):
        loss = judge(weights)
    return float(loss) if np.isfinite(loss) else float("inf")
