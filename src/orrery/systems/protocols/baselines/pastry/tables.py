"""The tables of a Pastry node: leaf set and prefix routing table. Nothing here waits or sends.

A leaf is kept as one whole number: its distance round the ring in the high bits, the node's number
in the low 24, so that a sorted list of leaves is in order of distance with no key function.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from orrery.base.errors import PartError
from orrery.systems.protocols.baselines.overlay import RoutedOverlay
from orrery.systems.protocols.problems.lookup import place_of, ring_of

SHIFT = 24
NODE = (1 << SHIFT) - 1
# An entry of a warm table is the nearest of so many candidates.
TRIED_WHEN_WARM = 8

Digit = Annotated[int, msgspec.Meta(ge=1, le=8)]
Leaves = Annotated[int, msgspec.Meta(ge=2, le=1024, multiple_of=2)]


@functools.lru_cache(maxsize=4)
def _sites(wiring: Any) -> list[int]:
    """The site of each node, as a list, which is quicker to look up than an array."""
    return [int(site) for site in wiring.site_of]


def _latencies(wiring: Any, me: int) -> Callable[[int], float]:
    """The latency from here to a node; where sites decide it, without asking the wiring anew."""
    if wiring.site_of is None:
        return functools.partial(wiring.latency, me)
    sites = _sites(wiring)
    row = wiring.site_latency_s[sites[me]].tolist()
    return lambda node: row[sites[node]] if node != me else 0.0


class PrefixTables(RoutedOverlay):
    """What a node knows of the others; `Pastry` keeps it true."""

    b: Digit = 4
    leaves: Leaves = 16
    locality: bool = True

    owner_rule: ClassVar[str] = "nearest"

    def start(self) -> None:
        if self.bits % self.b:
            name = type(self).__name__
            fix = f"give a multiple of b = {self.b}"
            raise PartError(f"{name}.bits = {self.bits} is no whole number of digits; {fix}")
        super().start()
        self.up: list[int] = []  # the nearest nodes up the ring
        self.down: list[int] = []  # and down
        self.around: tuple[int, ...] | None = None  # both, each node once; None: to be made anew
        self.spots: list[tuple[int, int]] = []  # (place, node) of oneself and of each of these
        self.table: dict[int, int] = {}  # row << 8 | digit -> node
        self.slots: dict[int, int] = {}  # node -> where in the table it belongs

    # -- a network at rest

    def _begin_in_place(self) -> None:
        """Take the tables of a network at rest; entries are near ones where locality counts."""
        places, nodes = ring_of(len(self.peers) + 1, self.bits)
        size, at = len(nodes), bisect_left(places, self.place)
        half = min(self.leaves // 2, size - 1)
        for i in range(1, half + 1):
            self._add_leaf(nodes[(at + i) % size])
            self._add_leaf(nodes[at - i])
        latency = _latencies(self.world.wiring(), self.id) if self.locality else None
        wide = 1 << self.b
        low, high = 0, size  # the nodes that share my prefix so far
        for row in range(self.bits // self.b):
            width = self.bits - self.b * (row + 1)  # the bits after this row's digit
            base = self.place >> (width + self.b) << (width + self.b)
            mine = (self.place >> width) & (wide - 1)
            first, mine_first, mine_last = low, low, high
            for digit in range(wide):
                last = bisect_left(places, base + (digit + 1 << width), first, high)
                if digit == mine:
                    mine_first, mine_last = first, last
                elif last > first:
                    self.table[row << 8 | digit] = self._pick(nodes, first, last, latency)
                first = last
            # The stretch of my own digit goes on in the next row, as long as others are in it.
            alone = high - low <= 1
            low, high = mine_first, mine_last
            if alone:
                break
        self.joined = True

    def _pick(
        self, nodes: Sequence[int], first: int, last: int, latency: Callable[[int], float] | None
    ) -> int:
        """One of a stretch of nodes: the nearest of a few, or with no regard to that, any.

        Places are hashes, so neighbours on the ring are a random sample of all machines; a window
        at a random place costs one draw where a sample of single nodes would cost as many as it
        has, and a large world fills millions of entries.
        """
        tried = TRIED_WHEN_WARM if latency is not None else 1
        if last - first > tried:
            first += self.rng.below(last - first - tried + 1)
            last = first + tried
        if latency is None or last - first == 1:
            return nodes[first]
        some = nodes[first:last]
        return min(zip(map(latency, some), some, strict=True))[1]

    # -- where to go for a key

    def _choose(self, key: int, skip: Sequence[int]) -> int:
        """The next node for a key; oneself: nobody known is nearer."""
        size = 1 << self.bits
        gap = (key - self.place) % size
        up, down = self.up, self.down
        half = self.leaves // 2
        # With room in a half of the leaf set the whole ring is known.
        inside = len(up) < half or len(down) < half
        if inside or gap <= up[-1] >> SHIFT or size - gap <= down[-1] >> SHIFT:
            return self._nearest_leaf(key, gap, skip)
        row = (self.bits - (self.place ^ key).bit_length()) // self.b
        digit = (key >> (self.bits - self.b * (row + 1))) & ((1 << self.b) - 1)
        node = self.table.get(row << 8 | digit)
        if node is not None and node not in skip:
            return node
        return self._rare(key, row, skip)

    def _nearest_leaf(self, key: int, gap: int, skip: Sequence[int]) -> int:
        up, down, size = self.up, self.down, 1 << self.bits
        if not skip and gap and up and down:
            if gap <= up[-1] >> SHIFT:
                found = self._between_leaves(up, gap)
            elif size - gap <= down[-1] >> SHIFT and (up[-1] >> SHIFT) + (down[-1] >> SHIFT) < size:
                found = self._between_leaves(down, size - gap)
            else:
                found = -1
            if found >= 0:
                return found
        best, least = self.id, self._away(key, self.id)
        for leaf in (*up, *down):
            node = leaf & NODE
            if node not in skip:
                away = self._away(key, node)
                if away < least:
                    best, least = node, away
        return best

    def _between_leaves(self, side: Sequence[int], gap: int) -> int:
        """The nearer of the two leaves of a side that a key lies between; -1: not so simple."""
        at = bisect_left(side, gap << SHIFT)
        after = side[at]
        before = side[at - 1] if at else self.id
        beyond, short = (after >> SHIFT) - gap, gap - (before >> SHIFT if at else 0)
        if beyond == short or beyond + short >= 1 << (self.bits - 1):
            return -1
        return (after if beyond < short else before) & NODE

    def _rare(self, key: int, row: int, skip: Sequence[int]) -> int:
        """No entry fits: take any known node with as long a prefix that is nearer to the key."""
        best, least = self.id, self._away(key, self.id)
        bits, prefix = self.bits, self.bits - self.b * row
        for node in self._known():
            if (place_of(node, bits) ^ key) >> prefix == 0 and node not in skip:
                away = self._away(key, node)
                if away < least:
                    best, least = node, away
        return best

    def _away(self, key: int, node: int) -> tuple[int, int]:
        """How far a node is from a key round the ring; of two equals the lower place is nearer."""
        size, place = 1 << self.bits, place_of(node, self.bits)
        gap = (key - place) % size
        return min(gap, size - gap), place

    # -- changing them

    def _known(self) -> list[int]:
        """Every node in the tables, each once, in a fixed order."""
        return list(dict.fromkeys((*self._leaf_nodes(), *self.table.values())))

    def _leaf_nodes(self) -> tuple[int, ...]:
        if self.around is None:
            self.around = tuple(dict.fromkeys([leaf & NODE for leaf in (*self.up, *self.down)]))
            self.spots = [(place_of(node, self.bits), node) for node in (self.id, *self.around)]
        return self.around

    def _slot(self, node: int) -> int:
        """Where in the table a node belongs; reckoned once for each node heard of."""
        slot = self.slots.get(node)
        if slot is None:
            place = place_of(node, self.bits)
            row = (self.bits - (self.place ^ place).bit_length()) // self.b
            digit = (place >> (self.bits - self.b * (row + 1))) & ((1 << self.b) - 1)
            slot = self.slots[node] = row << 8 | digit
        return slot

    def _is_leaf(self, node: int) -> bool:
        """Whether a node is in the leaf set, or would be if it were taken in."""
        half, size = self.leaves // 2, 1 << self.bits
        gap = (place_of(node, self.bits) - self.place) % size
        return node != self.id and (
            len(self.up) < half or gap <= self.up[-1] >> SHIFT
            or len(self.down) < half or size - gap <= self.down[-1] >> SHIFT
        )  # fmt: skip

    def _add_leaf(self, node: int) -> None:
        """Take a node into the leaf set where it is near enough, on either side."""
        if node == self.id:
            return
        half, size = self.leaves // 2, 1 << self.bits
        gap = (place_of(node, self.bits) - self.place) % size
        for side, leaf in ((self.up, gap << SHIFT | node), (self.down, size - gap << SHIFT | node)):
            at = bisect_left(side, leaf)
            if at < half and not (at < len(side) and side[at] == leaf):
                side.insert(at, leaf)
                del side[half:]
                self.around = None

    def _add_entry(self, node: int) -> None:
        """Fill a place of the routing table that is empty."""
        if node != self.id:
            slot = self.slots.get(node)
            if slot is None:
                slot = self._slot(node)
            if slot not in self.table:
                self.table[slot] = node

    def _forget(self, node: int) -> bool:
        """Drop a node that does not answer; gives whether it was a leaf."""
        slot = self._slot(node)
        if self.table.get(slot) == node:
            del self.table[slot]
        if node not in self._leaf_nodes():
            return False
        self.up = [leaf for leaf in self.up if leaf & NODE != node]
        self.down = [leaf for leaf in self.down if leaf & NODE != node]
        self.around = None
        return True

    def _row_for(self, node: int) -> tuple[int, ...]:
        """My entries that a node of that place can use: all rows down to our common prefix."""
        most = self._slot(node) >> 8 if node != self.id else self.bits
        return tuple(dict.fromkeys([n for slot, n in self.table.items() if slot >> 8 <= most]))

    def _replicas(self, key: int, n: int) -> tuple[int, ...]:
        """The n nodes nearest to a key among my leaves and me, nearest first."""
        self._leaf_nodes()  # brings the spots up to date
        size = 1 << self.bits
        near = [  # the arithmetic of `_away`, without its calls
            (gap if gap + gap <= size else size - gap, place, node)
            for place, node in self.spots
            for gap in ((key - place) % size,)
        ]
        near.sort()
        return tuple([node for _, _, node in near[:n]])

    def _learn_entries(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self._add_entry(node)
