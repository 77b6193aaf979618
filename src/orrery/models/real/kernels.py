"""Attention of a padded step as one Triton kernel over the paged cache: for CUDA graphs.

Everything that differs from step to step is read from memory: whose row is where, how long each
context is, which blocks it has. So one recording of the kernel serves any batch that fits it, and
nothing is gathered first. Triton comes with PyTorch for CUDA; without it `ready` says no.
"""

from __future__ import annotations

import functools
from typing import Any

try:  # Triton looks names up in the module of a kernel, so they must be here.
    import triton
    import triton.language as tl
except ImportError:  # the engine then launches kernel by kernel
    triton = tl = None

# Keys that one program multiplies at once.
TILE = 64
# A decode's context is cut into parts, one program each, so that a long one among short ones does
# not keep all waiting: the time follows the sum of the contexts, not the longest of them.
SPLITS, SHORT_PART, LONG_PART, FEW = 16, 128, 512, 64


def ready() -> bool:
    """Whether Triton is there."""
    return triton is not None


def part_of(sequences: int, kv_heads: int) -> int:
    """The least tokens of a part: few where few decodes must keep a GPU busy.

    >>> [part_of(n, 8) for n in (1, 8, 24, 64)]
    [128, 128, 512, 512]
    """
    return SHORT_PART if sequences * kv_heads <= FEW else LONG_PART


def _look(
    q, k, v, out, sums, peaks, block_seq, block_first, starts, news, lengths, tables, table_width,
    scale, q_stride, out_stride, slot_stride,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, SIZE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, PART: tl.constexpr,
    WINDOW: tl.constexpr,
):  # fmt: skip
    """Some rows of one sequence, the heads of one key head, and one part of the context."""
    block, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    seq = tl.load(block_seq + block)
    if seq < 0:
        return
    first, row = 0, tl.load(starts + seq)
    if SPLITS == 1:
        first = tl.load(block_first + block)
    new, length = tl.load(news + seq), tl.load(lengths + seq)
    past, wide = length - new, tl.load(table_width)
    m, d = tl.arange(0, ROWS), tl.arange(0, WIDE)
    token, own = first + m // GROUP, head * GROUP + m % GROUP
    real = (token < new) & (m < ROWS // GROUP * GROUP)
    place = (row + token).to(tl.int64)
    mine = q + place[:, None] * q_stride + own[:, None] * WIDTH + d[None, :]
    query = tl.load(mine, mask=real[:, None] & (d[None, :] < WIDTH), other=0.0)
    peak = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDE], tl.float32)
    end = tl.minimum(length, past + first + ROWS // GROUP)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(past + first - WINDOW + 1, 0) // TILE * TILE
    if SPLITS > 1:
        share = tl.maximum(tl.cdiv(tl.cdiv(end - begin, SPLITS), TILE) * TILE, PART)
        begin += part * share
        end = tl.minimum(end, begin + share)
    for at in range(begin, end, TILE):
        n = at + tl.arange(0, TILE)
        there = n < end
        number = tl.load(tables + seq * wide + n // SIZE, mask=there, other=0).to(tl.int64)
        slot = (number * SIZE + n % SIZE) * slot_stride + head * WIDTH
        seen = there[:, None] & (d[None, :] < WIDTH)
        keys = tl.load(k + slot[:, None] + d[None, :], mask=seen, other=0.0)
        score = tl.dot(query, tl.trans(keys)).to(tl.float32) * scale
        sees = there[None, :] & (n[None, :] <= (past + token)[:, None])
        if WINDOW > 0:
            sees = sees & (n[None, :] > (past + token)[:, None] - WINDOW)
        score = tl.where(sees, score, -1.0e30)
        high = tl.maximum(peak, tl.max(score, 1))
        fade, weight = tl.exp(peak - high), tl.exp(score - high[:, None])
        total = total * fade + tl.sum(weight, 1)
        values = tl.load(v + slot[:, None] + d[None, :], mask=seen, other=0.0)
        acc = acc * fade[:, None] + tl.dot(weight.to(values.dtype), values).to(tl.float32)
        peak = high
    if SPLITS == 1:
        goal = out + place[:, None] * out_stride + own[:, None] * WIDTH + d[None, :]
        made = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(goal, made, mask=real[:, None] & (d[None, :] < WIDTH))
    else:
        heads = tl.num_programs(1) * GROUP
        spot = (block * heads + own) * SPLITS + part
        goal = sums + spot[:, None] * WIDE + d[None, :]
        if begin < end:
            tl.store(goal, acc, mask=real[:, None] & (d[None, :] < WIDE))
        tl.store(peaks + spot * 2, peak, mask=real)
        tl.store(peaks + spot * 2 + 1, total, mask=real)


def _join(
    sums, peaks, out, block_seq, starts, out_stride,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The parts of one decode's context, weighed together."""
    block, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    seq = tl.load(block_seq + block)
    if seq < 0:
        return
    row = tl.load(starts + seq).to(tl.int64)
    s, d = tl.arange(0, SPLITS), tl.arange(0, WIDE)
    spot = (block * heads + head) * SPLITS + s
    peak, total = tl.load(peaks + spot * 2), tl.load(peaks + spot * 2 + 1)
    weight = tl.exp(peak - tl.max(peak, 0))
    parts = tl.load(sums + spot[:, None] * WIDE + d[None, :], mask=total[:, None] > 0, other=0.0)
    made = tl.sum(parts * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + row * out_stride + head * WIDTH + d, made.to(out.dtype.element_ty),
             mask=d < WIDTH)  # fmt: skip


@functools.cache
def _kernels() -> tuple[Any, Any]:
    return triton.jit(_look), triton.jit(_join)


def attend(frame: Any, q: Any, keys: Any, values: Any, scale: float, *, window: int) -> Any:
    """Attention of `q` [row, head, width] over one layer of the cache, for the rows of a frame.

    Decodes and prompt chunks are two launches: only the former have their contexts cut.
    """
    import torch

    look, join = _kernels()
    rows, heads, width = q.shape
    size, kv_heads = keys.shape[1], keys.shape[2]
    wide = max(16, triton.next_power_of_2(width))
    out = q.new_empty(rows, heads, width)
    same = {"GROUP": heads // kv_heads, "WIDTH": width, "WIDE": wide, "SIZE": size, "TILE": TILE,
            "WINDOW": window, "num_warps": 4}  # fmt: skip
    rest = (
        frame.starts, frame.news, frame.lengths, frame.tables, frame.table_width, scale,
        q.stride(0), out.stride(0), keys.stride(1),
    )  # fmt: skip
    if frame.block_seq is not None:
        look[frame.block_seq.shape[0], kv_heads, 1](
            q, keys, values, out, q, q, frame.block_seq, frame.block_first, *rest,
            ROWS=frame.chunk_rows, SPLITS=1, PART=0, **same,
        )  # fmt: skip
    many = frame.singles.shape[0]
    sums = q.new_empty(many * heads * SPLITS * wide, dtype=torch.float32)
    peaks = q.new_empty(many * heads * SPLITS * 2, dtype=torch.float32)
    look[many, kv_heads, SPLITS](
        q, keys, values, out, sums, peaks, frame.singles, frame.singles, *rest,
        ROWS=frame.decode_rows, SPLITS=SPLITS, PART=part_of(many, kv_heads), **same,
    )  # fmt: skip
    join[many, heads](
        sums, peaks, out, frame.singles, frame.starts, out.stride(0), WIDTH=width, WIDE=wide,
        SPLITS=SPLITS,
    )  # fmt: skip
    return out


__all__ = ["attend", "part_of", "ready"]
