"""Whole numbers at a fixed width, side by side: bit packing in 64 rows, all columns at once."""

from __future__ import annotations

import numpy as np

from orrery.parts.collectives import Array

WORD = 64


def width_of(span: int) -> int:
    """The bits that the numbers 0 to `span` need.

    >>> [width_of(span) for span in (0, 1, 7, 8)]
    [0, 1, 3, 4]
    """
    return int(span).bit_length()


def packed_B(items: int, width: int) -> int:
    """The bytes of `items` numbers of `width` bits, padded to whole columns of 64."""
    return -(-items // WORD) * width * 8


def pack(values: Array, width: int) -> Array:
    """Numbers below 2**width, as bytes.

    Column c holds the numbers c, c + columns, c + 2 columns …: every row is one vector operation,
    so a chunk costs 64 of them whatever its size.
    """
    columns = -(-values.size // WORD)
    if not width or not columns:
        return np.empty(0, np.uint8)
    table = np.zeros(WORD * columns, np.uint64)
    table[: values.size] = values
    table = table.reshape(WORD, columns)
    words = np.zeros((width, columns), np.uint64)
    for row in range(WORD):
        word, shift = divmod(row * width, WORD)
        words[word] |= table[row] << np.uint64(shift)
        if shift + width > WORD:
            words[word + 1] |= table[row] >> np.uint64(WORD - shift)
    return words.reshape(-1).view(np.uint8)


def unpack(data: Array, items: int, width: int) -> Array:
    """The numbers of `pack`, as uint64; `data` has exactly `packed_B` bytes."""
    if not width or not items:
        return np.zeros(items, np.uint64)
    columns = -(-items // WORD)
    words = np.frombuffer(data.tobytes(), np.uint64).reshape(width, columns)
    table = np.empty((WORD, columns), np.uint64)
    for row in range(WORD):
        word, shift = divmod(row * width, WORD)
        np.right_shift(words[word], np.uint64(shift), out=table[row])
        if shift + width > WORD:
            table[row] |= words[word + 1] << np.uint64(WORD - shift)
    if width < WORD:
        table &= np.uint64((1 << width) - 1)
    return table.reshape(-1)[:items]


__all__ = ["pack", "packed_B", "unpack", "width_of"]
