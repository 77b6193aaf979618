"""The classics of this room, one file each: the rivals that newer systems are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HOMES = {
    "AsyncSave": "orrery.systems.resilience.baselines.async_save",
    "AveragedLoss": "orrery.systems.resilience.baselines.averaged_loss",
    "CheckFreq": "orrery.systems.resilience.baselines.check_freq",
    "DropLate": "orrery.systems.resilience.baselines.drop_late",
    "GlobalNorm": "orrery.systems.resilience.baselines.global_norm",
    "GradientCoding": "orrery.systems.resilience.baselines.gradient_coding",
    "IterationThreshold": "orrery.systems.resilience.baselines.iteration_threshold",
    "NoCheckpoints": "orrery.systems.resilience.baselines.no_checkpoints",
    "NoiseScale": "orrery.systems.resilience.baselines.noise_scale",
    "PairwiseSweep": "orrery.systems.resilience.baselines.pairwise_sweep",
    "RankLosses": "orrery.systems.resilience.baselines.rank_losses",
    "Repetition": "orrery.systems.resilience.baselines.repetition",
    "StackVote": "orrery.systems.resilience.baselines.stack_vote",
    "SynchronousSave": "orrery.systems.resilience.baselines.synchronous_save",
    "TorchSnapshot": "orrery.systems.resilience.baselines.torch_snapshot",
    "WaitForAll": "orrery.systems.resilience.baselines.wait_for_all",
    "WatchdogTimeout": "orrery.systems.resilience.baselines.watchdog_timeout",
}

__all__ = [
    "AsyncSave",
    "AveragedLoss",
    "CheckFreq",
    "DropLate",
    "GlobalNorm",
    "GradientCoding",
    "IterationThreshold",
    "NoCheckpoints",
    "NoiseScale",
    "PairwiseSweep",
    "RankLosses",
    "Repetition",
    "StackVote",
    "SynchronousSave",
    "TorchSnapshot",
    "WaitForAll",
    "WatchdogTimeout",
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


__getattr__, __dir__ = door(__name__, _HOMES)
