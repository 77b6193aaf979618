"""Collectives: how the ranks of a group sum, spread and exchange arrays, fast and exactly.

The room's problems with their ports, and the classics that answer them. The names load when they
are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
