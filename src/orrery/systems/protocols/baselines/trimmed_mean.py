"""Iterative trimmed-mean consensus: neighbours' values without the extremes, averaged."""

from __future__ import annotations

import functools
import math
from typing import ClassVar

from orrery.parts import Count, rpc
from orrery.systems.protocols.problems.digraphs import (
    Digraph,
    bits,
    closed_sets,
    subsets,
    two_apart,
)
from orrery.systems.protocols.problems.directed_rounds import RoundNode


@functools.lru_cache(maxsize=4096)
def iterative(graph: Digraph, f: int) -> bool:
    """The condition of Vaidya, Tseng and Liang (2012) for iterative approximate consensus.

    For every F of at most f nodes and every partition L, C, R of the rest with L and R not empty,
    some node of R hears more than f of L and C, or one of L more than f of R and C. O(4^n).

    >>> from orrery.systems.protocols.problems.digraphs import complete
    >>> iterative(complete(4), 1), iterative(complete(3), 1)
    (True, False)
    """

    def few(members: int, others: int) -> bool:
        return all((graph.into[v] & others).bit_count() <= f for v in bits(members))

    return not any(
        two_apart(closed_sets(graph, without, few))
        for size in range(f + 1) for without in subsets(graph.n, size)
    )  # fmt: skip


class TrimmedMean(RoundNode):
    """Approximate consensus by trimmed means of the neighbours (W-MSR; LeBlanc et al., 2013).

    In each round a node tells its value, drops of what it hears the f largest of those above its
    own and the f smallest of those below, and takes the mean of the rest and its own. No
    signatures, no relaying, O(links) messages a round.

    Knobs: `steps`, how many rounds; those of `RoundNode`.
    **Differs from the paper**: all weights are equal; it also stops, after `steps` rounds.

    >>> from orrery.systems.protocols.problems.digraphs import complete, triangles
    >>> TrimmedMean().suits(complete(4), 1), TrimmedMean().suits(triangles(), 1)
    (True, False)
    """

    steps: Count = 40

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash", "byzantine")
    goal: ClassVar[str] = "approximate"
    binary: ClassVar[bool] = False

    def suits(self, graph: Digraph, f: int) -> bool:
        return iterative(graph, f)

    def total(self) -> int:
        self.heard: dict[int, float] = {}
        return self.steps

    def news(self, number: int) -> float:
        return self.value

    @rpc
    def hear(self, number: int, news: float, sender: int) -> None:
        """A neighbour's value in a round."""
        self.keep(number, news, sender)

    def take(self, number: int, sender: int, news: float) -> None:
        if math.isfinite(news):
            self.heard.setdefault(sender, news)  # the first counts, should a liar tell several
        else:
            self.refuse("malformed")

    def close(self, number: int) -> None:
        f, own = self.tolerated, self.value
        heard, self.heard = sorted(self.heard.values()), {}
        below = [x for x in heard if x < own][f:]
        above = [x for x in heard if x > own]
        same = [x for x in heard if x == own]
        kept = [*below, *same, own, *above[: max(0, len(above) - f)]]
        self.value = math.fsum(kept) / len(kept)
        self.step(number, self.value)
