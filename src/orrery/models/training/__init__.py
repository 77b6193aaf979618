"""What training a model costs: memory, time and money of a plan on a world, also with faults.

`estimate(model, plan, world)` runs one step as a task graph; `memory_of(model, plan)` counts bytes;
`expected_run(...)` adds failures and checkpoints. `training_forward` and its kin list the
operations of one device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HERE = "orrery.models.training"
_HOMES = {
    "ATTENTION_BACKWARD": f"{_HERE}.passes",
    "Estimate": f"{_HERE}.step",
    "ExpectedRun": f"{_HERE}.goodput",
    "IDEAL_TRAINING": f"{_HERE}.efficiency",
    "Micro": f"{_HERE}.passes",
    "Point": f"{_HERE}.points",
    "StageMemory": f"{_HERE}.memory",
    "TrainingEfficiency": f"{_HERE}.efficiency",
    "TrainingPlan": f"{_HERE}.plan",
    "Trouble": f"{_HERE}.goodput",
    "backward_of": f"{_HERE}.passes",
    "best_interval_s": f"{_HERE}.goodput",
    "checkpoint_B": f"{_HERE}.goodput",
    "critical_step_s": f"{_HERE}.step",
    "default_efficiency": f"{_HERE}.efficiency",
    "estimate": f"{_HERE}.step",
    "expected_run": f"{_HERE}.goodput",
    "fit_efficiency": f"{_HERE}.fit",
    "fit_tables": f"{_HERE}.fit",
    "gradient_ops": f"{_HERE}.passes",
    "hardware_flops": f"{_HERE}.work",
    "held": f"{_HERE}.schedules",
    "layer_activations": f"{_HERE}.memory",
    "memory_of": f"{_HERE}.memory",
    "model_flops": f"{_HERE}.work",
    "read_points": f"{_HERE}.points",
    "slow_nic": f"{_HERE}.goodput",
    "step_graph": f"{_HERE}.step",
    "training_backward": f"{_HERE}.passes",
    "training_forward": f"{_HERE}.passes",
    "zero_bubble": f"{_HERE}.schedules",
}

__all__ = [
    "ATTENTION_BACKWARD", "IDEAL_TRAINING", "Estimate", "ExpectedRun", "Micro", "Point",
    "StageMemory", "TrainingEfficiency", "TrainingPlan", "Trouble", "backward_of",
    "best_interval_s", "checkpoint_B", "critical_step_s", "default_efficiency", "estimate",
    "expected_run", "fit_efficiency", "fit_tables", "gradient_ops", "hardware_flops", "held",
    "layer_activations", "memory_of", "model_flops", "read_points", "slow_nic", "step_graph",
    "training_backward", "training_forward", "zero_bubble",
]  # fmt: skip

if TYPE_CHECKING:
    from orrery.models.training.efficiency import (
        IDEAL_TRAINING,
        TrainingEfficiency,
        default_efficiency,
    )
    from orrery.models.training.fit import fit_efficiency, fit_tables
    from orrery.models.training.goodput import (
        ExpectedRun,
        Trouble,
        best_interval_s,
        checkpoint_B,
        expected_run,
        slow_nic,
    )
    from orrery.models.training.memory import StageMemory, layer_activations, memory_of
    from orrery.models.training.passes import (
        ATTENTION_BACKWARD,
        Micro,
        backward_of,
        gradient_ops,
        training_backward,
        training_forward,
    )
    from orrery.models.training.plan import TrainingPlan
    from orrery.models.training.points import Point, read_points
    from orrery.models.training.schedules import held, zero_bubble
    from orrery.models.training.step import Estimate, critical_step_s, estimate, step_graph
    from orrery.models.training.work import hardware_flops, model_flops


__getattr__, __dir__ = door(__name__, _HOMES)
