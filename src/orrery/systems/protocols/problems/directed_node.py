"""`DirectedNode`: the port of `directed_consensus`, one node of a graph of one-way links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from orrery.base.errors import PartError
from orrery.parts import Count, Node, Whole, rpc
from orrery.systems.protocols.problems.digraphs import Digraph, Links, bits

# A signed statement: its kind, the turn or round, the origin, and what it says.
Key = tuple[str, int, int, Any]


class DirectedNode(Node):
    """The port of `DirectedConsensus`: the graph and an input in, `self.decide(value)` out.

    A subclass writes `main`, which waits for `self.begun()` first. It then has `self.graph`,
    `self.out` (whom it may tell), `self.value` and `self.begin_s`, and sends by `shout`. Knobs of
    every such node, which the problem sets: `tolerated`, how many nodes may fail; `rounds`, after
    how many rounds an approximate part decides.
    """

    tolerated: Whole = 1
    rounds: Count = 10

    goal: ClassVar[str] = "exact"  # or "approximate"
    halves: ClassVar[bool] = False  # whether the range halves in every round
    binary: ClassVar[bool] = True  # whether inputs are 0 and 1
    # "unanimous" where nodes may lie; "proposed", so that the input of one that crashed counts too.
    validity: ClassVar[str] = "unanimous"

    def suits(self, graph: Digraph, f: int) -> bool:
        """Whether the part promises anything on this graph with f faults."""
        raise PartError(f"{type(self).__name__} has no suits(graph, f); say where it works")

    def refuted(self, graph: Digraph, f: int) -> bool:
        """Whether an attack on a graph that does not suit was seen to break the part."""
        raise PartError(f"{type(self).__name__} has no refuted(graph, f); leave necessity off")

    def start(self) -> None:
        self.refused: dict[str, int] = {}
        self.out: tuple[int, ...] = ()
        self._begun = self.event()
        self._decided = self.event()

    @rpc
    def begin(self, n: int, links: Links, value: float, begin_s: float) -> None:
        """The client's word: the graph, this node's input, and the time to begin."""
        if self._begun.is_set():
            return
        self.graph = Digraph.of(n, links)
        self.out = tuple(bits(self.graph.out[self.id]))
        self.value, self.begin_s = value, begin_s
        self.emit(input=value)
        self._begun.set()

    @rpc
    async def outcome(self) -> float:
        """The decision, as soon as there is one."""
        await self._decided.wait()
        decided: float = self.decided
        return decided

    # -- what the parts of this problem are written with

    async def begun(self) -> None:
        """Wait for the client's word. A node that comes back from a crash waits for ever:

        it no longer knows what it has said, and must not say anything else.
        """
        if self.incarnation:
            await self.event().wait()
        await self._begun.wait()

    async def until(self, time_s: float) -> None:
        """Sleep until the node's clock shows that time."""
        left_s = time_s - self.clock()
        if left_s > 0:
            await self.sleep(left_s)

    def shout(self, method: Callable[..., Any], *args: Any) -> None:
        """Tell everybody to whom there is a link."""
        for peer in self.out:
            self.tell(peer, method, *args)

    def linked(self, sender: int) -> bool:
        """Whether what this sender says came over a link; else it is thrown away."""
        if self._begun.is_set() and self.graph.into[self.id] >> sender & 1:
            return True
        self.refuse("no link")
        return False

    def refuse(self, why: str) -> None:
        """A message is thrown away; why is counted."""
        self.refused[why] = self.refused.get(why, 0) + 1

    def step(self, number: int, value: float) -> None:
        """Note the value after a round, for the checker of halving."""
        self.emit(step=number, value=value)

    def decide(
        self, value: float, rounds: int, said: Sequence[Key] = (), taken: Sequence[Key] = ()
    ) -> None:
        """Decide, once and for all, after so many rounds.

        A part with signatures also shows what it `said` under its own and what it has `taken` for
        others' words, so that the checker sees a forgery that was believed, whatever it led to.
        """
        self.decided = value
        if said:
            self.emit(said=list(said), taken=list(taken))
        forged = self.refused.get("forged", 0)
        refused = sum(self.refused.values())
        self.emit(decided=value, rounds=rounds, forged=forged, refused=refused)
        self._decided.set()
