"""Directed graphs of up to 64 nodes as whole numbers, one bit a node: reach, sources, families.

`reach(v, F)` are the nodes outside F that have a path to v which avoids F (v is one of them). The
source components of what F leaves are exactly the smallest sets of this kind, so every condition on
pairs of reaches is one on pairs of source components.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator

import msgspec

from orrery.base.errors import KnobError
from orrery.base.rand import Stream

MOST_NODES = 64
MOST_ENUMERATED = 4  # nodes of the digraphs that are listed up to isomorphism: 218 of them at 4
Links = tuple[tuple[int, int], ...]


class Digraph(msgspec.Struct, frozen=True):
    """n nodes and, for each of them, the mask of the nodes that it sends to and hears from."""

    n: int
    out: tuple[int, ...]
    into: tuple[int, ...]

    @classmethod
    def of(cls, n: int, links: Iterable[tuple[int, int]]) -> Digraph:
        """The graph with these one-way links; a link named twice counts once.

        >>> Digraph.of(3, [(0, 1), (1, 2)]).reach(2) == 0b111
        True
        """
        if not 1 <= n <= MOST_NODES:
            raise KnobError("Digraph.n", f"{n} nodes", f"give 1 to {MOST_NODES}")
        out, into = [0] * n, [0] * n
        for a, b in links:
            if not (0 <= a < n and 0 <= b < n) or a == b:
                fix = f"join two different nodes of 0 to {n - 1}"
                raise KnobError("Digraph.links", f"({a}, {b}) is no link of {n} nodes", fix)
            out[a] |= 1 << b
            into[b] |= 1 << a
        return cls(n, tuple(out), tuple(into))

    @property
    def everyone(self) -> int:
        """The mask of all nodes."""
        return (1 << self.n) - 1

    @property
    def links(self) -> Links:
        """Every link, in order."""
        return tuple((a, b) for a in range(self.n) for b in bits(self.out[a]))

    def reach(self, v: int, without: int = 0) -> int:
        """The nodes outside the mask `without` with a path to v that avoids it; O(n) words."""
        found = front = 1 << v & ~without
        while front:
            low = front & -front
            front ^= low
            fresh = self.into[low.bit_length() - 1] & ~without & ~found
            found |= fresh
            front |= fresh
        return found

    def sources(self, without: int = 0) -> tuple[int, ...]:
        """The source components of the graph without these nodes; O(n^2) words."""
        left, found = self.everyone & ~without, []
        while left:
            # Going up from any node ends in a source: a node whose reach cannot be left any more.
            v = (left & -left).bit_length() - 1
            mask = self.reach(v, without)
            while True:
                w = next((w for w in bits(mask) if self.reach(w, without) != mask), -1)
                if w < 0:
                    break
                mask = self.reach(w, without)
            found.append(mask)
            for w in bits(left):
                if self.reach(w, without) & mask:
                    left &= ~(1 << w)
        return tuple(sorted(found))

    def core(self, without: int = 0) -> int:
        """The nodes that reach all the others outside `without`: the only source, or nothing."""
        mask = self.everyone & ~without
        for v in bits(self.everyone & ~without):
            mask &= self.reach(v, without)
            if not mask:
                break
        return mask

    def steps(self, start: int, without: int = 0) -> dict[int, int]:
        """How many links away each node is that `start` reaches outside the mask."""
        far, front, step = {start: 0}, 1 << start, 0
        seen = front
        while front:
            step += 1
            fresh = 0
            for v in bits(front):
                fresh |= self.out[v]
            front = fresh & ~seen & ~without
            seen |= front
            far.update(dict.fromkeys(bits(front), step))
        return far


def bits(mask: int) -> Iterator[int]:
    """The nodes of a mask, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(nodes: Iterable[int]) -> int:
    """The mask of some nodes."""
    made = 0
    for node in nodes:
        made |= 1 << node
    return made


@functools.lru_cache(maxsize=256)
def subsets(n: int, size: int) -> tuple[int, ...]:
    """The masks of all sets of that many of n nodes, in order of their members."""
    return tuple(mask_of(chosen) for chosen in itertools.combinations(range(n), size))


# -- families


def complete(n: int) -> Digraph:
    """Everybody hears everybody."""
    return Digraph.of(n, itertools.permutations(range(n), 2))


def ring(n: int) -> Digraph:
    """A one-way ring."""
    return Digraph.of(n, [(v, (v + 1) % n) for v in range(n)] if n > 1 else [])


def triangles(joined: bool = True) -> Digraph:
    """Two bidirected triangles X = 0 1 2 and Y = 3 4 5, linked by p = 0 <-> q = 3.

    Joined, q also sends to every node of X and p to every node of Y.
    """
    links = [*itertools.permutations(range(3), 2), *itertools.permutations(range(3, 6), 2)]
    links += [(0, 3), (3, 0)]
    if joined:
        links += [(3, v) for v in range(3)] + [(0, v) for v in range(3, 6)]
    return Digraph.of(6, links)


def drawn(n: int, share: float, rng: Stream) -> Digraph:
    """Each link is there with that chance."""
    return Digraph.of(
        n, [link for link in itertools.permutations(range(n), 2) if rng.random() < share]
    )


def thinned(graph: Digraph, keep: float, rng: Stream, good: Callable[[Digraph], bool]) -> Digraph:
    """The graph without as many links as the predicate `good` bears, down to a share `keep`.

    Links are tried in an order that the stream picks; those whose loss `good` refuses stay.
    """
    links = list(graph.links)
    fewest = keep * len(links)
    rng.shuffle(links)
    for link in list(links):
        if len(links) <= fewest:
            break
        rest = Digraph.of(graph.n, [other for other in links if other != link])
        if good(rest):
            links.remove(link)
    return Digraph.of(graph.n, links)


def renamed(graph: Digraph, names: tuple[int, ...]) -> Digraph:
    """The same graph, where node v is called names[v]."""
    return Digraph.of(graph.n, [(names[a], names[b]) for a, b in graph.links])


@functools.lru_cache(maxsize=8)
def all_digraphs(n: int) -> tuple[Digraph, ...]:
    """One digraph of each isomorphism class on n nodes, n <= 4: 1, 3, 16, 218 of them."""
    if not 1 <= n <= MOST_ENUMERATED:
        raise KnobError("all_digraphs.n", f"{n}", f"give 1 to {MOST_ENUMERATED}")
    places = list(itertools.permutations(range(n), 2))
    where = {link: i for i, link in enumerate(places)}
    moves = [
        [where[names[a], names[b]] for a, b in places] for names in itertools.permutations(range(n))
    ]
    seen = bytearray(1 << len(places))
    found = []
    for code in range(1 << len(places)):
        if seen[code]:
            continue
        on = list(bits(code))
        for move in moves:
            seen[mask_of(move[i] for i in on)] = 1
        found.append(Digraph.of(n, [places[i] for i in on]))
    return tuple(found)


def closed_sets(graph: Digraph, without: int, few: Callable[[int, int], bool]) -> list[int]:
    """The sets outside `without` that hear too few outside: `few(members, others)` says so.

    The classic conditions forbid two disjoint ones. O(2^n).
    """
    left = graph.everyone & ~without
    found, part = [], left
    while part:
        if few(part, left & ~part):
            found.append(part)
        part = part - 1 & left
    return found


def two_apart(found: list[int]) -> bool:
    """Whether two of the sets are disjoint."""
    return any(not one & other for i, one in enumerate(found) for other in found[i + 1 :])
