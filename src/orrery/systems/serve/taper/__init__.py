"""TAPER: regulates how many branches of an answer a decode step carries."""

from orrery.systems.serve.taper.fit import StepFit
from orrery.systems.serve.taper.policy import Taper

__all__ = ["StepFit", "Taper"]
