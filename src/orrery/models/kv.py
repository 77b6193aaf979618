"""Blocks of keys and values: who holds them, what they contain, which one goes first.

The same rules as vLLM's block pool: a block has a key once it is full; equal prefixes share blocks;
a block that nobody holds keeps its content until it is needed, and the one that was free for the
longest time goes first.

Blocks of shared content have a key each, and cost a look-up each. What belongs to one request alone
(its answer, a prompt that nobody else has) is counted as one piece, however many blocks it has: it
matters only if that request loses its blocks and comes back, and then its end goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from orrery.base.errors import UsageError

EMPTY = 1 << 62
BLANK = -1  # no key is this one: workloads count from 0, and own keys from -2 downwards


class KVPool:
    """A fixed number of blocks.

    >>> pool = KVPool(4, 16)
    >>> pool.take(2), pool.free
    (True, 2)
    >>> held = [pool.fill(7), pool.fill(8)]
    >>> pool.release(held)
    >>> pool.match([7, 8, 9]), pool.free
    (2, 4)
    """

    def __init__(self, blocks: int, block_tokens: int = 16, *, caching: bool = True) -> None:
        if blocks < 1 or block_tokens < 1:
            raise UsageError(
                f"KVPool({blocks}, {block_tokens}): give at least one block of one token"
            )
        self.blocks, self.block_tokens, self.caching = blocks, block_tokens, caching
        self._holders: dict[int, int] = {}  # key of content in use -> how many hold it
        # What may be taken, oldest first: how many blocks, by the key of what they still contain,
        # or by a number above all keys where they contain nothing.
        self._free: OrderedDict[int, int] = OrderedDict()
        self._empty = EMPTY
        self.free = 0  # blocks that can be taken, with or without content
        self.blank = 0  # taken, content without a key
        self.evicted = 0
        self._add_empty(blocks)

    def _add_empty(self, count: int) -> None:
        self._empty += 1
        self._free[self._empty] = count
        self.free += count

    def match(self, keys: Sequence[int]) -> int:
        """How many of the first keys are there."""
        holders, free = self._holders, self._free
        for count, key in enumerate(keys):
            if key not in holders and key not in free:
                return count
        return len(keys)

    def idle(self, keys: Iterable[int]) -> int:
        """How many of these keys nobody holds: holding them uses up free blocks."""
        holders = self._holders
        return sum(key not in holders for key in keys)

    def alone(self, held: Iterable[int]) -> int:
        """How many of these held blocks nobody else holds: giving them back makes them free."""
        holders = self._holders
        return sum(key == BLANK or holders[key] == 1 for key in held)

    def hold(self, keys: Iterable[int]) -> None:
        """Share blocks that are there."""
        holders, free = self._holders, self._free
        for key in keys:
            if key in holders:
                holders[key] += 1
            else:
                del free[key]
                holders[key] = 1
                self.free -= 1

    def take(self, count: int) -> bool:
        """Take blocks for new content, the oldest free ones; False, and nothing, if too few."""
        if count > self.free:
            return False
        free, left = self._free, count
        while left:
            key = next(iter(free))
            there = free[key]
            if there > left:
                gone = left
                free[key] = there - left
            else:
                gone = there
                del free[key]
            if key < EMPTY:
                self.evicted += gone
            left -= gone
        self.free -= count
        self.blank += count
        return True

    # -- what one request alone has

    def own(self, key: int) -> int:
        """How many blocks of a request's own content are still there, from its beginning on."""
        return self._free.get(key, 0)

    def regain(self, key: int, count: int) -> None:
        """Hold the first blocks of a request's own content again."""
        there = self._free.pop(key)
        self.free -= there
        self.blank += count
        if there > count:
            self._add_empty(there - count)

    def release_own(self, key: int, count: int, full: int) -> None:
        """Give back blocks of a request's own; the full ones keep their content for a while."""
        self.blank -= count
        if not self.caching:
            full = 0
        if count > full:
            self._add_empty(count - full)
        if full:
            self._free[key] = full
            self.free += full

    # -- what many may share

    def fill(self, key: int) -> int:
        """A taken block is full now; what it is held as: its key, or BLANK for a copy."""
        if not self.caching or key in self._holders or key in self._free:
            return BLANK
        self._holders[key] = 1
        self.blank -= 1
        return key

    def release(self, held: Sequence[int]) -> None:
        """Give blocks back; the end of a sequence is of least use to others, so it goes first."""
        holders, free = self._holders, self._free
        for key in reversed(held):
            if key == BLANK:
                self.blank -= 1
                self._add_empty(1)
                continue
            left = holders[key] - 1
            if left:
                holders[key] = left
            else:
                del holders[key]
                free[key] = 1
                self.free += 1

    def forget(self) -> None:
        """Lose the content of all free blocks, as in a crash."""
        kept, self.free = self.free, 0
        self._free.clear()
        if kept:
            self._add_empty(kept)

    def faults(self) -> list[str]:
        """What is wrong with the books; empty when every block is accounted for once."""
        found = []
        counted = sum(self._free.values()) + len(self._holders) + self.blank
        if counted != self.blocks:
            found.append(f"{counted} blocks counted, {self.blocks} there")
        both = self._holders.keys() & self._free.keys()
        if both:
            found.append(f"blocks both held and free: {sorted(both)[:5]}")
        if self.free != sum(self._free.values()):
            found.append(f"{self.free} blocks said to be free, {sum(self._free.values())} are")
        if self.blank < 0 or any(count < 1 for count in self._holders.values()):
            found.append("a block was given back twice")
        return found


__all__ = ["BLANK", "KVPool"]
