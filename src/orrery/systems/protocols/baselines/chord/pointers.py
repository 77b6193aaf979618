"""The pointers of a Chord node: successors, predecessor, fingers, and what follows from them.

Nothing here waits or sends: this half of the node is plain arithmetic on the ring.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar

from orrery.parts import Count
from orrery.systems.protocols.baselines.overlay import RoutedOverlay
from orrery.systems.protocols.problems.lookup import place_of, ring_of


class RingPointers(RoutedOverlay):
    """What a node of the ring knows of the others; `Chord` keeps it true."""

    successors: Count = 6
    shortcuts: bool = False

    whole: ClassVar[str] = "ring"

    def start(self) -> None:
        super().start()
        self.succs: list[int] = []
        self.first_gap = 0  # how far up the ring the first of them is
        self.pred: int | None = None
        self.fingers: dict[int, int] = {}  # exponent -> node, only those beyond the successor
        self.near_first: list[int] = []  # the nodes of the fingers, nearest first
        self.gaps: list[int] = []  # and how far up the ring from here each of them is

    def _begin_in_place(self) -> None:
        """Take the pointers that a perfect ring of all nodes has."""
        places, nodes = ring_of(len(self.peers) + 1, self.bits)
        size, at = len(nodes), bisect_left(places, self.place)
        around = [nodes[(at + i) % size] for i in range(1, min(self.successors, size - 1) + 1)]
        self.succs = around or [self.id]
        self.first_gap = self._gap_to(self.succs[0])
        self._set_pred(nodes[at - 1])
        gap = self.first_gap if around else 0
        for i in range(gap.bit_length(), self.bits):
            start = (self.place + (1 << i)) % (1 << self.bits)
            self.fingers[i] = nodes[bisect_left(places, start) % size]
        self._sort_fingers()
        self.joined = True
        self.emit(successor=self.succs[0])

    def _begin_alone(self) -> None:
        super()._begin_alone()
        self.succs = [self.id]
        self.first_gap = self._gap_to(self.id)
        self.emit(successor=self.id)

    # -- where to go for a key

    def _choose(self, key: int, skip: Sequence[int], final: bool) -> tuple[int, bool]:
        """The next node for a key, and whether it should be the owner; oneself: I own it."""
        if final:
            pred = self.pred
            if pred is None or pred in skip or self._owns(key):
                return self.id, True
            return pred, True  # somebody joined before me whom the asking side did not know
        succ, gap = self.succs[0], self.first_gap
        if succ in skip:
            succ = next((node for node in self.succs if node not in skip), self.id)
            gap = self._gap_to(succ)
        away = (key - self.place) % (1 << self.bits)
        if succ == self.id or 0 < away <= gap:
            return succ, True
        # The fingers stand in order of distance, so the last one before the key is the best.
        near_first = self.near_first
        at = bisect_left(self.gaps, away) - 1
        while at >= 0 and near_first[at] in skip:
            at -= 1
        best = near_first[at] if at >= 0 else succ
        if self.shortcuts:
            near = [node for node in self.succs if node not in skip and self._before(node, key)]
            best = min((best, *near), key=lambda node: self._distance(key, node))
        return best, False

    # -- changing them

    def _adopt(self, succ: int, its: Sequence[int]) -> None:
        """Take a successor just heard from, with its list behind it."""
        self._set_succs([succ, *its])

    def _set_succs(self, nodes: Sequence[int], gone: int = -1) -> None:
        before = self.succs[:1]
        kept: list[int] = []
        for node in nodes:
            if node == self.id or len(kept) == self.successors:
                break  # the list has come round to me
            if node not in kept and node != gone:
                kept.append(node)
        self.succs = kept or [self.id]
        if self.succs[:1] != before:
            self.first_gap = self._gap_to(self.succs[0])
            self.emit(successor=self.succs[0])

    def _set_pred(self, node: int | None) -> None:
        if node != self.pred:
            self.pred = node
            self.emit(predecessor=node)

    def _forget(self, node: int) -> None:
        """Drop a node that does not answer from all pointers; it may notify us again."""
        if node in self.succs:
            rest = [other for other in self.succs if other != node]
            if rest:
                self._set_succs(rest)
            else:
                self._lose_the_ring()
        if node in self.near_first:
            self.fingers = {i: other for i, other in self.fingers.items() if other != node}
            self._sort_fingers()
        if node == self.pred:
            self._set_pred(None)

    def _lose_the_ring(self) -> None:
        """Every successor is gone: take the nearest finger; without one, be out of the ring."""
        near = next((other for other in self.near_first if other not in self.succs), None)
        if near is not None:
            self._set_succs([near])
        elif len(self.peers):
            self.joined = False

    def _sort_fingers(self) -> None:
        me, place, bits, size = self.id, self.place, self.bits, 1 << self.bits
        known = {(place_of(node, bits) - place) % size: node
                 for node in self.fingers.values() if node != me}  # fmt: skip
        self.gaps = sorted(known)
        self.near_first = [known[gap] for gap in self.gaps]

    # -- arithmetic on the ring

    def _gap_to(self, node: int) -> int:
        """How far up the ring a node is from here; to oneself it is all the way round."""
        size = 1 << self.bits
        return int((place_of(node, self.bits) - self.place) % size or size)

    def _owns(self, key: int) -> bool:
        assert self.pred is not None
        return self._within(self.pred, key, self.id)

    def _within(self, a: int, key: int, b: int) -> bool:
        """Whether a key lies in (a, b] going up the ring, for nodes a and b; if a is b, always."""
        size, bits = 1 << self.bits, self.bits
        low = place_of(a, bits)
        return 0 < (key - low) % size <= ((place_of(b, bits) - low) % size or size)

    def _between(self, a: int, node: int, b: int) -> bool:
        """Whether a node lies strictly between two others going up the ring."""
        return node != b and node != a and self._within(a, place_of(node, self.bits), b)

    def _before(self, node: int, key: int) -> bool:
        """Whether a node lies strictly between me and a key."""
        size = 1 << self.bits
        return 0 < (place_of(node, self.bits) - self.place) % size < (key - self.place) % size

    def _distance(self, key: int, node: int) -> int:
        """How far a key is up the ring from a node."""
        return int((key - place_of(node, self.bits)) % (1 << self.bits))
