"""Nitsum: tiered requests on a fixed number of GPUs, with adaptive tensor parallelism."""

from orrery.systems.serve.nitsum.policy import Nitsum

__all__ = ["Nitsum"]
