"""The protobuf wire format, as far as execution traces need it: varints, fields, packed lists.

Public specification: protobuf.dev/programming-guides/encoding. Reading never trusts a length: what
runs over the end of its message is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from orrery.inputs.chakra.schema import TraceError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1


def varint(value: int) -> bytes:
    """A whole number as a varint; negative ones take ten bytes, as in protobuf.

    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    value &= _MASK
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """(the number, where the next thing begins)."""
    value = shift = 0
    while True:
        if at >= end:
            raise TraceError("a number runs over the end of its message")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & _MASK, at
        shift += 7
        if shift > 63:
            raise TraceError("a number has more than ten bytes")


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, Any, int, int]]:
    """(field number, wire type, value or (start, end), start of the field, its end)."""
    while at < end:
        begin = at
        key, at = read_varint(data, at, end)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise TraceError("a field has the number 0")
        value: Any
        if wire == VARINT:
            value, at = read_varint(data, at, end)
        elif wire == BYTES:
            length, at = read_varint(data, at, end)
            value, at = (at, at + length), at + length
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
            value, at = (at, at + size), at + size
        else:
            raise TraceError(f"field {number} has the unknown wire type {wire}")
        if at > end:
            raise TraceError(f"field {number} runs over the end of its message")
        yield number, wire, value, begin, at


def field(number: int, wire: int) -> bytes:
    """The key of a field."""
    return varint(number << 3 | wire)


def delimited(number: int, data: bytes) -> bytes:
    """A field that holds bytes."""
    return field(number, BYTES) + varint(len(data)) + data


# -- scalars of attributes

_FIXED = {
    "double": ("<d", FIXED64), "float": ("<f", FIXED32), "fixed32": ("<I", FIXED32),
    "fixed64": ("<Q", FIXED64), "sfixed32": ("<i", FIXED32), "sfixed64": ("<q", FIXED64),
}  # fmt: skip
_BITS = {"int32": 32, "int64": 64, "uint32": 32, "uint64": 64, "sint32": 32, "sint64": 64}
_TEXT = ("string", "bytes")


def wire_of(scalar: str) -> int:
    """The wire type of a scalar."""
    if scalar in _FIXED:
        return _FIXED[scalar][1]
    return BYTES if scalar in _TEXT else VARINT


def pack_scalar(scalar: str, value: Any) -> bytes:
    """A scalar's bytes, without its key; text and bytes carry their length."""
    if scalar in _FIXED:
        return struct.pack(_FIXED[scalar][0], value)
    if scalar in _TEXT:
        data = value.encode() if scalar == "string" else bytes(value)
        return varint(len(data)) + data
    if scalar == "bool":
        return varint(1 if value else 0)
    number, bits = int(value), _BITS[scalar]
    if scalar.startswith("sint"):
        return varint((number << 1) ^ (number >> (bits - 1)))
    low, high = (0, 1 << bits) if scalar.startswith("u") else (-(1 << bits - 1), 1 << bits - 1)
    if not low <= number < high:
        raise TraceError(f"{number} does not fit {scalar}")
    return varint(number)


def unpack_scalar(scalar: str, data: bytes, value: Any) -> Any:
    """A scalar from what `fields` gave for it: a number, or a place in `data`."""
    if scalar in _FIXED:
        return struct.unpack_from(_FIXED[scalar][0], data, value[0])[0]
    if scalar == "string":
        return text(data, *value)
    if scalar == "bytes":
        return data[value[0] : value[1]]
    if scalar == "bool":
        return value != 0
    if scalar.startswith("sint"):
        return (value >> 1) ^ -(value & 1)
    bits = _BITS[scalar]
    value &= (1 << bits) - 1
    return value - (1 << bits) if scalar[0] == "i" and value >> (bits - 1) else value


def text(data: bytes, start: int, end: int) -> str:
    """UTF-8 text; what is not UTF-8 is refused, as protobuf does."""
    try:
        return data[start:end].decode()
    except UnicodeDecodeError:
        raise TraceError(f"a text is not UTF-8: {data[start:end][:40]!r}") from None
