"""Orrery: write a distributed system once; run it in virtual time, or for real; check its claims.

The names below load when they are first used, so that `import orrery` is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

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
    "compare": "orrery.lab",
    "Comparison": "orrery.lab",
}

__all__ = [
    "Claim", "Comparison", "Estimator", "Monitor", "Node", "Policy", "Problem", "Routine", "Run",
    "Worker", "World", "__version__", "compare", "cost", "rpc", "run", "worlds",
]  # fmt: skip

if TYPE_CHECKING:
    from orrery.lab import Claim, Comparison, Run, compare, run
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


__getattr__, __dir__ = door(__name__, _HOMES)
