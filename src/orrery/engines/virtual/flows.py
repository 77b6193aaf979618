"""The door to fluid flows: `FlowNet` in C where the extension is built, else in Python.

`ORRERY_KERNEL=python` chooses the Python twin. Both give the same results to the bit; the contract
is written down in `flows_py`.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from orrery.base.units import FOREVER_NS
from orrery.engines.virtual import flows_py

__all__ = ["FOREVER_NS", "KIND", "FlowNet", "implementations"]


def implementations() -> dict[str, type[flows_py.FlowNet]]:
    """Every implementation that works here, by name, the fastest first."""
    try:
        compiled = import_module("orrery.engines.virtual._flows")
    except ImportError:  # no compiler was there when the package was installed
        return {"python": flows_py.FlowNet}
    return {"c": compiled.FlowNet, "python": flows_py.FlowNet}


def _choose() -> str:
    """The name of the implementation in use."""
    if os.environ.get("ORRERY_KERNEL", "") == "python":
        return "python"
    return next(iter(implementations()))


KIND = _choose()

if TYPE_CHECKING:
    FlowNet = flows_py.FlowNet
else:
    FlowNet = implementations()[KIND]
