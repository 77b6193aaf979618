"""The classics of this room, one file each: the rivals that newer systems are compared with."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Direct": "direct",
    "RecursiveDoubling": "recursive_doubling",
    "RecursiveHalving": "recursive_halving",
    "Ring": "ring",
    "Star": "star",
    "Tree": "tree",
}

__all__ = ["Direct", "RecursiveDoubling", "RecursiveHalving", "Ring", "Star", "Tree"]

if TYPE_CHECKING:
    from orrery.systems.collectives.baselines.direct import Direct
    from orrery.systems.collectives.baselines.recursive_doubling import RecursiveDoubling
    from orrery.systems.collectives.baselines.recursive_halving import RecursiveHalving
    from orrery.systems.collectives.baselines.ring import Ring
    from orrery.systems.collectives.baselines.star import Star
    from orrery.systems.collectives.baselines.tree import Tree


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
