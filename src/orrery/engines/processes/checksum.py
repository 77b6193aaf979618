"""The checksum of arrays on the bulk lane: sums of columns of 64-bit words, by CRC-32.

CRC-32 over all bytes runs at 2 GB/s, a fraction of what a connection on one machine carries. The
sums of 32 columns run as fast as memory is read; any flipped bit changes one, and so does any
burst within a column. What is left after the last whole row goes through CRC-32 as it is.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

ROW_B = 256
_WORDS = ROW_B // 8
# How many rows NumPy adds side by side: long inner loops are what it is good at.
_SIDE_BY_SIDE = 16


def add_columns_py(data: memoryview, sums: bytearray) -> None:
    """Add the 32 columns of words of the whole rows of 256 bytes to 32 sums, by NumPy."""
    words = np.frombuffer(data, np.uint64, len(data) // ROW_B * _WORDS)
    wide = words.size // (_SIDE_BY_SIDE * _WORDS) * _SIDE_BY_SIDE * _WORDS
    broad = np.add.reduce(words[:wide].reshape(-1, _SIDE_BY_SIDE * _WORDS), axis=0)
    held = np.frombuffer(sums, np.uint64)
    held += np.add.reduce(broad.reshape(_SIDE_BY_SIDE, _WORDS), axis=0)
    held += np.add.reduce(words[wide:].reshape(-1, _WORDS), axis=0)


def _chosen() -> Callable[[memoryview, bytearray], None]:
    try:
        from orrery.engines.processes._sums import add_columns
    except ImportError:  # no compiler where this was installed
        return add_columns_py
    added: Callable[[memoryview, bytearray], None] = add_columns
    return added


add_columns = _chosen()


class Checksum:
    """The checksum of bytes that come by and by: each row is summed while it is in the cache.

    >>> whole = memoryview(bytes(range(256)) * 5)
    >>> half = Checksum(whole)
    >>> half.reach(700)
    >>> half.value() == checksum(whole)
    True
    """

    __slots__ = ("_raw", "_reached", "_sums")

    def __init__(self, raw: memoryview) -> None:
        self._raw = raw
        self._reached = 0
        self._sums = bytearray(ROW_B)

    def reach(self, filled: int) -> None:
        """So many bytes are there from now on."""
        end = filled // ROW_B * ROW_B
        if end > self._reached:
            add_columns(self._raw[self._reached : end], self._sums)
            self._reached = end

    def move(self, raw: memoryview) -> None:
        """What is there, and the rest, is in other memory from now on."""
        self._raw = raw

    def value(self) -> int:
        """The checksum of all bytes, when they are there."""
        self.reach(len(self._raw))
        return zlib.crc32(self._sums, zlib.crc32(self._raw[self._reached :]))


def checksum(raw: memoryview) -> int:
    """The checksum of some bytes; 32 bits, the same with and without the compiled sums."""
    return Checksum(raw).value()


__all__ = ["Checksum", "add_columns", "add_columns_py", "checksum"]
