"""Gradient tracking: every node also tracks the mean gradient, which takes the bias away."""

from __future__ import annotations

import numpy as np

from orrery.parts import NonNegative
from orrery.parts.collectives import Array
from orrery.systems.train.baselines.decentralised_gd import Mixing
from orrery.systems.train.problems.gossip_graphs import Floats
from orrery.systems.train.problems.ridge import Shares


class GradientTracking(Mixing):
    """Step along an estimate of the mean gradient, which neighbours average too.

    x <- W (x - step s); s <- W (s + grad f_i(new x) - grad f_i(old x)). Nedic, Olshevsky and Shi,
    "Achieving geometric convergence for distributed optimization over time-varying graphs", SIAM
    J. Optim. 2017, in the form that mixes after the step (Nedic et al., "Geometrically convergent
    distributed optimization with uncoordinated step-sizes", ACC 2017), which bears larger steps.
    The sum of s is the sum of the gradients, always. Not accelerated: gradients grow with L / mu,
    and on the complete graph it is gradient descent itself.

    Knobs: `step`, the step size in units of 1/L (0: 1 - spread, where spread is what mixing leaves
    of a disagreement; so 1 on the complete graph).
    Differs from the papers: the default step. Their bounds have (1 - spread)^2, far smaller; ours
    was stable on every graph of the problem.

    >>> GradientTracking.exact
    True
    """

    step: NonNegative = 0.0

    def begin(self) -> None:
        self.x: Array = self.zero.copy()
        self.track: Array | None = None
        self.slope: Array = self.zero

    async def round(self) -> None:
        if self.track is None:
            self.slope = await self.gradient(self.x)
            self.track = await self._mixed(self.slope)
        length = (self.step or 1.0 - self.spread) / self.given.function.smooth
        self.x = await self._mixed(self.x - length * self.track)
        slope = await self.gradient(self.x)
        self.track = await self._mixed(self.track + slope - self.slope)
        self.slope = slope

    async def _mixed(self, vector: Array) -> Array:
        return vector - self.weight * await self.differ(vector)

    def point(self) -> Array:
        return self.x

    def invariant(self) -> Array:
        return self.zero if self.track is None else self.track - self.slope


def contraction(shares: Shares, mixing: Floats, step: float) -> float:
    """By what a round shrinks the error in the end: the spectral radius of the linear round.

    The sum of s and that of the gradients agree for ever, so the directions in which they would
    differ (whose factor is one) are left out.
    """
    nodes, numbers = shares.vectors.shape
    size = nodes * numbers
    mix = np.kron(mixing, np.eye(numbers))
    hessian = np.zeros((size, size))
    for node, own in enumerate(shares.hessians):
        place = slice(node * numbers, (node + 1) * numbers)
        hessian[place, place] = own
    # (x, s) with x' = W (x - step s) and s' = W (s + H (x' - x)).
    ahead = np.hstack([mix, -step * mix])
    still = np.hstack([np.eye(size), np.zeros((size, size))])
    follow = mix @ (np.roll(still, size, axis=1) + hessian @ (ahead - still))
    whole = np.vstack([ahead, follow])
    # sum(s) - sum(H x) never changes; take its directions out.
    rows = np.kron(np.ones((1, nodes)), np.eye(numbers))
    kept = np.hstack([-rows @ hessian, rows])
    basis = np.linalg.svd(kept)[2][numbers:].T
    return float(np.abs(np.linalg.eigvals(basis.T @ whole @ basis)).max())


__all__ = ["GradientTracking", "contraction"]
