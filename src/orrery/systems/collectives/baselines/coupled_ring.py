"""A whole compressor at each hop: decompress, add floats, compress again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from orrery.parts import Positive
from orrery.parts.collectives import Array
from orrery.systems.collectives.ncclz.coders import NAMES, RAW
from orrery.systems.collectives.ncclz.desk import Desk
from orrery.systems.collectives.ncclz.frame import Chunk, look, open_frame, seal
from orrery.systems.collectives.ncclz.pipeline import Coding, GridRing, Priced, Span
from orrery.systems.collectives.ncclz.quantiser import Grid

# Every frame ends with the error bound of its grid, as a float64.
BOUND_B = 8


class CoupledRing(GridRing):
    """Decompress, reduce and recompress at every hop (Huang et al., C-Coll, 2023; gZCCL, 2024).

    "An Optimized Error-controlled MPI Collective Framework Integrated with Lossy Compression" and
    "gZCCL: Compression-Accelerated Collective Communication Framework for GPU Clusters". A lossy
    compressor, quantising and coding in one, is used as a black box: in the reducing half each hop
    turns a chunk to floats, adds, and compresses the sum; in the gathering half compressed sums are
    passed on as they are. Chunks overlap with transfers, as in C-Coll.

    Knobs: `grid`: "fixed" is an absolute bound `eb`, with which the result equals that of adding
    codes; "adaptive" takes `relative` times the range of each chunk of partial sums, the mode in
    which such compressors are mostly run, and with it the result depends on the order of the ring.
    `coder`: "pack" as cuSZp and fZ-light have it.

    >>> CoupledRing().grid
    'fixed'
    """

    coder: Literal["auto", "raw", "pack", "zero", "table"] = "pack"
    grid: Literal["fixed", "adaptive"] = "fixed"
    relative: Positive = 1e-3

    def coding(self, desk: Desk, dtype: np.dtype, crossings: float, ranks: int) -> Coding | None:
        return Compressor(self, desk, dtype) if dtype.kind == "f" else None

    def promise(self, size: int, magnitude: float) -> float:
        """The largest error of a sum over `size` ranks: one rounding for each."""
        # A range is at most twice the largest sum of magnitudes.
        return size * (self.eb if self.grid == "fixed" else 2 * self.relative * magnitude)


class Compressor:
    """Chunks of floats that are compressed and decompressed whole."""

    lossless = False

    def __init__(self, part: CoupledRing, desk: Desk, dtype: np.dtype) -> None:
        self._part = part
        self._desk = desk
        self._dtype = dtype
        self._near, self._far = part.selectors(desk)
        self._values: Array = np.empty(0, dtype)

    def enter(self, flat: Array, spans: Sequence[Span]) -> Priced:
        self._values = flat
        return 0.0, lambda: None

    def own(self, span: Span) -> Array:
        return self._values[slice(*span)]

    def _grid(self, values: Array) -> Grid:
        if self._part.grid == "fixed":
            return Grid(self._part.eb)
        with np.errstate(invalid="ignore", over="ignore"):
            span = float(values.max()) - float(values.min())
        # Below the smallest normal number a step would no longer be exact.
        return Grid(max(self._part.relative * span, 1e-300) if np.isfinite(span) else 1.0)

    def sealing(self, chunk: Array, again: bool, far: bool) -> Priced:
        desk, speeds, grid = self._desk, self._desk.speeds, self._grid(chunk)
        desk.tally.recoded += again
        mark = np.frombuffer(np.float64(grid.eb).tobytes(), np.uint8)
        if not grid.fits(chunk):
            desk.tally.exact += 1
            seconds = speeds.encode_s(RAW, chunk.nbytes)
            return seconds, lambda: np.concatenate([seal(Chunk(chunk, exact=True)), mark])
        codes = grid.quantise(chunk)
        choice = (self._far if far else self._near).choose(codes)

        def compressed() -> Array:
            frame = seal(Chunk(grid.quantise(chunk)), choice.coder, choice.delta)
            return np.concatenate([frame, mark])

        quantising_s = chunk.nbytes / speeds.quantise_Bps
        return quantising_s + speeds.encode_s(choice.coder, codes.nbytes), compressed

    def opening(self, frame: Array, span: Span, adds: bool) -> Priced:
        head, speeds = look(frame[:-BOUND_B]), self._desk.speeds
        grid = Grid(float(np.frombuffer(frame[-BOUND_B:].tobytes(), np.float64)[0]))

        def decompressed() -> Array:
            chunk = open_frame(frame[:-BOUND_B])
            return chunk.values if chunk.exact else grid.dequantise(chunk.values, self._dtype)

        values_B = (span.end - span.begin) * self._dtype.itemsize
        return (
            speeds.decode_s(head.coder, head.raw_B) + values_B / speeds.dequantise_Bps,
            decompressed,
        )

    def join(self, coming: Array, own: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(coming + own)

    def leave(self, chunks: Sequence[Array]) -> Priced:
        return 0.0, lambda: np.concatenate(chunks) if chunks else np.empty(0, self._dtype)

    def describe(self, frame: Array) -> tuple[str, int]:
        head = look(frame[:-BOUND_B])
        return NAMES[head.coder], head.items * self._dtype.itemsize
