"""Chakra execution traces: collect, analyse, generate, feed and replay them.

`Chakra` is the part of the problem `trace_replay`. The codec of the format stands in
`orrery.inputs.chakra`, the graphs and their executor in `orrery.models.taskgraph`. The names load
when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HERE = "orrery.systems.ops.chakra"
_HOMES = {
    "Analysis": f"{_HERE}.analyse",
    "Chakra": f"{_HERE}.part",
    "Feeder": f"{_HERE}.feeder",
    "Recording": f"{_HERE}.recording",
    "Statistics": f"{_HERE}.clone",
    "TraceRank": f"{_HERE}.rank",
    "analysis": f"{_HERE}.analyse",
    "describe": f"{_HERE}.clone",
    "from_profile": f"{_HERE}.torch_profile",
    "from_spans": f"{_HERE}.spans",
    "plain_replay": f"{_HERE}.plain",
    "recorded": f"{_HERE}.recording",
    "statistical_clone": f"{_HERE}.clone",
    "times_of": f"{_HERE}.recording",
}

__all__ = [
    "Analysis", "Chakra", "Feeder", "Recording", "Statistics", "TraceRank", "analysis", "describe",
    "from_profile", "from_spans", "plain_replay", "recorded", "statistical_clone", "times_of",
]  # fmt: skip

if TYPE_CHECKING:
    from orrery.systems.ops.chakra.analyse import Analysis, analysis
    from orrery.systems.ops.chakra.clone import Statistics, describe, statistical_clone
    from orrery.systems.ops.chakra.feeder import Feeder
    from orrery.systems.ops.chakra.part import Chakra
    from orrery.systems.ops.chakra.plain import plain_replay
    from orrery.systems.ops.chakra.rank import TraceRank
    from orrery.systems.ops.chakra.recording import Recording, recorded, times_of
    from orrery.systems.ops.chakra.spans import from_spans
    from orrery.systems.ops.chakra.torch_profile import from_profile


__getattr__, __dir__ = door(__name__, _HOMES)
