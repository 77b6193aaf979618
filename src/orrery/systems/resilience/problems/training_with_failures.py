"""The problem `training_with_failures`: a training run that keeps its state, fails, and goes on.

The port is `Checkpointer`. Ranks train one model, of which each keeps a part (weights and the
optimiser's moments), and ask for a checkpoint every so many iterations. Faults of the world end
ranks, fill disks and tear writes. A job scheduler outside the world (the driver) sees that a rank
is gone, ends the others and launches all again, as `torchrun` does; they go on from the newest
checkpoint that is whole on all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from orrery.base.errors import DeadlineExceeded, Refused
from orrery.base.violation import Violation
from orrery.models.learn import TASKS, LearningTask, make
from orrery.parts import Count, Driver, Metric, Node, Outcome, Positive, Problem, Whole
from orrery.systems.resilience.problems.checkpointer import Checkpointer, own_part
from orrery.systems.resilience.problems.rig import Rig
from orrery.systems.resilience.problems.shard_files import mark_of
from orrery.world import BitFlip, DiskFull, MisdirectedWrite, TornWrite, World

_STORAGE_FAULTS = (BitFlip, DiskFull, MisdirectedWrite, TornWrite)


class Storage(Node):
    """The parallel file system, as the end of flows: its network is what all ranks share."""


class TrainingWithFailures(Rig, Problem):
    """Train, keep the state, lose ranks, restore, and end with the weights of a calm run.

    Knobs: `task`, what is learned; `steps`; `batch`; `data_seed`; `more`, further knobs of the
    task; `watch_s`, how often the scheduler looks at the ranks; `patience_s`, how long it waits for
    a rank to answer; and those of `Rig`.

    >>> TrainingWithFailures(task="quadratic", steps=5).learning().steps
    5
    """

    task: Literal["language", "digits", "logistic", "quadratic"] = "quadratic"
    steps: Count = 12
    batch: Count = 4
    data_seed: Whole = 0
    more: dict[str, int | float | str] = {}
    watch_s: Positive = 0.05
    patience_s: Positive = 1.0

    port: ClassVar[type] = Checkpointer
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "time_s": Metric("s", "lower", "until the last rank has trained and all is safe"),
        "blocked_s": Metric("s", "lower", "seconds of training lost to one checkpoint, at a rank"),
        "stall_s": Metric("s", "lower", "of these, seconds for which an update had to wait"),
        "throughput_Bps": Metric(
            "B/s", "higher", "bytes of a checkpoint over the seconds blocked (at least 1 ns)"
        ),
        "lost_steps": Metric("", "lower", "iterations that were done again after failures"),
        "high_B": Metric("B", "lower", "the most that stood in a rank's host buffer"),
        "restored": Metric("", "higher", "the iteration that was restored last (0: none)"),
        "committed": Metric("", "higher", "checkpoints that became complete"),
        "failed": Metric("", "lower", "checkpoints that were told to have failed"),
        "damaged": Metric("", "lower", "checkpoints found damaged at a restore"),
        "restarts": Metric("", "lower", "how often the job was launched again"),
    }

    def world(self) -> World:
        return World.lan(2)

    def learning(self) -> LearningTask:
        """The task that the knobs name."""
        return TASKS[self.task](
            steps=self.steps, batch=self.batch, data_seed=self.data_seed, **self.more
        )

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        rig = Rig(**{name: getattr(self, name) for name in Rig().knobs()})
        ready = part.with_knobs(training=self.learning(), rig=rig)
        if "storage" not in world.roles:
            return {"node": ready}
        return {role: Storage() if role == "storage" else ready for role in world.roles}

    # -- the scheduler

    async def drive(self, driver: Driver) -> int:
        ranks = ranks_of(driver.world)
        attempt = 0
        while not await self._attempt(driver, ranks, attempt):
            attempt += 1
        return attempt

    async def _attempt(self, driver: Driver, ranks: Sequence[int], attempt: int) -> bool:
        """Launch all ranks and watch them; True when all have ended well."""
        # First all must be up, so that nobody asks one that is not.
        for method in (Checkpointer.look, Checkpointer.launch):
            while None in await self._ask_all(driver, ranks, method, attempt):
                await driver.sleep(self.watch_s)
        while True:
            await driver.sleep(self.watch_s)
            said = await self._ask_all(driver, ranks, Checkpointer.look, attempt)
            if all(each == "done" for each in said):
                return True
            if any(each in (None, "gone") for each in said):
                await self._ask_all(driver, ranks, Checkpointer.halt, attempt)
                return False

    async def _ask_all(
        self, driver: Driver, ranks: Sequence[int], method: Any, attempt: int
    ) -> list[Any]:
        async def ask(node: int) -> Any:
            if not driver.alive(node):
                return None
            try:
                async with driver.deadline(self.patience_s):
                    return await driver.ask(node, method, attempt)
            except (DeadlineExceeded, Refused):
                return None

        return await driver.all(*(ask(node) for node in ranks))

    # -- the referee

    def check(self, outcome: Outcome) -> list[Violation]:
        ranks = ranks_of(outcome.world)
        marks, weights = self.reference(len(ranks))
        found = self._check_bytes(outcome, ranks, marks)
        found += self._check_restores(outcome)
        if outcome.ended != "driven":
            return found  # it was cut off, so nothing is said of its end
        found += self._check_kept(outcome)
        limit_B = getattr(outcome.part, "buffer_B", float("inf"))
        for record in outcome.records:
            if record.values.get("high_B", 0.0) > limit_B * (1 + 1e-9):
                found.append(Violation(
                    kind="buffer_exceeded", node=record.node, time_s=record.time_s,
                    message=f"{record.values['high_B']:.0f} bytes in a buffer of {limit_B:.0f}",
                ))  # fmt: skip
                break
        ends = ended(outcome)
        for rank, node in enumerate(ranks):
            if node not in ends:
                found.append(Violation(kind="not_trained", node=node,
                                       message=f"rank {rank} did not end"))  # fmt: skip
            elif not np.array_equal(ends[node]["weights"], weights[rank]):
                found.append(Violation(
                    kind="other_weights", node=node,
                    message=f"rank {rank} ends with other weights than an uninterrupted run",
                ))  # fmt: skip
        return found

    def _check_bytes(
        self, outcome: Outcome, ranks: Sequence[int], marks: list[list[str]]
    ) -> list[Violation]:
        """What was copied, written and restored is the state of exactly the iteration it names."""
        place = {node: rank for rank, node in enumerate(ranks)}
        kinds = {"asked": "wrong_state", "flushed": "torn_copy", "restored": "wrong_restore"}
        found = []
        for record in outcome.records:
            for word, kind in kinds.items():
                iteration = record.values.get(word)
                if iteration is None or record.values["mark"] == marks[iteration][
                    place[record.node]
                ]:  # fmt: skip
                    continue
                found.append(Violation(
                    kind=kind, node=record.node, time_s=record.time_s,
                    message=f"{word} {iteration}: the bytes are not the state of that iteration",
                ))  # fmt: skip
        return found

    def _check_restores(self, outcome: Outcome) -> list[Violation]:
        """All ranks restore one iteration, committed before, and the newest that is not damaged."""
        found: list[Violation] = []
        harmed = any(isinstance(fault, _STORAGE_FAULTS) for fault in outcome.world.faults)
        committed: set[int] = set()
        voted: set[int] = set()
        damaged: set[int] = set()
        restores: dict[int, dict[int, int]] = {}
        for record in outcome.records:
            values = record.values
            if "voted" in values:
                voted.add(values["voted"])
            if "committed" in values:
                committed.add(values["committed"])
            if "damaged" in values:
                damaged.add(values["damaged"])
                if values["damaged"] in committed and not harmed:
                    found.append(Violation(
                        kind="unreadable", node=record.node, time_s=record.time_s,
                        message=f"{values['damaged']} was complete and no disk failed, yet "
                        f"{values['why']}"))  # fmt: skip
            if "restored" not in values:
                continue
            iteration, attempt = values["restored"], values["attempt"]
            mine = restores.setdefault(attempt, {})
            mine[record.node] = iteration
            if len(set(mine.values())) > 1:
                found.append(Violation(
                    kind="ranks_differ", node=record.node, time_s=record.time_s, evidence=mine,
                    message=f"attempt {attempt}: ranks restored different iterations"))  # fmt: skip
            if iteration and iteration not in voted:
                found.append(Violation(
                    kind="not_committed", node=record.node, time_s=record.time_s,
                    message=f"restored {iteration}, though not all ranks had it safe"))  # fmt: skip
            newest = max(committed - damaged, default=0)
            if iteration < newest:
                found.append(Violation(
                    kind="went_too_far_back", node=record.node, time_s=record.time_s,
                    message=f"restored {iteration}, though {newest} was complete"))  # fmt: skip
        return found

    def _check_kept(self, outcome: Outcome) -> list[Violation]:
        """In the attempt that ended well, what was asked for is safe or was told to have failed."""
        if not outcome.part.keeps or not isinstance(outcome.driven, int):
            return []
        last = outcome.driven
        told = {
            record.values[word]
            for record in outcome.records for word in ("committed", "failed")
            if word in record.values and record.values["attempt"] == last
        }  # fmt: skip
        asked = {r.values["asked"]: r.node for r in outcome.records
                 if r.values.get("asked") and r.values["attempt"] == last}  # fmt: skip
        return [
            Violation(kind="dropped_silently", node=node,
                      message=f"the checkpoint of iteration {iteration} is neither safe nor failed")
            for iteration, node in asked.items() if iteration not in told
        ]  # fmt: skip

    def reference(self, size: int) -> tuple[list[list[str]], list[Any]]:
        """(marks of each iteration and rank, final weights of each rank), by a plain loop."""
        learning = self.learning()
        first = np.array(learning.start_weights())
        places = [own_part(first.size, rank, size) if self.coupled else slice(None)
                  for rank in range(size)]  # fmt: skip
        parts = [first[where].copy() for where in places]
        task: Any = learning
        shares = [task.share(rank, size, None) for rank in range(size)]
        steppers: list[Any] = [make("adamw", learning.rate) for _ in range(size)]
        for part, stepper in zip(parts, steppers, strict=True):
            stepper.first, stepper.second = np.zeros_like(part), np.zeros_like(part)
        marks = [_marks(parts, steppers)]
        for _ in range(self.steps):
            wholes = [np.concatenate(parts)] * size if self.coupled else parts
            each = [np.asarray(s.grad(w)) for s, w in zip(shares, wholes, strict=True)]
            if self.coupled:
                total = each[0]
                for one in each[1:]:
                    total = np.add(total, one)
                each = [np.asarray(total[where] / size) for where in places]
            parts = [s.step(p, g) for s, p, g in zip(steppers, parts, each, strict=True)]
            marks.append(_marks(parts, steppers))
        return marks, parts

    # -- the numbers

    def measure(self, outcome: Outcome) -> dict[str, float]:
        def count(word: str) -> float:
            return float(len({r.values[word] for r in outcome.records if word in r.values}))

        asked = [r.values for r in outcome.records if "asked" in r.values]
        ends = ended(outcome)
        restores = {r.values["attempt"]: r.values["restored"] for r in outcome.records
                    if "restored" in r.values and r.values["attempt"]}  # fmt: skip
        found = {
            "committed": count("committed"), "failed": count("failed"),
            "damaged": count("damaged"), "restarts": float(len(restores)),
            "restored": float(restores[max(restores)]) if restores else 0.0,
            "lost_steps": float(_lost_steps(outcome)),
            "high_B": max((values["high_B"] for values in (*asked, *ends.values())), default=0.0),
            "time_s": max((r.time_s for r in outcome.records if "ended" in r.values),
                          default=outcome.seconds),
        }  # fmt: skip
        if asked:
            for name, key in (("blocked_s", "blocked_s"), ("stall_s", "stalled_s")):
                found[name] = _most_of_each_life(outcome, key) / len(asked)
        if ends and found["committed"]:
            size_B = sum(values["shard_B"] for values in ends.values())
            found["throughput_Bps"] = size_B / max(found["blocked_s"], 1e-9)
        elif asked:
            found["throughput_Bps"] = 0.0
        return found

    def decisions(self, outcome: Outcome) -> dict[int, str]:
        """The mark of each rank's final state."""
        return {node: values["mark"] for node, values in sorted(ended(outcome).items())}


def ranks_of(world: World) -> Sequence[int]:
    """The nodes that train: all but the file system."""
    storage = set(world.members("storage")) if "storage" in world.roles else set()
    return [node for node in range(world.size) if node not in storage]


def ended(outcome: Any) -> dict[int, dict[str, Any]]:
    """What each rank said at its end, in a run or its outcome."""
    return {r.node: r.values for r in outcome.records if "ended" in r.values}


def _marks(parts: list[Any], steppers: list[Any]) -> list[str]:
    return [mark_of((part, stepper.first, stepper.second))
            for part, stepper in zip(parts, steppers, strict=True)]  # fmt: skip


def _most_of_each_life(outcome: Outcome, key: str) -> float:
    """A running total, summed over all ranks and attempts."""
    most: dict[tuple[int, int], float] = {}
    for record in outcome.records:
        values = record.values
        attempt = values["ended"] if "ended" in values else values.get("attempt", -1)
        if key in values:
            life = (record.node, attempt)
            most[life] = max(most.get(life, 0.0), values[key])
    return sum(most.values())


def _lost_steps(outcome: Outcome) -> int:
    """Iterations that had been reached when ranks failed, beyond those that were restored."""
    lost = reached = 0
    seen: set[int] = set()
    for record in outcome.records:
        values = record.values
        if "asked" in values:
            reached = max(reached, values["asked"])
        elif values.get("restored") is not None and values["attempt"] not in seen:
            seen.add(values["attempt"])
            lost += max(reached - values["restored"], 0)
            reached = values["restored"]
    return lost
