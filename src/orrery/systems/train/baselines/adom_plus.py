"""ADOM+: optimal decentralised optimisation with primal gradients, in synchronous rounds."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from orrery.parts.collectives import Array
from orrery.systems.train.problems.gossip_graphs import spectrum
from orrery.systems.train.problems.minimiser import Rounds


class Steps(NamedTuple):
    """The constants for mu, L and the chi of the mixing, as the authors give them."""

    nu: float
    tau_1: float
    tau_2: float
    eta: float
    alpha: float
    beta: float
    sigma_1: float
    sigma_2: float
    theta: float
    gamma: float
    delta: float
    zeta: float

    @classmethod
    def of(cls, convex: float, smooth: float, chi: float) -> Steps:
        """From mu, L and chi: (I - mixing) takes away at least 1/chi of a disagreement's square."""
        tau_2 = math.sqrt(convex / smooth)
        sigma_2 = tau_2 / (16.0 * chi)
        nu = convex / 2.0
        return cls(
            nu=nu, tau_1=1.0 / (1.0 / tau_2 + 0.5), tau_2=tau_2, eta=1.0 / (smooth * tau_2),
            alpha=convex / 2.0, beta=0.5 / smooth, sigma_1=1.0 / (1.0 / sigma_2 + 0.5),
            sigma_2=sigma_2, theta=nu / (4.0 * sigma_2), gamma=nu / (14.0 * sigma_2 * chi**2),
            delta=1.0 / (17.0 * smooth), zeta=0.5,
        )  # fmt: skip


class ADOMPlus(Rounds):
    """Accelerated rounds of one gradient and gossip with error feedback (Kovalev et al., 2021).

    "Lower bounds and optimal algorithms for smooth and strongly convex decentralized optimization
    over time-varying networks", NeurIPS 2021. Nesterov's steps on x, y and z, with z kept at sum
    zero by mixing with a Laplacian, and m, which remembers what mixing has left behind. A round
    waits for all neighbours. Without multi-consensus it takes O(chi sqrt(L/mu)) rounds of one
    gradient and one exchange; with it O(sqrt(L/mu)) rounds, each with ceil(chi ln 2) exchanges.

    Knobs: `multi_consensus`, whether a round has so many exchanges.
    Differs from the paper: the graph stays the same; y and m begin at zero.

    >>> ADOMPlus().multi_consensus
    True
    """

    multi_consensus: bool = True

    def begin(self) -> None:
        numbers = spectrum(self.graph)
        self.share_of = 1.0 / numbers.most
        chi = numbers.condition
        self.repeats = math.ceil(chi * math.log(2.0)) if self.multi_consensus else 1
        if self.repeats > 1:
            chi = 2.0  # what so many exchanges make of it
        function = self.given.function
        self.steps = Steps.of(function.convex, function.smooth, chi)
        self.x = self.y = self.z = self.m = self.x_f = self.y_f = self.z_f = self.zero

    async def _off(self, vectors: Array) -> Array:
        """What mixing takes away: (I - (I - Laplacian/largest)^repeats) times the vectors."""
        mixed = vectors
        for _ in range(self.repeats):
            mixed = mixed - self.share_of * await self.differ(mixed)
        return vectors - mixed

    async def round(self) -> None:
        c = self.steps
        x_g = c.tau_1 * self.x + (1 - c.tau_1) * self.x_f
        y_g = c.sigma_1 * self.y + (1 - c.sigma_1) * self.y_f
        z_g = c.sigma_1 * self.z + (1 - c.sigma_1) * self.z_f
        sum_g = y_g + z_g
        pushed = (c.gamma / c.nu) * sum_g + self.m
        # Mixing is linear and two vectors are mixed, so they travel together; the gradient needs
        # neither and is computed meanwhile.
        both = np.stack((pushed, sum_g))
        slope, off = await self.all(self.gradient(x_g), self._off(both))
        # x and y are given by each other: two linear equations, solved for y first.
        left = 1.0 + c.eta * c.alpha
        force = slope - c.nu * x_g
        known = self.x + c.eta * c.alpha * x_g - c.eta * force
        y = self.y + c.theta * c.beta * force - (c.theta / c.nu) * sum_g - (c.theta / left) * known
        y = y / (1.0 + c.theta * c.beta + c.theta * c.eta / left)
        x = (known + c.eta * y) / left
        z = self.z + c.gamma * c.delta * (z_g - self.z) - off[0]
        self.m = pushed - off[0]
        self.x_f = x_g + c.tau_2 * (x - self.x)
        self.y_f = y_g + c.sigma_2 * (y - self.y)
        self.z_f = z_g - c.zeta * off[1]
        self.x, self.y, self.z = x, y, z

    def point(self) -> Array:
        return self.x

    def invariant(self) -> Array:
        return self.z


__all__ = ["ADOMPlus", "Steps"]
