"""A whole trace as NumPy columns, decoded many nodes at a time.

The decoder steps through the fields of all messages of a block at once: each step reads one key and
one value of every message that still has some. A trace of a million nodes takes seconds and far
less memory than an object for each node would. What the columns do not hold (tensor texts, unknown
attributes) is left out; `open_trace` keeps everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from orrery.inputs.chakra import schema, wire
from orrery.inputs.chakra.nodes import Metadata, decode_metadata, encode_metadata
from orrery.inputs.chakra.schema import TraceError
from orrery.inputs.chakra.stream import _opened, blocks, write_messages

Ints = npt.NDArray[np.int64]
# Attributes that become columns of numbers; -1 stands for one that is not there.
NUMBERS = (
    "comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "comm_root", "is_cpu_op",
    "num_ops", "tensor_size", "stream", "start_ns", "duration_ns",
)  # fmt: skip
BLOCK_B = 1 << 24


class EtColumns(msgspec.Struct, frozen=True):
    """One rank's trace: a row for each node, dependencies as ids in ragged rows.

    `attrs` holds a column for each name of `NUMBERS` that occurs. `name` and `group` are places in
    `names` and `groups` (-1: no process group).
    """

    metadata: Metadata
    id: Ints
    type: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]
    names: list[str]
    start_us: Ints
    duration_us: Ints
    ctrl_starts: Ints
    ctrl: Ints
    data_starts: Ints
    data: Ints
    group: npt.NDArray[np.int32]
    groups: list[str]
    attrs: dict[str, Ints]
    source: str = ""

    def __len__(self) -> int:
        return len(self.id)

    def number(self, name: str) -> Ints:
        """A column of an attribute; -1 everywhere where no node has it."""
        found = self.attrs.get(name)
        return np.full(len(self), -1, np.int64) if found is None else found


class _Block:
    """The messages of one block while they are decoded."""

    def __init__(self, data: bytes) -> None:
        self.bytes = np.frombuffer(data + bytes(16), np.uint8)
        # Eight bytes from any place, as one number.
        self.words = np.ndarray((len(self.bytes) - 7,), np.dtype("<u8"), self.bytes, 0, (1,))

    def varints(self, at: Ints) -> tuple[npt.NDArray[np.uint64], Ints]:
        """(numbers, where each ends) of the varints at these places."""
        byte = self.bytes[at]
        value = (byte & 127).astype(np.uint64)
        end = at + 1
        more = np.flatnonzero(byte > 127)
        shift = 7
        while more.size:
            if shift > 63:
                raise TraceError("a number has more than ten bytes")
            byte = self.bytes[np.minimum(end[more], len(self.bytes) - 1)]
            value[more] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
            end[more] += 1
            more = more[byte > 127]
            shift += 7
        return value, end

    def steps(self, start: Ints, end: Ints) -> Iterator[tuple[Ints, Any, Any, Any, Ints, Ints]]:
        """Field after field: (which messages, field, wire type, value, begin, end of the value)."""
        at, who = start.copy(), np.flatnonzero(start < end)
        while who.size:
            key, after = self.varints(at[who])
            number, kind = (key >> np.uint64(3)).astype(np.int64), (key & np.uint64(7)).astype(int)
            value = np.zeros(len(who), np.uint64)
            begin, stop = after.copy(), after.copy()
            small = np.flatnonzero((kind == wire.VARINT) | (kind == wire.BYTES))
            value[small], stop[small] = self.varints(after[small])
            long = np.flatnonzero(kind == wire.BYTES)
            length = value[long]
            if length.size and int(length.max()) > schema.MOST_MESSAGE_B:
                raise TraceError("a field runs over the end of its message")
            begin[long] = stop[long]
            stop[long] += length.astype(np.int64)
            stop[kind == wire.FIXED64] += 8
            stop[kind == wire.FIXED32] += 4
            bad = (stop > end[who]) | (number == 0) | ~np.isin(kind, (0, 1, 2, 5))
            if bad.any():
                raise _Damaged(int(who[np.flatnonzero(bad)[0]]))
            yield who, number, kind, value, begin, stop
            at[who] = stop
            who = who[stop < end[who]]

    def packed(self, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
        """(owner, number) of every varint in these packed lists."""
        length = end - begin
        owner = np.repeat(np.arange(len(begin)), length)
        place = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
        data = self.bytes[np.repeat(begin, length) + place]
        last = np.flatnonzero(data < 128)
        if not data.size:
            return owner, owner
        if data[-1] > 127 or not np.isin(np.cumsum(length)[length > 0] - 1, last).all():
            raise TraceError("a packed list ends inside a number")
        first = np.concatenate(([0], last[:-1] + 1))
        nth = np.arange(len(data)) - np.repeat(first, np.diff(np.append(first, len(data))))
        if int(nth.max()) > 9:
            raise TraceError("a number has more than ten bytes")
        piece = (data & 127).astype(np.uint64) << (np.uint64(7) * nth.astype(np.uint64))
        return owner[last], np.add.reduceat(piece, first).astype(np.int64)


class _Damaged(Exception):
    """A message of the block is damaged: its place."""

    def __init__(self, place: int) -> None:
        self.place = place


class _Gather:
    """The columns as they grow, block by block."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Any]] = {}
        self.names: dict[bytes, int] = {}
        self.groups: dict[bytes, int] = {}
        self.count = 0

    def add(self, name: str, values: Any) -> None:
        self.parts.setdefault(name, []).append(values)

    def joined(self, name: str, kind: Any, empty: Any = None) -> Any:
        parts = self.parts.get(name)
        if not parts:
            return np.empty(0, kind) if empty is None else empty
        return np.concatenate(parts).astype(kind, copy=False)


def load(path: str | Path) -> EtColumns:
    """A trace file as columns; damaged or truncated files are refused, naming the node."""
    gather = _Gather()
    metadata: Metadata | None = None
    with _opened(path) as file:
        for data, bounds in blocks(file, str(path), BLOCK_B):
            if metadata is None:
                metadata = _head(data[bounds[0] : bounds[1]], path)
                bounds = bounds[2:]
            ends = np.array(bounds, np.int64).reshape(-1, 2)
            try:
                _decode(_Block(data), data, ends[:, 0], ends[:, 1], gather)
            except _Damaged as failure:
                place = gather.count + failure.place
                raise TraceError(f"{path}: node number {place} is damaged; copy it again") from None
            except TraceError as failure:
                where = f"after node number {gather.count}"
                raise TraceError(f"{path}: {where}: {failure}") from None
            gather.count += len(ends)
    if metadata is None:
        raise TraceError(f"{path}: is empty; a trace begins with its GlobalMetadata")
    return _columns(gather, metadata, str(path))


def _head(message: bytes, path: str | Path) -> Metadata:
    try:
        return decode_metadata(message)
    except TraceError as failure:
        raise TraceError(f"{path}: the metadata is damaged: {failure}") from None


_PLAIN = {schema.ID: "id", schema.TYPE: "type", schema.START_US: "start_us",
          schema.DURATION_US: "duration_us"}  # fmt: skip


def _decode(block: _Block, data: bytes, start: Ints, end: Ints, gather: _Gather) -> None:
    size, base = len(start), gather.count
    plain = {name: np.zeros(size, np.int64) for name in _PLAIN.values()}
    name = np.zeros((size, 2), np.int64)
    deps: dict[int, list[tuple[Ints, Ints]]] = {schema.CTRL_DEPS: [], schema.DATA_DEPS: []}
    attrs: list[tuple[Ints, Ints, Ints]] = []
    for who, number, kind, value, begin, stop in block.steps(start, end):
        numeric, long = kind == wire.VARINT, kind == wire.BYTES
        for field, column in _PLAIN.items():
            mine = numeric & (number == field)
            plain[column][who[mine]] = value[mine].astype(np.int64)
        mine = long & (number == schema.NAME)
        name[who[mine], 0], name[who[mine], 1] = begin[mine], stop[mine]
        for field, found in deps.items():
            mine = long & (number == field)
            if mine.any():
                owner, listed = block.packed(begin[mine], stop[mine])
                found.append((who[mine][owner], listed))
            mine = numeric & (number == field)
            if mine.any():
                found.append((who[mine], value[mine].astype(np.int64)))
        mine = long & (number == schema.ATTR)
        if mine.any():
            attrs.append((who[mine], begin[mine], stop[mine]))
    for column, values in plain.items():
        gather.add(column, values)
    known, spans = gather.names, name.tolist()
    gather.add("name", np.array(
        [known.setdefault(data[a:b], len(known)) for a, b in spans], np.int32))  # fmt: skip
    for field, found in deps.items():
        owner = np.concatenate([each[0] for each in found]) if found else np.empty(0, np.int64)
        listed = np.concatenate([each[1] for each in found]) if found else np.empty(0, np.int64)
        order = np.argsort(owner, kind="stable")
        gather.add(f"deps {field}", listed[order])
        gather.add(f"counts {field}", np.bincount(owner, minlength=size))
    group = np.full(size, -1, np.int32)
    if attrs:
        who, begin, stop = (np.concatenate([each[i] for each in attrs]) for i in range(3))
        _decode_attrs(block, data, who, begin, stop, group, gather, base, size)
    gather.add("group", group)


def _decode_attrs(
    block: _Block, data: bytes, owner: Ints, start: Ints, end: Ints, group: Any, gather: _Gather,
    base: int, size: int,
) -> None:  # fmt: skip
    label = np.zeros((len(owner), 2), np.int64)
    number = np.zeros(len(owner), np.int64)
    held = np.zeros(len(owner), np.int64)
    place = np.zeros((len(owner), 2), np.int64)
    for who, field, kind, value, begin, stop in block.steps(start, end):
        mine = (field == schema.ATTR_NAME) & (kind == wire.BYTES)
        label[who[mine], 0], label[who[mine], 1] = begin[mine], stop[mine]
        mine = field > schema.ATTR_DOC
        number[who[mine]] = field[mine]
        held[who[mine]] = value[mine].astype(np.int64)
        place[who[mine], 0], place[who[mine], 1] = begin[mine], stop[mine]
    for name in NUMBERS:
        mine = np.flatnonzero(_called(block, label, name))
        # Any kind of whole number will do: tools differ in how they write one attribute.
        whole = mine[np.isin(number[mine], _WHOLE)]
        if whole.size:
            column = np.full(size, -1, np.int64)
            column[owner[whole]] = held[whole]
            gather.add(f"attr {name}", (base, column))
    mine = np.flatnonzero(_called(block, label, "pg_name") & (number == _STRING))
    known = gather.groups
    for i in mine.tolist():
        key = data[place[i, 0] : place[i, 1]]
        group[owner[i]] = known.setdefault(key, len(known))


_WHOLE = [schema.FIELD_OF_KIND[f"{kind}_val"] for kind in
          ("int32", "int64", "uint32", "uint64", "bool")]  # fmt: skip
_STRING = schema.FIELD_OF_KIND["string_val"]


def _called(block: _Block, label: Ints, name: str) -> Any:
    """Which of these texts are this name; names of up to 16 letters are compared whole."""
    text = name.encode()
    length = len(text)
    right = label[:, 1] - label[:, 0] == length
    first = block.words[label[:, 0]]
    if length < 8:
        mask = np.uint64((1 << 8 * length) - 1)
        return right & (first & mask == np.uint64(int.from_bytes(text, "little")))
    last = block.words[np.maximum(label[:, 1] - 8, 0)]
    return (
        right
        & (first == np.uint64(int.from_bytes(text[:8], "little")))
        & (last == np.uint64(int.from_bytes(text[-8:], "little")))
    )


def _columns(gather: _Gather, metadata: Metadata, source: str) -> EtColumns:
    size = gather.count
    attrs: dict[str, Ints] = {}
    for name in NUMBERS:
        for base, column in gather.parts.get(f"attr {name}", ()):
            whole = attrs.setdefault(name, np.full(size, -1, np.int64))
            whole[base : base + len(column)] = column
    starts = {}
    for field in (schema.CTRL_DEPS, schema.DATA_DEPS):
        counts = gather.joined(f"counts {field}", np.int64)
        starts[field] = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return EtColumns(
        metadata=metadata, id=gather.joined("id", np.int64), type=gather.joined("type", np.int8),
        name=gather.joined("name", np.int32), names=_texts(gather.names),
        start_us=gather.joined("start_us", np.int64),
        duration_us=gather.joined("duration_us", np.int64),
        ctrl_starts=starts[schema.CTRL_DEPS], ctrl=gather.joined("deps 4", np.int64),
        data_starts=starts[schema.DATA_DEPS], data=gather.joined("deps 5", np.int64),
        group=gather.joined("group", np.int32), groups=_texts(gather.groups), attrs=attrs,
        source=source,
    )  # fmt: skip


def _texts(known: dict[bytes, int]) -> list[str]:
    return [text.decode(errors="replace") for text in known]


# -- writing


def save(path: str | Path, columns: EtColumns) -> int:
    """Write columns as a trace; gives the number of nodes."""
    return write_messages(path, encode_metadata(columns.metadata), _messages(columns))


def _messages(columns: EtColumns) -> Iterator[bytes]:
    names = [wire.delimited(schema.NAME, name.encode()) for name in columns.names]
    groups = [_attr_head("pg_name", len(g.encode())) + g.encode() for g in columns.groups]
    numbers = []
    for name, column in columns.attrs.items():
        kind = schema.KNOWN_ATTRS[name].partition("_")[0]
        number = schema.FIELD_OF_KIND[f"{kind}_val"]
        head = wire.delimited(schema.ATTR_NAME, name.encode()) + wire.field(number, wire.VARINT)
        numbers.append((head, column.tolist()))
    rows = zip(
        columns.id.tolist(), columns.name.tolist(), columns.type.tolist(),
        columns.start_us.tolist(), columns.duration_us.tolist(), columns.group.tolist(),
        strict=True,
    )  # fmt: skip
    ctrl, ctrl_at = columns.ctrl.tolist(), columns.ctrl_starts.tolist()
    data, data_at = columns.data.tolist(), columns.data_starts.tolist()
    varint, attr_key = wire.varint, wire.field(schema.ATTR, wire.BYTES)
    for i, (id, name, kind, start, duration, group) in enumerate(rows):
        out = [b"\x08" + varint(id) if id else b"", names[name] if columns.names[name] else b""]
        if kind:
            out.append(b"\x18" + varint(kind))
        for key, deps, at in ((b"\x22", ctrl, ctrl_at), (b"\x2a", data, data_at)):
            if at[i + 1] > at[i]:
                body = b"".join(map(varint, deps[at[i] : at[i + 1]]))
                out.append(key + varint(len(body)) + body)
        if start:
            out.append(b"\x30" + varint(start))
        if duration:
            out.append(b"\x38" + varint(duration))
        for head, column in numbers:
            value = column[i]
            if value != -1:
                body = head + varint(value)
                out.append(attr_key + varint(len(body)) + body)
        if group >= 0:
            out.append(attr_key + varint(len(groups[group])) + groups[group])
        yield b"".join(out)


def _attr_head(name: str, length: int) -> bytes:
    return (
        wire.delimited(schema.ATTR_NAME, name.encode())
        + wire.field(_STRING, wire.BYTES)
        + wire.varint(length)
    )
