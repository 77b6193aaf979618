"""Data that can be compressed more or less: smooth fields, gradients, noise; one array a rank."""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np

from orrery.base.rand import Stream
from orrery.parts.collectives import Array

Content = Literal["field", "gradient", "normal", "uniform"]

# Kolmogorov (1941): the energy of turbulence falls as k**(-5/3), so the power of one mode in three
# dimensions as k**(-11/3).
TURBULENCE = 11 / 3
# Larger arrays are made anew each time rather than held for the checker.
MOST_KEPT = 1 << 21


def content(kind: str, seed: int, number: int, rank: int, items: int, slope: float) -> Array:
    """The float64 values of a rank in a round; do not change them."""
    if items > MOST_KEPT:
        return _made(kind, seed, number, rank, items, slope)
    return _kept(kind, seed, number, rank, items, slope)


def field(rng: np.random.Generator, items: int, slope: float = TURBULENCE) -> Array:
    """The first `items` values of a periodic 3-D field with power k**-slope, of deviation 1.

    A periodic field has no jumps between the end of a row and the start of the next, which is the
    harder case for us: jumps cost bit packing more than a table coder.

    >>> field(np.random.default_rng(0), 1000).shape
    (1000,)
    """
    side = _side(items)
    k = np.fft.fftfreq(side, 1 / side)
    half = np.fft.rfftfreq(side, 1 / side)
    square = k[:, None, None] ** 2 + k[None, :, None] ** 2 + half[None, None, :] ** 2
    square[0, 0, 0] = np.inf  # no mean
    shape = square.shape
    modes = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    modes *= square ** (-slope / 4)
    values = np.fft.irfftn(modes, (side,) * 3, axes=(0, 1, 2)).reshape(-1)[:items]
    deviation = values.std() if items > 1 else 0.0
    return np.asarray(values / deviation if deviation > 0 else values)


def gradient(rng: np.random.Generator, items: int) -> Array:
    """Values as gradients have them: heavy tails, and layers of very different size.

    Student's t with 4 degrees of freedom, in layers of 4,096 whose sizes are log-normal.
    """
    layers = np.exp(rng.standard_normal(-(-items // 4096)))
    values: Array = rng.standard_t(4, items) * np.repeat(layers, 4096)[:items]
    return values


def _made(kind: str, seed: int, number: int, rank: int, items: int, slope: float) -> Array:
    rng = Stream(seed, rank, f"compressible {kind} {number}").numpy()
    if kind == "field":
        values = field(rng, items, slope)
    elif kind == "gradient":
        values = gradient(rng, items)
    elif kind == "uniform":
        values = rng.uniform(-1.0, 1.0, items)
    else:
        values = rng.standard_normal(items)
    values.flags.writeable = False
    return values


_kept = functools.lru_cache(maxsize=64)(_made)


def _side(items: int) -> int:
    """The side of a cube that holds so many, with small factors so that its transform is fast.

    >>> [_side(items) for items in (0, 8, 1 << 20)]
    [2, 2, 108]
    """
    side = 2
    while side**3 < items or not _smooth(side):
        side += 2
    return side


def _smooth(number: int) -> bool:
    for factor in (2, 3, 5):
        while number % factor == 0:
            number //= factor
    return number == 1


__all__ = ["TURBULENCE", "Content", "content", "field", "gradient"]
