"""Nodes of an execution trace as objects, encoded and decoded without loss.

A field or attribute that this schema does not know is kept as the bytes it came in and written
again behind the known ones, so a trace of a later version survives a round trip.
"""

from __future__ import annotations

from typing import Any

import msgspec

from orrery.inputs.chakra import schema, wire
from orrery.inputs.chakra.schema import TraceError


class Attr(msgspec.Struct):
    """One attribute: `kind` is the schema's, such as "int64_val" or "string_list"."""

    name: str
    kind: str = ""
    value: Any = None
    doc: str = ""
    unknown: bytes = b""


class IO(msgspec.Struct):
    """What goes in or out of a node, as the texts that PyTorch writes."""

    values: str = ""
    shapes: str = ""
    types: str = ""
    unknown: bytes = b""


class EtNode(msgspec.Struct):
    """One operation of one rank: what it is, what it waits for, when it ran."""

    id: int
    name: str = ""
    type: int = schema.COMP
    ctrl_deps: list[int] = []
    data_deps: list[int] = []
    start_us: int = 0
    duration_us: int = 0
    inputs: IO | None = None
    outputs: IO | None = None
    attrs: list[Attr] = []
    unknown: bytes = b""

    def attr(self, name: str, default: Any = None) -> Any:
        """The value of an attribute."""
        for each in self.attrs:
            if each.name == name:
                return each.value
        return default


class Metadata(msgspec.Struct):
    """The head of a trace: the version of its schema and attributes of the whole."""

    version: str = "1.0.0"
    attrs: list[Attr] = []
    unknown: bytes = b""

    def attr(self, name: str, default: Any = None) -> Any:
        """The value of an attribute."""
        for each in self.attrs:
            if each.name == name:
                return each.value
        return default


def known(name: str, value: Any) -> Attr:
    """An attribute that tools agree on, in the kind in which they write it.

    >>> known("comm_size", 4096).kind
    'int64_val'
    """
    return Attr(name=name, kind=schema.KNOWN_ATTRS[name], value=value)


# -- decoding


def decode_node(data: bytes) -> EtNode:
    """A node from the bytes of its message."""
    node = EtNode(id=0, type=schema.INVALID)
    rest: list[bytes] = []
    for number, kind, value, start, end in wire.fields(data, 0, len(data)):
        if kind == wire.VARINT:
            if number == schema.ID:
                node.id = value
            elif number == schema.TYPE:
                node.type = value
            elif number == schema.START_US:
                node.start_us = value
            elif number == schema.DURATION_US:
                node.duration_us = value
            elif number == schema.CTRL_DEPS:
                node.ctrl_deps = [*node.ctrl_deps, value]
            elif number == schema.DATA_DEPS:
                node.data_deps = [*node.data_deps, value]
            else:
                rest.append(data[start:end])
        elif kind != wire.BYTES or not _decode_part(node, number, data, *value):
            rest.append(data[start:end])
    node.unknown = b"".join(rest)
    return node


def _decode_part(node: EtNode, number: int, data: bytes, start: int, end: int) -> bool:
    """Take a field that holds bytes; False where it is not known."""
    if number == schema.NAME:
        node.name = wire.text(data, start, end)
    elif number == schema.CTRL_DEPS:
        node.ctrl_deps = [*node.ctrl_deps, *_packed("uint64", data, start, end)]
    elif number == schema.DATA_DEPS:
        node.data_deps = [*node.data_deps, *_packed("uint64", data, start, end)]
    elif number == schema.INPUTS:
        node.inputs = _decode_io(data, start, end)
    elif number == schema.OUTPUTS:
        node.outputs = _decode_io(data, start, end)
    elif number == schema.ATTR:
        node.attrs = [*node.attrs, decode_attr(data, start, end)]
    else:
        return False
    return True


def _decode_io(data: bytes, start: int, end: int) -> IO:
    made, rest = IO(), []
    for number, kind, value, begin, stop in wire.fields(data, start, end):
        if kind == wire.BYTES and number in (1, 2, 3):
            setattr(made, ("values", "shapes", "types")[number - 1], wire.text(data, *value))
        else:
            rest.append(data[begin:stop])
    made.unknown = b"".join(rest)
    return made


def decode_attr(data: bytes, start: int, end: int) -> Attr:
    """An attribute from the bytes of its message."""
    made, rest = Attr(name=""), []
    for number, kind, value, begin, stop in wire.fields(data, start, end):
        if number == schema.ATTR_NAME and kind == wire.BYTES:
            made.name = wire.text(data, *value)
        elif number == schema.ATTR_DOC and kind == wire.BYTES:
            made.doc = wire.text(data, *value)
        elif (known_as := schema.KIND_OF_FIELD.get(number)) and _fits(known_as, kind):
            scalar, _, form = known_as.partition("_")
            made.kind = known_as
            if form == "list":
                made.value, more = _decode_list(scalar, data, *value)
                rest.append(wire.delimited(number, more) if more else b"")
            else:
                made.value = wire.unpack_scalar(scalar, data, value)
        else:
            rest.append(data[begin:stop])
    made.unknown = b"".join(rest)
    return made


def _fits(kind: str, found: int) -> bool:
    scalar, _, form = kind.partition("_")
    return found == (wire.BYTES if form == "list" else wire.wire_of(scalar))


def _decode_list(scalar: str, data: bytes, start: int, end: int) -> tuple[list[Any], bytes]:
    """(the values, what was not understood); numbers may come packed or one by one."""
    values: list[Any] = []
    rest = []
    own = wire.wire_of(scalar)
    for number, kind, value, begin, stop in wire.fields(data, start, end):
        if number == 1 and kind == own:
            values.append(wire.unpack_scalar(scalar, data, value))
        elif number == 1 and kind == wire.BYTES:
            values += _packed(scalar, data, *value)
        else:
            rest.append(data[begin:stop])
    return values, b"".join(rest)


def _packed(scalar: str, data: bytes, at: int, end: int) -> list[Any]:
    size = {wire.FIXED64: 8, wire.FIXED32: 4}.get(wire.wire_of(scalar), 0)
    values = []
    if size and (end - at) % size:
        raise TraceError(f"a packed list of {scalar} has {end - at} bytes")
    while at < end:
        if size:
            value, at = (at, at + size), at + size
        else:
            value, at = wire.read_varint(data, at, end)  # type: ignore[assignment]
        values.append(wire.unpack_scalar(scalar, data, value))
    return values


def decode_metadata(data: bytes) -> Metadata:
    """The head of a trace from the bytes of its message."""
    made, rest = Metadata(version=""), []
    for number, kind, value, begin, stop in wire.fields(data, 0, len(data)):
        if number == 1 and kind == wire.BYTES:
            made.version = wire.text(data, *value)
        elif number == 2 and kind == wire.BYTES:
            made.attrs = [*made.attrs, decode_attr(data, *value)]
        else:
            rest.append(data[begin:stop])
    made.unknown = b"".join(rest)
    return made


# -- encoding: fields in rising order, zeros left out, lists packed, as every protobuf writer does


def encode_node(node: EtNode) -> bytes:
    """A node as the bytes of its message."""
    out = [_number(schema.ID, node.id)]
    if node.name:
        out.append(wire.delimited(schema.NAME, node.name.encode()))
    out.append(_number(schema.TYPE, node.type))
    for number, deps in ((schema.CTRL_DEPS, node.ctrl_deps), (schema.DATA_DEPS, node.data_deps)):
        if deps:
            out.append(wire.delimited(number, b"".join(map(wire.varint, deps))))
    out.append(_number(schema.START_US, node.start_us))
    out.append(_number(schema.DURATION_US, node.duration_us))
    for number, io in ((schema.INPUTS, node.inputs), (schema.OUTPUTS, node.outputs)):
        if io is not None:
            out.append(wire.delimited(number, _encode_io(io)))
    out += [wire.delimited(schema.ATTR, encode_attr(each)) for each in node.attrs]
    return b"".join(out) + node.unknown


def _number(number: int, value: int) -> bytes:
    if not value:
        return b""
    if not 0 <= value < 1 << 64:
        raise TraceError(f"{value} is no unsigned number of 64 bits (field {number})")
    return wire.field(number, wire.VARINT) + wire.varint(value)


def _encode_io(io: IO) -> bytes:
    texts = (io.values, io.shapes, io.types)
    parts = [wire.delimited(i, one.encode()) for i, one in enumerate(texts, 1) if one]
    return b"".join(parts) + io.unknown


def encode_attr(attr: Attr) -> bytes:
    """An attribute as the bytes of its message."""
    out = [wire.delimited(schema.ATTR_NAME, attr.name.encode())] if attr.name else []
    if attr.doc:
        out.append(wire.delimited(schema.ATTR_DOC, attr.doc.encode()))
    if attr.kind:
        number = schema.FIELD_OF_KIND.get(attr.kind)
        if number is None:
            known_kinds = ", ".join(schema.FIELD_OF_KIND)
            raise TraceError(
                f"attribute {attr.name!r}: no kind {attr.kind!r}; known: {known_kinds}"
            )
        scalar, _, form = attr.kind.partition("_")
        if form == "list":
            out.append(wire.delimited(number, _encode_list(scalar, attr.value)))
        else:
            out.append(wire.field(number, wire.wire_of(scalar)))
            out.append(wire.pack_scalar(scalar, attr.value))
    return b"".join(out) + attr.unknown


def _encode_list(scalar: str, values: list[Any]) -> bytes:
    parts = [wire.pack_scalar(scalar, value) for value in values]
    if wire.wire_of(scalar) == wire.BYTES:
        return b"".join(wire.field(1, wire.BYTES) + part for part in parts)
    return wire.delimited(1, b"".join(parts)) if parts else b""


def encode_metadata(metadata: Metadata) -> bytes:
    """The head of a trace as the bytes of its message."""
    out = [wire.delimited(1, metadata.version.encode())] if metadata.version else []
    out += [wire.delimited(2, encode_attr(each)) for each in metadata.attrs]
    return b"".join(out) + metadata.unknown
