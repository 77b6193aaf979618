"""Narrower numbers on the wire: float16, or int8 with a scale for each block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from orrery.parts.collectives import Array
from orrery.systems.collectives.ncclz.desk import Desk
from orrery.systems.collectives.ncclz.pipeline import CodedRing, Coding, Priced, Span
from orrery.systems.collectives.pccl.coding import BLOCK, Int8, error_bound


class CastRing(CodedRing):
    """Cast values before they travel: the plain way to halve or quarter the bytes.

    "fp16" casts once, adds in float16 and casts back (mixed-precision training's all-reduce,
    Micikevicius et al., 2018). "int8" has a scale for each block of 256 values; at every hop a
    chunk is scaled back, added to and scaled anew (as in Dettmers, "8-bit approximations for
    parallelism in deep learning", 2016). Neither has an absolute error bound: the error grows with
    the size of the values.

    >>> CastRing().cast
    'fp16'
    """

    cast: Literal["fp16", "int8"] = "fp16"

    def coding(self, desk: Desk, dtype: np.dtype, crossings: float, ranks: int) -> Coding | None:
        if dtype.kind != "f" or dtype.itemsize <= 2:
            return None
        return Halves(desk, dtype) if self.cast == "fp16" else Bytes(desk, dtype)

    def promise(self, size: int, magnitude: float) -> float:
        """The largest error of a sum over `size` ranks."""
        if self.cast == "int8":
            return error_bound(size) * magnitude
        # One rounding by the cast and one by each addition, of at most the sum of magnitudes.
        return size * float(np.finfo(np.float16).eps) / 2 * magnitude + 1e-7


class Halves:
    """Chunks of float16, which travel as they are."""

    lossless = True

    def __init__(self, desk: Desk, dtype: np.dtype) -> None:
        self._desk = desk
        self._dtype = dtype
        self._values: Array = np.empty(0, dtype)

    def enter(self, flat: Array, spans: Sequence[Span]) -> Priced:
        def cast() -> None:
            with np.errstate(over="ignore"):
                self._values = flat.astype(np.float16)

        return flat.nbytes / self._desk.speeds.quantise_Bps, cast

    def own(self, span: Span) -> Array:
        return self._values[slice(*span)]

    def sealing(self, chunk: Array, again: bool, far: bool) -> Priced:
        return 0.0, lambda: chunk

    def opening(self, frame: Array, span: Span, adds: bool) -> Priced:
        return 0.0, lambda: frame

    def join(self, coming: Array, own: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(coming + own)

    def leave(self, chunks: Sequence[Array]) -> Priced:
        empty = [np.empty(0, self._dtype)]
        wide_B = sum(chunk.size for chunk in chunks) * self._dtype.itemsize
        seconds = wide_B / self._desk.speeds.dequantise_Bps
        return seconds, lambda: np.concatenate([*empty, *chunks]).astype(self._dtype)

    def describe(self, frame: Array) -> tuple[str, int]:
        return "fp16", frame.size * self._dtype.itemsize


class Bytes(Halves):
    """Chunks of floats that travel as int8 with scales."""

    lossless = False

    def enter(self, flat: Array, spans: Sequence[Span]) -> Priced:
        self._values = flat
        return 0.0, lambda: None

    def sealing(self, chunk: Array, again: bool, far: bool) -> Priced:
        self._desk.tally.recoded += again
        return chunk.nbytes / self._desk.speeds.quantise_Bps, lambda: Int8().pack(chunk)

    def opening(self, frame: Array, span: Span, adds: bool) -> Priced:
        items = span.end - span.begin
        seconds = items * self._dtype.itemsize / self._desk.speeds.dequantise_Bps
        return seconds, lambda: Int8().unpack(frame, items, self._dtype)

    def describe(self, frame: Array) -> tuple[str, int]:
        # A block of 256 values takes 260 bytes; the last one may be shorter.
        blocks = -(-frame.size // (BLOCK + 4))
        return "int8", (frame.size - 4 * blocks) * self._dtype.itemsize
