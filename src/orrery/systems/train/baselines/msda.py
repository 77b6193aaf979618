"""MSDA: accelerated ascent of the dual with Chebyshev gossip, in synchronous rounds."""

from __future__ import annotations

import math
from typing import NamedTuple

from orrery.parts.collectives import Array
from orrery.systems.train.problems.gossip_graphs import Spectrum, spectrum
from orrery.systems.train.problems.minimiser import Rounds


class Gossip(NamedTuple):
    """The Chebyshev polynomial of gossip on a graph, and the dual's step and momentum."""

    repeats: int
    c_2: float
    c_3: float
    step: float
    momentum: float

    @classmethod
    def of(cls, numbers: Spectrum, convex: float, smooth: float) -> Gossip:
        """From the graph's eigenvalues, mu and L, as in the authors' theorem 4."""
        gap = min(1.0 / numbers.condition, 1.0 - 1e-12)
        root = math.sqrt(gap)
        repeats = int(1.0 / root)
        c_1 = ((1 - root) / (1 + root)) ** repeats
        kappa = math.sqrt(smooth / convex)
        return cls(
            repeats, (1 + gap) / (1 - gap), 2.0 / ((1 + gap) * numbers.most),
            convex * (1 + c_1**2) / (1 + c_1) ** 2,
            ((1 + c_1) * kappa - 1 + c_1) / ((1 + c_1) * kappa + 1 - c_1),
        )  # fmt: skip


class MSDA(Rounds):
    """Accelerated ascent of the dual, with as many exchanges a round as a graph needs.

    Scaman et al., "Optimal algorithms for smooth and strongly convex distributed optimization in
    networks", ICML 2017 (algorithm 2). A node turns its dual vector into the x at which its own
    gradient equals it, mixes the x of all by a Chebyshev polynomial of the Laplacian, and takes a
    step of Nesterov's with what is left. O(sqrt(L/mu)) rounds, each with int(1/sqrt(gap))
    exchanges. It needs gradients of conjugates: an inner problem, that ridge solves exactly; each
    counts as one gradient.

    Knobs: none beside what the problem gives.
    Differs from the paper: none.

    >>> MSDA.exact
    True
    """

    def begin(self) -> None:
        function = self.given.function
        self.gossip = Gossip.of(spectrum(self.graph), function.convex, function.smooth)
        self.ahead: Array = self.zero.copy()
        self.dual: Array = self.zero.copy()
        self.x: Array = self.zero.copy()

    async def _mixed(self, x: Array) -> Array:
        """P(Laplacian) x, for the polynomial that is least between the extreme eigenvalues."""
        c = self.gossip
        before, here, a_before, a = x, c.c_2 * await self._once(x), 1.0, c.c_2
        for _ in range(1, c.repeats):
            a_before, a = a, 2 * c.c_2 * a - a_before
            before, here = here, 2 * c.c_2 * await self._once(here) - before
        return x - here / a

    async def _once(self, x: Array) -> Array:
        return x - self.gossip.c_3 * await self.differ(x)

    async def round(self) -> None:
        c = self.gossip
        self.x = await self.conjugate_gradient(self.ahead)
        dual = self.ahead - c.step * await self._mixed(self.x)
        self.ahead = (1 + c.momentum) * dual - c.momentum * self.dual
        self.dual = dual

    def point(self) -> Array:
        return self.x

    def invariant(self) -> Array:
        return self.dual


__all__ = ["MSDA", "Gossip"]
