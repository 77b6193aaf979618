"""Chakra execution traces of any run: `write(run, "run.et")` gives `run.0.et`, `run.1.et` …

One file is one node of the run. Messages need `run(…, trace=True)`; to know compute and bulk
transfers too, a run in virtual time is made once more and tapped, and must have the same digest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from orrery.base.errors import UsageError
from orrery.lab import spans
from orrery.models.taskgraph.executor import Times
from orrery.models.taskgraph.graph import TaskGraph
from orrery.models.taskgraph.traces import write_traces
from orrery.systems.ops.chakra.spans import from_spans

if TYPE_CHECKING:
    from orrery.lab.run import Run


def graph_of(run: Run) -> tuple[TaskGraph, Times]:
    """(graph, times) of a run: what its nodes sent, moved and computed, and why then."""
    known: Any = run
    if run.engine == "virtual" and "work_spans" not in run.extra:
        from orrery.lab.replay import replay

        known = replay(run).run
    return from_spans(spans.of(known), until_ns=round(run.seconds * 1e9))


def write(run: Run, path: str | Path) -> list[Path]:
    """Write the traces of a run beside `path`, whose suffix is .et; gives the files."""
    target = Path(path)
    if target.suffix != ".et":
        raise UsageError(f"{target}: end the name with .et, for example run.et")
    graph, times = graph_of(run)
    return write_traces(target.parent, graph, times, stem=target.stem)
