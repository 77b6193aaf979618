"""`BlockBook`: which block of a shared cache belongs to whom, whatever dies in between.

There is one truth, the owner of each block; whatever could disagree with it (a list of free blocks,
a counter) is not kept. A change is written down before it is made: block numbers and their old
owners, then a flag, then the change, then the flag goes. Who takes the lock and finds the flag set
knows that the last holder died in the middle, and puts the old owners back. The lock itself is the
kernel's, which frees it when its holder dies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from orrery.base.errors import UsageError

FREE = 0
PREFILL, DECODE = 1, 2
PHASES = {"prefill": PREFILL, "decode": DECODE}
# Words at the head of the book: flag, entries of the journal, changes made, changes undone.
FLAG, ENTRIES, CHANGES, UNDONE, HEAD = 0, 1, 2, 3, 8
_PHASE_BITS = 32
Words = npt.NDArray[np.int64]


def owner_of(phase: int, request: int) -> int:
    """The word that says: this block belongs to a request in a phase.

    >>> phase_of(owner_of(DECODE, 7)) == DECODE
    True
    """
    return (phase << _PHASE_BITS) | (request + 1)


def phase_of(owner: int) -> int:
    """The phase of an owner."""
    return owner >> _PHASE_BITS


class BlockBook:
    """Owners of the blocks of one cache, over words that processes share.

    words    memory for `BlockBook.words(blocks)` words, zero at first
    lock     a context that keeps all others out; kernel-held, so that death frees it
    midway   called in the middle of every change, while the lock is held: for tests that kill

    >>> from contextlib import nullcontext
    >>> book = BlockBook(np.zeros(BlockBook.words(4), np.int64), 4, nullcontext())
    >>> mine = book.take(owner_of(PREFILL, 0), 3)
    >>> mine, book.take(owner_of(PREFILL, 1), 2), book.free
    ([0, 1, 2], None, 1)
    """

    def __init__(
        self, words: Words, blocks: int, lock: AbstractContextManager[Any],
        midway: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        if blocks < 1 or len(words) != self.words(blocks):
            raise UsageError(
                f"BlockBook: {blocks} blocks in {len(words)} words; give 1 block or more, and "
                f"{self.words(max(blocks, 1))} words"
            )
        self.blocks, self.lock, self.midway = blocks, lock, midway
        self._head = words[:HEAD]
        self._owner = words[HEAD : HEAD + blocks]
        self._numbers = words[HEAD + blocks : HEAD + 2 * blocks]
        self._before = words[HEAD + 2 * blocks :]

    @staticmethod
    def words(blocks: int) -> int:
        """Words of memory that a book of so many blocks needs."""
        return HEAD + 3 * blocks

    # -- with the lock

    def take(self, owner: int, count: int, spare: int = 0) -> list[int] | None:
        """Free blocks for an owner, if `spare` more are free; None, and nothing, if too few."""
        if count < 1 or owner <= 0:
            raise UsageError(f"take({owner}, {count}): give an owner, and 1 block or more")
        with self.lock:
            self.recover()
            free = np.flatnonzero(self._owner == FREE)
            if len(free) < count + spare:
                return None
            chosen = free[:count]
            self._change(chosen, owner)
            return chosen.tolist()

    def give(self, owner: int, numbers: Sequence[int]) -> None:
        """Blocks of an owner are free again."""
        self.pass_on(owner, FREE, numbers)

    def pass_on(self, owner: int, to: int, numbers: Sequence[int]) -> None:
        """Blocks of an owner belong to another one from now on; their content stays in place."""
        if not len(numbers):
            return
        at = np.asarray(numbers, dtype=np.int64)
        if len(set(numbers)) != len(numbers) or at.min() < 0 or at.max() >= self.blocks:
            raise UsageError(f"blocks {list(numbers)[:8]}: give numbers below {self.blocks}, once")
        with self.lock:
            self.recover()
            if (self._owner[at] != owner).any():
                wrong = int(at[self._owner[at] != owner][0])
                raise UsageError(
                    f"block {wrong} belongs to {int(self._owner[wrong])}, not to {owner}; it "
                    "cannot be passed on"
                )
            self._change(at, to)

    def reclaim(self, phase: int) -> int:
        """A phase is dead: undo what it left half done, and free what it had; how many blocks."""
        with self.lock:
            self.recover()
            mine = np.flatnonzero(self._owner >> _PHASE_BITS == phase)
            if len(mine):
                self._change(mine, FREE)
            return len(mine)

    def reclaim_request(self, request: int) -> int:
        """Free what a request has in any phase; how many blocks."""
        with self.lock:
            self.recover()
            mine = np.flatnonzero((self._owner & ((1 << _PHASE_BITS) - 1)) == request + 1)
            if len(mine):
                self._change(mine, FREE)
            return len(mine)

    # -- inside the lock

    def _change(self, at: Words, owner: int) -> None:
        head, count = self._head, len(at)
        self._numbers[:count] = at
        self._before[:count] = self._owner[at]
        head[ENTRIES] = count
        head[FLAG] = 1
        half = (count + 1) // 2
        self._owner[at[:half]] = owner
        if self.midway is not None:
            self.midway()
        self._owner[at[half:]] = owner
        head[CHANGES] += 1
        head[FLAG] = 0

    def recover(self) -> bool:
        """Undo a change whose author died; whether there was one. Call it inside the lock."""
        head = self._head
        if not head[FLAG]:
            return False
        count = int(head[ENTRIES])
        self._owner[self._numbers[:count]] = self._before[:count]
        head[UNDONE] += 1
        head[FLAG] = 0
        return True

    # -- looking

    @property
    def free(self) -> int:
        """Blocks that nobody has."""
        return int((self._owner == FREE).sum())

    @property
    def undone(self) -> int:
        """Changes that had to be undone."""
        return int(self._head[UNDONE])

    @property
    def changes(self) -> int:
        """Changes that were made."""
        return int(self._head[CHANGES])

    def owners(self) -> dict[int, list[int]]:
        """The blocks of each owner."""
        found: dict[int, list[int]] = {}
        for number, owner in enumerate(self._owner.tolist()):
            if owner != FREE:
                found.setdefault(owner, []).append(number)
        return found


__all__ = ["DECODE", "FREE", "PHASES", "PREFILL", "BlockBook", "owner_of", "phase_of"]
