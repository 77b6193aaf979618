"""The classics of this room, one file each: the rivals that newer systems are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HOMES = {
    "AveragedLoss": "orrery.systems.resilience.baselines.averaged_loss",
    "DropLate": "orrery.systems.resilience.baselines.drop_late",
    "GlobalNorm": "orrery.systems.resilience.baselines.global_norm",
    "GradientCoding": "orrery.systems.resilience.baselines.gradient_coding",
    "NoiseScale": "orrery.systems.resilience.baselines.noise_scale",
    "RankLosses": "orrery.systems.resilience.baselines.rank_losses",
    "Repetition": "orrery.systems.resilience.baselines.repetition",
    "WaitForAll": "orrery.systems.resilience.baselines.wait_for_all",
}

__all__ = [
    "AveragedLoss",
    "DropLate",
    "GlobalNorm",
    "GradientCoding",
    "NoiseScale",
    "RankLosses",
    "Repetition",
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


__getattr__, __dir__ = door(__name__, _HOMES)
