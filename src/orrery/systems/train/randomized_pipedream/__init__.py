"""Randomized PipeDream: stale block SGD in a pipeline, and what its theory promises."""

from __future__ import annotations

from orrery.systems.train.randomized_pipedream.theory import (
    Setting,
    delay_law,
    largest_rate,
    stale_bound,
    stale_term,
    walk,
)
from orrery.systems.train.randomized_pipedream.training import RandomizedPipeDream

__all__ = [
    "RandomizedPipeDream", "Setting", "delay_law", "largest_rate", "stale_bound", "stale_term",
    "walk",
]  # fmt: skip
