"""The problem `trace_replay`: how long will a traced job take on another cluster?

The port is `Replayer`, a routine: a recording (graph, durations, where it was made) and a world
give the seconds of a step there. The job is then really run in that world, rank by rank, with timed
compute and real messages, and the answer is held against it. The job comes from a folder of
execution traces, or is generated; it was recorded on links of another speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from orrery.base.errors import KnobError, PartError
from orrery.base.violation import Violation
from orrery.models.taskgraph.executor import Times, replay
from orrery.models.taskgraph.graph import TaskGraph
from orrery.models.taskgraph.matching import faults
from orrery.models.taskgraph.transformer import TransformerJob
from orrery.parts import (
    Driver,
    Metric,
    Node,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    Routine,
    Whole,
)
from orrery.systems.ops.chakra.analyse import analysis
from orrery.systems.ops.chakra.rank import Job, TraceRank, graph_of, job_of, timed
from orrery.systems.ops.chakra.recording import Recording, recorded, times_of
from orrery.world import World

DEFAULT_JOB: Job = {
    "layers": 4, "hidden": 256, "sequence": 128, "vocabulary": 1024, "dp": 2, "tp": 2, "pp": 2,
    "micro_batches": 4, "layer_s": 0.001,
}  # fmt: skip


class Replayer(Routine):
    """The port: `replayer(recording, world)` gives the seconds of a step in that world."""

    def __call__(self, recording: Recording, world: World) -> float:
        raise PartError(f"{type(self).__name__} has no __call__(recording, world); write it")


class TraceReplay(Problem):
    """Predict the step time of a traced job in a world, then run it there and compare.

    Knobs: `traces`, a folder of execution traces, or `job`, the knobs of a `TransformerJob`;
    `spread` of the durations around their means and `data_seed` of that draw; `recorded_rate`, the
    speed of the links on which the trace was recorded, as a multiple of the world's; `patience_s`,
    after which a silent rank counts as lost.

    >>> TraceReplay().graph().ranks
    8
    """

    traces: str = ""
    job: Job = DEFAULT_JOB
    spread: NonNegative = 0.2
    data_seed: Whole = 0
    recorded_rate: Positive = 4.0
    patience_s: Positive = 60.0

    port: ClassVar[type] = Replayer
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "error": Metric("", "lower", "how far the prediction is off, as a part of the run"),
        "predicted_s": Metric("s", "", "the predicted step"),
        "actual_s": Metric("s", "", "the step as it was run"),
        "recorded_s": Metric("s", "", "the step as it was recorded, on other links"),
        "exposed_s": Metric("s", "", "communication with nothing else to do, mean over ranks"),
    }

    def graph(self) -> TaskGraph:
        """The job as tasks, without times of communication."""
        return graph_of(self.traces, self.job, self.spread, self.data_seed)

    def description(self) -> TransformerJob | None:
        """The job's description, where it was generated from one."""
        return None if self.traces else job_of(self.job)

    def world(self) -> World:
        return World.lan(self.graph().ranks, jitter=0.0, latency_s=20e-6)

    def accept(self, part: Any) -> None:
        super().accept(part)
        found = faults(self.graph())
        if found:
            raise KnobError("TraceReplay.traces", str(found[0]), "mend the traces")

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        graph = self.graph()
        if world.size != graph.ranks:
            raise KnobError("TraceReplay.job", f"has {graph.ranks} ranks, the world {world.size}",
                            "make them equal")  # fmt: skip
        rank = TraceRank(traces=self.traces, job=self.job, spread=self.spread, draw=self.data_seed,
                         patience_s=self.patience_s)  # fmt: skip
        return {"node": rank}

    def recording(self, world: World) -> Recording:
        """The job as it was traced on links of another speed."""
        graph = timed(self.graph(), world)
        where = rescaled(world, self.recorded_rate)
        times = replay(graph, where)
        return Recording(recorded(graph, times), times, where, self.description())

    async def drive(self, driver: Driver) -> Any:
        recording = self.recording(driver.world)
        predicted = driver.part(recording, driver.world)
        await driver.until_all(TraceRank.ended, self.patience_s)
        return {"predicted_s": predicted, "recorded_s": recording.times.seconds}

    def check(self, outcome: Outcome) -> list[Violation]:
        found = outcome.lost_ranks()
        if outcome.ended != "driven" or found or not all(outcome.alive):
            return found
        predicted = (outcome.driven or {}).get("predicted_s", math.nan)
        if not (isinstance(predicted, int | float) and math.isfinite(predicted) and predicted >= 0):
            found.append(Violation(kind="no_prediction", message=f"predicts {predicted!r:.60} s"))
        graph = timed(self.graph(), outcome.world)
        return found + run_faults(graph, times_of(graph, outcome.records))

    def measure(self, outcome: Outcome) -> dict[str, float]:
        graph = timed(self.graph(), outcome.world)
        times = times_of(graph, outcome.records)
        driven = outcome.driven or {}
        if not np.isfinite(times.end_s).all() or not times.seconds:
            return {}
        predicted = float(driven.get("predicted_s", math.nan))
        return {
            "error": abs(predicted - times.seconds) / times.seconds, "predicted_s": predicted,
            "actual_s": times.seconds, "recorded_s": float(driven.get("recorded_s", math.nan)),
            "exposed_s": float(analysis(graph, times).exposed_s.mean()),
        }  # fmt: skip

    def decisions(self, outcome: Outcome) -> dict[int, list[Any]]:
        """The collectives of each rank, group by group in the order of its calls."""
        return {
            record.values["rank"]: sorted(tuple(call) for call in record.values["calls"])
            for record in sorted(outcome.records, key=lambda record: record.node)
            if "calls" in record.values
        }


def rescaled(world: World, factor: float) -> World:
    """The same world with links of another speed."""
    network = world.network
    topology = network.topology
    more = {
        name: getattr(topology, name) * factor
        for name in ("link_Bps", "island_Bps")
        if getattr(topology, name) is not None
    }
    machines = {
        name: machine if machine.nic_Bps is None else machine.replace(
            nic_Bps=machine.nic_Bps * factor)
        for name, machine in world.machines.items()
    }  # fmt: skip
    return world.replace(
        network=network.replace(bandwidth_Bps=network.bandwidth_Bps * factor,
                                topology=topology.replace(**more)),
        machines=machines,
    )  # fmt: skip


def run_faults(graph: TaskGraph, times: Times) -> list[Violation]:
    """What went wrong in a run of a graph: tasks that never ended, or began too early."""
    missing = np.flatnonzero(~np.isfinite(times.end_s))
    if missing.size:
        task = int(missing[0])
        return [Violation(kind="task_never_ran", node=int(graph.rank[task]), evidence=task,
                          message=f"{graph.label(task)} never ended")]  # fmt: skip
    owner = np.repeat(np.arange(len(graph)), np.diff(graph.dep_starts))
    early = np.flatnonzero(times.start_s[owner] < times.end_s[graph.deps] - 1e-9)
    if early.size:
        task, before = int(owner[early[0]]), int(graph.deps[early[0]])
        told = f"{graph.label(task)} began before {graph.label(before)} ended"
        rank = int(graph.rank[task])
        return [Violation(kind="issued_too_early", node=rank, evidence=task, message=told)]
    return []
