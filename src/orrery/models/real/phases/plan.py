"""What the processes of a run must know, as JSON: sizes, places in the arenas, descriptors."""

from __future__ import annotations

import msgspec

from orrery.models.real.phases.blocks import BlockBook
from orrery.models.real.phases.table import Requests
from orrery.models.specs import ModelSpec


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """The orders of one worker process.

    kill_at   the number of the change of blocks in whose middle it kills itself; 0: never
    """

    phase: str
    spec: ModelSpec
    dtype: str
    epsilon: float
    max_context: int
    entries: list[tuple[str, tuple[int, ...], int]]
    weights_fd: int
    weights_B: int
    arena_fd: int
    arena_B: int
    blocks: int
    block_tokens: int
    requests: int
    longest: int
    parent: int
    most_batch: int = 32
    kill_at: int = 0

    @property
    def width(self) -> int:
        """Blocks of the longest request."""
        return -(-self.longest // self.block_tokens)

    @property
    def table_at(self) -> int:
        """Where the table of requests begins, in bytes; the book of blocks comes first."""
        return 8 * BlockBook.words(self.blocks)

    @property
    def cache_at(self) -> int:
        """Where the cache begins, in bytes, on a page of its own."""
        words = Requests.words(self.requests, self.longest, self.width)
        return -(-(self.table_at + 8 * words) // 4096) * 4096


__all__ = ["Orders"]
