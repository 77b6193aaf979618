"""Attention of a ragged batch over a paged cache: planned once a step, used in every layer.

On CUDA in half precision one call of the variable-length flash kernel does the whole batch.
Elsewhere each prompt chunk is one call, and decodes of like lengths share one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

from orrery.models.real.backend import torch
from orrery.models.real.paged import PagedCache, Piece

# Decodes share a call while the padding stays under this share of what they really read.
PADDING = 0.15
# Widths beyond this have no flash kernel.
FLASH_WIDTH = 256


@functools.cache
def flash_call() -> tuple[Any, frozenset[str]]:
    """PyTorch's variable-length attention and the names of what it takes, which grew over time."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None, frozenset()
    return varlen_attn, frozenset(inspect.signature(varlen_attn).parameters)


class Chunk(NamedTuple):
    """One prompt chunk: rows of the batch, its blocks, how long its context is."""

    first: int
    last: int
    table: Any
    length: int
    mask: Any


class Group(NamedTuple):
    """Decodes that share one call: their rows, their blocks side by side, the longest context."""

    rows: Any
    tables: Any
    length: int
    mask: Any


class Plan:
    """Where each token of a step is, what it may see, and which rows are sampled."""

    def __init__(self, pieces: Sequence[Piece], cache: PagedCache, *, window: int = 0) -> None:
        self.device, self.window = cache.keys.device, window
        self.size = cache.block_tokens
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        ends: list[int] = []
        size = self.size
        for piece in pieces:
            table, start = piece.table, piece.start
            tokens += piece.tokens
            places = range(start, start + len(piece.tokens))
            positions += places
            slots += [table[place // size] * size + place % size for place in places]
            if piece.sample:
                ends.append(len(tokens) - 1)
        self.tokens, self.positions = self._whole(tokens), self._whole(positions)
        self.slots, self.ends = self._whole(slots), self._whole(ends)
        self.flash = self._can_flash(cache)
        if self.flash:
            self._plan_flash(pieces)
        else:
            self._plan_calls(pieces)

    def _whole(self, numbers: Any, kind: Any = None) -> Any:
        made = torch.tensor(numbers, dtype=kind or torch.int64)
        return made if self.device.type == "cpu" else made.to(self.device, non_blocking=True)

    # -- CUDA: one call

    def _can_flash(self, cache: PagedCache) -> bool:
        """Whether the kernel knows these numbers, this width, and the window."""
        keys, values = cache.keys, cache.values
        if self.device.type != "cuda" or keys.dtype not in (torch.float16, torch.bfloat16):
            return False
        if keys.shape[-1] != values.shape[-1] or keys.shape[-1] > FLASH_WIDTH:
            return False
        takes = flash_call()[1]
        return "scale" in takes and ("window_size" in takes or not self.window)

    def _plan_flash(self, pieces: Sequence[Piece]) -> None:
        news = [len(piece.tokens) for piece in pieces]
        lengths = [piece.start + new for piece, new in zip(pieces, news, strict=True)]
        self.most_new, self.most = max(news), max(lengths)
        marks = torch.tensor([news, lengths], dtype=torch.int32).cumsum(1, dtype=torch.int32)
        marks = torch.nn.functional.pad(marks, (1, 0)).to(self.device)
        self.new_marks, self.marks = marks[0].contiguous(), marks[1].contiguous()
        # The cache is read through one list of slots, so any block size will do.
        blocks = [
            block
            for piece, length in zip(pieces, lengths, strict=True)
            for block in piece.table[: -(-length // self.size)]
        ]
        whole = self._whole(blocks)[:, None] * self.size
        every = (whole + torch.arange(self.size, device=self.device)).flatten()
        counts = torch.tensor(lengths)
        padded = -(-counts // self.size) * self.size
        keep = torch.arange(int(padded.max()))[None] < counts[:, None]
        inside = torch.arange(int(padded.max()))[None] < padded[:, None]
        self.seen = every[keep[inside].to(self.device)]

    def _attend_flash(self, q: Any, keys: Any, values: Any, scale: float) -> Any:
        k = keys.flatten(0, 1).index_select(0, self.seen)
        v = values.flatten(0, 1).index_select(0, self.seen)
        call, takes = flash_call()
        options: dict[str, Any] = {"scale": scale}
        if "window_size" in takes:
            options["window_size"] = (self.window - 1 if self.window else -1, 0)
        else:
            options["is_causal"] = True
        if q.shape[1] != k.shape[1] and "enable_gqa" in takes:
            options["enable_gqa"] = True  # before there was this switch, shared heads just worked
        marks = (self.new_marks, self.marks, self.most_new, self.most)
        return call(q.contiguous(), k, v, *marks, **options)

    # -- elsewhere: a call for each chunk, and one for each group of decodes

    def _plan_calls(self, pieces: Sequence[Piece]) -> None:
        self.chunks: list[Chunk] = []
        decodes: list[tuple[int, int, Sequence[int]]] = []
        row = 0
        for piece in pieces:
            new, length = len(piece.tokens), piece.start + len(piece.tokens)
            if new == 1:
                decodes.append((length, row, piece.table))
            else:
                table = self._whole(piece.table[: -(-length // self.size)])
                mask = self._causal(piece.start, length)
                self.chunks.append(Chunk(row, row + new, table, length, mask))
            row += new
        self.groups = [self._group(group) for group in alike(decodes)]

    def _causal(self, start: int, length: int) -> Any:
        """Which of the context each new token sees: what came before it, and itself."""
        places = torch.arange(length, device=self.device)
        own = places[start:, None]
        mask = places <= own
        return mask & (places > own - self.window) if self.window else mask

    def _group(self, members: list[tuple[int, int, Sequence[int]]]) -> Group:
        longest = members[-1][0]
        blocks = -(-longest // self.size)
        tables = []
        for length, _, table in members:
            used = table[: -(-length // self.size)]
            tables += [*used, *[used[0]] * (blocks - len(used))]
        lengths = [length for length, _, _ in members]
        rows = self._whole([row for _, row, _ in members])
        mask = None
        if lengths[0] < longest or 0 < self.window < longest:
            places, own = torch.arange(longest, device=self.device), self._whole(lengths)[:, None]
            mask = places < own
            if self.window:
                mask &= places >= own - self.window
            mask = mask[:, None, None]
        return Group(rows, self._whole(tables), longest, mask)

    def attend(self, q: Any, keys: Any, values: Any, scale: float) -> Any:
        """Attention of `q` [token, head, width] over one layer of the cache."""
        if self.flash:
            return self._attend_flash(q, keys, values, scale)
        dot = torch.nn.functional.scaled_dot_product_attention
        kv_heads, v_width = keys.shape[2], values.shape[3]
        heads, width = q.shape[1:]
        out = q.new_empty(q.shape[0], heads, v_width)
        for group in self.groups:
            # The heads that share a key head are taken for queries of one sequence, so the keys
            # need not be repeated.
            many = len(group.rows)
            mine = q.index_select(0, group.rows).view(many, kv_heads, heads // kv_heads, width)
            k, v = self._context(keys, values, group.tables, many, group.length)
            made = dot(mine, k, v, attn_mask=group.mask, scale=scale)
            out.index_copy_(0, group.rows, made.reshape(many, heads, v_width))
        for chunk in self.chunks:
            mine = q[chunk.first : chunk.last].transpose(0, 1)[None]
            k, v = self._context(keys, values, chunk.table, 1, chunk.length)
            shared = kv_heads != heads
            made = dot(mine, k, v, attn_mask=chunk.mask, scale=scale, enable_gqa=shared)
            out[chunk.first : chunk.last] = made[0].transpose(0, 1)
        return out

    def _context(self, keys: Any, values: Any, table: Any, many: int, length: int) -> Any:
        """Keys and values of a table as [sequence, head, token, width]."""
        pair = []
        for kept in (keys, values):
            rows = kept.index_select(0, table)
            rows = rows.view(many, -1, *kept.shape[2:])[:, :length]
            pair.append(rows.transpose(1, 2))
        return pair


def alike(
    decodes: list[tuple[int, int, Sequence[int]]],
) -> list[list[tuple[int, int, Sequence[int]]]]:
    """Decodes (length, …) in groups of similar lengths, shortest first.

    >>> [[d[0] for d in group] for group in alike([(100, 0, ()), (9, 1, ()), (98, 2, ())])]
    [[9], [98, 100]]
    """
    groups: list[list[tuple[int, int, Sequence[int]]]] = []
    real = 0
    for each in sorted(decodes, key=lambda decode: decode[:2]):
        length = each[0]
        if groups and length * (len(groups[-1]) + 1) <= (real + length) * (1 + PADDING):
            groups[-1].append(each)
            real += length
        else:
            groups.append([each])
            real = length
    return groups


__all__ = ["Plan", "alike"]
