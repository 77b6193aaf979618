"""Where the rows of a batch stand when it is spread over ranks: blocks, layouts, what is visible.

A *block* is a run of rows of one document; a rank's shard is a list of blocks, and a layout the
shards of all ranks. Which pairs of rows may meet follows from the blocks alone, so masks, costs and
checks need no array of the whole batch.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from orrery.base.errors import PartError

Array = npt.NDArray[Any]

# From so many pairs of blocks on, they are counted in arrays.
MANY_PAIRS = 256


class Block(NamedTuple):
    """Rows `start` to `stop` (exclusive) of one document."""

    document: int
    start: int
    stop: int


Blocks = tuple[Block, ...]
Layout = tuple[Blocks, ...]


def rows(blocks: Iterable[Block]) -> int:
    """How many rows the blocks have together."""
    return sum(block.stop - block.start for block in blocks)


def places(blocks: Sequence[Block]) -> tuple[Array, Array]:
    """The document and the position of every row, in order."""
    if not blocks:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    documents = [np.full(b.stop - b.start, b.document, np.int64) for b in blocks]
    return np.concatenate(documents), np.concatenate([np.arange(b.start, b.stop) for b in blocks])


def visible_pairs(queries: Sequence[Block], keys: Sequence[Block], causal: bool) -> int:
    """How many (query, key) pairs may meet: of one document, and the key not later if causal.

    >>> visible_pairs([Block(0, 0, 4)], [Block(0, 0, 4)], True)
    10
    """
    if len(queries) * len(keys) > MANY_PAIRS:
        return _many_visible_pairs(_table(tuple(queries)), _table(tuple(keys)), causal)
    total = 0
    for query in queries:
        for key in keys:
            if query.document != key.document:
                continue
            width = key.stop - key.start
            if causal:
                # A query at position i sees min(max(i + 1 - start, 0), width) keys of the block.
                low, ramp_end = max(query.start, key.start), min(query.stop, key.stop)
                if ramp_end > low:
                    total += (low + 1 + ramp_end - 2 * key.start) * (ramp_end - low) // 2
                total += max(query.stop - max(query.start, key.stop), 0) * width
            else:
                total += (query.stop - query.start) * width
    return total


@functools.lru_cache(maxsize=4096)
def _table(blocks: Blocks) -> Array:
    """Blocks as rows (document, start, stop), in order of document."""
    made = np.array(blocks, np.int64).reshape(-1, 3)
    return made[np.argsort(made[:, 0], kind="stable")]


def _many_visible_pairs(queries: Array, keys: Array, causal: bool) -> int:
    """The same for long lists: all pairs of blocks of one document at once."""
    first, last = (np.searchsorted(keys[:, 0], queries[:, 0], side) for side in ("left", "right"))
    count = last - first
    query = np.repeat(queries, count, axis=0)
    skipped = np.repeat(np.cumsum(count) - count, count)
    key = keys[np.repeat(first, count) + np.arange(count.sum()) - skipped]
    width = key[:, 2] - key[:, 1]
    if not causal:
        return int(((query[:, 2] - query[:, 1]) * width).sum())
    low = np.maximum(query[:, 1], key[:, 1])
    ramp = np.maximum(np.minimum(query[:, 2], key[:, 2]) - low, 0)
    whole = np.maximum(query[:, 2] - np.maximum(query[:, 1], key[:, 2]), 0) * width
    return int(((2 * low + ramp + 1 - 2 * key[:, 1]) * ramp // 2 + whole).sum())


def mask(queries: Sequence[Block], keys: Sequence[Block], causal: bool) -> Array | None:
    """Which key each query sees, as truth values; None where every query sees every key."""
    if visible_pairs(queries, keys, causal) == rows(queries) * rows(keys):
        return None
    (q_document, q_place), (k_document, k_place) = places(queries), places(keys)
    seen: Array = q_document[:, None] == k_document[None, :]
    if causal:
        seen &= q_place[:, None] >= k_place[None, :]
    return seen


def contiguous(lengths: Sequence[int], size: int) -> Layout:
    """The documents end to end, cut into `size` runs that differ by one row at most."""
    return _contiguous(tuple(lengths), size)


def zigzag(lengths: Sequence[int], size: int) -> Layout:
    """Each document in 2 x size chunks; rank r has chunk r and chunk 2 x size - 1 - r of each.

    Under a causal mask early rows see little and late rows much; one of each is about the mean.

    >>> zigzag([8], 2)[0]
    (Block(document=0, start=0, stop=2), Block(document=0, start=6, stop=8))
    """
    return _zigzag(tuple(lengths), size)


# All ranks of a run ask for the same layout.
@functools.lru_cache(maxsize=16)
def _contiguous(lengths: tuple[int, ...], size: int) -> Layout:
    least, more = divmod(sum(lengths), size)
    made: list[list[Block]] = [[] for _ in range(size)]
    rank, room = 0, least + (more > 0)
    for document, length in enumerate(lengths):
        start = 0
        while start < length:
            while not room:
                rank += 1
                room = least + (rank < more)
            stop = min(start + room, length)
            made[rank].append(Block(document, start, stop))
            room -= stop - start
            start = stop
    return tuple(tuple(blocks) for blocks in made)


@functools.lru_cache(maxsize=16)
def _zigzag(lengths: tuple[int, ...], size: int) -> Layout:
    made: list[list[Block]] = [[] for _ in range(size)]
    for document, length in enumerate(lengths):
        ends = [length * i // (2 * size) for i in range(2 * size + 1)]
        for rank in range(size):
            for chunk in (rank, 2 * size - 1 - rank):
                if ends[chunk] < ends[chunk + 1]:
                    made[rank].append(Block(document, ends[chunk], ends[chunk + 1]))
    return tuple(tuple(blocks) for blocks in made)


def halves(blocks: Sequence[Block]) -> tuple[Blocks, Blocks]:
    """The blocks as two lists of half the rows each, the first the longer by one where odd."""
    first: list[Block] = []
    second: list[Block] = []
    left = (rows(blocks) + 1) // 2
    for block in blocks:
        middle = min(block.start + left, block.stop)
        left -= middle - block.start
        if block.start < middle:
            first.append(Block(block.document, block.start, middle))
        if middle < block.stop:
            second.append(Block(block.document, middle, block.stop))
    return tuple(first), tuple(second)


def check_layout(layout: Sequence[Sequence[Block]], lengths: Sequence[int], size: int) -> None:
    """Refuse a layout in which some row has no rank, or two."""
    if len(layout) != size:
        raise PartError(f"layout: {len(layout)} shards for {size} ranks; give one a rank")
    spans: dict[int, list[tuple[int, int, int]]] = {}
    for rank, blocks in enumerate(layout):
        for block in blocks:
            known = 0 <= block.document < len(lengths)
            if not (known and 0 <= block.start < block.stop <= lengths[block.document]):
                have = f"{len(lengths)} documents of {list(lengths)[:8]} rows"
                raise PartError(f"layout: rank {rank} has {block}; there are {have}")
            spans.setdefault(block.document, []).append((block.start, block.stop, rank))
    for document, length in enumerate(lengths):
        at = 0
        for start, stop, rank in [*sorted(spans.get(document, [])), (length, length, -1)]:
            if start != at:
                what = "has no rank" if start > at else f"is at rank {rank} and at another"
                raise PartError(f"layout: row {min(at, start)} of document {document} {what}")
            at = stop
