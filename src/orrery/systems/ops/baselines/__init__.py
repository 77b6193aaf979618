"""The classics of this room, one file each: the rivals that newer systems are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HERE = "orrery.systems.ops.baselines"
_HOMES = {
    "AstraStyle": f"{_HERE}.astra_style",
    "CollectivesOnly": f"{_HERE}.collectives_only",
    "ProfilerTimeline": f"{_HERE}.profiler_timeline",
    "StepFormula": f"{_HERE}.step_formula",
}

__all__ = ["AstraStyle", "CollectivesOnly", "ProfilerTimeline", "StepFormula"]

if TYPE_CHECKING:
    from orrery.systems.ops.baselines.astra_style import AstraStyle
    from orrery.systems.ops.baselines.collectives_only import CollectivesOnly
    from orrery.systems.ops.baselines.profiler_timeline import ProfilerTimeline
    from orrery.systems.ops.baselines.step_formula import StepFormula


__getattr__, __dir__ = door(__name__, _HOMES)
