"""`Recording`: a job as it was traced, and how runs of `TraceRank` become one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from orrery.models.taskgraph.executor import Times
from orrery.models.taskgraph.graph import COLLECTIVE, OPS, RECV, TaskGraph
from orrery.models.taskgraph.transformer import TransformerJob
from orrery.parts.problem import Record
from orrery.world import World


class Recording(msgspec.Struct, frozen=True):
    """A traced job: its graph with the recorded durations, when everything ran, and where.

    `job` is its description, where one is known.
    """

    graph: TaskGraph
    times: Times
    world: World
    job: TransformerJob | None = None


def recorded(graph: TaskGraph, times: Times) -> TaskGraph:
    """The graph with the durations that a run showed.

    A collective's time counts from when the last rank that it needs had come, so that waiting for
    others is not taken for transfer; a receive takes none, since it waits for its send.
    """
    took = np.array(times.end_s - times.start_s)
    took[graph.kind == RECV] = 0.0
    for group, members in enumerate(graph.groups):
        mine = graph.group == group
        if not mine.any():
            continue
        table = np.stack([np.flatnonzero(mine & (graph.rank == rank)) for rank in members])
        came = times.start_s[table]
        for call in range(table.shape[1]):
            op = OPS[graph.op[table[0, call]]]
            root = int(graph.tag[table[0, call]]) % len(members)
            took[table[:, call]] = times.end_s[table[:, call]] - _base(op, came[:, call], root)
    took[graph.kind == COLLECTIVE] = np.maximum(took[graph.kind == COLLECTIVE], 0.0)
    return graph.with_durations(np.round(took * 1e9) / 1e9)


def _base(op: str, came: Any, root: int) -> Any:
    """From when on the members of a collective could go on."""
    if op in ("broadcast", "scatter"):
        return np.maximum(came, came[root])
    if op in ("reduce", "gather"):
        base = came.copy()
        base[root] = came.max()
        return base
    return np.full(len(came), came.max())


def times_of(graph: TaskGraph, records: Iterable[Record]) -> Times:
    """When every task ran, from what `TraceRank`s emitted; counted from the common beginning."""
    start, end = np.full(len(graph), np.nan), np.full(len(graph), np.nan)
    for record in records:
        values = record.values
        if "start_s" not in values:
            continue
        mine = np.flatnonzero(graph.rank == values["rank"])
        start[mine] = np.array(values["start_s"]) - values["began_s"]
        end[mine] = np.array(values["end_s"]) - values["began_s"]
    return Times(start, end, float(np.nanmax(end)) if np.isfinite(end).any() else 0.0)
