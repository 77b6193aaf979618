"""Orrery: write a distributed system once; run it in virtual time, or for real; check its claims.

The names below load when they are first used, so that `import orrery` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "World": "orrery.world",
    "worlds": "orrery.world",
    "Node": "orrery.parts",
    "Worker": "orrery.parts",
    "Policy": "orrery.parts",
    "Routine": "orrery.parts",
    "Estimator": "orrery.parts",
    "Problem": "orrery.parts",
    "rpc": "orrery.parts",
    "cost": "orrery.parts",
    "Monitor": "orrery.parts",
    "run": "orrery.lab",
    "Run": "orrery.lab",
    "Claim": "orrery.lab",
}

__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:
    from orrery.lab import Claim, Run, run
    from orrery.parts import (
        Estimator,
        Monitor,
        Node,
        Policy,
        Problem,
        Routine,
        Worker,
        cost,
        rpc,
    )
    from orrery.world import World, worlds


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'orrery' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
