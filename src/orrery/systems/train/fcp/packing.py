"""Which worker gets which block: equal attention work, bounded tokens, few bytes to fetch.

A document is cut into blocks; what a block costs follows from where it stands. Documents with
little work stay whole. Long ones are dealt out, longest processing time first, to as few workers as
balance allows; then swaps bring blocks of a document together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from orrery.base.errors import KnobError
from orrery.models.shards import Block, Blocks, Layout, rows
from orrery.systems.train.fcp.swaps import fetched, swap

Array = npt.NDArray[Any]

# A document with at most this share of a worker's mean work and room is never cut.
WHOLE_SHARE = 0.25
# How far above the ideal the busiest worker may be before blocks are spread more widely.
SLACK = 0.02
WIDER = 1.5


class Limits(NamedTuple):
    """How documents are cut and how many tokens a worker holds.

    `block_tokens` of a block; `cap`, the most tokens of a worker over the mean; `capacity_tokens`,
    the most that its memory holds (0: any number); `swaps`, how many exchanges are tried.
    """

    block_tokens: int = 1024
    cap: float = 1.25
    capacity_tokens: int = 0
    swaps: int = 4000


class Unit(NamedTuple):
    """What is placed as one: a block, or a document that stays whole."""

    block: Block
    work: int

    @property
    def tokens(self) -> int:
        return self.block.stop - self.block.start


def work_of(block: Block, length: int, causal: bool) -> int:
    """Visible pairs of a block's queries: all keys before it and half of its own square.

    >>> work_of(Block(0, 4, 6), 10, True)
    11
    """
    count = block.stop - block.start
    return count * block.start + count * (count + 1) // 2 if causal else count * length


def cut(document: int, length: int, size: int, causal: bool) -> list[Unit]:
    """A document in blocks of `size` tokens; the last may be shorter."""
    blocks = [Block(document, at, min(at + size, length)) for at in range(0, length, size)]
    return [Unit(block, work_of(block, length, causal)) for block in blocks]


def cap_tokens(lengths: Sequence[int], size: int, limits: Limits) -> int:
    """The most tokens that a worker may get: `cap` times the mean, but room for whole blocks.

    >>> cap_tokens([4096] * 8, 8, Limits())
    5120
    """
    tokens = sum(lengths)
    blocks = sum(-(-length // limits.block_tokens) for length in lengths)
    longest = min(max(lengths, default=0), limits.block_tokens)
    most = max(math.ceil(limits.cap * tokens / size), -(-blocks // size) * longest)
    return min(most, limits.capacity_tokens) if limits.capacity_tokens else most


def refuse_oversized(lengths: Sequence[int], size: int, limits: Limits) -> None:
    """Refuse a batch, or one sequence of it, that the memory of all workers cannot hold."""
    room = size * limits.capacity_tokens
    if not limits.capacity_tokens:
        return
    longest = max(lengths, default=0)
    held = f"{room} tokens would fit ({size} workers x {limits.capacity_tokens})"
    fix = f"{held}; cut it, use more workers, or raise capacity_tokens"
    if longest > room:
        raise KnobError("FCP.capacity_tokens", f"a sequence has {longest} tokens", fix)
    if sum(lengths) > room:
        raise KnobError("FCP.capacity_tokens", f"the batch has {sum(lengths)} tokens", fix)


class Bins:
    """What each worker has so far: work, room for tokens, units."""

    def __init__(self, size: int, cap: int) -> None:
        self.load = np.zeros(size)
        self.room = np.full(size, cap, np.int64)
        self.units: list[list[Unit]] = [[] for _ in range(size)]

    def put(self, unit: Unit, worker: int) -> None:
        self.load[worker] += unit.work
        self.room[worker] -= unit.tokens
        self.units[worker].append(unit)

    def lightest(self, tokens: int, among: Array | None = None) -> int:
        """The worker with the least work that has room; -1 where none has."""
        load, room = (self.load, self.room) if among is None else (
            self.load[among], self.room[among])  # fmt: skip
        open_load = np.where(room >= tokens, load, np.inf)
        place = int(open_load.argmin())
        if open_load[place] == np.inf:
            return -1
        return place if among is None else int(among[place])

    def place(self, unit: Unit, among: Array | None, length: int, causal: bool) -> None:
        """Give a unit to the lightest worker; in need, cut it to the rooms that are left."""
        worker = self.lightest(unit.tokens, among)
        if worker < 0 and among is not None:
            worker = self.lightest(unit.tokens)
        while worker < 0:
            worker = int(self.room.argmax())
            document, start, stop = unit.block
            middle = start + int(self.room[worker])
            first = Block(document, start, middle)
            self.put(Unit(first, work_of(first, length, causal)), worker)
            rest = Block(document, middle, stop)
            unit = Unit(rest, work_of(rest, length, causal))
            worker = self.lightest(unit.tokens)
        self.put(unit, worker)


def _group(bins: Bins, work: float, tokens: int, target: float, spread: float) -> Array:
    """The fewest of the lightest workers that can take a document, times `spread`."""
    order = np.argsort(bins.load, kind="stable")
    spare = np.cumsum(np.maximum(target - bins.load[order], 0))
    room = np.cumsum(bins.room[order])
    enough = (spare >= work * (1 - 1e-9)) & (room >= tokens)
    count = int(enough.argmax()) + 1 if enough.any() else len(order)
    return order[: math.ceil(count * spread)]


def _deal(
    lengths: Sequence[int], size: int, causal: bool, limits: Limits, cap: int, spread: float
) -> Bins:
    """One packing: long documents to groups of workers, whole ones where there is least work."""
    bins = Bins(size, cap)
    works = [work_of(Block(d, 0, n), n, causal) for d, n in enumerate(lengths)]
    target = sum(works) / size
    room = max((limits.cap - 1) * sum(lengths) / size, limits.block_tokens)
    whole: list[Unit] = []
    for document in sorted(range(len(lengths)), key=lambda d: (-works[d], d)):
        length, work = lengths[document], works[document]
        little = work <= WHOLE_SHARE * target and length <= min(room, cap)
        if length <= limits.block_tokens or little:
            if length:
                whole.append(Unit(Block(document, 0, length), work))
            continue
        group = _group(bins, work, length, target, spread)
        for unit in reversed(cut(document, length, limits.block_tokens, causal)):
            bins.place(unit, group, length, causal)
    for unit in whole:  # already by falling work
        document, _, length = unit.block
        fits = unit.tokens <= limits.block_tokens or bins.lightest(unit.tokens) >= 0
        pieces = [unit] if fits else cut(document, length, limits.block_tokens, causal)
        for piece in reversed(pieces):
            bins.place(piece, None, length, causal)
    return bins


def pack(lengths: Sequence[int], size: int, causal: bool, limits: Limits) -> Layout:
    """The blocks of every worker, in order of document and place.

    Spreads long documents over as few workers as suffice for balance, 1.5 times as many, 2.25
    times and so on until the busiest is within 2 % of the larger of the mean and the largest block.
    A trial costs O(blocks x workers) in NumPy.

    >>> pack([3000, 10, 10], 2, True, Limits(block_tokens=1000))[1][0]
    Block(document=0, start=0, stop=1000)
    """
    refuse_oversized(lengths, size, limits)
    cap = cap_tokens(lengths, size, limits)
    best, best_load, spread = None, math.inf, 1.0
    while True:
        bins = _deal(lengths, size, causal, limits, cap, spread)
        largest = max((unit.work for units in bins.units for unit in units), default=0)
        ideal = max(float(bins.load.mean()), float(largest))
        if bins.load.max() < best_load:
            best, best_load = bins, float(bins.load.max())
        if best_load <= (1 + SLACK) * ideal or spread >= size:
            break
        spread *= WIDER
    assert best is not None
    swap(best.units, best.load, best.room, causal, lengths, limits.swaps)
    shards = [tuple(sorted(unit.block for unit in units)) for units in best.units]
    return neighbours(shards, lengths, causal)


def neighbours(shards: Sequence[Blocks], lengths: Sequence[int], causal: bool) -> Layout:
    """The same shards in an order in which those that fetch from each other stand side by side.

    Until now one worker was as good as another. Ranks of one machine follow each other, and so do
    now the shards whose queries fetch most from the same document.
    """
    main: list[tuple[int, int]] = []
    for place, shard in enumerate(shards):
        parts: dict[int, list[Block]] = {}
        for block in shard:
            parts.setdefault(block.document, []).append(block)
        asked = [(-fetched(mine, lengths[d], causal), d) for d, mine in parts.items()]
        most, document = min(asked, default=(0, 0))
        main.append((document if most < 0 else len(lengths), place))
    return tuple(shards[place] for _, place in sorted(main))


def balance(layout: Layout, lengths: Sequence[int], causal: bool) -> dict[str, float]:
    """How even a layout is: busiest over mean work, largest block, most tokens over the mean."""
    work = [sum(work_of(b, lengths[b.document], causal) for b in blocks) for blocks in layout]
    single = max((work_of(b, lengths[b.document], causal) for blocks in layout for b in blocks),
                 default=0)  # fmt: skip
    mean = sum(work) / len(layout)
    tokens = [rows(blocks) for blocks in layout]
    return {
        "busiest": max(work), "mean": mean, "largest_block": single,
        "imbalance": max(work) / mean if mean else 1.0,
        "most_tokens": max(tokens), "mean_tokens": sum(tokens) / len(layout),
    }  # fmt: skip


__all__ = [
    "Bins",
    "Limits",
    "Unit",
    "balance",
    "cap_tokens",
    "cut",
    "neighbours",
    "pack",
    "work_of",
]
