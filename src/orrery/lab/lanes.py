"""The lanes of a folded diagram: nodes in an order in which those that belong together are near.

The order goes by role, then by site or rack, then by number, so that every fold is one stretch of
places in it. `Order.lanes` cuts a stretch into at most so many lanes, along the borders of roles
and racks where these are few enough, by ranges of numbers where they are not.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

ENOUGH = 4  # so many pieces that belong together are a picture


class Lane(NamedTuple):
    """A stretch [lo, hi) of places: one node, or a fold of several."""

    lo: int
    hi: int
    name: str
    node: int = -1  # where it is a single one
    pinned: bool = False

    @property
    def count(self) -> int:
        return self.hi - self.lo

    def to_json(self) -> dict[str, Any]:
        """As plain data; `node` only where the lane is one node."""
        told: dict[str, Any] = {"lo": self.lo, "hi": self.hi, "name": self.name}
        if self.node >= 0:
            told["node"] = self.node
        else:
            told["count"] = self.count
        return told


class Order:
    """Nodes in the order of their lanes, and the borders at which folds may be cut."""

    def __init__(
        self,
        nodes: npt.NDArray[np.int32],
        levels: Sequence[tuple[Sequence[int], Sequence[str]]],
        outside: Sequence[str] = (),
    ) -> None:
        self.nodes = nodes
        self.place = np.empty(len(nodes), dtype=np.int32)
        self.place[nodes] = np.arange(len(nodes), dtype=np.int32)
        # Each level: where its pieces begin (ascending, the first at 0) and how they are called.
        self.levels = [(list(starts), list(names)) for starts, names in levels]
        self.outside = list(outside)  # names of what stands after the world's nodes

    def lanes(self, lo: int, hi: int, most: int, pinned: Sequence[int] = ()) -> list[Lane]:
        """The stretch as at most `most` lanes, more only by the pinned places."""
        room = max(1, most - 2 * len([p for p in pinned if lo <= p < hi]))
        cuts = self._cuts(lo, hi, room)
        made: list[Lane] = []
        own = [place for place in pinned if lo <= place < hi]
        for start, end in itertools.pairwise(cuts):
            at = start
            for place in own[bisect_left(own, start) : bisect_left(own, end)]:
                if place > at:
                    made.append(self.lane(at, place))
                made.append(self.lane(place, place + 1)._replace(pinned=True))
                at = place + 1
            if at < end:
                made.append(self.lane(at, end))
        return made

    def _cuts(self, lo: int, hi: int, most: int) -> list[int]:
        if hi - lo <= most:
            return list(range(lo, hi + 1))
        best = [lo, hi]
        for starts, _ in self.levels:  # from coarse to fine: the finest that still fits
            inner = starts[bisect_right(starts, lo) : bisect_left(starts, hi)]
            if len(inner) + 1 > most:
                break
            best = [lo, *inner, hi]
        # Some cities or racks tell more than any ranges of numbers; two or three are too few.
        return best if len(best) > ENOUGH else self._split(best, most)

    def _split(self, cuts: list[int], most: int) -> list[int]:
        """Share the lanes that are left among the pieces, by size: the largest is cut first."""
        pieces = [[a, b, 1] for a, b in itertools.pairwise(cuts)]
        for _ in range(most - len(pieces)):
            widest = max(pieces, key=lambda piece: (piece[1] - piece[0]) / piece[2])
            if widest[1] - widest[0] <= widest[2]:
                break
            widest[2] += 1
        found = []
        for a, b, parts in pieces:
            found += [a + (b - a) * i // parts for i in range(parts)]
        return [*found, cuts[-1]]

    def lane(self, lo: int, hi: int) -> Lane:
        """One lane with its name: a node, a whole rack or role, or a range of numbers."""
        if hi - lo == 1:
            node = int(self.nodes[lo])
            return Lane(lo, hi, self._single(node), node)
        for starts, names in self.levels:
            at = bisect_left(starts, lo)
            follows = starts[at + 1] if at + 1 < len(starts) else len(self.nodes)
            if at < len(starts) and starts[at] == lo and follows == hi:
                return Lane(lo, hi, names[at])
        first, last = int(self.nodes[lo]), int(self.nodes[hi - 1])
        return Lane(lo, hi, f"{self._piece(lo, hi)}{first:,} – {last:,}")

    def _piece(self, lo: int, hi: int) -> str:
        """The name of the smallest piece that holds a range, if it is not the whole."""
        found = "nodes "
        for starts, names in self.levels:
            at = bisect_right(starts, lo) - 1
            ends = starts[at + 1] if at + 1 < len(starts) else len(self.nodes)
            if len(starts) > 1 and hi <= ends:
                found = f"{names[at]} "
        return found

    def _single(self, node: int) -> str:
        inside = len(self.nodes) - len(self.outside)
        return f"node {node}" if node < inside else self.outside[node - inside]


def order_of(world: Any, places: int) -> Order:
    """The order of a world's nodes: by role, by site or rack, by number; clients come last."""
    size = world.size
    total = max(size, places)
    role = np.zeros(total, dtype=np.int64)
    roles = list(world.roles)
    if len(roles) > 1:
        for number, name in enumerate(roles):
            members = world.members(name)
            role[list(members) if not isinstance(members, range) else
                 slice(members.start, members.stop)] = number  # fmt: skip
    role[size:] = len(roles)
    divisions = _divisions(world, total, set(roles))
    finest = divisions[-1][0] if divisions else role
    nodes = np.lexsort((np.arange(total), finest, role)).astype(np.int32)
    outside = ["clients", *(f"twin {i}" for i in range(1, total - size))][: total - size]
    levels = [_level(role[nodes], role[nodes], [*(_several(r) for r in roles), "outside"])]
    for inner, inner_names in divisions:
        inner[size:] = len(inner_names)
        key = role[nodes] * (len(inner_names) + 1) + inner[nodes]
        levels.append(_level(key, inner[nodes], [*inner_names, "outside"]))
    return Order(nodes, [level for level in levels if len(level[0]) > 1], outside)


def _several(role: str) -> str:
    return role if role.endswith("s") else f"{role}s"


def _divisions(
    world: Any, total: int, roles: set[str]
) -> list[tuple[npt.NDArray[np.int64], list[str]]]:
    """How a world's nodes belong together, from coarse to fine: (by node, the names).

    Sites where the world names them, else islands, else the pods and racks of a fat tree.
    """
    site = np.zeros(total, dtype=np.int64)
    names: list[str] = []
    for name, members in world.domains().items():
        if name in roles or len(members) == world.size:
            continue
        site[list(members)] = len(names)
        names.append(name)
    shape = world.network.topology
    if names:
        return [(site, names)]
    if shape.kind == "islands" and shape.island and shape.island > 1:
        return [_runs(world.size, total, shape.island, "island")]
    if shape.kind == "fat_tree" and shape.k and shape.k > 2:
        rack = shape.k // 2  # so many nodes hang on one switch, and so many switches make a pod
        return [_runs(world.size, total, rack * rack, "pod"),
                _runs(world.size, total, rack, "rack")]  # fmt: skip
    return []


def _runs(size: int, total: int, each: int, name: str) -> tuple[npt.NDArray[np.int64], list[str]]:
    return np.arange(total) // each, [f"{name} {i}" for i in range(-(-size // each))]


def _level(
    keys: npt.NDArray[np.int64], inner: npt.NDArray[np.int64], names: list[str]
) -> tuple[list[int], list[str]]:
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return starts.tolist(), [names[int(inner[s])] for s in starts]
