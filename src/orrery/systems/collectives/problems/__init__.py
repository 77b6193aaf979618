"""The questions of this room: how a group of ranks reduces an array."""

from __future__ import annotations

from orrery.systems.collectives.problems.all_reduce import AllReduce, Reducer

__all__ = ["AllReduce", "Reducer"]
