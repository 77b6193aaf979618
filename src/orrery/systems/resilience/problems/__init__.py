"""The questions of this room: how long jobs live with machines that straggle and fail."""

from __future__ import annotations

from orrery.systems.resilience.problems.coding import GradientScheme
from orrery.systems.resilience.problems.straggling_gradients import StragglingGradients

__all__ = ["GradientScheme", "StragglingGradients"]
