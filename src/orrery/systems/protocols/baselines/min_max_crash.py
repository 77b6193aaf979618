"""Crash-fault consensus in directed graphs: floods of the smallest and of the largest, by turns."""

from __future__ import annotations

from typing import ClassVar

from orrery.parts import rpc
from orrery.systems.protocols.problems.digraphs import Digraph, subsets
from orrery.systems.protocols.problems.directed_rounds import RoundNode


def one_reach(graph: Digraph, f: int) -> bool:
    """Whether any f nodes or fewer leave a single source: the condition for f crashes in rounds.

    >>> from orrery.systems.protocols.problems.digraphs import complete, ring
    >>> one_reach(complete(3), 2), one_reach(ring(4), 1)
    (True, True)
    """
    return all(graph.core(without) for size in range(min(f, graph.n - 1) + 1)
               for without in subsets(graph.n, size))  # fmt: skip


class MinMaxCrash(RoundNode):
    """Exact consensus over one-way links where nodes only crash (Tseng and Vaidya, 2015).

    f + 1 phases; in each, n - 1 rounds of taking the smallest bit that is heard and n - 1 of taking
    the largest. In a phase without a crash the one source agrees on its smallest bit first: a 0
    has then flooded everybody, and a 1 does so in the second half. 2 (f + 1) (n - 1) rounds.

    Knobs: those of `RoundNode`.
    **Differs from the paper**: bits only, which is the case that its proof treats.

    >>> from orrery.systems.protocols.problems.digraphs import complete
    >>> MinMaxCrash().suits(complete(2), 1)
    True
    """

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash")
    validity: ClassVar[str] = "proposed"

    def suits(self, graph: Digraph, f: int) -> bool:
        return one_reach(graph, f)

    def total(self) -> int:
        self.bit = int(self.value)
        return 2 * (self.tolerated + 1) * (self.graph.n - 1)

    def news(self, number: int) -> int:
        return self.bit

    @rpc
    def hear(self, number: int, news: int, sender: int) -> None:
        """A neighbour's bit in a round."""
        self.keep(number, news, sender)

    def take(self, number: int, sender: int, news: int) -> None:
        if news not in (0, 1):
            self.refuse("malformed")
            return
        falling = number // (self.graph.n - 1) % 2 == 0
        self.bit = min(self.bit, news) if falling else max(self.bit, news)

    def result(self) -> float:
        return float(self.bit)
