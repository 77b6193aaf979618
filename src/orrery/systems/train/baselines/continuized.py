"""The continuized method: pairs of neighbours meet at random times, and each meeting is a step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from orrery.parts import rpc
from orrery.parts.collectives import Array
from orrery.systems.train.problems.gossip_graphs import incidence, laplacian, spectrum
from orrery.systems.train.problems.pairwise import RESET, TICKS, Answer, Load, Pair, Pairwise, Spike


class Continuized(Pairwise):
    """Accelerated random gossip on the dual: a gradient and an exchange in each meeting.

    Even et al., "A continuized view on Nesterov acceleration for stochastic gradient descent and
    randomized gossip", NeurIPS 2021 (appendix on decentralised optimisation). Node i has dual
    vectors y and z, which mix by an ODE between events. When edge (i, j) rings, both ends compute
    the x at which their gradient is y; g = x_i - x_j, and y -= gamma R_ij g, z -= gamma~ g, with
    opposite signs at the ends. Gradient and gossip are coupled: every message costs a gradient at
    both ends, and sqrt(L/mu) is multiplied by the graph's factor in both counts.

    A unit of time has one meeting in the whole graph, as in the paper; `load` says how much of its
    time the busiest node would compute for its own meetings, which sets the unit. At 0.5 so many
    meetings are refused that it diverges for a condition number of 100.

    Knobs: `load`, `patience_s`. Differs from the paper: a meeting takes a round trip and the time
    of two gradients. A node that is in one refuses others, so that each is exact; those are lost.
    gamma has the factor 2 in the place where the authors of DADAO's code found it must be.

    >>> Continuized().load
    0.1
    """

    load: Load = 0.1

    def start(self) -> None:
        super().start()
        self.state: Array = np.zeros((2, self.zero.size))
        self.latest: Array = self.zero
        self.serving: tuple[int, int, int] | None = None
        self.served = self.event()

    def plan(self) -> Sequence[float]:
        graph, function = self.graph, self.given.function
        count = max(len(graph.edges), 1)
        rates = np.full(len(graph.edges), 1.0 / count)
        numbers = spectrum(graph, rates) if len(rates) else spectrum(graph)
        self.resistance = self._resistances(rates)
        most = 2.0 * numbers.chi_2  # the largest of resistance over probability
        convex, smooth = function.convex, function.smooth
        rate = math.sqrt(convex / smooth / (numbers.chi_1 * most))
        self.pair = Pair(rate, rate)
        self.gamma = convex / (2.0 * most)
        self.gamma_tilde = math.sqrt(smooth * convex * numbers.chi_1 / (2.0 * most))
        busiest = max((len(graph.near(node)) for node in range(graph.nodes)), default=1)
        self.unit_s = self.given.gradient_s / self.load * max(busiest, 1) / count
        return rates.tolist()

    def _resistances(self, rates: Array) -> dict[int, float]:
        """The effective resistance of each edge of this node."""
        if not len(rates):
            return {}
        columns = incidence(self.graph)
        whole = np.linalg.pinv(laplacian(self.graph, rates))
        values = ((whole @ columns) * columns).sum(axis=0)
        return {
            a + b - self.id: float(value)
            for (a, b), value in zip(self.graph.edges, values, strict=True)
            if self.id in (a, b)
        }

    async def main(self) -> None:
        self.spawn(self.watch())
        await self.meet()

    def spike(self, peer: int) -> Spike:
        return -self.gamma * self.resistance[peer], -self.gamma_tilde

    async def offer(self) -> Array:
        self.advance(self.tick())
        self.latest = await self.conjugate_gradient(self.state[0].copy())
        return self.latest

    @rpc
    async def swap(self, theirs: int, mine: int, number: int, offer: Array, sender: int) -> Answer:
        edge = self.known(theirs, mine, number, sender)
        request = (sender, theirs, number)
        while self.serving == request:  # asked once more while it is being computed
            await self.served.wait()
        if edge.number == number:
            return edge.answer
        if self.meeting or self.serving is not None:
            # In the theory meetings take no time; two at once would use the same y twice. The
            # refusal is remembered, so that a copy of the request cannot be served later.
            edge.number, edge.answer = number, (edge.mine, RESET, self.zero)
            return edge.answer
        self.serving = request
        self.served.clear()
        self.advance(self.tick())
        self.latest = await self.conjugate_gradient(self.state[0].copy())
        self.advance(self.tick())
        self.settle(edge, number, offer - self.latest)
        self.serving = None
        self.served.set()
        return edge.answer

    def advance(self, to: int) -> None:
        if to > self.at:
            self.state = self.pair.drifted(self.state, (to - self.at) / TICKS)
            self.at = to

    def rows(self) -> Array:
        return self.state

    def kick(self, change: Array) -> None:
        self.state += change

    def point(self) -> Array:
        return self.latest


__all__ = ["Continuized"]
