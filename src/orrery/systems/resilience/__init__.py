"""Resilience: training and long jobs that go on when machines straggle, fail or lie.

The room's problems with their ports, the classics that answer them, and the published systems. The
names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HOMES = {
    "AveragedLoss": "orrery.systems.resilience.baselines.averaged_loss",
    "Detector": "orrery.systems.resilience.problems.detector",
    "DropLate": "orrery.systems.resilience.baselines.drop_late",
    "GlobalNorm": "orrery.systems.resilience.baselines.global_norm",
    "GradientCoding": "orrery.systems.resilience.baselines.gradient_coding",
    "GradientScheme": "orrery.systems.resilience.problems.coding",
    "NoiseScale": "orrery.systems.resilience.baselines.noise_scale",
    "RankLosses": "orrery.systems.resilience.baselines.rank_losses",
    "Repetition": "orrery.systems.resilience.baselines.repetition",
    "SequentialGradientCoding": "orrery.systems.resilience.sequential_gradient_coding",
    "SickRank": "orrery.systems.resilience.problems.sick_rank",
    "SilentInconsistency": "orrery.systems.resilience.silent_inconsistency",
    "StragglingGradients": "orrery.systems.resilience.problems.straggling_gradients",
    "WaitForAll": "orrery.systems.resilience.baselines.wait_for_all",
}

__all__ = [
    "AveragedLoss",
    "Detector",
    "DropLate",
    "GlobalNorm",
    "GradientCoding",
    "GradientScheme",
    "NoiseScale",
    "RankLosses",
    "Repetition",
    "SequentialGradientCoding",
    "SickRank",
    "SilentInconsistency",
    "StragglingGradients",
    "WaitForAll",
]

if TYPE_CHECKING:
    from orrery.systems.resilience.baselines.averaged_loss import AveragedLoss
    from orrery.systems.resilience.baselines.drop_late import DropLate
    from orrery.systems.resilience.baselines.global_norm import GlobalNorm
    from orrery.systems.resilience.baselines.gradient_coding import GradientCoding
    from orrery.systems.resilience.baselines.noise_scale import NoiseScale
    from orrery.systems.resilience.baselines.rank_losses import RankLosses
    from orrery.systems.resilience.baselines.repetition import Repetition
    from orrery.systems.resilience.baselines.wait_for_all import WaitForAll
    from orrery.systems.resilience.problems.coding import GradientScheme
    from orrery.systems.resilience.problems.detector import Detector
    from orrery.systems.resilience.problems.sick_rank import SickRank
    from orrery.systems.resilience.problems.straggling_gradients import StragglingGradients
    from orrery.systems.resilience.sequential_gradient_coding import SequentialGradientCoding
    from orrery.systems.resilience.silent_inconsistency import SilentInconsistency


__getattr__, __dir__ = door(__name__, _HOMES)
