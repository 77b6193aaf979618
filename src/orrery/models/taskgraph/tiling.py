"""Programs: what one rank does, written once and tiled over all ranks that do the same.

A program names its groups and peers by slots; `tile` fills the slots for every rank with NumPy, so
that ten million tasks are made in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from orrery.base.errors import did_you_mean
from orrery.models.taskgraph.graph import (
    COLLECTIVE,
    COLUMNS,
    COMPUTE,
    FREE,
    MAIN,
    OPS,
    RECV,
    SEND,
    SIDE,
    GraphError,
    TaskGraph,
    make_graph,
)


class Program:
    """The tasks of one rank; `group` and `to` are slots that `tile` fills."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.after: list[list[int]] = []
        self.names: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def compute(
        self, duration_s: float = math.nan, *, flops: float = 0.0, bytes: float = 0.0,
        name: str = "", stream: int = MAIN, after: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """Work: its seconds, or flops and bytes."""
        return self._add(COMPUTE, stream, duration_s, flops, bytes, name=name, after=after)

    def collective(
        self, op: str, group: int, size_B: float, *, name: str = "", stream: int = SIDE,
        after: Sequence[int] = (), duration_s: float = math.nan,
    ) -> int:  # fmt: skip
        """A part in a collective of the group in this slot."""
        if op not in OPS:
            raise GraphError("op", f"no collective {op!r:.40}", did_you_mean(op, OPS))
        return self._add(COLLECTIVE, stream, duration_s, size_B=size_B, slot=group,
                         op=OPS.index(op), name=name, after=after)  # fmt: skip

    def send(
        self, to: int, size_B: float, *, tag: int = 0, name: str = "", stream: int = FREE,
        after: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """A message to the peer in this slot."""
        return self._add(SEND, stream, math.nan, size_B=size_B, slot=to, tag=tag, name=name,
                         after=after)  # fmt: skip

    def recv(
        self, source: int, size_B: float, *, tag: int = 0, name: str = "", stream: int = FREE,
        after: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """A message from the peer in this slot."""
        return self._add(RECV, stream, 0.0, size_B=size_B, slot=source, tag=tag, name=name,
                         after=after)  # fmt: skip

    def _add(
        self, kind: int, stream: int, duration_s: float, flops: float = 0.0, bytes: float = 0.0, *,
        size_B: float = 0.0, slot: int = -1, tag: int = 0, op: int = -1, name: str = "",
        after: Sequence[int] = (),
    ) -> int:  # fmt: skip
        label = self.names.setdefault(name, len(self.names))
        self.rows.append((kind, stream, duration_s, flops, bytes, size_B, slot, tag, op, label))
        self.after.append(list(after))
        return len(self.rows) - 1


class Tile(msgspec.Struct, frozen=True):
    """A program with the ranks that run it: `groups[i, slot]` and `peers[i, slot]` of rank i."""

    program: Program
    ranks: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    peers: npt.NDArray[np.int64]


def tile(tiles: Sequence[Tile], *, ranks: int, **more: Any) -> TaskGraph:
    """The graph of all ranks; `more` goes to `make_graph` (groups and the like)."""
    names: dict[str, int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    counts: list[Any] = []
    deps: list[Any] = []
    base = 0
    for each in tiles:
        many, size = len(each.ranks), len(each.program)
        if not many or not size:
            continue
        one = _columns(each.program, names)
        for name in ("kind", "stream", "duration_s", "flops", "bytes", "size_B", "tag", "op",
                     "name"):  # fmt: skip
            columns[name].append(np.tile(one[name], many))
        columns["rank"].append(np.repeat(each.ranks.astype(np.int32), size))
        slot, kind = one["slot"], one["kind"]
        columns["group"].append(_filled(each.groups, slot, kind == COLLECTIVE, many))
        ends = (kind == SEND) | (kind == RECV)
        columns["peer"].append(_filled(each.peers, slot, ends, many))
        lengths = np.array([len(after) for after in each.program.after], np.int64)
        flat = np.array([dep for after in each.program.after for dep in after], np.int64)
        counts.append(np.tile(lengths, many))
        offset = base + size * np.arange(many, dtype=np.int64)
        deps.append((flat[None, :] + offset[:, None]).reshape(-1).astype(np.int32))
        base += many * size
    joined = {
        name: np.concatenate(parts) if parts else np.empty(0) for name, parts in columns.items()
    }
    lengths = np.concatenate(counts) if counts else np.empty(0, np.int64)
    return make_graph(
        joined, names=tuple(names) or ("",), ranks=ranks,
        dep_starts=np.concatenate(([0], np.cumsum(lengths))),
        deps=np.concatenate(deps) if deps else np.empty(0, np.int32), **more,
    )  # fmt: skip


def _columns(program: Program, names: dict[str, int]) -> dict[str, Any]:
    labels = np.array([names.setdefault(name, len(names)) for name in program.names], np.int32)
    kind, stream, duration, flops, nbytes, size, slot, tag, op, label = zip(
        *program.rows, strict=True
    )
    return {
        "kind": np.array(kind, np.int8), "stream": np.array(stream, np.int8),
        "duration_s": np.array(duration), "flops": np.array(flops, np.float64),
        "bytes": np.array(nbytes, np.float64), "size_B": np.array(size, np.float64),
        "slot": np.array(slot, np.int64), "tag": np.array(tag, np.int64),
        "op": np.array(op, np.int8), "name": labels[np.array(label)],
    }  # fmt: skip


def _filled(table: Any, slot: Any, mine: Any, many: int) -> Any:
    """The slots of each rank filled from its row of the table; -1 for other kinds of task."""
    if not mine.any():
        return np.full(many * len(slot), -1, np.int32)
    if table.ndim != 2 or slot[mine].max() >= table.shape[1]:
        raise GraphError("slots", f"the program uses slot {slot[mine].max()}",
                         "give a group and a peer for each slot")  # fmt: skip
    filled = np.where(mine[None, :], table[:, np.where(mine, slot, 0)], -1)
    return filled.reshape(-1).astype(np.int32)
