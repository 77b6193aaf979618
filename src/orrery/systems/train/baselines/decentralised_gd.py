"""Decentralised gradient descent: mix with the neighbours, then step along one's own gradient."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from orrery.parts import NonNegative
from orrery.parts.collectives import Array
from orrery.systems.train.problems.gossip_graphs import Floats, spectrum
from orrery.systems.train.problems.minimiser import Rounds
from orrery.systems.train.problems.ridge import Shares


class Mixing(Rounds):
    """Rounds that mix by W = I - Laplacian / its largest eigenvalue.

    W has no negative eigenvalue, which would make large steps unstable. What is left of a
    disagreement after a round is at most `spread` = 1 - least / largest eigenvalue; nothing, on the
    complete graph.
    """

    def start(self) -> None:
        super().start()
        numbers = spectrum(self.graph)
        self.weight = 1.0 / numbers.most
        self.spread = 1.0 - 1.0 / numbers.condition


class DecentralisedGD(Mixing):
    """Average with all neighbours and step along the own gradient, in rounds (Nedic, Ozdaglar).

    x <- W x - step grad f_i(x_i), by A. Nedic and A. Ozdaglar, "Distributed subgradient methods for
    multi-agent optimization", IEEE TAC 2009. With a constant step it stops short of the optimum
    where the functions differ, at the solution of (I - W) x + step grad f(x) = 0.

    Knobs: `step`, the step size in units of 1/L (0: one half).
    Differs from the paper: none in the update; the weights are those of `Mixing`.

    >>> DecentralisedGD.exact
    False
    """

    step: NonNegative = 0.0

    exact: ClassVar[bool] = False

    def begin(self) -> None:
        self.x: Array = self.zero.copy()

    async def round(self) -> None:
        # Both need x alone, so that the neighbours' vectors travel while the gradient is computed.
        slope, apart = await self.all(self.gradient(self.x), self.differ(self.x))
        length = (self.step or 0.5) / self.given.function.smooth
        self.x = self.x - self.weight * apart - length * slope

    def point(self) -> Array:
        return self.x


def resting_place(shares: Shares, mixing: Floats, step: float) -> Floats:
    """Where decentralised gradient descent comes to rest: one row for each node, in closed form."""
    nodes, numbers = shares.vectors.shape
    whole = np.kron(np.eye(nodes) - mixing, np.eye(numbers))
    for node, hessian in enumerate(shares.hessians):
        place = slice(node * numbers, (node + 1) * numbers)
        whole[place, place] += step * hessian
    return np.linalg.solve(whole, step * shares.vectors.ravel()).reshape(nodes, numbers)


__all__ = ["DecentralisedGD", "Mixing", "resting_place"]
