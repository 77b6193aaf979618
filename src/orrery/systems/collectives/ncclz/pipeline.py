"""A ring of chunks that are coded on the way: each is encoded while the one before it travels.

The array is cut into a part for each rank and each part into chunks. In the first half of an
all-reduce a part goes round and gathers its sum; in the second the finished sums go round as they
are, frames passed on unopened. A rank has four tasks: one takes frames and adds, one encodes, one
sends, one opens what only passes through. They share the rank's device, as kernels share a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from orrery.base.errors import PartError
from orrery.parts import Count, NonNegative, Positive, Whole
from orrery.parts.collectives import Array, Combine, Ranks, Ring, part_items
from orrery.parts.groups import Line
from orrery.systems.collectives.ncclz.coders import NAMES
from orrery.systems.collectives.ncclz.desk import Desk
from orrery.systems.collectives.ncclz.frame import TYPES
from orrery.systems.collectives.ncclz.selector import Selector, Speeds

# What is not coded goes this way: wholly, as the halves of an all-reduce would be coded again.
PLAIN = Ring()
# Labels are told from frames by their type.
LABEL = np.dtype(np.int64)
# Seconds on the device, and what to do in them.
Priced = tuple[float, Callable[[], Any]]


class Span(NamedTuple):
    """Where a chunk lies in the flat array."""

    begin: int
    end: int


class Coding(Protocol):
    """How one call's values are coded; what travels between `enter` and `leave` is a matter of it.

    `lossless`: whether a frame opens to just what was sealed. If not, the owner of a sum opens its
    own frame, so that all ranks hold the same bits.
    """

    lossless: bool

    def enter(self, flat: Array, spans: Sequence[Span]) -> Priced:
        """Take the caller's values in."""
        ...

    def own(self, span: Span) -> Any:
        """This rank's chunk, as something to seal or to join."""
        ...

    def sealing(self, chunk: Any, again: bool, far: bool) -> Priced:
        """Make a frame; `again`: the chunk was opened before at this rank; `far`: the frame goes
        all the way round, not only to the next rank."""
        ...

    def opening(self, frame: Array, span: Span, adds: bool) -> Priced:
        """Open a frame that must hold the chunk of a span; `adds`: to join it with one's own."""
        ...

    def join(self, coming: Any, own: Any) -> Any:
        """The sum of two chunks."""
        ...

    def leave(self, chunks: Sequence[Any]) -> Priced:
        """The caller's values of some chunks, as one flat array."""
        ...

    def describe(self, frame: Array) -> tuple[str, int]:
        """Which coder made a frame, and of how many bytes of numbers."""
        ...


class Flow:
    """The chunks of one call at one rank: what goes out, and what is still to be opened."""

    def __init__(self, desk: Desk, coding: Coding, overlap: bool) -> None:
        self.desk = desk
        self.coding = coding
        self.overlap = overlap
        self.done: dict[Span, Any] = {}
        self._out = desk.worker.queue()
        self._ready = desk.worker.queue()
        self._closed = desk.worker.queue()

    def batches(self, spans: Sequence[Span]) -> list[Sequence[Span]]:
        """What is taken together: each chunk by itself, or without overlap all of a part."""
        if self.overlap:
            return [[span] for span in spans]
        return [spans] if spans else []

    async def run(self, receiving: Callable[[], Any]) -> None:
        """Receive to the end, with the other tasks beside it."""
        if not self.overlap:
            await receiving()
            return

        async def receive() -> None:
            await receiving()
            self._out.put(None)
            self._closed.put(None)

        await self.desk.worker.all(
            receive(), self._encode_all(), self._send_all(), self._open_all()
        )

    # -- what goes out

    async def put(self, chunks: Sequence[Any], again: bool, keep: Sequence[Span] = ()) -> None:
        """Seal chunks and send them in this order; `keep` those that are finished sums."""
        spans = keep or [None] * len(chunks)
        jobs = [(chunk, again, span) for chunk, span in zip(chunks, spans, strict=True)]
        if self.overlap:
            for job in jobs:
                self._out.put(job)
            return
        frames = [await self._sealed(*job) for job in jobs]
        for frame in frames:
            self._send(frame)

    def label(self, label: Array) -> None:
        """Send what says how the chunks after it are to be read."""
        if self.overlap:
            self._out.put(label)
        else:
            self._send(label)

    def _send(self, array: Array) -> None:
        if array.dtype != LABEL:
            self.desk.count(array, *self.coding.describe(array))
        self.desk.post(array)

    async def _encode_all(self) -> None:
        # While one frame is sent, the next is encoded.
        while (job := await self._out.get()) is not None:
            self._ready.put(await self._sealed(*job) if isinstance(job, tuple) else job)
        self._ready.put(None)

    async def _send_all(self) -> None:
        while (frame := await self._ready.get()) is not None:
            if frame.dtype != LABEL:
                await self.desk.slot(frame.nbytes)
            self._send(frame)

    async def _sealed(self, chunk: Any, again: bool, keep: Span | None) -> Array:
        frame = await self.desk.spend(*self.coding.sealing(chunk, again, keep is not None))
        if keep is not None:
            if self.coding.lossless:
                self.done[keep] = chunk
            else:
                self._closed.put((frame, keep))
                if not self.overlap:
                    await self._open_next()
        return frame

    # -- what passes through

    async def pass_on(self, frames: Sequence[Array], spans: Sequence[Span], onward: bool) -> None:
        """Send frames on unopened, and open them for this rank."""
        if self.overlap and onward:
            for frame in frames:
                self._out.put(frame)
        for job in zip(frames, spans, strict=True):
            self._closed.put(job)
            if not self.overlap:
                await self._open_next()
        if not self.overlap and onward:
            for frame in frames:
                self._send(frame)

    async def _open_all(self) -> None:
        while await self._open_next():
            pass

    async def _open_next(self) -> bool:
        job = await self._closed.get()
        if job is None:
            return False
        frame, span = job
        self.done[span] = await self.desk.spend(*self.coding.opening(frame, span, adds=False))
        return True


class CodedRing(Ring):
    """A ring whose chunks are coded on the way; a subclass says how, by `coding`.

    Knobs: `chunk_items`, the numbers in a chunk; `overlap`, whether coding runs under the
    transfers; `slots`, how many chunks may be on the wire to the next rank at once, 0 for just so
    many that the link is busy; `speeds` of the coders; `link_Bps` that is reckoned with, 0 for what
    the world says.
    """

    chunk_items: Count = 32768
    overlap: bool = True
    slots: Whole = 0
    speeds: Speeds = Speeds()
    link_Bps: NonNegative = 0.0

    # Whether a GPU codes inside the collective's own blocks, or in kernels on the whole device.
    inside: ClassVar[bool] = False

    def coding(self, desk: Desk, dtype: np.dtype, crossings: float, ranks: int) -> Coding | None:
        """How values of a type are coded, for a call of `ranks` terms in which each crosses so many
        links; None: not at all."""
        raise PartError(f"{type(self).__name__} has no coding(…); write how chunks are coded")

    async def all_reduce(self, ranks: Ranks, array: Array, combine: Combine) -> Array:
        size = ranks.size
        ready = self._ready(ranks, array, combine, 2 * (size - 1) / size)
        if ready is None:
            return await PLAIN.all_reduce(ranks, array, combine)
        total = await self._reduce(*ready, array.reshape(-1), part_items(array.size, size), True)
        return total.reshape(array.shape)

    async def reduce_scatter(self, ranks: Ranks, parts: Sequence[Array], combine: Combine) -> Array:
        size = ranks.size
        ready = self._ready(ranks, parts[0], combine, (size - 1) / size)
        if ready is None:
            return await PLAIN.reduce_scatter(ranks, parts, combine)
        flat = np.concatenate([part.reshape(-1) for part in parts])
        mine = await self._reduce(*ready, flat, [part.size for part in parts], False)
        return mine.reshape(parts[ranks.rank].shape)

    async def all_gather(self, ranks: Ranks, array: Array) -> list[Array]:
        ready = self._ready(ranks, array, np.add, ranks.size - 1, terms=1)
        if ready is None:
            return await PLAIN.all_gather(ranks, array)
        return await self._gather(*ready, array)

    def _ready(
        self, ranks: Ranks, array: Array, combine: Combine, crossings: float, terms: int = 0
    ) -> tuple[Desk, Coding] | None:
        """A desk and a coding, where values of this kind and operation are coded at all."""
        if ranks.size == 1 or array.dtype not in TYPES or not is_sum(combine):
            return None
        assert isinstance(ranks, Line)  # what a worker gives its collectives
        desk = Desk(ranks, self.speeds, self.inside, self.link_Bps, self.slots)
        coding = self.coding(desk, array.dtype, crossings, terms or ranks.size)
        return None if coding is None else (desk, coding)

    def spans(self, begin: int, items: int) -> list[Span]:
        """The chunks of a part."""
        return [
            Span(at, min(at + self.chunk_items, begin + items))
            for at in range(begin, begin + items, self.chunk_items)
        ]

    async def _reduce(
        self, desk: Desk, coding: Coding, flat: Array, lengths: Sequence[int], gather: bool
    ) -> Array:
        """One way round to add, and with `gather` another to spread the sums."""
        n, me = desk.size, desk.me
        begins = np.cumsum([0, *lengths])
        cut = [self.spans(int(at), length) for at, length in zip(begins, lengths, strict=False)]
        await desk.spend(*coding.enter(flat, [span for part in cut for span in part]))
        flow = Flow(desk, coding, self.overlap)

        async def receive() -> None:
            await flow.put([coding.own(span) for span in cut[(me - 1) % n]], again=False)
            for step in range(n - 1):
                for batch in flow.batches(cut[(me - step - 2) % n]):
                    await add(batch, last=step == n - 2)
            for step in range(n - 1 if gather else 0):
                for batch in flow.batches(cut[(me - step - 1) % n]):
                    frames = [await desk.take() for _ in batch]
                    await flow.pass_on(frames, batch, onward=step < n - 2)

        async def add(batch: Sequence[Span], last: bool) -> None:
            frames = [await desk.take() for _ in batch]
            sums = []
            for frame, span in zip(frames, batch, strict=True):
                coming = await desk.spend(*coding.opening(frame, span, adds=True))
                sums.append(coding.join(coming, coding.own(span)))
            if last and not gather:
                flow.done.update(zip(batch, sums, strict=True))
            else:
                await flow.put(sums, again=True, keep=batch if last else ())

        await flow.run(receive)
        parts = cut if gather else [cut[me]]
        chunks = [flow.done[span] for part in parts for span in part]
        return await desk.spend(*coding.leave(chunks))

    async def _gather(self, desk: Desk, coding: Coding, array: Array) -> list[Array]:
        """Each block goes round once; its label with it, as shapes may differ."""
        n, me = desk.size, desk.me
        # Blocks are told apart by their place in one imagined array, far from each other.
        far = 1 << 40
        mine = self.spans(0, array.size)
        labels = {me: np.array(array.shape, LABEL)}
        await desk.spend(*coding.enter(array.reshape(-1), mine))
        flow = Flow(desk, coding, self.overlap)
        keys: dict[int, list[Span]] = {me: [Span(me * far + b, me * far + e) for b, e in mine]}

        async def receive() -> None:
            flow.label(labels[me])
            await flow.put([coding.own(span) for span in mine], again=False, keep=keys[me])
            for step in range(n - 1):
                owner = (me - step - 1) % n
                label = labels[owner] = await desk.take()
                if step < n - 2:
                    flow.label(label)
                keys[owner] = self.spans(owner * far, int(np.prod(label)))
                for batch in flow.batches(keys[owner]):
                    frames = [await desk.take() for _ in batch]
                    await flow.pass_on(frames, batch, onward=step < n - 2)

        await flow.run(receive)
        blocks = []
        for owner in range(n):
            block = await desk.spend(*coding.leave([flow.done[span] for span in keys[owner]]))
            blocks.append(block.reshape(labels[owner]))
        return blocks

    def sent_B(
        self, kind: str, rank: int, items: Sequence[int], itemsize: int, root: int = 0
    ) -> int | None:
        if kind in ("all_reduce", "reduce_scatter", "all_gather") and len(items) > 1:
            return None  # the data decide
        return super().sent_B(kind, rank, items, itemsize, root)


class GridRing(CodedRing):
    """A coded ring on a grid: what those that quantise and then code have in common.

    Knobs: `eb`, the absolute error of one value; `coder`, one of the coders for all chunks, or
    "auto" for the best by chunk; `predict`, whether differences of neighbours are coded.
    """

    eb: Positive = 2.0**-11
    coder: Literal["auto", "raw", "pack", "zero", "table"] = "auto"
    predict: Literal["auto", "delta", "none"] = "auto"

    def selectors(self, desk: Desk) -> tuple[Selector, Selector]:
        """What chooses the coder of a chunk for the next link, and for all links of the ring.

        Between two ranks of one machine a chunk of codes may travel raw, and be coded only where it
        leaves the machine.
        """
        coders = range(len(NAMES)) if self.coder == "auto" else [NAMES.index(self.coder)]
        deltas = {"auto": (False, True), "delta": (True,), "none": (False,)}[self.predict]
        near, far = (
            Selector(desk.speeds, link_Bps, tuple(coders), deltas)
            for link_Bps in (desk.link_Bps, desk.narrow_Bps)
        )
        return near, far


def is_sum(combine: Combine) -> bool:
    """Whether an operation is a plain sum; only sums are the same in codes and in values.

    `combiner("sum")` gives a function around `np.add`; any other operation has no `np.add` in it,
    or is taken for one that is not a sum, which costs speed and never a wrong result.
    """
    if combine is np.add:
        return True
    held = getattr(combine, "__closure__", None) or ()
    return any(cell.cell_contents is np.add for cell in held)


__all__ = ["CodedRing", "Coding", "Flow", "GridRing", "Priced", "Span", "is_sum"]
