"""The host buffer: one stretch of memory, allocated once, handed out in order and taken back so."""

from __future__ import annotations

from collections import deque

import numpy as np

from orrery.base.errors import UsageError
from orrery.parts.collectives import Array


class Ring:
    """Where pieces of the state wait between the device and storage.

    A slot is contiguous. Slots are given out one after the other and come back in the same order,
    so two numbers are all the bookkeeping. What does not fit before the end goes to the beginning;
    the gap that this leaves counts as used.

    >>> ring = Ring(10)
    >>> ring.take(6), ring.take(6)
    (0, None)
    >>> ring.give_back(); ring.take(6), ring.high_B
    (0, 6)
    """

    def __init__(self, size_B: int, memory: Array | None = None) -> None:
        if size_B < 1:
            raise UsageError(f"Ring({size_B}): a buffer has at least one byte")
        self.size_B = size_B
        self.memory: Array = np.empty(size_B, np.uint8) if memory is None else memory
        self.used_B = 0
        self.high_B = 0
        self._next = 0
        self._slots: deque[int] = deque()

    def take(self, size_B: int) -> int | None:
        """The offset of a free slot of so many bytes, or None while there is none."""
        if not 0 < size_B <= self.size_B:
            raise UsageError(f"Ring.take({size_B}): give 1 to {self.size_B} bytes")
        if not self._slots:
            self._next = 0
        wraps = self._next + size_B > self.size_B
        gap = self.size_B - self._next if wraps else 0
        if self.used_B + gap + size_B > self.size_B:
            return None
        start = 0 if wraps else self._next
        self._next = start + size_B
        self._slots.append(gap + size_B)
        self.used_B += gap + size_B
        self.high_B = max(self.high_B, self.used_B)
        return start

    def slot(self, start: int, size_B: int) -> Array:
        """The memory of a slot."""
        return self.memory[start : start + size_B]

    def give_back(self) -> None:
        """The oldest slot is free again."""
        if not self._slots:
            raise UsageError("Ring.give_back(): nothing is taken; give back each slot once")
        self.used_B -= self._slots.popleft()
