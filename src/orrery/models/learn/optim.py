"""Optimisers on flat vectors: plain and momentum SGD, and AdamW. One object for each replica.

`step(weights, gradient)` gives the new weights and leaves the old ones alone, so that whoever holds
them may go on holding them.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np

from orrery.base.errors import PartError, did_you_mean
from orrery.parts.collectives import Array

Name = Literal["sgd", "momentum", "adamw"]


class Optimiser(Protocol):
    """What steps, and remembers what it needs for the next step."""

    rate: float

    def step(self, weights: Array, gradient: Array) -> Array: ...
    def state(self) -> dict[str, Any]: ...
    def load(self, state: dict[str, Any]) -> None: ...


class Momentum:
    """Steps along a running sum of gradients (heavy ball); with `momentum` 0, plain SGD."""

    def __init__(self, rate: float, momentum: float = 0.9) -> None:
        self.rate, self.momentum = rate, momentum
        self.speed: Array | None = None

    def step(self, weights: Array, gradient: Array) -> Array:
        if self.momentum and self.speed is not None:
            gradient = self.momentum * self.speed + gradient
        self.speed = gradient if self.momentum else None
        return weights - np.asarray(self.rate, weights.dtype) * gradient

    def state(self) -> dict[str, Any]:
        return {} if self.speed is None else {"speed": self.speed.copy()}

    def load(self, state: dict[str, Any]) -> None:
        self.speed = state.get("speed")


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as PyTorch computes it."""

    def __init__(
        self, rate: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        decay: float = 0.01,
    ) -> None:  # fmt: skip
        self.rate, self.betas, self.eps, self.decay = rate, betas, eps, decay
        self.count = 0
        self.first: Array | None = None
        self.second: Array | None = None

    def step(self, weights: Array, gradient: Array) -> Array:
        if self.first is None or self.second is None:
            self.first, self.second = np.zeros_like(weights), np.zeros_like(weights)
        self.count += 1
        one, two = self.betas
        self.first = self.first * weights.dtype.type(one) + gradient * weights.dtype.type(1 - one)
        self.second = self.second * weights.dtype.type(two)
        self.second += gradient * gradient * weights.dtype.type(1 - two)
        size = np.sqrt(self.second / weights.dtype.type(1 - two**self.count)) + self.eps
        step = weights.dtype.type(self.rate / (1 - one**self.count))
        kept = weights * weights.dtype.type(1 - self.rate * self.decay)
        return np.asarray(kept - step * self.first / size, weights.dtype)

    def state(self) -> dict[str, Any]:
        if self.first is None or self.second is None:
            return {}
        return {"count": self.count, "first": self.first.copy(), "second": self.second.copy()}

    def load(self, state: dict[str, Any]) -> None:
        self.count = int(state.get("count", 0))
        self.first, self.second = state.get("first"), state.get("second")


def make(name: str, rate: float) -> Optimiser:
    """An optimiser by name, with the usual settings of its authors."""
    if name == "sgd":
        return Momentum(rate, 0.0)
    if name == "momentum":
        return Momentum(rate)
    if name == "adamw":
        return AdamW(rate)
    known = ("sgd", "momentum", "adamw")
    raise PartError(f"optimiser {name!r:.40}: no such one; {did_you_mean(str(name), known)}")
