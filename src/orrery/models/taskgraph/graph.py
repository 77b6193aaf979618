"""`TaskGraph`: a distributed job as tasks with dependencies, in columns.

A task is compute, memory traffic, one end of a message, or one rank's part in a collective. Tasks
of one stream of one rank run one after the other, in the order in which they stand; besides, a task
waits for its dependencies. A graph of ten million tasks is a handful of arrays.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from orrery.base.errors import SpecError, did_you_mean

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

KINDS = ("compute", "memory", "send", "recv", "collective")
COMPUTE, MEMORY, SEND, RECV, COLLECTIVE = range(5)
# As in the Chakra schema, so that traces need no translation.
OPS = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all",
    "reduce_scatter", "reduce_scatter_block", "barrier",
)  # fmt: skip
# Streams that the builders use: compute, and two directions of communication beside it.
MAIN, SIDE, OUT = 0, 1, 2
# A task that is in no stream waits for its dependencies alone.
FREE = -1
MOST_TASKS = 1 << 31


class GraphError(SpecError):
    """A task graph that cannot run: names the task, the rank, the fix."""


class TaskGraph(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks in columns; arrays are read-only.

    `duration_s` is what a task takes; NaN leaves it to the world (flops and bytes of compute by
    the roofline, messages and collectives by the links). `size_B` of a collective is its whole
    array: what an all-gather gives and a reduce-scatter takes, a rank's whole send buffer of an
    all-to-all. `group` is a place in `groups`, whose entries list ranks in ring order.

    A *folded* graph has one rank for each class of ranks that behave alike: `weight` says how many
    each stands for, `node` gives a node of the world for each, `group_nodes` the nodes of one real
    group for each entry of `groups`, and `node_class` the class of every node. In an ordinary graph
    rank r is node r and weighs 1. The `tag` of a collective is the place of its root in the group.
    """

    kind: npt.NDArray[np.int8]
    rank: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int8]
    duration_s: Floats
    flops: Floats
    bytes: Floats
    size_B: Floats
    peer: npt.NDArray[np.int32]
    tag: Ints
    group: npt.NDArray[np.int32]
    op: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]
    names: tuple[str, ...]
    dep_starts: Ints
    deps: npt.NDArray[np.int32]
    groups: tuple[tuple[int, ...], ...]
    group_names: tuple[str, ...]
    ranks: int
    weight: Ints
    node: Ints
    group_nodes: tuple[tuple[int, ...], ...] | None = None
    node_class: Ints | None = None
    source: str = ""

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def folded(self) -> bool:
        """Whether ranks stand for classes."""
        return self.group_nodes is not None

    def deps_of(self, task: int) -> list[int]:
        """What a task waits for."""
        return [int(d) for d in self.deps[self.dep_starts[task] : self.dep_starts[task + 1]]]

    def label(self, task: int) -> str:
        """A task as errors name it."""
        kind = KINDS[self.kind[task]]
        return f"task {task} ({self.names[self.name[task]] or kind}, rank {self.rank[task]})"

    def with_durations(self, duration_s: Any) -> TaskGraph:
        """The same graph with other durations."""
        values = np.array(duration_s, np.float64)
        if values.shape != self.duration_s.shape:
            raise GraphError("duration_s", f"has shape {values.shape}",
                             f"give one number for each of {len(self)} tasks")  # fmt: skip
        return msgspec.structs.replace(self, duration_s=_frozen(values))

    def without_communication_times(self) -> TaskGraph:
        """The same graph with messages and collectives left to the world."""
        return self.with_durations(np.where(self.kind >= SEND, np.nan, self.duration_s))

    def total_bytes(self) -> dict[str, float]:
        """Bytes of each kind of collective, and of messages, summed over calls (not over ranks)."""
        found: dict[str, float] = {}
        for group, members in enumerate(self.groups):
            first = min(members)
            mine = (self.group == group) & (self.rank == first)
            for op in np.unique(self.op[mine]):
                size = float(self.size_B[mine & (self.op == op)].sum())
                found[OPS[op]] = found.get(OPS[op], 0.0) + size
        sends = self.kind == SEND
        if sends.any():
            found["send"] = float(self.size_B[sends].sum())
        return found

    @property
    def hash(self) -> str:
        """16 hex digits of everything that a replay depends on."""
        digest = hashlib.sha256()
        for column in ("kind", "rank", "stream", "duration_s", "flops", "bytes", "size_B", "peer",
                       "tag", "group", "op", "dep_starts", "deps", "weight", "node"):  # fmt: skip
            digest.update(np.ascontiguousarray(getattr(self, column)).tobytes())
        digest.update(repr((self.groups, self.group_nodes)).encode())
        return digest.hexdigest()[:16]

    def __repr__(self) -> str:
        return f"TaskGraph({len(self)} tasks, {self.ranks} ranks, {len(self.deps)} dependencies)"


def _frozen(array: Any) -> Any:
    array.setflags(write=False)
    return array


class Builder:
    """Makes a graph task by task; every method gives the number of the task.

    >>> make = Builder(2)
    >>> work = make.compute(0, 1.0)
    >>> sent = make.send(0, 1, 1e6, after=[work])
    >>> make.graph().deps_of(sent)
    [0]
    """

    def __init__(self, ranks: int, source: str = "") -> None:
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
            raise GraphError("ranks", f"{ranks!r:.40} is refused", "give a whole number >= 1")
        self.ranks = ranks
        self.source = source
        self._rows: list[tuple[Any, ...]] = []
        self._after: list[list[int]] = []
        self._names: dict[str, int] = {}
        self._groups: dict[tuple[tuple[int, ...], str], int] = {}

    def group(self, ranks: Iterable[int], name: str = "") -> int:
        """A group of ranks in ring order; the same ranks and name give the same group."""
        members = tuple(int(rank) for rank in ranks)
        bad = [rank for rank in members if not 0 <= rank < self.ranks]
        if bad or len(set(members)) != len(members) or not members:
            raise GraphError("group", f"{members!r:.60} is refused",
                             f"name ranks 0 to {self.ranks - 1}, each once")  # fmt: skip
        return self._groups.setdefault((members, name), len(self._groups))

    def compute(
        self, rank: int, duration_s: float = math.nan, *, flops: float = 0.0, bytes: float = 0.0,
        name: str = "", stream: int = MAIN, after: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """Work on a rank: its seconds, or flops and bytes for the world's roofline."""
        return self._add(COMPUTE, rank, stream, duration_s, flops, bytes, name=name, after=after)

    def memory(
        self, rank: int, size_B: float, duration_s: float = math.nan, *, name: str = "",
        stream: int = MAIN, after: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """Bytes to or from the memory of a rank's device."""
        return self._add(MEMORY, rank, stream, duration_s, bytes=size_B, size_B=size_B, name=name,
                         after=after)  # fmt: skip

    def send(
        self, rank: int, to: int, size_B: float, *, tag: int = 0, duration_s: float = math.nan,
        name: str = "", stream: int = FREE, after: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """One end of a message; it ends when the last byte has arrived."""
        return self._add(SEND, rank, stream, duration_s, size_B=size_B, peer=to, tag=tag, name=name,
                         after=after)  # fmt: skip

    def recv(
        self, rank: int, source: int, size_B: float, *, tag: int = 0, name: str = "",
        stream: int = FREE, after: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """The other end; messages between two ranks under one tag match in order."""
        return self._add(RECV, rank, stream, 0.0, size_B=size_B, peer=source, tag=tag, name=name,
                         after=after)  # fmt: skip

    def collective(
        self, rank: int, op: str, group: int, size_B: float, *, duration_s: float = math.nan,
        name: str = "", stream: int = SIDE, after: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """A rank's part in a collective; the k-th call of every member is one collective."""
        if op not in OPS:
            raise GraphError("op", f"no collective {op!r:.40}", did_you_mean(op, OPS))
        if not 0 <= group < len(self._groups):
            raise GraphError("group", f"{group!r:.40} is no group", "make it with group(ranks)")
        return self._add(COLLECTIVE, rank, stream, duration_s, size_B=size_B, group=group,
                         op=OPS.index(op), name=name, after=after)  # fmt: skip

    def _add(
        self, kind: int, rank: int, stream: int, duration_s: float, flops: float = 0.0,
        bytes: float = 0.0, *, size_B: float = 0.0, peer: int = -1, tag: int = 0, group: int = -1,
        op: int = -1, name: str = "", after: Sequence[int] = (),
    ) -> int:  # fmt: skip
        place = len(self._rows)
        label = self._names.setdefault(name, len(self._names))
        self._rows.append((kind, rank, stream, duration_s, flops, bytes, size_B, peer, tag, group,
                           op, label))  # fmt: skip
        self._after.append([int(each) for each in after])
        return place

    def graph(self) -> TaskGraph:
        """The graph, checked."""
        columns = list(zip(*self._rows, strict=True)) if self._rows else [()] * 12
        counts = [len(each) for each in self._after]
        return make_graph(
            dict(zip(COLUMNS, columns, strict=True)), names=tuple(self._names) or ("",),
            dep_starts=np.concatenate(([0], np.cumsum(counts, dtype=np.int64))),
            deps=[dep for each in self._after for dep in each],
            groups=tuple(members for members, _ in self._groups),
            group_names=tuple(name for _, name in self._groups), ranks=self.ranks,
            source=self.source,
        )  # fmt: skip


COLUMNS: dict[str, Any] = {
    "kind": np.int8, "rank": np.int32, "stream": np.int8, "duration_s": np.float64,
    "flops": np.float64, "bytes": np.float64, "size_B": np.float64, "peer": np.int32,
    "tag": np.int64, "group": np.int32, "op": np.int8, "name": np.int32,
}  # fmt: skip
_ABSENT = {"duration_s": np.nan, "peer": -1, "group": -1, "op": -1}


def make_graph(
    columns: dict[str, Any], *, names: tuple[str, ...], dep_starts: Any, deps: Any,
    groups: tuple[tuple[int, ...], ...] = (), group_names: tuple[str, ...] = (), ranks: int,
    weight: Any = None, node: Any = None,
    group_nodes: tuple[tuple[int, ...], ...] | None = None, node_class: Any = None,
    source: str = "",
) -> TaskGraph:  # fmt: skip
    """A graph from columns; what does not fit is refused with its place."""
    size = len(columns["kind"])
    made = {}
    for name, kind in COLUMNS.items():
        given = columns.get(name)
        values = np.full(size, _ABSENT.get(name, 0), kind) if given is None else np.array(given)
        made[name] = _frozen(np.ascontiguousarray(values.astype(kind)))
    starts = _frozen(np.ascontiguousarray(dep_starts, np.int64))
    before = _frozen(np.ascontiguousarray(deps, np.int32))
    graph = TaskGraph(
        **made, names=names, dep_starts=starts, deps=before, groups=groups,
        group_names=group_names or ("",) * len(groups), ranks=ranks,
        weight=_frozen(np.ones(ranks, np.int64) if weight is None else np.array(weight, np.int64)),
        node=_frozen(np.arange(ranks) if node is None else np.array(node, np.int64)),
        group_nodes=group_nodes, node_class=node_class, source=source,
    )  # fmt: skip
    _check(graph)
    return graph


def _check(graph: TaskGraph) -> None:
    size = len(graph)
    if size > MOST_TASKS:
        raise GraphError("tasks", f"{size} of them", f"give at most {MOST_TASKS}")
    _refuse(graph, (graph.rank < 0) | (graph.rank >= graph.ranks), "rank",
            f"give 0 to {graph.ranks - 1}")  # fmt: skip
    _refuse(graph, (graph.kind < 0) | (graph.kind > COLLECTIVE), "kind", "see KINDS")
    for name in ("flops", "bytes", "size_B", "duration_s"):
        values = getattr(graph, name)
        wrong = (values < 0) | np.isinf(values)
        if name != "duration_s":
            wrong = wrong | np.isnan(values)
        _refuse(graph, wrong, name, "give a finite number >= 0")
    ends = (graph.kind == SEND) | (graph.kind == RECV)
    far = (graph.peer < 0) | (graph.peer >= graph.ranks) | (graph.peer == graph.rank)
    _refuse(graph, ends & far, "peer", "name another rank")
    calls = graph.kind == COLLECTIVE
    _refuse(graph, calls & ((graph.group < 0) | (graph.group >= len(graph.groups))), "group",
            "name a group of the graph")  # fmt: skip
    _refuse(graph, calls & ((graph.op < 0) | (graph.op >= len(OPS))), "op", "see OPS")
    if len(graph.deps) and not (graph.deps.min() >= 0 and graph.deps.max() < size):
        raise GraphError("deps", "names a task that is not there", f"give 0 to {size - 1}")
    if len(graph.dep_starts) != size + 1 or graph.dep_starts[-1] != len(graph.deps):
        raise GraphError(
            "dep_starts", "does not fit the tasks", "give one start a task and the end"
        )


def _refuse(graph: TaskGraph, wrong: Any, field: str, fix: str) -> None:
    if wrong.any():
        task = int(np.flatnonzero(wrong)[0])
        raise GraphError(f"task {task}.{field}", f"{getattr(graph, field)[task]} is refused", fix)
