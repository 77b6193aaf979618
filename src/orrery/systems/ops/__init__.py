"""Ops: what runs and what did it cost? Traces, benchmarks and models of whole clusters.

The room's problems with their ports, and the systems and classics that answer them. The names load
when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HOMES = {
    "AstraStyle": "orrery.systems.ops.baselines.astra_style",
    "Chakra": "orrery.systems.ops.chakra",
    "CollectivesOnly": "orrery.systems.ops.baselines.collectives_only",
    "ProfilerTimeline": "orrery.systems.ops.baselines.profiler_timeline",
    "Replayer": "orrery.systems.ops.problems.trace_replay",
    "StepFormula": "orrery.systems.ops.baselines.step_formula",
    "TraceReplay": "orrery.systems.ops.problems.trace_replay",
}

__all__ = [
    "AstraStyle", "Chakra", "CollectivesOnly", "ProfilerTimeline", "Replayer", "StepFormula",
    "TraceReplay",
]  # fmt: skip

if TYPE_CHECKING:
    from orrery.systems.ops.baselines.astra_style import AstraStyle
    from orrery.systems.ops.baselines.collectives_only import CollectivesOnly
    from orrery.systems.ops.baselines.profiler_timeline import ProfilerTimeline
    from orrery.systems.ops.baselines.step_formula import StepFormula
    from orrery.systems.ops.chakra import Chakra
    from orrery.systems.ops.problems.trace_replay import Replayer, TraceReplay


__getattr__, __dir__ = door(__name__, _HOMES)
