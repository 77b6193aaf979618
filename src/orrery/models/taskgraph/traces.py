"""Task graphs from Chakra execution traces, and traces from graphs.

One trace is one rank. Process groups are told by an attribute of the metadata for each,
`pg:<name>` = its ranks; a trace without them has its groups made of the ranks that call them, and
calls without a group belong to all ranks. The metadata's `ranks` says how many files there should
be, so that a missing one is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from orrery.inputs.chakra import EtColumns, TraceError, check_order, load, save
from orrery.inputs.chakra.nodes import Attr, Metadata
from orrery.inputs.chakra.order import Deps
from orrery.inputs.chakra.schema import (
    COMM_COLL,
    COMM_RECV,
    COMM_SEND,
    COMP,
    MEM_LOAD,
    MEM_STORE,
)
from orrery.models.taskgraph.executor import Times
from orrery.models.taskgraph.graph import (
    COLLECTIVE,
    COMPUTE,
    FREE,
    MEMORY,
    OPS,
    RECV,
    SEND,
    GraphError,
    Ints,
    TaskGraph,
    make_graph,
)

_KIND_OF = {MEM_LOAD: MEMORY, MEM_STORE: MEMORY, COMM_SEND: SEND, COMM_RECV: RECV,
            COMM_COLL: COLLECTIVE}  # fmt: skip
_TYPE_OF = {COMPUTE: COMP, MEMORY: MEM_LOAD, SEND: COMM_SEND, RECV: COMM_RECV,
            COLLECTIVE: COMM_COLL}  # fmt: skip
_FILE = re.compile(r"\.(\d+)\.et$")


def from_traces(
    traces: Mapping[int, EtColumns], *, groups: Mapping[str, Any] | None = None,
    ranks: int | None = None, deps: Deps = "auto",
) -> TaskGraph:  # fmt: skip
    """The graph of some ranks' traces; `groups` names the ranks of process groups.

    Whether the traces agree with one another is for `faults` to say.
    """
    if not traces:
        raise TraceError("no traces; give at least one rank's")
    told = max((_ranks(each) for each in traces.values()), default=0)
    count = max(ranks or 0, told, max(traces) + 1)
    known = _known_groups(traces, groups)
    parts: dict[str, list[Any]] = {}
    names: dict[str, int] = {}
    owner: list[Any] = []
    before: list[Any] = []
    base = 0
    for rank in sorted(traces):
        columns = traces[rank]
        row, wait, _ = check_order(columns, deps)
        owner.append(row + base)
        before.append(wait + base)
        for name, values in _columns(columns, rank, known, count, names).items():
            parts.setdefault(name, []).append(values)
        base += len(columns)
    after, waits = np.concatenate(owner), np.concatenate(before)
    pairs = np.unique(np.stack([after, waits], axis=1), axis=0) if len(after) else np.empty((0, 2))
    starts = np.zeros(base + 1, np.int64)
    np.cumsum(np.bincount(pairs[:, 0].astype(np.int64), minlength=base), out=starts[1:])
    return make_graph(
        {name: np.concatenate(values) for name, values in parts.items()},
        names=tuple(names) or ("",), dep_starts=starts, deps=pairs[:, 1],
        groups=tuple(tuple(members) for _, members in known.values()),
        group_names=tuple(known), ranks=count, source=next(iter(traces.values())).source,
    )  # fmt: skip


def _ranks(columns: EtColumns) -> int:
    value = columns.metadata.attr("ranks", 0)
    return int(value) if isinstance(value, int) else 0


def _known_groups(
    traces: Mapping[int, EtColumns], given: Mapping[str, Any] | None
) -> dict[str, tuple[int, list[int]]]:
    """name -> (number, ranks): as told, else as the callers show."""
    found: dict[str, list[int]] = {}
    told: dict[str, list[int]] = {name: list(ranks) for name, ranks in (given or {}).items()}
    for columns in traces.values():
        for attr in columns.metadata.attrs:
            if attr.name.startswith("pg:") and isinstance(attr.value, list):
                told.setdefault(attr.name[3:], [int(rank) for rank in attr.value])
    for rank in sorted(traces):
        columns = traces[rank]
        calls = columns.type == COMM_COLL
        for name in {_group_name(columns, int(g)) for g in np.unique(columns.group[calls])}:
            found.setdefault(name, []).append(rank)
    everyone = list(range(max([*traces, *(_ranks(c) - 1 for c in traces.values())]) + 1))
    if "" in found:
        found[""] = everyone
    names = sorted({*found, *told})
    return {name: (i, told.get(name, found.get(name, []))) for i, name in enumerate(names)}


def _group_name(columns: EtColumns, group: int) -> str:
    return columns.groups[group] if group >= 0 else ""


def _columns(
    columns: EtColumns, rank: int, known: dict[str, tuple[int, list[int]]], ranks: int,
    names: dict[str, int],
) -> dict[str, Any]:  # fmt: skip
    size = len(columns)
    kind = np.full(size, COMPUTE, np.int8)
    for given, ours in _KIND_OF.items():
        kind[columns.type == given] = ours
    exact_ns = columns.number("duration_ns")
    known_ns = np.where(exact_ns >= 0, exact_ns, columns.duration_us * 1000)
    duration = known_ns / 1e9
    # A communication without a time was not measured; work without one took none, unless its size
    # is told.
    unmeasured = (kind >= SEND) & (exact_ns < 0) & (columns.duration_us == 0)
    flops = np.maximum(columns.number("num_ops"), 0).astype(np.float64)
    moved = np.maximum(columns.number("tensor_size"), 0).astype(np.float64)
    unmeasured |= (kind < SEND) & (known_ns == 0) & (exact_ns < 0) & ((flops > 0) | (moved > 0))
    calls = np.flatnonzero(kind == COLLECTIVE)
    group = np.full(size, -1, np.int32)
    op = np.full(size, -1, np.int8)
    if calls.size:
        lookup = {g: known[_group_name(columns, g)][0] for g in
                  np.unique(columns.group[calls]).tolist()}  # fmt: skip
        group[calls] = [lookup[g] for g in columns.group[calls].tolist()]
        types = columns.number("comm_type")[calls]
        op[calls] = np.where((types >= 0) & (types < len(OPS)), types, OPS.index("barrier"))
    peer = np.full(size, -1, np.int32)
    sends, recvs = kind == SEND, kind == RECV
    peer[sends] = columns.number("comm_dst")[sends]
    peer[recvs] = columns.number("comm_src")[recvs]
    labels = [names.setdefault(name, len(names)) for name in columns.names]
    tag = np.maximum(columns.number("comm_tag"), 0)
    tag[calls] = np.maximum(columns.number("comm_root"), 0)[calls]
    return {
        "kind": kind, "rank": np.full(size, rank, np.int32), "stream": np.full(size, FREE, np.int8),
        "duration_s": np.where(unmeasured, np.nan, duration), "flops": flops, "bytes": moved,
        "size_B": np.where(kind >= SEND, np.maximum(columns.number("comm_size"), 0), moved),
        "peer": peer, "tag": tag, "group": group, "op": op,
        "name": np.array(labels, np.int32)[columns.name] if size else np.empty(0, np.int32),
    }  # fmt: skip


# -- the way back


def to_traces(graph: TaskGraph, times: Times | None = None) -> dict[int, EtColumns]:
    """A trace for each rank; with `times`, of a replay, they carry when everything ran."""
    if graph.folded:
        raise GraphError(
            "graph", "is folded, and a trace is of one rank", "make it with fold=False"
        )
    owner = np.repeat(np.arange(len(graph)), np.diff(graph.dep_starts))
    across = graph.rank[owner] != graph.rank[graph.deps]
    if across.any():
        task = int(owner[np.flatnonzero(across)[0]])
        raise GraphError(f"task {task}", f"{graph.label(task)} waits for another rank's task",
                         "send it a message instead")  # fmt: skip
    streams = _stream_before(graph)
    return {rank: _trace(graph, rank, times, owner, streams) for rank in range(graph.ranks)}


def _stream_before(graph: TaskGraph) -> Ints:
    """The task before each in its stream; -1 for the first."""
    before = np.full(len(graph), -1, np.int64)
    tasks = np.flatnonzero(graph.stream != FREE)
    lane = graph.rank[tasks].astype(np.int64) * 256 + graph.stream[tasks]
    order = np.argsort(lane, kind="stable")
    tasks, lane = tasks[order], lane[order]
    same = np.flatnonzero(lane[1:] == lane[:-1])
    before[tasks[same + 1]] = tasks[same]
    return before


def _trace(graph: TaskGraph, rank: int, times: Times | None, owner: Any, streams: Any) -> EtColumns:
    tasks = np.flatnonzero(graph.rank == rank)
    place = np.full(len(graph) + 1, -1, np.int64)
    place[tasks] = np.arange(len(tasks))
    mine = graph.rank[owner] == rank if len(owner) else np.empty(0, bool)
    kind = graph.kind[tasks]
    took_s = graph.duration_s[tasks]
    start_s = np.zeros(len(tasks))
    if times is not None:
        # A receive takes as long as it waits; its own length stays 0 for the next replay.
        took_s = np.where(np.isnan(took_s), (times.end_s - times.start_s)[tasks], took_s)
        start_s = times.start_s[tasks]
    known = ~np.isnan(took_s)
    took_ns = np.where(known, np.round(np.where(known, took_s, 0) * 1e9), -1).astype(np.int64)
    start_ns = np.round(start_s * 1e9).astype(np.int64)
    comm = kind >= SEND
    attrs: dict[str, Ints] = {"duration_ns": took_ns}
    if times is not None:
        attrs["start_ns"] = start_ns
    _add(attrs, "comm_size", comm, graph.size_B[tasks])
    _add(attrs, "comm_type", kind == COLLECTIVE, graph.op[tasks])
    _add(attrs, "comm_root", (kind == COLLECTIVE) & (graph.tag[tasks] > 0), graph.tag[tasks])
    p2p = (kind == SEND) | (kind == RECV)
    _add(attrs, "comm_tag", p2p, graph.tag[tasks])
    _add(attrs, "comm_src", p2p, np.where(kind == SEND, rank, graph.peer[tasks]))
    _add(attrs, "comm_dst", p2p, np.where(kind == SEND, graph.peer[tasks], rank))
    _add(attrs, "num_ops", ~comm & (graph.flops[tasks] > 0), graph.flops[tasks])
    _add(attrs, "tensor_size", ~comm & (graph.bytes[tasks] > 0), graph.bytes[tasks])
    labels, name = np.unique(graph.name[tasks], return_inverse=True)
    used, group = np.unique(graph.group[tasks], return_inverse=True)
    shown = [g for g in used.tolist() if g >= 0]
    skip = len(used) - len(shown)
    before = streams[tasks]
    ordered = np.flatnonzero(before >= 0)
    ctrl_starts = np.zeros(len(tasks) + 1, np.int64)
    ctrl_starts[1:] = np.cumsum(before >= 0)
    counts = np.bincount(place[owner[mine]], minlength=len(tasks))
    return EtColumns(
        metadata=_metadata(graph, rank), id=np.arange(len(tasks), dtype=np.int64),
        type=np.array([_TYPE_OF[k] for k in range(5)], np.int8)[kind],
        name=name.reshape(-1).astype(np.int32), names=[graph.names[i] for i in labels.tolist()],
        start_us=start_ns // 1000, duration_us=np.maximum(took_ns, 0) // 1000,
        ctrl_starts=ctrl_starts, ctrl=place[before[ordered]],
        data_starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        data=place[graph.deps[mine]], group=(group.reshape(-1) - skip).astype(np.int32),
        groups=[_group_label(graph, g) for g in shown], attrs=attrs, source=graph.source,
    )  # fmt: skip


def _add(attrs: dict[str, Ints], name: str, mine: Any, values: Any) -> None:
    if mine.any():
        attrs[name] = np.where(mine, np.round(values), -1).astype(np.int64)


def _group_label(graph: TaskGraph, group: int) -> str:
    return graph.group_names[group] or f"group {group}"


def _metadata(graph: TaskGraph, rank: int) -> Metadata:
    attrs = [Attr(name="rank", kind="int64_val", value=rank),
             Attr(name="ranks", kind="int64_val", value=graph.ranks)]  # fmt: skip
    for group, members in enumerate(graph.groups):
        if rank in members:
            attrs.append(Attr(name=f"pg:{_group_label(graph, group)}", kind="int32_list",
                              value=list(members)))  # fmt: skip
    return Metadata(attrs=attrs)


# -- files


def write_traces(folder: str | Path, graph: TaskGraph, times: Times | None = None,
                 stem: str = "trace") -> list[Path]:  # fmt: skip
    """Write `<stem>.<rank>.et` for every rank; gives the paths."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank, columns in to_traces(graph, times).items():
        paths.append(place / f"{stem}.{rank}.et")
        save(paths[-1], columns)
    return paths


def read_traces(folder: str | Path) -> dict[int, EtColumns]:
    """The traces of a folder, by rank: files called `….<rank>.et`."""
    found: dict[int, EtColumns] = {}
    place = Path(folder)
    for path in sorted(place.iterdir()) if place.is_dir() else []:
        match = _FILE.search(path.name)
        if match is None:
            continue
        rank = int(match[1])
        if rank in found:
            raise TraceError(f"{path}: rank {rank} has another trace; keep one folder for a job")
        found[rank] = load(path)
    if not found:
        raise TraceError(f"{folder}: has no files called ….<rank>.et")
    return found
