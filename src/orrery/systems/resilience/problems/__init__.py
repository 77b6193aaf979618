"""The questions of this room: how long jobs live with machines that straggle, fail and are sick."""

from __future__ import annotations

from orrery.systems.resilience.problems.coding import GradientScheme
from orrery.systems.resilience.problems.detector import Detector
from orrery.systems.resilience.problems.sick_rank import SickRank
from orrery.systems.resilience.problems.straggling_gradients import StragglingGradients

__all__ = ["Detector", "GradientScheme", "SickRank", "StragglingGradients"]
