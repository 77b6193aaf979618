"""The classics of this room, one file each: the rivals that newer systems are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HOMES = {
    "DropLate": "orrery.systems.resilience.baselines.drop_late",
    "GradientCoding": "orrery.systems.resilience.baselines.gradient_coding",
    "Repetition": "orrery.systems.resilience.baselines.repetition",
    "WaitForAll": "orrery.systems.resilience.baselines.wait_for_all",
}

__all__ = [
    "DropLate",
    "GradientCoding",
    "Repetition",
    "WaitForAll",
]

if TYPE_CHECKING:
    from orrery.systems.resilience.baselines.drop_late import DropLate
    from orrery.systems.resilience.baselines.gradient_coding import GradientCoding
    from orrery.systems.resilience.baselines.repetition import Repetition
    from orrery.systems.resilience.baselines.wait_for_all import WaitForAll


__getattr__, __dir__ = door(__name__, _HOMES)
