"""Task graphs: training steps and execution traces as tasks with dependencies, replayed anywhere.

Make one with `Builder`, from execution traces (`from_traces`), from an AICB workload (`from_aicb`)
or from a description of the parallelism (`transformer_step`); run it with `replay`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HERE = "orrery.models.taskgraph"
_HOMES = {
    "Builder": f"{_HERE}.graph",
    "Costs": f"{_HERE}.network",
    "GraphError": f"{_HERE}.graph",
    "TaskGraph": f"{_HERE}.graph",
    "Times": f"{_HERE}.executor",
    "TransformerJob": f"{_HERE}.transformer",
    "critical_path": f"{_HERE}.longest",
    "faults": f"{_HERE}.matching",
    "from_aicb": f"{_HERE}.aicb",
    "from_traces": f"{_HERE}.traces",
    "gpipe": f"{_HERE}.schedules",
    "interleaved": f"{_HERE}.schedules",
    "make_graph": f"{_HERE}.graph",
    "match": f"{_HERE}.matching",
    "one_f_one_b": f"{_HERE}.schedules",
    "read_traces": f"{_HERE}.traces",
    "replay": f"{_HERE}.executor",
    "to_traces": f"{_HERE}.traces",
    "transformer_step": f"{_HERE}.transformer",
    "write_traces": f"{_HERE}.traces",
}

__all__ = [
    "Builder", "Costs", "GraphError", "TaskGraph", "Times", "TransformerJob", "critical_path",
    "faults", "from_aicb", "from_traces", "gpipe", "interleaved", "make_graph", "match",
    "one_f_one_b", "read_traces", "replay", "to_traces", "transformer_step", "write_traces",
]  # fmt: skip

if TYPE_CHECKING:
    from orrery.models.taskgraph.aicb import from_aicb
    from orrery.models.taskgraph.executor import Times, replay
    from orrery.models.taskgraph.graph import Builder, GraphError, TaskGraph, make_graph
    from orrery.models.taskgraph.longest import critical_path
    from orrery.models.taskgraph.matching import faults, match
    from orrery.models.taskgraph.network import Costs
    from orrery.models.taskgraph.schedules import gpipe, interleaved, one_f_one_b
    from orrery.models.taskgraph.traces import from_traces, read_traces, to_traces, write_traces
    from orrery.models.taskgraph.transformer import TransformerJob, transformer_step


__getattr__, __dir__ = door(__name__, _HOMES)
