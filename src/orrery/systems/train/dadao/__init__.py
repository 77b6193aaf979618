"""DADAO: decentralised optimisation on random clocks; the door of its package."""

from __future__ import annotations

from orrery.systems.train.dadao.drift import Drift, drift_of, expm
from orrery.systems.train.dadao.node import DADAO, Constants
from orrery.systems.train.dadao.rates import (
    cheapest,
    cost_of,
    optimised_rates,
    sufficient,
    uniform_rates,
)

__all__ = [
    "DADAO",
    "Constants",
    "Drift",
    "cheapest",
    "cost_of",
    "drift_of",
    "expm",
    "optimised_rates",
    "sufficient",
    "uniform_rates",
]
