"""What a step is made of, at fixed places in memory: the input of a recorded step.

A recorded step (a CUDA graph) always reads the same addresses. `Desk` owns them: one row of whole
numbers on the host, in pinned memory where there is a GPU, and its twin on the device, brought over
by one copy a step. `Frame` is how a recording of one padded size reads them: it stands for `Plan`.
Padding tokens write their keys to a spare block that nobody owns, and nobody reads their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from orrery.base.errors import UsageError
from orrery.models.real.backend import torch
from orrery.models.real.paged import PagedCache, Piece

# Tables are this many blocks wide, or a multiple of it, so that they seldom move.
TABLE_STEP = 64

Attend = Callable[..., Any]


def rows_at_once(group: int, *, decodes: bool, decode_rows: int = 16, chunk_rows: int = 64) -> int:
    """Rows of queries that one program takes: whole groups of heads, a power of two.

    >>> [rows_at_once(n, decodes=True) for n in (1, 4, 48)], rows_at_once(4, decodes=False)
    ([16, 16, 64], 64)
    """
    least = decode_rows if decodes else chunk_rows
    return max(least, 1 << (group - 1).bit_length())


class Size:
    """A padded size of steps: tokens, sequences, and whether all of them are decodes."""

    __slots__ = ("decodes", "sequences", "tokens")

    def __init__(self, tokens: int, sequences: int, decodes: bool) -> None:
        self.tokens, self.sequences, self.decodes = tokens, sequences, decodes

    def __repr__(self) -> str:
        return f"Size({self.tokens} tokens, {'decodes' if self.decodes else 'mixed'})"


class Desk:
    """The numbers of one step, on the host and on the device.

    tokens, sequences   the most of a step; `group`: query heads of one key head
    """

    def __init__(self, cache: PagedCache, *, tokens: int, sequences: int, group: int) -> None:
        self.cache, self.size, self.group = cache, cache.block_tokens, group
        self.spare = cache.blocks * cache.block_tokens
        if cache.keys.shape[1] <= cache.blocks:
            raise UsageError("the cache has no spare block; make it with spare=True")
        self.most_blocks = -(-cache.blocks // TABLE_STEP) * TABLE_STEP
        self.chunk_tokens = rows_at_once(group, decodes=False) // group
        # One more than there are sequences: each may have a block of queries that is not full.
        self.parts = -(-tokens // self.chunk_tokens) + sequences
        lengths = {
            "table_width": 1, "starts": sequences, "news": sequences, "lengths": sequences,
            "ends": sequences, "singles": sequences, "block_seq": self.parts,
            "block_first": self.parts,
            "tokens": tokens, "positions": tokens, "slots": tokens,
        }  # fmt: skip
        self._where: dict[str, slice] = {}
        at = 0
        for name, count in lengths.items():
            self._where[name] = slice(at, at + count)
            at += count
        self._head = at
        whole = at + sequences * self.most_blocks
        place = cache.keys.device
        held = torch.zeros(whole, dtype=torch.int32, pin_memory=place.type == "cuda")
        self._host, self._source = held.numpy(), held
        self.device = held if place.type == "cpu" else torch.zeros_like(held, device=place)
        self.host = {name: self._host[where] for name, where in self._where.items()}
        self._tables = self._host[at:]
        self._counting = np.arange(sequences)
        self._width = 0
        self._kept: list[Any] = [None] * sequences

    def on_device(self, name: str) -> Any:
        """One kind of numbers, where the kernels read them."""
        return self.device[self._where[name]]

    @property
    def tables(self) -> Any:
        """The blocks of all sequences, one row each; the rows are `table_width` wide."""
        return self.device[self._head :]

    # -- filling it

    def fill(self, pieces: Sequence[Piece], size: Size) -> None:
        """Write a step down, padded to a size, and bring it to the device."""
        if size.decodes:
            self._fill_decodes(pieces, size)
        else:
            self._fill_mixed(pieces, size)
        used = self._head + self._fill_tables(pieces)
        if self.device is not self._source:
            self.device[:used].copy_(self._source[:used], non_blocking=True)

    def _fill_decodes(self, pieces: Sequence[Piece], size: Size) -> None:
        host, block = self.host, self.size
        many, most = len(pieces), size.tokens
        starts = [piece.start for piece in pieces]
        host["tokens"][:many] = [piece.tokens[0] for piece in pieces]
        host["positions"][:many] = starts
        host["slots"][:many] = [
            piece.table[start // block] * block + start % block
            for piece, start in zip(pieces, starts, strict=True)
        ]
        host["lengths"][:many] = starts
        host["lengths"][:many] += 1
        for name in ("starts", "singles", "ends"):
            host[name][:most] = self._counting[:most]
        host["news"][:many] = 1
        self._pad(many, many, many, size)

    def _fill_mixed(self, pieces: Sequence[Piece], size: Size) -> None:
        host, block, per = self.host, self.size, self.chunk_tokens
        tokens, positions, slots = host["tokens"], host["positions"], host["slots"]
        row = part = end = single = 0
        for number, piece in enumerate(pieces):
            new, start, table = len(piece.tokens), piece.start, piece.table
            last = row + new
            host["starts"][number] = row
            host["news"][number] = new
            host["lengths"][number] = start + new
            tokens[row:last] = piece.tokens
            if new == 1:
                positions[row] = start
                slots[row] = table[start // block] * block + start % block
                host["singles"][single] = number
                single += 1
            else:
                places = np.arange(start, start + new)
                positions[row:last] = places
                slots[row:last] = np.asarray(table)[places // block] * block + places % block
                parts = -(-new // per)
                host["block_seq"][part : part + parts] = number
                host["block_first"][part : part + parts] = np.arange(0, parts * per, per)
                part += parts
            if piece.sample:
                host["ends"][end] = last - 1
                end += 1
            row = last
        host["ends"][end:] = 0
        host["block_seq"][part:] = -1
        self._pad(row, len(pieces), single, size)

    def _pad(self, rows: int, sequences: int, singles: int, size: Size) -> None:
        """Say of the rest that it is nobody's."""
        host = self.host
        host["tokens"][rows : size.tokens] = 0
        host["positions"][rows : size.tokens] = 0
        host["slots"][rows : size.tokens] = self.spare
        host["news"][sequences : size.sequences] = 0
        host["lengths"][sequences : size.sequences] = 0
        host["singles"][singles : size.sequences] = -1

    def _fill_tables(self, pieces: Sequence[Piece]) -> int:
        """Write the rows of blocks that are not there already; how many numbers are in use."""
        longest = max(len(piece.table) for piece in pieces)
        width = -(-longest // TABLE_STEP) * TABLE_STEP
        kept = self._kept
        if width != self._width:
            self._width = width
            self.host["table_width"][0] = width
            kept[:] = [None] * len(kept)
        tables = self._tables
        for number, piece in enumerate(pieces):
            table = piece.table
            # A list that grew is another one: the engine never changes the list it has given.
            if kept[number] is not table:
                at = number * width
                tables[at : at + len(table)] = table
                kept[number] = table
        return len(pieces) * width

    def forget(self) -> None:
        """Write every table anew in the next step."""
        self._kept[:] = [None] * len(self._kept)


class Frame:
    """A padded size as the model reads it; has what `Plan` has.

    The views are made while the step is recorded, so that turning indices into the type that
    PyTorch wants is part of the recording.
    """

    def __init__(self, desk: Desk, size: Size, attend: Attend, *, window: int = 0) -> None:
        self.desk, self.window, self._attend = desk, window, attend
        rows, many = size.tokens, size.sequences
        self.decode_rows = rows_at_once(desk.group, decodes=True)
        self.chunk_rows = rows_at_once(desk.group, decodes=False)
        self.tokens = desk.on_device("tokens")[:rows].long()
        self.positions = desk.on_device("positions")[:rows].long()
        self.slots = desk.on_device("slots")[:rows].long()
        self.ends = desk.on_device("ends")[:many].long()
        self.starts, self.news = desk.on_device("starts")[:many], desk.on_device("news")[:many]
        self.lengths = desk.on_device("lengths")[:many]
        self.singles = desk.on_device("singles")[:many]
        self.block_seq = self.block_first = None
        if not size.decodes:
            parts = -(-rows // desk.chunk_tokens) + many
            self.block_seq = desk.on_device("block_seq")[:parts]
            self.block_first = desk.on_device("block_first")[:parts]
        self.tables, self.table_width = desk.tables, desk.on_device("table_width")

    def attend(self, q: Any, keys: Any, values: Any, scale: float) -> Any:
        """Attention of `q` [row, head, width] over one layer of the cache."""
        return self._attend(self, q, keys, values, scale, window=self.window)


__all__ = ["Desk", "Frame", "Size", "rows_at_once"]
