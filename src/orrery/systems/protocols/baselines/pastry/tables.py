"""The tables of a Pastry node: leaf set and prefix routing table. Nothing here waits or sends.

A leaf is kept as one whole number: its distance round the ring in the high bits, the node's number
in the low 24, so that a sorted list of leaves is in order of distance with no key function.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

import msgspec

from orrery.base.errors import PartError
from orrery.systems.protocols.problems.lookup import place_of, ring_of
from orrery.systems.protocols.problems.owner_lookup import RuledOverlay

SHIFT = 24
NODE = (1 << SHIFT) - 1
# A place of a warm table is filled with the nearest of this many candidates.
TRIED_WHEN_WARM = 8

Digit = Annotated[int, msgspec.Meta(ge=1, le=8)]
Leaves = Annotated[int, msgspec.Meta(ge=2, le=1024, multiple_of=2)]


class PrefixTables(RuledOverlay):
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
        self.place = place_of(self.id, self.bits)
        self.joined = False
        self.up: list[int] = []  # the nearest nodes up the ring
        self.down: list[int] = []  # and down
        self.table: dict[int, int] = {}  # row << 8 | digit -> node
        self.slots: dict[int, int] = {}  # node -> where in the table it belongs

    # -- a network at rest

    def _fill(self) -> None:
        """Take the tables of a network at rest; entries are near ones where locality counts."""
        places, nodes = ring_of(len(self.peers) + 1, self.bits)
        size, at = len(nodes), bisect_left(places, self.place)
        half = min(self.leaves // 2, size - 1)
        for i in range(1, half + 1):
            self._add_leaf(nodes[(at + i) % size])
            self._add_leaf(nodes[at - i])
        wide = 1 << self.b
        for row in range(self.bits // self.b):
            width = self.bits - self.b * (row + 1)  # the bits after this row's digit
            base = self.place >> (width + self.b) << (width + self.b)
            mine = (self.place >> width) & (wide - 1)
            others = 0
            for digit in range(wide):
                low = base + (digit << width)
                first, last = bisect_left(places, low), bisect_left(places, low + (1 << width))
                others += last - first
                if digit != mine and last > first:
                    self.table[row << 8 | digit] = self._pick(nodes, first, last)
            if others <= 1:  # nobody but me has this prefix, nor any longer one
                break

    def _pick(self, nodes: Sequence[int], first: int, last: int) -> int:
        if not self.locality:
            return nodes[first + self.rng.below(last - first)]
        latency = self.world.wiring().latency
        tried = [nodes[i] for i in self.rng.sample(range(first, last), TRIED_WHEN_WARM)]
        return min(tried, key=lambda node: (latency(self.id, node), node))

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
        if not skip and gap and len(self.up) and gap <= self.up[-1] >> SHIFT:
            at = bisect_left(self.up, gap << SHIFT)
            after = self.up[at]
            before = self.up[at - 1] if at else 0
            above, below = (after >> SHIFT) - gap, gap - (before >> SHIFT)
            if above != below and above + below < 1 << (self.bits - 1):
                return after & NODE if above < below else (before & NODE if at else self.id)
        near = [leaf & NODE for leaf in (*self.up, *self.down) if leaf & NODE not in skip]
        return min((self.id, *near), key=lambda node: self._away(key, node))

    def _rare(self, key: int, row: int, skip: Sequence[int]) -> int:
        """No entry fits: take any known node with as long a prefix that is nearer to the key."""
        best, least = self.id, self._away(key, self.id)
        prefix = self.bits - self.b * row
        for node in self._known():
            place = place_of(node, self.bits)
            if (place ^ key) >> prefix == 0 and node not in skip:
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
        leaves = [leaf & NODE for leaf in (*self.up, *self.down)]
        return list(dict.fromkeys((*leaves, *self.table.values())))

    def _leaf_nodes(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(leaf & NODE for leaf in (*self.up, *self.down)))

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
                insort(side, leaf)
                del side[half:]

    def _add_entry(self, node: int) -> None:
        """Fill a place of the routing table that is empty."""
        if node != self.id:
            slot = self.slots.get(node)
            self.table.setdefault(self._slot(node) if slot is None else slot, node)

    def _forget(self, node: int) -> bool:
        """Drop a node that does not answer; gives whether it was a leaf."""
        before = len(self.up) + len(self.down)
        self.up = [leaf for leaf in self.up if leaf & NODE != node]
        self.down = [leaf for leaf in self.down if leaf & NODE != node]
        slot = self._slot(node)
        if self.table.get(slot) == node:
            del self.table[slot]
        return len(self.up) + len(self.down) < before

    def _row_for(self, node: int) -> tuple[int, ...]:
        """My entries that a node of that place can use: all rows down to our common prefix."""
        most = self._slot(node) >> 8 if node != self.id else self.bits
        return tuple(dict.fromkeys(n for slot, n in self.table.items() if slot >> 8 <= most))

    def _replicas(self, key: int, n: int) -> tuple[int, ...]:
        """The n nodes nearest to a key among my leaves and me, nearest first."""
        near = sorted((self.id, *self._leaf_nodes()), key=lambda node: self._away(key, node))
        return tuple(near[:n])

    def _learn_entries(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self._add_entry(node)
