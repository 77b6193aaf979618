"""SPES: a mixture of experts trained by nodes that each train a few of the experts."""

from __future__ import annotations

from orrery.systems.train.spes.training import SPES

__all__ = ["SPES"]
