"""DADAO: accelerated decentralised optimisation on random clocks, computing and talk decoupled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from orrery.parts.collectives import Array
from orrery.systems.train.dadao.drift import Drift, drift_of
from orrery.systems.train.dadao.rates import optimised_rates, uniform_rates
from orrery.systems.train.problems.gossip_graphs import spectrum
from orrery.systems.train.problems.pairwise import BACKLOG, TICKS, Pair, Pairwise, Spike

X, X_TILDE, Y, Y_TILDE, Z, Z_TILDE = range(6)


class Constants(NamedTuple):
    """The constants of the method for mu, L and chi_1, as in the authors' code."""

    nu: float
    alpha: float
    alpha_tilde: float
    eta: float
    theta: float
    gamma: float
    gamma_tilde: float
    delta: float
    beta: float
    beta_tilde: float

    @classmethod
    def of(cls, convex: float, smooth: float, chi_1: float) -> Constants:
        """From mu, L, and the chi_1 of the Laplacian weighted by the rates.

        >>> Constants.of(0.5, 1.0, 1.0).alpha
        0.125
        """
        nu = convex / 2.0
        root = math.sqrt(nu / smooth)
        return cls(
            nu=nu, alpha=root / 4, alpha_tilde=root / 8, eta=root / 8, theta=0.5 / root,
            gamma=0.25 / smooth, gamma_tilde=0.25 / math.sqrt(smooth * nu),
            delta=root / 4 + 1.0,  # delta and delta~ always come together
            beta=0.5, beta_tilde=2.0 * chi_1 / root,
        )  # fmt: skip

    def matrix(self) -> tuple[tuple[float, ...], ...]:
        """The drift of (x, x~, y, y~, z, z~)."""
        eta, alpha, late, theta = self.eta, self.alpha, self.alpha_tilde, self.theta
        return (
            (-eta, eta, 0.0, 0.0, 0.0, 0.0),
            (eta, -eta, 0.0, 0.0, 0.0, 0.0),
            (0.0, 0.0, -alpha, alpha, 0.0, 0.0),
            (0.0, -theta * self.nu, -theta, 0.0, -theta, 0.0),
            (0.0, 0.0, 0.0, 0.0, -alpha, alpha),
            (0.0, 0.0, 0.0, 0.0, late, -late),
        )


class DADAO(Pairwise):
    """Minimise a sum over a graph with no rounds: gradients and gossip on random clocks.

    Nabli and Oyallon, "DADAO: decoupled accelerated decentralized asynchronous optimization", ICML
    2023. Each node has six vectors x, x~, y, y~, z, z~. Between events they drift by a linear ODE,

        x' = eta (x~ - x)       y' = alpha (y~ - y)               z' = alpha (z~ - z)
        x~' = eta (x - x~)      y~' = -theta (nu x~ + y + z)      z~' = alpha~ (z - z~)

    which is applied lazily, by a 6x6 matrix exponential, when the node next wakes. Once in a unit
    of time on average a node takes a gradient: d = grad f(x) - nu x - y~, then x -= gamma d,
    x~ -= gamma~ d, y~ += (delta + delta~) d. At the rate of each edge its two ends meet: m is half
    the difference of their y + z, and z -= beta m, z~ -= beta~ m, with opposite signs at the ends.
    The sum of z stays zero, and that makes the common fixed point the optimum.

    The clocks never wait for each other. x is not touched by meetings, so a node knows in advance
    where x will be when its gradient is due, and computes it while it gossips; a gradient is exact
    and never stale unless it is late. A meeting is one question and its answer, and the only wait
    of a node is for that answer. How meetings stay atomic under loss and death is told in
    `problems.pairwise`; survivors of a crash go on to the optimum of the survivors.

    A gradient costs O(d) beside f's own; a meeting O(d) at both ends and two messages of d numbers.

    Knobs: `rates`, whether all edges gossip equally often ("uniform") or as the semidefinite
    program of `dadao.rates` says; `load`, the part of its time that a node computes, which sets the
    unit of time, gradient_s / load; `patience_s`, seconds without an answer after which an edge is
    given up.

    Differs from the paper: a meeting takes a round trip, so the owner's y + z is older by the time
    of one message. Numbers, sessions and the books of each edge are ours, as are the owner of an
    edge and the program's form. Gradients are Poisson events only up to the time that they take.
    m is half the difference, as in our source; the authors' code has the whole of it, which was 5 %
    faster in a trial and obeys the same theory.

    >>> DADAO().rates
    'optimised'
    """

    rates: Literal["optimised", "uniform"] = "optimised"

    tolerates: ClassVar[tuple[str, ...]] = (
        "drop", "duplicate", "reorder", "crash", "restart", "pause", "partition",
    )  # fmt: skip

    def start(self) -> None:
        super().start()
        self.state: Array = np.zeros((6, self.zero.size))

    def plan(self) -> Sequence[float]:
        graph = self.graph
        rates = uniform_rates(graph) if self.rates == "uniform" else optimised_rates(graph)
        function = self.given.function
        chi_1 = spectrum(graph, rates).chi_1 if len(rates) else 1.0
        made = self.constants = Constants.of(function.convex, function.smooth, chi_1)
        self.drift: Drift = drift_of(made.matrix(), TICKS)
        self.pair = Pair(made.alpha, made.alpha_tilde)
        jump = np.zeros((6, 1))
        jump[[X, X_TILDE, Y_TILDE], 0] = -made.gamma, -made.gamma_tilde, made.delta
        self.jump = jump
        return rates.tolist()

    async def main(self) -> None:
        self.spawn(self.meet())
        self.spawn(self.watch())
        await self._descend()

    # -- gradients

    async def _descend(self) -> None:
        """Take a gradient at each tick of this node's own clock."""
        due_s, took_s = self.now, self.given.gradient_s
        while True:
            due_s += self.rng.expovariate(1.0) * self.unit_s
            due_s = max(due_s, self.now - BACKLOG * self.unit_s)
            x = self._ahead(max(due_s - self.now, took_s))
            slope = await self.gradient(x)
            # A real clock goes on between two looks at it.
            if (ahead_s := due_s - self.now) > 0:
                await self.sleep(ahead_s)
            self.advance(self.tick())
            self.state += self.jump * (slope - self.constants.nu * x - self.state[Y_TILDE])

    def _ahead(self, seconds: float) -> Array:
        """Where x will be by then: meetings do not touch it, so it is known."""
        since = (self.tick() - self.at) / TICKS
        gone = math.exp(-2.0 * self.constants.eta * (since + seconds / self.unit_s))
        x, x_tilde = self.state[X], self.state[X_TILDE]
        return 0.5 * ((1.0 + gone) * x + (1.0 - gone) * x_tilde)

    # -- meetings

    def advance(self, to: int) -> None:
        if to > self.at:
            self.state = self.drift.moved(self.state, to - self.at)
            self.at = to

    def spike(self, peer: int) -> Spike:
        return -self.constants.beta, -self.constants.beta_tilde

    def value(self) -> Array:
        return self.state[Y] + self.state[Z]

    def rows(self) -> Array:
        return self.state[Z:]

    def kick(self, change: Array) -> None:
        self.state[Z:] += change

    def late_kick(self, spike: Spike, change: Array, ticks: int) -> Array:
        # What a late change has done to y and y~ meanwhile is put in as well.
        column = np.array((0.0, 0.0, 0.0, 0.0, *spike))
        added = np.multiply.outer(self.drift.moved(column, ticks), change)
        self.state += added
        return added[Z:]

    def point(self) -> Array:
        self.advance(self.tick())
        return self.state[X].copy()


__all__ = ["DADAO", "Constants"]
