"""Collectives: how the ranks of a group sum, spread and exchange arrays, fast and exactly.

The room's problems with their ports, and the classics that answer them. The names load when they
are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_PROBLEMS = "orrery.systems.collectives.problems"
_BASELINES = "orrery.systems.collectives.baselines"
_HOMES = {
    "AllReduce": _PROBLEMS,
    "Collective": "orrery.parts.collectives",
    "Direct": _BASELINES,
    "RecursiveDoubling": _BASELINES,
    "RecursiveHalving": _BASELINES,
    "Ring": _BASELINES,
    "Star": _BASELINES,
    "Tree": _BASELINES,
}

__all__ = [
    "AllReduce", "Collective", "Direct", "RecursiveDoubling", "RecursiveHalving", "Ring", "Star",
    "Tree",
]  # fmt: skip

if TYPE_CHECKING:
    from orrery.parts.collectives import Collective
    from orrery.systems.collectives.baselines import (
        Direct,
        RecursiveDoubling,
        RecursiveHalving,
        Ring,
        Star,
        Tree,
    )
    from orrery.systems.collectives.problems import AllReduce


__getattr__, __dir__ = door(__name__, _HOMES)
