"""`NCCLZ`: quantise once at the door, code losslessly at every hop, choose the coder by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from orrery.base.errors import PartError
from orrery.parts.collectives import Array
from orrery.systems.collectives.ncclz.coders import NAMES, RAW
from orrery.systems.collectives.ncclz.desk import Desk
from orrery.systems.collectives.ncclz.frame import Chunk, look, open_frame, seal
from orrery.systems.collectives.ncclz.pipeline import Coding, GridRing, Priced, Span
from orrery.systems.collectives.ncclz.quantiser import Grid
from orrery.systems.collectives.ncclz.selector import Speeds

SAMPLE = 65536


class NCCLZ(GridRing):
    """All-reduce and its kin on compressed chunks, with quantising and coding kept apart.

    "NCCLZ: Compression-Enabled GPU Collectives with Decoupled Quantization and Entropy Coding",
    2026. Values become whole numbers on a grid of 2 `eb` once, when they enter the call, and values
    again when they leave it. In between, chunks of codes go round the ring; at each hop a chunk is
    decoded, added to as integers, and encoded again without loss. The sum is exact in codes, so it
    does not depend on the order of the ring, all ranks hold the same bits, and over N ranks it is
    off by at most N `eb`. A selector chooses for each chunk among raw, bit packing, zero runs and
    a table coder (interleaved rANS), on the codes or on their differences, by what a sample says
    of encoding + sending + decoding. Chunk k + 1 is encoded while chunk k travels.

    Where coding cannot pay on this link, values travel as they are. So do chunks with NaN,
    infinities or values beyond the grid (`on_overflow = "exact"`; "raise" names the value).
    Integers are coded without a grid. Operations other than sums go by the plain ring.

    Knobs: `eb`, the absolute error of one value; `coder`, "auto" or one for all chunks ("raw"
    switches coding off); `predict`, whether differences are coded; `chunk_items`; `overlap`;
    `speeds`, what the coders do in a second; `link_Bps`, 0 for what the world says.
    Cost: O(items) at each hop; a chunk takes about a dozen vector operations for 256 numbers.

    **Differs from the paper**: grid, coders, frames and selector are our own designs, as the paper
    names its stages and not their insides. Differences are taken inside the coder, so that ranks
    need not agree on them. Up to eight chunks are under way to a neighbour, in place of NCCL's
    slots. Coders are NumPy on the CPU; on a modelled GPU they cost what `Speeds` says.

    >>> NCCLZ(eb=0.001).coder
    'auto'
    """

    on_overflow: Literal["exact", "raise"] = "exact"

    inside: ClassVar[bool] = True

    def coding(self, desk: Desk, dtype: np.dtype, crossings: float, ranks: int) -> Coding | None:
        grid = Grid(self.eb, ranks) if dtype.kind == "f" else None
        if self.coder != "auto":
            return Codes(self, desk, dtype, grid, 0.0)
        # All ranks ask alike, so all of them leave frames out or none does.
        if all(speeds.hopeless(desk.narrow_Bps) for speeds in self._everywhere(desk)):
            return None
        return Codes(self, desk, dtype, grid, crossings)

    def _everywhere(self, desk: Desk) -> set[Speeds]:
        """The speeds of all ranks."""
        machines = {desk.worker.world.machine_of(node) for node in desk.nodes}
        return {self.speeds.on(machine, self.inside) for machine in machines}

    def promise(self, size: int, magnitude: float) -> float:
        """The largest error of a sum over `size` ranks."""
        return size * self.eb


class Codes:
    """Chunks of integer codes; or, where there are none, of values as they are.

    `crossings` are the links that a value crosses, for the question whether coding pays at all; 0
    where it is not asked.
    """

    lossless = True

    def __init__(
        self, part: NCCLZ, desk: Desk, dtype: np.dtype, grid: Grid | None, crossings: float
    ) -> None:
        self._desk = desk
        self._dtype = dtype
        self._grid = grid
        self._near, self._far = part.selectors(desk)
        self._crossings = crossings
        self._strict = part.on_overflow == "raise"
        self._values: Array = np.empty(0, dtype)
        self._plainly = False
        self._quantised: dict[Span, Chunk] = {}

    # -- the door

    def enter(self, flat: Array, spans: Sequence[Span]) -> Priced:
        self._values = flat
        if self._grid is not None:
            if self._strict and not self._grid.fits(flat):
                raise PartError(self._grid.misfit(flat))
            self._plainly = bool(self._crossings) and not self._pays(flat, self._grid)
        return 0.0, lambda: None

    def _pays(self, flat: Array, grid: Grid) -> bool:
        sample = flat[:SAMPLE]
        return grid.fits(sample) and self._far.pays(grid.quantise(sample), self._crossings)

    def own(self, span: Span) -> Chunk:
        """This rank's chunk; each is quantised once, just before it is needed."""
        return self._quantised.pop(span, None) or self._entered(span)

    def _entered(self, span: Span) -> Chunk:
        values, grid = self._values[slice(*span)], self._grid
        if grid is None:
            return Chunk(values)
        if self._plainly or not grid.fits(values):
            return Chunk(values, exact=True)
        return Chunk(grid.quantise(values))

    def leave(self, chunks: Sequence[Chunk]) -> Priced:
        def joined() -> Array:
            if not chunks:
                return np.empty(0, self._dtype)
            return np.concatenate([self._plain(chunk).values for chunk in chunks])

        return sum(self._door_s(chunk.values.size, False) for chunk in chunks
                   if not chunk.exact), joined  # fmt: skip

    def _plain(self, chunk: Chunk) -> Chunk:
        """The values of a chunk."""
        if chunk.exact or self._grid is None:
            return chunk
        return Chunk(self._grid.dequantise(chunk.values, self._dtype), exact=True)

    def _door_s(self, items: int, inwards: bool) -> float:
        """What quantising (or its inverse) costs for so many values."""
        if self._grid is None or self._plainly:
            return 0.0
        speeds = self._desk.speeds
        Bps = speeds.quantise_Bps if inwards else speeds.dequantise_Bps
        return items * self._dtype.itemsize / Bps

    # -- the hops

    def describe(self, frame: Array) -> tuple[str, int]:
        head = look(frame)
        return NAMES[head.coder], head.raw_B

    def sealing(self, chunk: Chunk, again: bool, far: bool) -> Priced:
        speeds = self._desk.speeds
        door_s = 0.0 if again else self._door_s(chunk.values.size, True)
        if chunk.exact:
            self._desk.tally.exact += 1
            return door_s + speeds.encode_s(RAW, chunk.values.nbytes), lambda: seal(chunk)
        choice = (self._far if far else self._near).choose(chunk.values)
        seconds = door_s + speeds.encode_s(choice.coder, chunk.values.nbytes)
        return seconds, lambda: seal(chunk, choice.coder, choice.delta)

    def opening(self, frame: Array, span: Span, adds: bool) -> Priced:
        head = look(frame)
        items = span.end - span.begin
        if head.items != items:
            raise PartError(
                f"ranks disagree: a chunk of {head.items} numbers came where {items} were due; "
                "all ranks must give arrays of one shape and use the same knobs"
            )

        def opened() -> Chunk:
            if not adds:
                return self._plain(open_frame(frame))
            self._quantised[span] = self._entered(span)
            return open_frame(frame)

        door_s = self._door_s(items, adds)
        return door_s + self._desk.speeds.decode_s(head.coder, head.raw_B), opened

    def join(self, coming: Chunk, own: Chunk) -> Chunk:
        with np.errstate(over="ignore", invalid="ignore"):
            if coming.exact or own.exact:
                total = self._plain(coming).values + self._plain(own).values
                return Chunk(total, exact=True)
            if coming.values.dtype != own.values.dtype:
                raise PartError(
                    f"ranks disagree: codes of {coming.values.dtype} came where "
                    f"{own.values.dtype} were due; all ranks must give arrays of one type"
                )
            return Chunk(coming.values + own.values)


__all__ = ["NCCLZ", "Codes"]
