"""How a piece of an array travels: as it is, or as int8 with a scale for each block.

Whoever reduces, forwards or owns a piece works with the bytes that crossed the wire, never with
what it had before coding. So all peers end with the same bits, lossy or not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.base.errors import PartError
from orrery.parts.collectives import Array

BLOCK = 256
LEVELS = 127


class Plain:
    """Pieces travel as they are."""

    exact = True

    def pack(self, piece: Array) -> Array:
        return piece

    def unpack(self, wire: Array, items: int, dtype: Any) -> Array:
        if wire.dtype != dtype or wire.size != items:
            raise PartError(
                f"a piece of {wire.size} {wire.dtype} came where {items} {dtype} were due; all "
                "members must give arrays of one size and type"
            )
        return wire


class Int8:
    """Blocks of 256 values as int8, with a float32 scale each: 0.254 of the bytes of float32.

    Values that are not finite are refused: a scale of infinity would spoil their whole block.

    >>> wire = Int8().pack(np.array([1.0, -2.0, 0.5], np.float32))
    >>> wire.nbytes, Int8().unpack(wire, 3, np.dtype("float32")).tolist()[1]
    (7, -2.0)
    """

    exact = False

    def pack(self, piece: Array) -> Array:
        items = piece.size
        blocks = -(-items // BLOCK)
        padded = np.zeros(blocks * BLOCK, np.float32)
        padded[:items] = piece
        table = padded.reshape(blocks, BLOCK)
        largest = np.abs(table).max(axis=1) if blocks else np.zeros(0, np.float32)
        if not np.isfinite(largest).all():
            raise PartError(
                "an array that is reduced as int8 holds NaN or infinity; use quantise='none'"
            )
        scales = (largest / np.float32(LEVELS)).astype(np.float32)
        safe = np.where(scales > 0, scales, np.float32(1.0))
        levels = np.rint(table / safe[:, None])
        # A scale below the smallest normal number is inexact: the levels must still fit.
        small = np.clip(levels, -LEVELS, LEVELS).astype(np.int8).reshape(-1)[:items]
        return np.concatenate([scales.view(np.uint8), small.view(np.uint8)])

    def unpack(self, wire: Array, items: int, dtype: Any) -> Array:
        blocks = -(-items // BLOCK)
        if wire.dtype != np.uint8 or wire.size != 4 * blocks + items:
            raise PartError(
                f"a coded piece of {wire.size} bytes came where {4 * blocks + items} were due; all "
                "members must give arrays of one size and use the same coding"
            )
        scales = np.ascontiguousarray(wire[: 4 * blocks]).view(np.float32)
        values = wire[4 * blocks :].view(np.int8).astype(np.float32)
        values *= np.repeat(scales, BLOCK)[:items]
        return values.astype(dtype, copy=False)


def error_bound(members: int) -> float:
    """The most that an int8 sum can be off, as a part of the largest sum of magnitudes.

    Each of `members` codings (one at every hop, one of the result) is off by half a level of the
    largest partial sum in its block, and partial sums are no larger than sums of magnitudes; the
    last sixteenth is for rounding, and for what one coding adds to the sums of the next.
    """
    return members * 0.5 / LEVELS * (1.0 + 1.0 / 16)


CODERS: dict[str, Any] = {"none": Plain, "int8": Int8}

__all__ = ["BLOCK", "CODERS", "Int8", "Plain", "error_bound"]
