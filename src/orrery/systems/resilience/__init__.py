"""Resilience: training and long jobs that go on when machines straggle, fail or lie.

The room's problems with their ports, the classics that answer them, and the published systems. The
names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HOMES = {
    "AsyncSave": "orrery.systems.resilience.baselines.async_save",
    "AveragedLoss": "orrery.systems.resilience.baselines.averaged_loss",
    "CCLD": "orrery.systems.resilience.ccl_d",
    "CheckFreq": "orrery.systems.resilience.baselines.check_freq",
    "CheckpointStore": "orrery.systems.resilience.datastates_llm",
    "Checkpointer": "orrery.systems.resilience.problems.checkpointer",
    "CollectiveDoctor": "orrery.systems.resilience.ccl_d.attached",
    "DataStates": "orrery.systems.resilience.datastates_llm",
    "Detector": "orrery.systems.resilience.problems.detector",
    "DropLate": "orrery.systems.resilience.baselines.drop_late",
    "GlobalNorm": "orrery.systems.resilience.baselines.global_norm",
    "GradientCoding": "orrery.systems.resilience.baselines.gradient_coding",
    "GradientScheme": "orrery.systems.resilience.problems.coding",
    "IterationThreshold": "orrery.systems.resilience.baselines.iteration_threshold",
    "LazyCheckpointer": "orrery.systems.resilience.datastates_llm",
    "NoCheckpoints": "orrery.systems.resilience.baselines.no_checkpoints",
    "NoiseScale": "orrery.systems.resilience.baselines.noise_scale",
    "PairwiseSweep": "orrery.systems.resilience.baselines.pairwise_sweep",
    "RankLosses": "orrery.systems.resilience.baselines.rank_losses",
    "Repetition": "orrery.systems.resilience.baselines.repetition",
    "SequentialGradientCoding": "orrery.systems.resilience.sequential_gradient_coding",
    "SickCommunication": "orrery.systems.resilience.problems.sick_communication",
    "SickRank": "orrery.systems.resilience.problems.sick_rank",
    "SilentInconsistency": "orrery.systems.resilience.silent_inconsistency",
    "StackVote": "orrery.systems.resilience.baselines.stack_vote",
    "StragglingGradients": "orrery.systems.resilience.problems.straggling_gradients",
    "SynchronousSave": "orrery.systems.resilience.baselines.synchronous_save",
    "TorchSnapshot": "orrery.systems.resilience.baselines.torch_snapshot",
    "TrainingWithFailures": "orrery.systems.resilience.problems.training_with_failures",
    "WaitForAll": "orrery.systems.resilience.baselines.wait_for_all",
    "WatchdogTimeout": "orrery.systems.resilience.baselines.watchdog_timeout",
    "Watcher": "orrery.systems.resilience.problems.watcher",
    "diagnose": "orrery.systems.resilience.ccl_d.spans",
}

__all__ = [
    "CCLD",
    "AsyncSave",
    "AveragedLoss",
    "CheckFreq",
    "CheckpointStore",
    "Checkpointer",
    "CollectiveDoctor",
    "DataStates",
    "Detector",
    "DropLate",
    "GlobalNorm",
    "GradientCoding",
    "GradientScheme",
    "IterationThreshold",
    "LazyCheckpointer",
    "NoCheckpoints",
    "NoiseScale",
    "PairwiseSweep",
    "RankLosses",
    "Repetition",
    "SequentialGradientCoding",
    "SickCommunication",
    "SickRank",
    "SilentInconsistency",
    "StackVote",
    "StragglingGradients",
    "SynchronousSave",
    "TorchSnapshot",
    "TrainingWithFailures",
    "WaitForAll",
    "WatchdogTimeout",
    "Watcher",
    "diagnose",
]

if TYPE_CHECKING:
    from orrery.systems.resilience.baselines.async_save import AsyncSave
    from orrery.systems.resilience.baselines.averaged_loss import AveragedLoss
    from orrery.systems.resilience.baselines.check_freq import CheckFreq
    from orrery.systems.resilience.baselines.drop_late import DropLate
    from orrery.systems.resilience.baselines.global_norm import GlobalNorm
    from orrery.systems.resilience.baselines.gradient_coding import GradientCoding
    from orrery.systems.resilience.baselines.iteration_threshold import IterationThreshold
    from orrery.systems.resilience.baselines.no_checkpoints import NoCheckpoints
    from orrery.systems.resilience.baselines.noise_scale import NoiseScale
    from orrery.systems.resilience.baselines.pairwise_sweep import PairwiseSweep
    from orrery.systems.resilience.baselines.rank_losses import RankLosses
    from orrery.systems.resilience.baselines.repetition import Repetition
    from orrery.systems.resilience.baselines.stack_vote import StackVote
    from orrery.systems.resilience.baselines.synchronous_save import SynchronousSave
    from orrery.systems.resilience.baselines.torch_snapshot import TorchSnapshot
    from orrery.systems.resilience.baselines.wait_for_all import WaitForAll
    from orrery.systems.resilience.baselines.watchdog_timeout import WatchdogTimeout
    from orrery.systems.resilience.ccl_d import CCLD
    from orrery.systems.resilience.ccl_d.attached import CollectiveDoctor
    from orrery.systems.resilience.ccl_d.spans import diagnose
    from orrery.systems.resilience.datastates_llm import (
        CheckpointStore,
        DataStates,
        LazyCheckpointer,
    )
    from orrery.systems.resilience.problems.checkpointer import Checkpointer
    from orrery.systems.resilience.problems.coding import GradientScheme
    from orrery.systems.resilience.problems.detector import Detector
    from orrery.systems.resilience.problems.sick_communication import SickCommunication
    from orrery.systems.resilience.problems.sick_rank import SickRank
    from orrery.systems.resilience.problems.straggling_gradients import StragglingGradients
    from orrery.systems.resilience.problems.training_with_failures import TrainingWithFailures
    from orrery.systems.resilience.problems.watcher import Watcher
    from orrery.systems.resilience.sequential_gradient_coding import SequentialGradientCoding
    from orrery.systems.resilience.silent_inconsistency import SilentInconsistency


__getattr__, __dir__ = door(__name__, _HOMES)
