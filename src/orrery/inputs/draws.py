"""Random arrays from a `Stream`: the same numbers as one-by-one draws, many at a time.

NumPy's own generators may change their numbers with a version; these do not.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from orrery.base.rand import GOLDEN, Stream, block, mix64

F64 = npt.NDArray[np.float64]


def uniforms(stream: Stream, count: int) -> F64:
    """Floats in [0, 1), equal to `count` calls of `stream.random()`."""
    words = block(stream.key, stream.count, count)
    stream.count += count
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def exponentials(stream: Stream, count: int) -> F64:
    """Exponential draws of mean 1."""
    return -np.log1p(-uniforms(stream, count))


def normals(stream: Stream, count: int) -> F64:
    """Standard normal draws (Box and Muller, 1958)."""
    half = (count + 1) // 2
    radius = np.sqrt(-2.0 * np.log1p(-uniforms(stream, half)))
    angle = 2.0 * np.pi * uniforms(stream, half)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def _at(key: int, lane: int, index: npt.NDArray[np.uint64]) -> F64:
    """The uniforms at some places of one lane of a key."""
    start = mix64(key + lane * GOLDEN)
    with np.errstate(over="ignore"):
        x = np.uint64(start) + (index + np.uint64(1)) * np.uint64(GOLDEN)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def gammas(stream: Stream, shape: float, count: int) -> F64:
    """Gamma draws of mean 1 (Marsaglia and Tsang, 2000; shapes below one by a power).

    Each draw has its own places in the lanes of a key, so that asking for more changes none.
    """
    key = stream.word()
    index = np.arange(count, dtype=np.uint64)
    scale = 1.0 / shape
    boost: F64 | float = 1.0
    if shape < 1.0:
        boost = (1.0 - _at(key, 0, index)) ** (1.0 / shape)
        shape += 1.0
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    drawn = np.empty(count)
    left, lane = index, 1
    while len(left):
        radius = np.sqrt(-2.0 * np.log1p(-_at(key, lane, left)))
        x = radius * np.cos(2.0 * np.pi * _at(key, lane + 1, left))
        v = (1.0 + c * x) ** 3
        limit = 0.5 * x * x + d - d * v + d * np.log(np.where(v > 0, v, 1.0))
        fits = (v > 0) & (np.log1p(-_at(key, lane + 2, left)) < limit)
        drawn[left[fits]] = d * v[fits]
        left, lane = left[~fits], lane + 3
    return drawn * boost * scale


def weibulls(stream: Stream, shape: float, count: int) -> F64:
    """Weibull draws of mean 1."""
    return exponentials(stream, count) ** (1.0 / shape) / math.gamma(1.0 + 1.0 / shape)


def weibull_shape(cv: float) -> float:
    """The shape of the Weibull distribution whose standard deviation is `cv` means.

    >>> round(weibull_shape(1.0), 9)
    1.0
    """
    low, high = 0.05, 100.0
    for _ in range(80):
        k = math.sqrt(low * high)
        log_ratio = math.lgamma(1 + 2 / k) - 2 * math.lgamma(1 + 1 / k)
        if log_ratio > math.log1p(cv * cv):
            low = k
        else:
            high = k
    return math.sqrt(low * high)


def whole(values: F64) -> npt.NDArray[np.int64]:
    """Token counts: whole numbers, at least 1."""
    return np.maximum(np.rint(values), 1.0).astype(np.int64)
