"""Worlds and runs that the tests of pipelines share."""

from __future__ import annotations

import numpy as np

from orrery import World, run
from orrery.systems.train.problems.cuts import cut
from orrery.systems.train.problems.data_parallel import final
from orrery.systems.train.problems.pipeline_referee import Notes
from orrery.systems.train.problems.pipeline_training import PipelineTraining

# Both passes take one tick, far longer than the nanosecond that a message takes there.
TICKS = {"forward_share": 0.5, "scale": 1e12}


def ticks(stages):
    """A world in which only passes take time."""
    return World.lan(stages, latency_s=0.0, jitter=0.0, bandwidth_Bps=1e18)


def trained(part, stages=4, seed=1, world=None, engine="virtual", **knobs):
    return run(
        part, problem=PipelineTraining(**{"task": "quadratic", **knobs}),
        world=world or World.lan(stages), seed=seed, engine=engine,
    )  # fmt: skip


def weights_of(made):
    ends = final(made)
    return np.concatenate([ends[n]["weights"] for n in sorted(ends) if ends[n]["weights"].size])


def stages_of(made):
    """What each stage noted of itself, by stage."""
    return [r.values for r in sorted(made.records, key=lambda r: r.node) if "passes" in r.values]


def cut_of(made, **knobs):
    """The task of a run, cut as it was there, reading the same batches."""
    problem = PipelineTraining(**{"task": "quadratic", **knobs})
    return cut(problem.learning(), len(final(made)), stages_of(made)[0]["key"])


def points_read(made, **knobs):
    """The point that each batch read, put together from the stages' blocks; {batch: weights}."""
    problem = PipelineTraining(**{"task": "quadratic", **knobs})
    whole, notes = cut_of(made, **knobs), Notes(made, len(final(made)))
    blocks = {(stage, 0): whole.block(stage) for stage in range(notes.stages)}
    blocks |= {(stage, v): block for _, stage, _, v, block in problem.trail(made)}
    versions = notes.read_versions()
    return {
        batch: np.concatenate([blocks[s, versions[s, batch]] for s in range(notes.stages)])
        for batch in range(versions.shape[1])
    }


def steps_taken(made, stage, **knobs):
    """How far each batch moved the block of a stage; {batch: after - before}."""
    problem = PipelineTraining(**{"task": "quadratic", **knobs})
    blocks = {v: block for _, s, _, v, block in problem.trail(made) if s == stage}
    blocks[0] = cut_of(made, **knobs).block(stage)
    used = stages_of(made)[stage]["used"]
    return {batch: blocks[v] - blocks[v - 1] for _, _, v, batch, _ in used.tolist()}
