"""Latency models of one key: a curve that never falls, or a sum of causes that never help."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orrery.base.errors import SpecError
from orrery.models.real.steptable import Shape, non_negative

CAUSES = ("one", "tokens", "decodes", "decode_kv", "chunks", "reach", "pairs")


class Curve:
    """Seconds over a request size: measured medians made monotone, linear between them.

    Beyond the last point it goes on with the last slope, and `beyond` says so.

    >>> curve = Curve([1, 2, 4], [2.0, 1.0, 3.0])
    >>> curve(1), curve(3), curve(6), curve.beyond(6)
    (1.5, 2.25, 4.5, True)
    """

    def __init__(self, sizes: Sequence[float], seconds: Sequence[float]) -> None:
        x, y = np.asarray(sizes, float), np.asarray(seconds, float)
        if not len(x) or len(x) != len(y) or (np.diff(x) <= 0).any():
            raise SpecError("sizes", f"{len(x)} sizes, {len(y)} times", "give sizes that rise")
        if not np.isfinite(y).all() or (y <= 0).any():
            raise SpecError("seconds", "a time is not positive", "measure it again")
        self.sizes, self.seconds = x, rising(y)
        last = self.seconds[-2:]
        self.slope = float((last[-1] - last[0]) / (x[-1] - x[-2])) if len(x) > 1 else 0.0

    def __call__(self, size: float) -> float:
        over = max(0.0, size - float(self.sizes[-1]))
        return float(np.interp(size, self.sizes, self.seconds)) + over * self.slope

    def many(self, sizes: np.ndarray) -> np.ndarray:
        """The same for an array."""
        over = np.maximum(0.0, sizes - self.sizes[-1])
        return np.asarray(np.interp(sizes, self.sizes, self.seconds) + over * self.slope)

    def beyond(self, size: float) -> bool:
        """Whether a size lies outside what was measured."""
        return bool(size > self.sizes[-1] or size < self.sizes[0])


def rising(values: np.ndarray) -> np.ndarray:
    """The nearest values that never fall (pool adjacent violators).

    >>> rising(np.array([1.0, 3.0, 2.0])).tolist()
    [1.0, 2.5, 2.5]
    """
    level: list[float] = []
    width: list[int] = []
    for value in values.tolist():
        level.append(value)
        width.append(1)
        while len(level) > 1 and level[-2] > level[-1]:
            b, n = level.pop(), width.pop()
            level[-1] = (level[-1] * width[-1] + b * n) / (width[-1] + n)
            width[-1] += n
    return np.repeat(level, width)


def causes(shape: Shape) -> list[float]:
    """What attention's time comes from, of one batch: see CAUSES."""
    prefill, decodes, decode_kv = shape
    new = sum(n for n, _ in prefill)
    reach = sum(n + p for n, p in prefill)
    pairs = sum(n * (n + p) for n, p in prefill)
    return [1.0, new + decodes, decodes, decode_kv, len(prefill), reach, pairs]


class Sum:
    """Seconds of a batch as a sum of causes with non-negative weights, fitted by relative error."""

    def __init__(self, shapes: Sequence[Shape], seconds: Sequence[float]) -> None:
        took = np.asarray(seconds, float)
        if len(took) != len(shapes) or not len(took):
            raise SpecError("seconds", f"{len(shapes)} shapes, {len(took)} times", "give as many")
        if not np.isfinite(took).all() or (took <= 0).any():
            raise SpecError("seconds", "a time is not positive", "measure it again")
        columns = np.array([causes(shape) for shape in shapes], float)
        self.weights = non_negative(columns / took[:, None], np.ones_like(took))
        self.error = float(np.mean(np.abs(columns @ self.weights / took - 1)))
        self.most = columns.max(0)

    def __call__(self, shape: Shape) -> float:
        return float(np.dot(self.weights, causes(shape)))


__all__ = ["CAUSES", "Curve", "Sum", "causes", "rising"]
