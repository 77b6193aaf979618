"""Doors: package `__init__` files whose names load when they are first used.

A door lists its names with their homes and opens with one line, so that importing a room stays
quick however many systems stand in it::

    __getattr__, __dir__ = door(__name__, {"Raft": "orrery.systems.protocols.baselines.raft"})
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def door(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose names live elsewhere."""

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(homes)

    return load, names
