"""Lossless coders of whole numbers: raw, bit packing, zero runs, and a table coder.

Each turns a chunk of signed integers into bytes and back, and knows nothing of frames. A decoder
that is given what no encoder made raises ValueError; the frame around it, with its checksum, makes
sure that this does not depend on luck.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from orrery.parts.collectives import Array
from orrery.systems.collectives.ncclz import rans
from orrery.systems.collectives.ncclz.bits import pack, packed_B, unpack, width_of

# At most so many symbols have a code of their own; the rest escape and are packed aside.
WINDOW = 255
# How many numbers tell where the window should be.
SAMPLE = 1024


class Coder(NamedTuple):
    """A way to write integers: its name, and the two directions."""

    name: str
    encode: object
    decode: object


# -- raw


def raw_encode(values: Array) -> bytes:
    """The integers as they are in memory."""
    return values.tobytes()


def raw_decode(data: Array, items: int, dtype: np.dtype) -> Array:
    """The inverse of `raw_encode`."""
    if data.size != items * dtype.itemsize:
        raise ValueError(f"{data.size} bytes do not hold {items} numbers")
    # A view where the memory allows it: raw is chosen where every copy counts.
    return np.frombuffer(data, dtype) if data.flags.c_contiguous else data.copy().view(dtype)


# -- bit packing: the least value, the width, the differences from it

_PACK = struct.Struct("<qB")


def pack_encode(values: Array) -> bytes:
    """Fixed width for the whole chunk: as many bits as the range needs."""
    if not values.size:
        return b""
    least, most = int(values.min()), int(values.max())
    width = width_of(most - least)
    # Two's complement: the difference is right modulo 2**64 even where it overflows int64.
    above = values.astype(np.int64).view(np.uint64) - np.uint64(least % (1 << 64))
    return _PACK.pack(least, width) + pack(above, width).tobytes()


def pack_decode(data: Array, items: int, dtype: np.dtype) -> Array:
    """The inverse of `pack_encode`."""
    if not items:
        _nothing_left(data)
        return np.zeros(0, dtype)
    least, width = _PACK.unpack(_first(data, _PACK.size))
    body = data[_PACK.size :]
    if width > 64 or body.size != packed_B(items, width):
        raise ValueError(f"{body.size} bytes do not hold {items} numbers of {width} bits")
    above = unpack(body, items, width)
    above += np.uint64(least % (1 << 64))
    return above.view(np.int64).astype(dtype)


# -- zero runs: how many zeros stand before each other number, and the other numbers

_RUNS = struct.Struct("<II")


def zero_encode(values: Array) -> bytes:
    """Runs of zeros as their lengths; lengths and the numbers between them are bit-packed."""
    (places,) = np.nonzero(values)
    gaps = np.diff(places, prepend=-1) - 1
    packed_gaps = pack_encode(gaps)
    return _RUNS.pack(places.size, len(packed_gaps)) + packed_gaps + pack_encode(values[places])


def zero_decode(data: Array, items: int, dtype: np.dtype) -> Array:
    """The inverse of `zero_encode`."""
    count, gaps_B = _RUNS.unpack(_first(data, _RUNS.size))
    if count > items:
        raise ValueError(f"{count} numbers in a chunk of {items}")
    rest = data[_RUNS.size :]
    gaps = pack_decode(rest[:gaps_B], count, np.dtype(np.int64))
    others = pack_decode(rest[gaps_B:], count, dtype)
    places = np.cumsum(gaps + 1) - 1
    if count and (int(gaps.min()) < 0 or int(places[-1]) >= items):
        raise ValueError("the runs leave the chunk")
    values = np.zeros(items, dtype)
    values[places] = others
    return values


# -- the table coder: frequencies of a window of values, an escape, interleaved lanes

_TABLE = struct.Struct("<qBxHHHII")


def table_encode(values: Array) -> bytes:
    """Entropy coding with the chunk's own table.

    Where values spread wider than the window, their lowest bits, which are close to random, are
    packed aside and the table codes the rest; what lies outside the window even so escapes.
    """
    if not values.size:
        return b""
    low_bits = shift_for(values[:: max(1, values.size // SAMPLE)])
    high = values >> values.dtype.type(low_bits) if low_bits else values
    lowest = window(high)
    highest = min(lowest + WINDOW - 1, int(np.iinfo(values.dtype).max))
    inside = (high >= lowest) & (high <= highest)
    escapes = values[~inside]
    symbols = high.astype(np.intp) - lowest
    if escapes.size:
        symbols[~inside] = WINDOW
    freq = rans.frequencies(np.bincount(symbols, minlength=1))
    lanes = rans.lanes_for(values.size)
    states, words = rans.encode(symbols, freq, lanes)
    packed = pack_encode(escapes)
    low = b""
    if low_bits:
        mask = np.uint64((1 << low_bits) - 1)
        low = pack(values.astype(np.int64).view(np.uint64) & mask, low_bits).tobytes()
    head = _TABLE.pack(lowest, low_bits, freq.size, lanes, 0, escapes.size, len(packed))
    table = freq.astype(np.uint16).tobytes()
    return b"".join((head, table, low, packed, states.tobytes(), words.tobytes()))


def table_decode(data: Array, items: int, dtype: np.dtype) -> Array:
    """The inverse of `table_encode`."""
    if not items:
        _nothing_left(data)
        return np.zeros(0, dtype)
    head = _TABLE.unpack(_first(data, _TABLE.size))
    lowest, low_bits, kinds, lanes, _, count, packed_size = head
    sizes = (2 * kinds, packed_B(items, low_bits), packed_size, rans.LANE_B * lanes)
    table, low, packed, states, words = _cut(data[_TABLE.size :], sizes)
    if not 0 < kinds <= WINDOW + 1 or not 0 < lanes <= rans.MOST_LANES or words.size % 2:
        raise ValueError("a malformed table")
    freq = np.frombuffer(table.tobytes(), np.uint16).astype(np.int64)
    symbols = rans.decode(
        np.frombuffer(states.tobytes(), np.uint32), np.frombuffer(words.tobytes(), np.uint16),
        freq, items,
    )  # fmt: skip
    values = symbols.astype(np.int64)
    values += lowest
    if low_bits:
        values = (values << low_bits) | unpack(low, items, low_bits).view(np.int64)
    out = values.astype(dtype)
    outside = np.flatnonzero(symbols == WINDOW) if kinds > WINDOW else np.empty(0, np.intp)
    if outside.size != count:
        raise ValueError(f"{outside.size} values escape and {count} are there")
    out[outside] = pack_decode(packed, count, dtype)
    return out


def shift_for(sample: Array) -> int:
    """How many low bits to set aside, so that nearly all values fall in the window."""
    least, most = int(sample.min()), int(sample.max())
    if most - least < WINDOW:
        return 0
    ordered = np.sort(sample)
    rare = ordered.size // 256
    span = int(ordered[-1 - rare]) - int(ordered[rare])
    # A quarter more than was seen, as the sample has not seen the rarest.
    return width_of(span * 5 // 4 // (WINDOW + 1))


def window(values: Array) -> int:
    """The lowest of `WINDOW` neighbouring values that get codes of their own.

    All of them where they fit; else around the median, where a field's differences and a
    gradient's codes crowd.
    """
    least, most = int(values.min()), int(values.max())
    if most - least < WINDOW:
        return least
    # A sample is enough for the middle: being off by a little costs only a few escapes.
    middle = int(np.median(values[:: max(1, values.size // SAMPLE)]))
    return max(min(middle - WINDOW // 2, most - WINDOW + 1), least)


# -- reading what may be broken


def _first(data: Array, size_B: int) -> bytes:
    if data.size < size_B:
        raise ValueError(f"{data.size} bytes are too few")
    return data[:size_B].tobytes()


def _cut(data: Array, sizes: tuple[int, ...]) -> list[Array]:
    """The data in parts of these sizes, and the rest."""
    if data.size < sum(sizes):
        raise ValueError(f"{data.size} bytes are too few")
    ends = np.cumsum(sizes)
    return np.split(data, ends)


def _nothing_left(data: Array) -> None:
    if data.size:
        raise ValueError(f"{data.size} bytes for nothing")


# The place of a coder here is its number in a frame.
CODERS = (
    Coder("raw", raw_encode, raw_decode),
    Coder("pack", pack_encode, pack_decode),
    Coder("zero", zero_encode, zero_decode),
    Coder("table", table_encode, table_decode),
)
RAW, PACK, ZERO, TABLE = range(4)
NAMES = tuple(coder.name for coder in CODERS)

__all__ = ["CODERS", "NAMES", "PACK", "RAW", "TABLE", "WINDOW", "ZERO", "Coder", "shift_for"]
