"""Exact consensus in directed graphs without signatures, under Tseng and Vaidya's condition."""

from __future__ import annotations

import functools
import itertools
from typing import ClassVar, NamedTuple

from orrery.parts import rpc
from orrery.systems.protocols.problems.digraphs import (
    Digraph,
    bits,
    closed_sets,
    mask_of,
    subsets,
    two_apart,
)
from orrery.systems.protocols.problems.directed_rounds import RoundNode


def tseng_vaidya(graph: Digraph, f: int) -> bool:
    """The condition of Tseng and Vaidya (2015), as they write it.

    For every F of at most f nodes and every partition L, C, R of the rest with L and R not empty:
    more than f nodes of L and C have a link into R, or more than f of R and C one into L. O(4^n).

    >>> from orrery.systems.protocols.problems.digraphs import complete
    >>> tseng_vaidya(complete(4), 1), tseng_vaidya(complete(3), 1)
    (True, False)
    """

    def few(members: int, others: int) -> bool:
        hears = 0
        for v in bits(members):
            hears |= graph.into[v]
        return (hears & others).bit_count() <= f

    return not any(
        two_apart(closed_sets(graph, without, few))
        for size in range(f + 1) for without in subsets(graph.n, size)
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def three_reach(graph: Digraph, f: int) -> bool:
    """The same condition in terms of reaches (Sakavalas, Tseng and Vaidya, 2020), which is faster.

    reach_u(F + F_u) and reach_v(F + F_v) share a node for all F, F_u, F_v of at most f nodes.
    O(C(n, f)^2 n^2).

    >>> from orrery.systems.protocols.problems.digraphs import complete
    >>> three_reach(complete(7), 2), three_reach(complete(6), 2)
    (True, False)
    """
    for size in range(f + 1):
        most = min(f, graph.n - size - 1)
        for without in subsets(graph.n, size):
            found = {
                source
                for more in subsets(graph.n, most) if not more & without
                for source in graph.sources(without | more)
            }  # fmt: skip
            if two_apart(sorted(found)):
                return False
    return True


class Heard(NamedTuple):
    """That the first node of a path has a bit, as its nodes passed it on."""

    path: tuple[int, ...]
    value: int


class UnsignedDirected(RoundNode):
    """Exact consensus over one-way links without signatures (Tseng and Vaidya, 2015).

    For each set F of f suspects the bits are flooded with the paths that they took, around F; a
    receiver appends the sender, so a lie always has a liar on its path. A bit is proven if no f
    nodes lie on all the paths that tell it. The source S_F that F leaves picks a bit that its
    members can all prove, and floods it; whoever can prove a bit of S_F takes it. The turn of the
    true F makes all equal, and nobody ever takes what no fault-free node has. Needs 3-reach, which
    is n >= 3 f + 1 on complete graphs. C(n, f) 2 n rounds, and messages along every simple path.

    Knobs: those of `RoundNode`.
    **Differs from the paper**: its condition, in the form of Sakavalas, Tseng and Vaidya (2020),
    and its plan (a turn for each suspected F, in which a source set propagates) stand; inside a
    turn, proven bits take the place of its procedures Propagate and Equality.

    >>> from orrery.systems.protocols.problems.digraphs import complete
    >>> UnsignedDirected().suits(complete(4), 1), UnsignedDirected().suits(complete(3), 1)
    (True, False)
    """

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash", "byzantine")

    def suits(self, graph: Digraph, f: int) -> bool:
        return three_reach(graph, f)

    def total(self) -> int:
        self.bit = int(self.value)
        self.turns = [(without, self.graph.core(without) or self.graph.sources(without)[0])
                      for without in subsets(self.graph.n, self.tolerated)]  # fmt: skip
        self.fresh: list[Heard] = []
        self.paths: dict[Heard, None] = {}
        return len(self.turns) * 2 * self.graph.n

    def news(self, number: int) -> tuple[Heard, ...] | None:
        turn, rest = divmod(number, 2 * self.graph.n)
        without, core = self.turns[turn]
        if without >> self.id & 1:
            return None
        if rest in (0, self.graph.n):
            speaks = rest == 0 or core >> self.id & 1
            self.paths = {Heard((), self.bit): None}
            self.fresh = [Heard((), self.bit)] if speaks else []
        told, self.fresh = tuple(self.fresh), []
        return told or None

    @rpc
    def hear(self, number: int, news: tuple[Heard, ...], sender: int) -> None:
        """Bits of a round with the paths that they took so far."""
        self.keep(number, news, sender)

    def take(self, number: int, sender: int, news: tuple[Heard, ...]) -> None:
        turn, rest = divmod(number, 2 * self.graph.n)
        without, core = self.turns[turn]
        if (without >> self.id | without >> sender) & 1:
            return
        for each in news:
            path = (*each.path, sender)
            told = Heard(path, each.value)
            if told in self.paths or not self._sound(told, without):
                self.refuse("repeated" if told in self.paths else "malformed")
            elif rest < self.graph.n or core >> path[0] & 1:
                self.paths[told] = None
                self.fresh.append(told)

    def _sound(self, told: Heard, without: int) -> bool:
        path, n = told.path, self.graph.n
        if told.value not in (0, 1) or len(path) > n or not all(0 <= v < n for v in path):
            return False
        mask = mask_of(path)
        steps = itertools.pairwise(path)
        return (
            mask.bit_count() == len(path)
            and not mask & (without | 1 << self.id)
            and all(self.graph.out[a] >> b & 1 for a, b in steps)
        )

    def close(self, number: int) -> None:
        turn, rest = divmod(number, 2 * self.graph.n)
        without, core = self.turns[turn]
        if without >> self.id & 1:
            return
        if rest == self.graph.n - 1 and core >> self.id & 1:
            bit = self._common(without, core)
            if bit is not None and self._proven(bit):
                self.bit = bit
        elif rest == 2 * self.graph.n - 1 and not core >> self.id & 1:
            proven = [bit for bit in (0, 1) if self._proven(bit)]
            if len(proven) == 1:
                self.bit = proven[0]

    def _common(self, without: int, core: int) -> int | None:
        """A bit that, by what was heard, all of the source can prove; None if they contradict."""
        known = {self.id: self.bit}
        for path, value in self.paths:
            if path and core >> path[0] & 1 and known.setdefault(path[0], value) != value:
                return None
        ones = mask_of(v for v, value in known.items() if value)
        seen = all(
            self.graph.reach(v, without | more) & ones
            for more in subsets(self.graph.n, self.tolerated)
            for v in bits(core) if not more >> v & 1
        )  # fmt: skip
        return int(seen)

    def _proven(self, bit: int) -> bool:
        """Whether no f nodes lie on all paths that told the bit; one's own bit has no path."""
        masks = [mask_of(path) for path, value in self.paths if value == bit]
        return all(any(not mask & liars for mask in masks)
                   for liars in subsets(self.graph.n, self.tolerated)
                   if not liars >> self.id & 1)  # fmt: skip

    def result(self) -> float:
        return float(self.bit)
