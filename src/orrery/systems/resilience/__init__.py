"""Resilience: training and long jobs that go on when machines straggle, fail or lie.

The room's problems with their ports, the classics that answer them, and the published systems. The
names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HOMES = {
    "DropLate": "orrery.systems.resilience.baselines.drop_late",
    "GradientCoding": "orrery.systems.resilience.baselines.gradient_coding",
    "GradientScheme": "orrery.systems.resilience.problems.coding",
    "Repetition": "orrery.systems.resilience.baselines.repetition",
    "SequentialGradientCoding": "orrery.systems.resilience.sequential_gradient_coding",
    "StragglingGradients": "orrery.systems.resilience.problems.straggling_gradients",
    "WaitForAll": "orrery.systems.resilience.baselines.wait_for_all",
}

__all__ = [
    "DropLate",
    "GradientCoding",
    "GradientScheme",
    "Repetition",
    "SequentialGradientCoding",
    "StragglingGradients",
    "WaitForAll",
]

if TYPE_CHECKING:
    from orrery.systems.resilience.baselines.drop_late import DropLate
    from orrery.systems.resilience.baselines.gradient_coding import GradientCoding
    from orrery.systems.resilience.baselines.repetition import Repetition
    from orrery.systems.resilience.baselines.wait_for_all import WaitForAll
    from orrery.systems.resilience.problems.coding import GradientScheme
    from orrery.systems.resilience.problems.straggling_gradients import StragglingGradients
    from orrery.systems.resilience.sequential_gradient_coding import SequentialGradientCoding


__getattr__, __dir__ = door(__name__, _HOMES)
