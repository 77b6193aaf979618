"""Ops: what runs and what did it cost? Traces, benchmarks and models of whole clusters.

The room's problems with their ports, and the systems and classics that answer them. The names load
when they are first used.
"""

from __future__ import annotations

from orrery.base.doors import door

_ROOM = "orrery.systems.ops"
_HOMES = {
    # the questions and their ports
    "LatencyProfiling": f"{_ROOM}.problems.profiling",
    "Profiler": f"{_ROOM}.problems.profiling",
    "Replayer": f"{_ROOM}.problems.trace_replay",
    "TraceReplay": f"{_ROOM}.problems.trace_replay",
    # replayers of traces
    "AstraStyle": f"{_ROOM}.baselines.astra_style",
    "CollectivesOnly": f"{_ROOM}.baselines.collectives_only",
    "ProfilerTimeline": f"{_ROOM}.baselines.profiler_timeline",
    "StepFormula": f"{_ROOM}.baselines.step_formula",
    # profilers
    "EndToEndRegression": f"{_ROOM}.baselines.end_to_end_regression",
    "ProfileEverything": f"{_ROOM}.baselines.profile_everything",
    "RooflineOnly": f"{_ROOM}.baselines.roofline_only",
    # the published systems
    "Chakra": f"{_ROOM}.chakra",
    "Dooly": f"{_ROOM}.dooly",
}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = door(__name__, _HOMES)
