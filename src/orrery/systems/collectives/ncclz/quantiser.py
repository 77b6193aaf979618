"""The lossy half, once for each call: floats to whole numbers on a grid, and back.

The grid has steps of 2 eb, so a rounded value is off by at most eb. Codes are added as integers:
that is exact, in any order, so a sum over N ranks is off by at most N eb however it was made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from orrery.base.errors import PartError
from orrery.parts.collectives import Array


class Grid(NamedTuple):
    """Where values may lie: `eb` is the largest error of one value, `ranks` how many are added.

    >>> grid = Grid(0.25, ranks=4)
    >>> grid.quantise(np.array([0.9, -2.3], np.float32)).tolist()
    [2, -5]
    """

    eb: float
    ranks: int = 1

    @property
    def step(self) -> float:
        return 2.0 * self.eb

    def code_type(self, dtype: np.dtype) -> np.dtype:
        """The integers for values of a type: as wide as the values, at least 32 bits."""
        return np.dtype(np.int64 if dtype.itemsize > 4 else np.int32)

    def limit(self, dtype: np.dtype) -> int:
        """The largest code whose sum over all ranks, and differences of sums, cannot overflow.

        Beyond 2**52 a float64 no longer tells neighbouring codes apart.
        """
        most = 2**30 if self.code_type(dtype).itemsize == 4 else 2**52
        return (most - 1) // self.ranks

    def fits(self, values: Array) -> bool:
        """Whether every value has a code: no NaN, no infinity, nothing too large for the grid."""
        if not values.size:
            return True
        # NaN makes the comparison false.
        largest = self.limit(values.dtype) * self.step
        return bool(float(values.max()) <= largest and float(values.min()) >= -largest)

    def quantise(self, values: Array) -> Array:
        """The codes of values that fit; `PartError` names one that does not."""
        if not self.fits(values):
            raise PartError(self.misfit(values))
        # In float64, so that rounding to the grid is the only error.
        codes = np.rint(np.divide(values, self.step, dtype=np.float64))
        return codes.astype(self.code_type(values.dtype))

    def dequantise(self, codes: Array, dtype: np.dtype) -> Array:
        """The values of codes."""
        # A sum may overflow float16 to infinity, as a plain sum does.
        with np.errstate(over="ignore"):
            return (codes * np.float64(self.step)).astype(dtype)

    def misfit(self, values: Array) -> str:
        """Which value has no code, and what to do about it."""
        largest = self.limit(values.dtype) * self.step
        with np.errstate(invalid="ignore"):
            off = np.flatnonzero(~(np.abs(values.reshape(-1).astype(np.float64)) <= largest))
        place = int(off[0]) if off.size else -1
        value = values.reshape(-1)[place] if off.size else None
        return (
            f"value {value!r:.40} at {place} has no code: with eb = {self.eb:g} and {self.ranks} "
            f'ranks codes reach {largest:.6g}; raise eb, or set on_overflow = "exact"'
        )


__all__ = ["Grid"]
