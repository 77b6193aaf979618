"""Ridge regression cut into unequal shares, of which everything is known: L, mu, the optimum."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from orrery.base.errors import KnobError
from orrery.base.rand import Stream
from orrery.parts import Count, NonNegative, Part, Whole, cost

Floats = npt.NDArray[np.float64]
Condition = Annotated[float, msgspec.Meta(gt=1, le=1e12)]

SMOOTH = 1.0  # L of every share; mu is L over the condition number
MOST_NUMBERS = 1_000_000  # entries of all Hessians together


class Shares(NamedTuple):
    """Of each node the Hessian H and the vector g: its function is x'Hx/2 - g'x."""

    hessians: Floats
    vectors: Floats

    def optimum(self, nodes: Iterable[int] | None = None) -> Floats:
        """Where the sum of the functions of these nodes (all, if none are named) is least."""
        chosen = slice(None) if nodes is None else sorted(nodes)
        summed = self.hessians[chosen].sum(axis=0)
        return np.linalg.solve(summed, self.vectors[chosen].sum(axis=0))


class Share:
    """One node's function, with the time that its gradients take on a machine."""

    __slots__ = ("flops", "hessian", "vector")

    def __init__(self, hessian: Floats, vector: Floats, flops: float) -> None:
        self.hessian, self.vector, self.flops = hessian, vector, flops

    @cost(flops=lambda self, x: self.flops)
    def grad(self, x: Floats) -> Floats:
        """The gradient at x."""
        return self.hessian @ x - self.vector

    @cost(flops=lambda self, y: self.flops)
    def conjugate_grad(self, y: Floats) -> Floats:
        """The gradient of the conjugate at y: the x whose gradient is y."""
        return np.linalg.solve(self.hessian, y + self.vector)


class Ridge(Part):
    """A least-squares problem with a ridge, whose rows are spread unequally over the nodes.

    Node i has rows A_i and targets b_i; its function is |A_i x - b_i|^2 / 2m + mu |x|^2 / 2, with
    m rows. The features have scales that fall geometrically, so the sum is about as badly
    conditioned as its parts. The rows are stretched until the Hessian of every share has exactly
    L = 1 for its largest and mu = 1 / `condition` for its least eigenvalue. Every node has a truth
    of its own, `unequal` away from the common one. The optimum of all has length one.

    Knobs: `numbers` to find; `rows` of each node; `condition`, L / mu; `unequal`; `noise` of the
    targets; `data_seed`.

    >>> round(float(np.linalg.norm(Ridge().shares(4).optimum())), 9)
    1.0
    """

    numbers: Count = 8
    rows: Count = 16
    condition: Condition = 10.0
    unequal: NonNegative = 1.0
    noise: NonNegative = 0.1
    data_seed: Whole = 0

    @property
    def convex(self) -> float:
        """mu, the strong convexity of every share."""
        return SMOOTH / self.condition

    @property
    def smooth(self) -> float:
        """L, the smoothness of every share."""
        return SMOOTH

    def shares(self, nodes: int) -> Shares:
        """The functions of so many nodes."""
        if nodes * self.numbers**2 > MOST_NUMBERS:
            raise KnobError("numbers", f"{self.numbers} at {nodes} nodes is too many",
                            f"keep nodes * numbers^2 below {MOST_NUMBERS}")  # fmt: skip
        if self.numbers < 2:
            raise KnobError("numbers", f"{self.numbers} has no condition number", "give 2 or more")
        return _shares(nodes, self.numbers, self.rows, self.condition, self.unequal, self.noise,
                       self.data_seed)  # fmt: skip


@lru_cache(maxsize=32)
def _shares(
    nodes: int, numbers: int, rows: int, condition: float, unequal: float, noise: float, seed: int
) -> Shares:
    rng = Stream(seed, "ridge", "rows").numpy()
    ridge = SMOOTH / condition
    scales = condition ** (-0.5 * np.arange(numbers) / (numbers - 1))
    common = rng.standard_normal(numbers)
    hessians, vectors = np.empty((nodes, numbers, numbers)), np.empty((nodes, numbers))
    for node in range(nodes):
        given = rng.standard_normal((rows, numbers)) * scales
        values, turn = np.linalg.eigh(given.T @ given / rows)
        lifted = (values - values[0]) * (SMOOTH - ridge) / (values[-1] - values[0])
        # Stretch the rows along the eigenvectors, so that the curvature is as asked.
        seen = values > 1e-12 * values[-1]  # fewer rows than features leave directions unseen
        wanted = np.sqrt(np.where(seen, lifted, 0.0) / np.where(seen, values, 1.0))
        given = given @ (turn * wanted) @ turn.T
        truth = common + unequal * rng.standard_normal(numbers)
        targets = given @ truth + noise * rng.standard_normal(rows)
        hessians[node] = given.T @ given / rows + ridge * np.eye(numbers)
        vectors[node] = given.T @ targets / rows
    made = Shares(hessians, vectors)
    vectors /= np.linalg.norm(made.optimum())
    hessians.setflags(write=False)
    vectors.setflags(write=False)
    return made


__all__ = ["Condition", "Ridge", "Share", "Shares"]
