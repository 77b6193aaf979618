"""Frames: what one chunk looks like on the wire, and how damage is noticed.

A header says which coder wrote the chunk, how many numbers of which type it holds, how long it is
and what its checksum is. A frame is never longer than the header and the numbers as they are. What
was cut short or changed on the way raises `FrameError`; it never becomes data.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np

from orrery.base.errors import OrreryError
from orrery.parts.collectives import Array
from orrery.systems.collectives.ncclz.coders import CODERS, RAW

# magic, coder, flags, number type, items, length of the body, base of the differences, checksum
_HEADER = struct.Struct("<2sBBIIqI")
MAGIC = b"Z\x01"
HEADER_B = _HEADER.size
DELTA, FLOATS = 1, 2
# Columns of 64-bit words that the checksum adds up side by side, to run at the speed of memory.
_COLUMNS = 512
# The number types that travel; a type is written as its place, with the coder in one byte.
TYPES = tuple(
    np.dtype(name)
    for name in ("int32", "int64", "int16", "int8", "uint8", "uint16", "uint32", "uint64",
                 "float32", "float64", "float16")
)  # fmt: skip


class FrameError(OrreryError):
    """A frame that is damaged, or that no rank of this program made."""


class Chunk(NamedTuple):
    """What a frame holds: whole numbers that are codes, or (`exact`) values as they are."""

    values: Array
    exact: bool = False


class Head(NamedTuple):
    """The header of a frame."""

    coder: int
    flags: int
    dtype: np.dtype
    items: int

    @property
    def raw_B(self) -> int:
        """The bytes of the numbers as they are."""
        return self.items * self.dtype.itemsize


def checksum(body: Array, head: bytes) -> int:
    """CRC-32 of the header, of the sums of 512 columns of 64-bit words, and of the rest.

    Any single flipped bit changes it, at eight times the speed of CRC-32 over all bytes.
    """
    rows = body.size // (8 * _COLUMNS)
    whole = rows * 8 * _COLUMNS
    crc = zlib.crc32(body[whole:], zlib.crc32(head))
    if rows:
        table = np.frombuffer(body[:whole], np.uint64).reshape(rows, _COLUMNS)
        crc = zlib.crc32(np.add.reduce(table, axis=0), crc)
    return crc


def seal(chunk: Chunk, coder: int = RAW, delta: bool = False) -> Array:
    """A chunk as a frame; where the coder would expand it, it travels raw."""
    values, exact = chunk
    items = values.size
    delta = delta and not exact and items > 1 and coder != RAW
    body: bytes | Array = b""
    flags, base = FLOATS if exact else 0, 0
    if coder != RAW and not exact:
        symbols = values
        if delta:
            # Wraps like a sum of integers does, and so does its inverse.
            symbols = np.empty_like(values)
            np.subtract(values[1:], values[:-1], out=symbols[1:])
            symbols[0], base, flags = 0, int(values[0]), DELTA
        body = CODERS[coder].encode(symbols)  # type: ignore[operator]
    if coder == RAW or exact or len(body) >= values.nbytes:
        body = np.ascontiguousarray(values).view(np.uint8)
        coder, base, flags = RAW, 0, flags & FLOATS
    kind = TYPES.index(values.dtype)
    out = np.empty(HEADER_B + len(body), np.uint8)
    out[HEADER_B:] = np.frombuffer(body, np.uint8) if isinstance(body, bytes) else body
    fields = (MAGIC, coder << 4 | flags, kind, items, len(body), base)
    crc = checksum(out[HEADER_B:], _HEADER.pack(*fields, 0))
    out[:HEADER_B] = np.frombuffer(_HEADER.pack(*fields, crc), np.uint8)
    return out


def look(frame: Array) -> Head:
    """The header of a frame, for what it costs to open it; the body is not looked at."""
    return _read(frame)[0]


def open_frame(frame: Array) -> Chunk:
    """The chunk in a frame; `FrameError` when it is not whole."""
    head, base, crc = _read(frame)
    body = frame[HEADER_B:]
    blank = frame[:HEADER_B].tobytes()[:-4] + b"\0\0\0\0"
    if checksum(body, blank) != crc:
        raise FrameError("a frame's checksum does not fit: it was damaged on the way; send again")
    try:
        values = CODERS[head.coder].decode(body, head.items, head.dtype)  # type: ignore[operator]
    except ValueError as error:
        raise FrameError(f"a frame's body does not fit its header: {error}") from None
    if head.flags & DELTA:
        symbols = values.copy()
        symbols[0] = base
        values = np.add.accumulate(symbols, dtype=head.dtype)
    return Chunk(values, bool(head.flags & FLOATS))


def _read(frame: Array) -> tuple[Head, int, int]:
    if frame.dtype != np.uint8 or frame.ndim != 1:
        raise FrameError(f"{frame.dtype} of shape {frame.shape} is no frame; give flat bytes")
    if frame.size < HEADER_B:
        raise FrameError(f"a frame of {frame.size} bytes is cut short; a header has {HEADER_B}")
    magic, mixed, kind, items, length, base, crc = _HEADER.unpack(frame[:HEADER_B].tobytes())
    coder, flags = mixed >> 4, mixed & 15
    if magic != MAGIC or coder >= len(CODERS) or kind >= len(TYPES) or flags > (DELTA | FLOATS):
        raise FrameError("these bytes are no frame of this program; all ranks must run the same")
    if length != frame.size - HEADER_B:
        raise FrameError(f"a frame says {length} bytes and has {frame.size - HEADER_B}: cut short")
    return Head(coder, flags, TYPES[kind], items), base, crc


__all__ = ["DELTA", "FLOATS", "HEADER_B", "Chunk", "FrameError", "Head", "look", "open_frame",
           "seal"]  # fmt: skip
