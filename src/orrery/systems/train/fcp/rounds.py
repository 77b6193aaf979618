"""The exchange plan: which blocks go from whom to whom, coloured into rounds.

Every worker needs the keys and values before its queries, wherever they are. The needs of a pair
of workers are cut into parcels, and the parcels coloured as edges of a bipartite graph: in a round
a worker sends to one at most and hears from one at most. König (1916): as many rounds suffice as
the busiest worker has parcels, in or out.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from orrery.models.shards import Block, Blocks, Layout
from orrery.systems.train.fcp.packing import Limits, pack

Array = npt.NDArray[Any]


class Parcel(NamedTuple):
    """Blocks of K and V that go from one worker to another as one transfer."""

    round: int
    source: int
    target: int
    blocks: Blocks


class Plan:
    """A layout and the exchange that it needs, by round; the parcels of a worker on demand.

    Arrays hold a parcel's round, source and target, and which blocks it has: those numbered
    `which[first[i]:first[i + 1]]`. Hundreds of thousands of small objects would cost more than
    all the planning.
    """

    def __init__(self, layout: Layout, blocks: Sequence[Block], columns: Array, which: Array,
                 first: Array) -> None:  # fmt: skip
        self.layout, self.blocks = layout, blocks
        self.columns, self.which, self.first = columns, which, first
        self.rounds = int(columns[0].max()) + 1 if columns.size else 0
        self._listed: dict[tuple[int, int], list[Parcel]] = {}

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def _parcel(self, number: int) -> Parcel:
        chosen = self.which[self.first[number] : self.first[number + 1]].tolist()
        round_, source, target = self.columns[:, number].tolist()
        return Parcel(round_, source, target, tuple(self.blocks[i] for i in chosen))

    def _of(self, side: int, worker: int) -> list[Parcel]:
        found = self._listed.get((side, worker))
        if found is None:
            mine = np.flatnonzero(self.columns[side] == worker)
            mine = mine[np.argsort(self.columns[0, mine], kind="stable")]
            found = self._listed[side, worker] = [self._parcel(i) for i in mine.tolist()]
        return found

    def sends(self, worker: int) -> list[Parcel]:
        """What a worker sends, in the order of the rounds."""
        return self._of(1, worker)

    def takes(self, worker: int) -> list[Parcel]:
        """What a worker receives, in the order of the rounds."""
        return self._of(2, worker)

    def parcels(self) -> list[Parcel]:
        """All parcels, in the order of the rounds."""
        return sorted(self._parcel(i) for i in range(len(self)))

    def sent_rows(self) -> int:
        """Rows of K and V that all workers send, forwards."""
        tokens = np.array([b.stop - b.start for b in self.blocks], np.int64)
        return int(tokens[self.which].sum()) if len(self.which) else 0


def needs(layout: Layout, lengths: Sequence[int], causal: bool) -> tuple[Array, Array, list[Block]]:
    """(owner of each block, [block number, who needs it], blocks); nobody needs his own."""
    blocks = [block for mine in layout for block in mine]
    owners = np.repeat(np.arange(len(layout)), [len(mine) for mine in layout])
    table = np.array(blocks, np.int64).reshape(-1, 3)
    order = np.lexsort((table[:, 1], table[:, 0]))
    ends = np.flatnonzero(np.diff(table[order, 0])) + 1
    edges = [np.zeros((0, 2), np.int64)]
    for part in np.split(order, ends):
        workers = np.unique(owners[part])
        if len(workers) < 2:
            continue
        # A causal query sees its own place and what is before; the last block decides for all.
        reach = np.full(len(workers), lengths[table[part[0], 0]])
        if causal:
            reach[:] = 0
            np.maximum.at(reach, np.searchsorted(workers, owners[part]), table[part, 2])
        wanted = table[part, 1][:, None] < reach[None, :]
        wanted &= owners[part][:, None] != workers[None, :]
        which, who = np.nonzero(wanted)
        edges.append(np.stack([part[which], workers[who]], axis=1))
    return owners, np.concatenate(edges), blocks


def colour(sources: Sequence[int], targets: Sequence[int], size: int) -> list[int]:
    """A round for each edge so that no worker sends twice or receives twice in one.

    Uses exactly as many rounds as the busiest worker has edges on one side. An edge takes the first
    round that is free at both ends; where there is none, a path of two alternating rounds is
    exchanged. O(edges x workers) at worst, about O(edges) for even exchanges.

    >>> colour([0, 0, 1, 1], [0, 1, 0, 1], 2)
    [0, 1, 1, 0]
    """
    if not len(sources):
        return []
    most = int(max(np.bincount(sources).max(), np.bincount(targets).max()))
    every = (1 << most) - 1
    free_out, free_in = [every] * size, [every] * size
    out = [[-1] * most for _ in range(size)]  # the edge of a worker in a round, by side
    into = [[-1] * most for _ in range(size)]
    colours = [-1] * len(sources)
    for edge, (s, t) in enumerate(zip(sources, targets, strict=True)):
        common = free_out[s] & free_in[t]
        if not common:
            a, b = _lowest(free_out[s]), _lowest(free_in[t])
            path, at, side, seek = [], t, into, a
            while (found := side[at][seek]) >= 0:
                path.append(found)
                at = sources[found] if side is into else targets[found]
                side, seek = (out, b) if side is into else (into, a)
            _exchange(path, a, b, sources, targets, colours, (out, into), (free_out, free_in))
            common = 1 << a
        c = _lowest(common)
        colours[edge] = c
        out[s][c] = into[t][c] = edge
        free_out[s] &= ~(1 << c)
        free_in[t] &= ~(1 << c)
    return colours


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _exchange(
    path: Sequence[int], a: int, b: int, sources: Sequence[int], targets: Sequence[int],
    colours: list[int], edges: tuple[Any, Any], free: tuple[list[int], list[int]],
) -> None:  # fmt: skip
    """Swap rounds a and b along a path."""
    out, into = edges
    for edge in path:
        old = colours[edge]
        out[sources[edge]][old] = into[targets[edge]][old] = -1
    for edge in path:
        colours[edge] = b if colours[edge] == a else a
        out[sources[edge]][colours[edge]] = into[targets[edge]][colours[edge]] = edge
    for edge in path:
        for table, bits, at in ((out, free[0], sources[edge]), (into, free[1], targets[edge])):
            for c in (a, b):
                bits[at] = bits[at] | (1 << c) if table[at][c] < 0 else bits[at] & ~(1 << c)


def exchange(layout: Layout, lengths: Sequence[int], causal: bool, parcel_tokens: int) -> Plan:
    """The plan of a layout: its needs as parcels, each with its round."""
    size = len(layout)
    owners, edges, blocks = needs(layout, lengths, causal)
    if not len(edges):
        nothing = np.zeros(0, np.int64)
        return Plan(layout, blocks, np.zeros((3, 0), np.int64), nothing, np.zeros(1, np.int64))
    tokens = np.array([block.stop - block.start for block in blocks], np.int64)
    sources, targets = owners[edges[:, 0]], edges[:, 1]
    order = np.lexsort((edges[:, 0], targets, sources))
    which, pair = edges[order, 0], (sources * size + targets)[order]
    before = np.cumsum(tokens[which]) - tokens[which]
    fresh = np.concatenate([[True], pair[1:] != pair[:-1]])
    # A parcel is full when the rows of its pair before it reach a multiple of its size.
    opened = np.maximum.accumulate(np.where(fresh, np.arange(len(pair)), 0))
    number = (before - before[opened]) // parcel_tokens
    starts = np.flatnonzero(fresh | np.concatenate([[True], number[1:] != number[:-1]]))
    source, target = pair[starts] // size, pair[starts] % size
    # Parcels in order of their distance round the workers: an even exchange then needs no path.
    turn = np.lexsort((source, (target - source) % size, number[starts]))
    rounds = np.zeros(len(starts), np.int64)
    rounds[turn] = colour(source[turn].tolist(), target[turn].tolist(), size)
    first = np.concatenate([starts, [len(which)]])
    return Plan(layout, blocks, np.stack([rounds, source, target]), which, first)


@functools.lru_cache(maxsize=8)
def plan(lengths: tuple[int, ...], size: int, causal: bool, limits: Limits,
         parcel_tokens: int = 4096) -> Plan:  # fmt: skip
    """Pack a batch and plan its exchange; the same for all who ask.

    >>> plan((2048, 100), 2, True, Limits()).rounds
    1
    """
    layout = pack(lengths, size, causal, limits)
    return exchange(layout, lengths, causal, parcel_tokens)


@functools.lru_cache(maxsize=8)
def plan_for(layout: Layout, lengths: tuple[int, ...], causal: bool, parcel_tokens: int) -> Plan:
    """The exchange for a layout that somebody else made."""
    return exchange(layout, lengths, causal, parcel_tokens)


def faults(made: Plan, lengths: Sequence[int], causal: bool) -> list[str]:
    """What is wrong with a plan: collisions in a round, blocks that their sender lacks, needs."""
    found, parcels = list[str](), made.parcels()
    seen: set[tuple[str, int, int]] = set()
    for parcel in parcels:
        for name, worker in (("sends", parcel.source), ("receives", parcel.target)):
            place = (name, parcel.round, worker)
            if place in seen:
                found.append(f"round {parcel.round}: worker {worker} {name} twice")
            seen.add(place)
    held = {block: worker for worker, mine in enumerate(made.layout) for block in mine}
    given: dict[tuple[Block, int], int] = {}
    for parcel in parcels:
        for block in parcel.blocks:
            if held.get(block) != parcel.source:
                found.append(f"worker {parcel.source} sends {block}, which it has not")
            given[block, parcel.target] = given.get((block, parcel.target), 0) + 1
    _, edges, blocks = needs(made.layout, lengths, causal)
    wanted = {(blocks[which], who) for which, who in edges.tolist()}
    found += [f"worker {who} never gets {block}" for block, who in sorted(wanted - set(given))]
    found += [f"worker {who} gets {block} {count} times, and needs it "
              f"{int((block, who) in wanted)} times" for (block, who), count in given.items()
              if count > 1 or (block, who) not in wanted]  # fmt: skip
    return found


def stuck(sends: Sequence[Sequence[Parcel]], takes: Sequence[Sequence[Parcel]]) -> list[int]:
    """Who waits for ever where nothing is buffered: a parcel moves when both its ends are there.

    Each worker works through its sends in their order, and at once through its takes in theirs.
    """
    out = [list(reversed(parcels)) for parcels in sends]
    into = [list(reversed(parcels)) for parcels in takes]
    ready = list(range(len(out)))
    while ready:
        worker = ready.pop()
        while out[worker] and into[out[worker][-1].target][-1:] == out[worker][-1:]:
            parcel = out[worker].pop()
            into[parcel.target].pop()
            if into[parcel.target]:
                ready.append(into[parcel.target][-1].source)
    return [w for w in range(len(out)) if out[w] or into[w]]


__all__ = ["Parcel", "Plan", "colour", "exchange", "faults", "needs", "plan", "plan_for", "stuck"]
