"""The warm-up: experts draw nearer to those that are most like them, less and less."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orrery.parts.collectives import Array


def weight(start: float, step: int, until: float) -> float:
    """The merge weight after a step: it falls in a straight line to zero at step `until`.

    >>> weight(0.1, 5, 20.0), weight(0.1, 20, 20.0), weight(0.1, 5, 0.0)
    (0.07500000000000001, 0.0, 0.0)
    """
    return start * (1.0 - step / until) if step < until else 0.0


def partners(first: Array, count: int) -> Array:
    """For each expert the `count` others whose first matrix is most like its own, by cosine.

    >>> partners(np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), 1).tolist()
    [[1], [0], [1]]
    """
    rows = first.astype(np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    likeness = rows @ rows.T
    np.fill_diagonal(likeness, -np.inf)
    return np.argsort(-likeness, axis=1, kind="stable")[:, : min(count, len(rows) - 1)]


def merged(flat: Array, experts: Sequence[Sequence[slice]], alpha: float, count: int) -> Array:
    """Weights in which each expert has moved towards the mean of its partners, layer by layer.

    x becomes x + alpha (mean of its partners - x), all at once. The first half of an expert in a
    layer is its first matrix, and it alone decides who the partners are.
    """
    out = flat.copy()
    if alpha <= 0.0 or len(experts) < 2:
        return out
    for layer in zip(*experts, strict=True):
        rows = np.stack([flat[where] for where in layer])
        chosen = partners(rows[:, : rows.shape[1] // 2], count)
        moved = rows + rows.dtype.type(alpha) * (rows[chosen].mean(axis=1) - rows)
        for where, row in zip(layer, moved, strict=True):
            out[where] = row
    return out
