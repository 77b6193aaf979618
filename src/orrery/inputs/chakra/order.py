"""Whether a trace can be executed: ids once each, no cycle; and columns from node objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from orrery.inputs.chakra.columns import NUMBERS, EtColumns, Ints
from orrery.inputs.chakra.nodes import EtNode, Metadata
from orrery.inputs.chakra.schema import TraceError

Deps = Literal["auto", "data", "all"]


def columns_of(metadata: Metadata, nodes: Iterable[EtNode], source: str = "") -> EtColumns:
    """Node objects as columns."""
    rows = list(nodes)
    names: dict[str, int] = {}
    groups: dict[str, int] = {}
    name = [names.setdefault(node.name, len(names)) for node in rows]
    attrs: dict[str, Ints] = {}
    group = np.full(len(rows), -1, np.int32)
    for i, node in enumerate(rows):
        for each in node.attrs:
            if each.name in NUMBERS and isinstance(each.value, int):
                column = attrs.setdefault(each.name, np.full(len(rows), -1, np.int64))
                column[i] = int(each.value)
            elif each.name == "pg_name" and isinstance(each.value, str):
                group[i] = groups.setdefault(each.value, len(groups))
    return EtColumns(
        metadata=metadata, id=np.array([node.id for node in rows], np.int64),
        type=np.array([node.type for node in rows], np.int8), name=np.array(name, np.int32),
        names=list(names), start_us=np.array([node.start_us for node in rows], np.int64),
        duration_us=np.array([node.duration_us for node in rows], np.int64),
        ctrl_starts=_starts([node.ctrl_deps for node in rows]),
        ctrl=np.array([dep for node in rows for dep in node.ctrl_deps], np.int64),
        data_starts=_starts([node.data_deps for node in rows]),
        data=np.array([dep for node in rows for dep in node.data_deps], np.int64),
        group=group, groups=list(groups), attrs=attrs, source=source,
    )  # fmt: skip


def _starts(lists: list[list[int]]) -> Ints:
    return np.concatenate(([0], np.cumsum([len(each) for each in lists]))).astype(np.int64)


def places(columns: EtColumns, ids: Ints) -> Ints:
    """The rows of these node ids; -1 for an id that no node has."""
    order = np.argsort(columns.id, kind="stable")
    ranked = columns.id[order]
    at = np.minimum(np.searchsorted(ranked, ids), max(len(ranked) - 1, 0))
    if not len(ranked):
        return np.full(len(ids), -1, np.int64)
    return np.where(ranked[at] == ids, order[at], -1)


def check_order(columns: EtColumns, deps: Deps = "auto") -> tuple[Ints, Ints, Ints]:
    """(row, row it waits for, ids that no node has); refuses repeated ids and cycles by name.

    `deps` says which edges order the execution: "data", "all", or "auto", which is "data" for
    traces that a PyTorch converter wrote (their metadata names a PyTorch `schema`): there the
    control edges are the call tree, in which a caller may well wait for what it called. The public
    feeder goes by the data edges alone too.

    A dependency on a node that is not in the file is common (tools leave out the root of the call
    tree); it is told, and counts as met.
    """
    if deps not in ("auto", "data", "all"):
        raise TraceError(f'deps={deps!r}: give "auto", "data" or "all"')
    control = deps == "all" or (deps == "auto" and columns.metadata.attr("schema") is None)
    where = columns.source or "trace"
    ranked = np.sort(columns.id)
    twice = ranked[1:][ranked[1:] == ranked[:-1]]
    if twice.size:
        raise TraceError(f"{where}: node {twice[0]} comes twice; ids must differ", int(twice[0]))
    owner = np.repeat(np.arange(len(columns)), np.diff(columns.data_starts))
    ids = columns.data
    if control:
        callers = np.repeat(np.arange(len(columns)), np.diff(columns.ctrl_starts))
        owner, ids = np.concatenate([callers, owner]), np.concatenate([columns.ctrl, ids])
    at = places(columns, ids)
    there = at >= 0
    owner, before, missing = owner[there], at[there], np.unique(ids[~there])
    if (before >= owner).any():
        _refuse_cycle(columns, owner, before, where)
    return owner, before, missing


def _refuse_cycle(columns: EtColumns, owner: Ints, before: Ints, where: str) -> None:
    """Order by who is ready (Kahn, 1962); what is left over holds a cycle, which is named."""
    size = len(columns)
    waits = np.bincount(owner, minlength=size).tolist()
    order = np.argsort(before, kind="stable")
    after = owner[order].tolist()
    starts = np.searchsorted(before[order], np.arange(size + 1)).tolist()
    ready = [i for i in range(size) if waits[i] == 0]
    while ready:
        one = ready.pop()
        for k in range(starts[one], starts[one + 1]):
            other = after[k]
            waits[other] -= 1
            if waits[other] == 0:
                ready.append(other)
    left = [i for i in range(size) if waits[i] > 0]
    if not left:
        return
    stuck = set(left)
    blocker = {int(o): int(b) for o, b in zip(owner, before, strict=True) if int(b) in stuck}
    seen: dict[int, int] = {}
    at = left[0]
    while at not in seen:
        seen[at] = len(seen)
        at = blocker[at]
    ring = list(seen)[seen[at] :]
    ids = [int(columns.id[i]) for i in ring]
    shown = " <- ".join(str(id) for id in [*ids[:6], *(["…"] if len(ids) > 6 else []), ids[0]])
    raise TraceError(f"{where}: node {ids[0]} waits for itself: {shown}; a trace has no cycle",
                     ids[0])  # fmt: skip


__all__ = ["check_order", "columns_of", "places"]
