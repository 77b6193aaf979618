"""`Minimiser`: the port of decentralised optimisation: one node, its function, its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from orrery.base.errors import PartError
from orrery.parts import Node, NonNegative, Part, Positive, rpc
from orrery.parts.collectives import Array
from orrery.systems.train.problems.gossip_graphs import Graph, GraphName, graph_of
from orrery.systems.train.problems.ridge import Ridge, Share


class Setting(Part):
    """What every node is given: the function, the graph, and how long a gradient takes.

    >>> Setting(graph="star").graph
    'star'
    """

    function: Ridge = Ridge()
    graph: GraphName = "ring"
    gradient_s: Positive = 0.02
    flops: NonNegative = 0.0  # what that time is worth on the machines of the world


class Minimiser(Node):
    """One node of a graph that holds one term of a sum. A subclass writes `main` and `point`.

    `await self.gradient(x)` gives the gradient of the node's own function and takes its time;
    `self.near` are the neighbours, and nobody else may be spoken to. `self.send` and `self.call`
    count messages. The referee looks at `point()` from time to time, and adds up `balance(mark)`
    over the nodes, which must give zero at a mark common to all.
    """

    given: Setting = Setting()

    # Whether it finds the optimum itself; a method with a bias only comes near.
    exact: ClassVar[bool] = True
    # Whether a mark is a time, at which all nodes can be had once gossip is held; else a round.
    timed: ClassVar[bool] = False

    def start(self) -> None:
        self.crowd = len(self.peers) + 1
        function = self.given.function
        shares = function.shares(self.crowd)
        self.graph: Graph = graph_of(self.given.graph, self.crowd)
        self.near: tuple[int, ...] = self.graph.near(self.id)
        self.share = Share(shares.hessians[self.id], shares.vectors[self.id], self.given.flops)
        self.zero: Array = np.zeros(function.numbers)
        self.gradients = self.sent = self.widest = 0

    def point(self) -> Array:
        """Where this node thinks the optimum is."""
        raise PartError(f"{type(self).__name__} has no point(); give the node's present x")

    def mark(self) -> int:
        """The latest time or round for which `balance` can be asked."""
        return 0

    def balance(self, mark: int) -> Array:
        """What must add up to zero over the nodes at a common mark."""
        return self.zero

    # -- what a subclass uses

    async def gradient(self, x: Array) -> Array:
        """The gradient of this node's function at x."""
        self.gradients += 1
        return await self.compute(self.share.grad, x, device="cpu")

    async def conjugate_gradient(self, y: Array) -> Array:
        """The gradient of the conjugate of this node's function: a small problem to solve."""
        self.gradients += 1
        return await self.compute(self.share.conjugate_grad, y, device="cpu")

    def send(self, peer: int, method: Callable[..., Any], *args: Any) -> None:
        """Tell a neighbour, and count the message."""
        self.sent += 1
        self.tell(peer, method, *args)

    # -- what the referee uses

    @rpc
    def look(self) -> tuple[Array, int, int, int]:
        """The point, gradients taken, messages sent, and the most peers ever waited for at once."""
        return self.point(), self.gradients, self.sent, self.widest

    @rpc
    async def hold(self) -> int:
        """Let what is under way end, begin nothing new, and tell the mark that was reached."""
        return self.mark()

    @rpc
    def weigh(self, mark: int) -> Array:
        """The balance at a mark."""
        return self.balance(mark)

    @rpc
    def go_on(self) -> None:
        """Begin again after `hold`."""


KEPT = 64  # rounds whose balance is remembered; neighbours are never so far apart


class Rounds(Minimiser):
    """A minimiser that goes in rounds: it speaks to all neighbours and waits for all of them.

    A subclass writes `begin` and `round`, and in there `await self.differ(v)`: this node's row of
    the Laplacian times the vectors of all nodes.
    """

    def start(self) -> None:
        super().start()
        self.degree = len(self.near)
        self.slot = {peer: place for place, peer in enumerate(self.near)}
        self.sweeps = self.rounds = 0
        self.boxes: dict[int, list[Array | None]] = {}
        self.missing: dict[int, int] = {}
        self.full = self.event()
        self.kept: dict[int, Array] = {}
        self.begin()

    def begin(self) -> None:
        """Make the state; the constants of the graph are at hand."""
        raise PartError(f"{type(self).__name__} has no begin(); make the state of a node there")

    async def round(self) -> None:
        """One round of the method."""
        raise PartError(f"{type(self).__name__} has no round(); write one round of the method")

    def invariant(self) -> Array:
        """What adds up to zero over the nodes after each round."""
        return self.zero

    async def main(self) -> None:
        while True:
            self.kept[self.rounds] = self.invariant().copy()
            self.kept.pop(self.rounds - KEPT, None)
            await self.round()
            self.rounds += 1

    async def differ(self, vector: Array) -> Array:
        """Exchange a vector with all neighbours; how far this node's is from theirs, summed up."""
        number = self.sweeps
        self.sweeps += 1
        mine = vector.copy()
        for peer in self.near:
            self.send(peer, Rounds.give, number, mine)
        self.widest = max(self.widest, self.degree)
        while self.missing.get(number, self.degree):
            self.full.clear()
            await self.full.wait()
        self.missing.pop(number, None)
        total = self.degree * mine
        for theirs in self.boxes.pop(number, ()):
            total -= theirs
        return total

    @rpc
    def give(self, number: int, vector: Array, sender: int) -> None:
        """A neighbour's vector of the exchange of that number."""
        box = self.boxes.get(number)
        if box is None:
            box = self.boxes[number] = [None] * self.degree
            self.missing[number] = self.degree
        if box[self.slot[sender]] is None:
            box[self.slot[sender]] = vector
            self.missing[number] -= 1
            if number == self.sweeps - 1 and not self.missing[number]:
                self.full.set()

    def mark(self) -> int:
        return self.rounds

    def balance(self, mark: int) -> Array:
        if mark not in self.kept:
            raise PartError(f"round {mark} is no longer kept; ask within {KEPT} rounds")
        return self.kept[mark]


__all__ = ["Minimiser", "Rounds", "Setting"]
