"""Runs of training with failures that several tests share."""

from __future__ import annotations

from orrery import World, run
from orrery.base.rand import Stream
from orrery.systems.resilience.baselines.async_save import AsyncSave
from orrery.systems.resilience.baselines.check_freq import CheckFreq
from orrery.systems.resilience.baselines.no_checkpoints import NoCheckpoints
from orrery.systems.resilience.baselines.synchronous_save import SynchronousSave
from orrery.systems.resilience.baselines.torch_snapshot import TorchSnapshot
from orrery.systems.resilience.datastates_llm import DataStates
from orrery.systems.resilience.problems.training_with_failures import TrainingWithFailures
from orrery.world import Crash

CLASSICS = (SynchronousSave, AsyncSave, CheckFreq, TorchSnapshot)
EVERYBODY = (DataStates, *CLASSICS, NoCheckpoints)
# Steps of 5 s, a state of 4 GB, the disk of an ordinary server: all figures below follow from it.
LARGE = {"state_B": 4e9, "step_s": 5.0, "watch_s": 1.0, "steps": 8}


def trained(part, ranks=2, faults=(), seed=1, engine="virtual", world=None, until_s=None,
            **knobs):  # fmt: skip
    world = (world or World.lan(ranks)).with_faults(*faults)
    more = {"raw": True} if engine == "processes" else {}
    problem = TrainingWithFailures(**knobs)
    return run(part, problem=problem, world=world, seed=seed, engine=engine, until_s=until_s,
               **more)  # fmt: skip


def said(made, word):
    """(time, node, values) of whatever was emitted under a word, in order."""
    return [(r.time_s, r.node, r.values) for r in made.records if word in r.values]


def kills(ranks, count, seed, first_s=0.4, gap_s=(0.8, 1.2), down_s=0.1):
    """Kills of all ranks at random instants, each in the midst of a life."""
    rng, at_s, found = Stream(seed, "kills", "instants"), first_s, []
    for _ in range(count):
        at_s += rng.uniform(*gap_s)
        found.append(Crash(node=tuple(range(ranks)), at_s=at_s, until_s=at_s + down_s))
        at_s += down_s
    return found
