"""The arithmetic of attention in pieces: blocks, masks, partial results, their merging, gradients.

A sequence that is spread over many devices is a set of *blocks* (document, start, stop). Attention
from some rows of Q to some rows of K and V gives a partial output and the log-sum-exp of its
scores; two partial results merge into the one that both sets of keys would have given together
(Milakov and Gimelshein, 2018; Dao et al., FlashAttention, 2022). The gradients need nothing but
the final log-sum-exp, so they too can be computed block by block and added.

Arrays are (rows, heads, dim). K and V may have fewer heads (grouped queries). Costs: 4 flops for
each visible pair, head and channel forwards, 10 backwards; memory is bounded by tiles of queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from orrery.base.errors import PartError
from orrery.models.shards import (
    Block,
    Blocks,
    Layout,
    check_layout,
    contiguous,
    halves,
    mask,
    places,
    rows,
    visible_pairs,
    zigzag,
)

Array = npt.NDArray[Any]
Precision = Literal["fp32", "bf16"]

FORWARD_FLOPS, BACKWARD_FLOPS = 4, 10
# Scores that are held at once; a tile of queries is as tall as this allows.
TILE_SCORES = 1 << 22


class Partial(NamedTuple):
    """Attention to some of the keys: the output, and the log-sum-exp of the scores."""

    out: Array
    lse: Array


# -- attention to some keys


def attend(
    q: Array, k: Array, v: Array, seen: Array | None = None, scale: float | None = None
) -> Partial:
    """Attention of every query to the keys that it sees; a query that sees none gets zeros."""
    n, heads, dim = q.shape
    group = _group(q, k, v)
    scale = dim**-0.5 if scale is None else scale
    out = np.zeros((n, heads, v.shape[2]), q.dtype)
    lse = np.full((n, heads), -np.inf, q.dtype)
    if not len(k):
        return Partial(out, lse)
    keys, values = _by_head(k), _by_head(v)
    for tile in _tiles(n, heads * len(k)):
        scores = _scores(q[tile], keys, group, scale, seen, tile)
        top = scores.max(axis=-1, keepdims=True)
        np.maximum(top, np.finfo(q.dtype).min, out=top)  # minus infinity less itself is no number
        np.exp(np.subtract(scores, top, out=scores), out=scores)
        total = scores.sum(axis=-1, keepdims=True)
        part = np.matmul(scores, values) / np.where(total > 0, total, 1)
        out[tile] = _by_row(part, heads)
        with np.errstate(divide="ignore"):
            lse[tile] = _by_row(top + np.log(total), heads)[..., 0]
    lse[~np.isfinite(lse)] = -np.inf
    return Partial(out, lse)


def merge(a: Partial, b: Partial) -> Partial:
    """What attention to the keys of both would have given."""
    top = np.maximum(a.lse, b.lse)
    level = np.where(np.isfinite(top), top, 0)
    weight_a, weight_b = np.exp(a.lse - level), np.exp(b.lse - level)
    total = weight_a + weight_b
    share = np.where(total > 0, total, 1)
    out = a.out * (weight_a / share)[..., None] + b.out * (weight_b / share)[..., None]
    with np.errstate(divide="ignore"):
        lse = level + np.log(total)
    return Partial(out, np.where(total > 0, lse, -np.inf))


def row_sums(dout: Array, out: Array) -> Array:
    """The dot product of each row's output with its gradient, which every key's gradient needs."""
    return np.asarray(np.einsum("nhd,nhd->nh", dout, out))


def attend_backward(
    q: Array, k: Array, v: Array, dout: Array, lse: Array, delta: Array,
    seen: Array | None = None, scale: float | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """(dq, dk, dv) from these keys alone; `lse` and `delta` are those of the whole rows."""
    n, heads, dim = q.shape
    group = _group(q, k, v)
    scale = dim**-0.5 if scale is None else scale
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    if not len(k) or not n:
        return dq, dk, dv
    keys, values = _by_head(k), _by_head(v)
    for tile in _tiles(n, heads * len(k)):
        scores = _scores(q[tile], keys, group, scale, seen, tile)
        level = np.where(np.isfinite(lse[tile]), lse[tile], np.inf)
        prob = np.exp(scores - _grouped(level[..., None], group))
        grown = _grouped(dout[tile], group)
        dv += _by_row(np.matmul(prob.swapaxes(-1, -2), grown).sum(1, keepdims=True), v.shape[1])
        dprob = np.matmul(grown, values.swapaxes(-1, -2))
        dscore = prob * (dprob - _grouped(delta[tile][..., None], group)) * q.dtype.type(scale)
        dq[tile] = _by_row(np.matmul(dscore, keys), heads)
        back = np.matmul(dscore.swapaxes(-1, -2), _grouped(q[tile], group))
        dk += _by_row(back.sum(1, keepdims=True), k.shape[1])
    return dq, dk, dv


def _group(q: Array, k: Array, v: Array) -> int:
    """How many heads of Q share one of K and V."""
    if q.ndim != 3 or k.ndim != 3 or v.ndim != 3 or len(k) != len(v):
        raise PartError(f"attention of {q.shape} to {k.shape}, {v.shape}: give (rows, heads, dim)")
    if k.shape[1] != v.shape[1] or q.shape[2] != k.shape[2] or q.shape[1] % k.shape[1]:
        raise PartError(
            f"attention of {q.shape} to {k.shape}, {v.shape}: heads of K and V must be equal and "
            "divide those of Q, and Q and K must have one dim"
        )
    return int(q.shape[1] // k.shape[1])


def _tiles(n: int, scores_a_row: int) -> list[slice]:
    tall = max(1, TILE_SCORES // max(scores_a_row, 1))
    return [slice(at, min(at + tall, n)) for at in range(0, n, tall)]


def _by_head(x: Array) -> Array:
    """(rows, heads, dim) as (heads, 1, rows, dim), for matrix products."""
    return np.ascontiguousarray(x.transpose(1, 0, 2))[:, None]


def _grouped(x: Array, group: int) -> Array:
    """(rows, heads, dim) as (heads of K, group, rows, dim)."""
    n, heads, dim = x.shape
    return x.transpose(1, 0, 2).reshape(heads // group, group, n, dim)


def _by_row(x: Array, heads: int) -> Array:
    """The inverse of `_grouped`."""
    return x.reshape(heads, x.shape[2], x.shape[3]).transpose(1, 0, 2)


def _scores(
    q: Array, keys: Array, group: int, scale: float, seen: Array | None, tile: slice
) -> Array:
    scores = np.matmul(_grouped(q * q.dtype.type(scale), group), keys.swapaxes(-1, -2))
    if seen is not None:
        np.copyto(scores, -np.inf, where=~seen[tile])
    return np.asarray(scores)


# -- precision


def to_wire(array: Array, precision: Precision) -> Array:
    """Values as they travel: float32, or the upper half of it for bf16 (nearest, ties to even).

    >>> from_wire(to_wire(np.float32([1.0, 3.14159]), "bf16")).tolist()
    [1.0, 3.140625]
    """
    values = np.ascontiguousarray(array, np.float32)
    if precision == "fp32":
        return values
    bits = values.view(np.uint32)
    rounded = (bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def from_wire(array: Array) -> Array:
    """What `to_wire` gave, as float32 again."""
    if array.dtype == np.float32:
        return array
    return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)


def wire_dtype(precision: Precision) -> np.dtype[Any]:
    """The number type that `to_wire` gives."""
    return np.dtype(np.float32 if precision == "fp32" else np.uint16)


# -- the truth


def reference(
    q: Array, k: Array, v: Array, dout: Array, lengths: Sequence[int], causal: bool
) -> dict[str, Array]:
    """Output and gradients in float64 by the plain formula, document by document, head by head."""
    wide = [np.asarray(x, np.float64) for x in (q, k, v, dout)]
    made = {"out": np.zeros(wide[3].shape), "dq": np.zeros(q.shape), "dk": np.zeros(k.shape)}
    made["dv"] = np.zeros(v.shape)
    group, at = _group(q, k, v), 0
    for length in lengths:
        here = slice(at, at + length)
        for head in range(q.shape[1] if length else 0):
            shared = head // group
            one_k, one_v = wide[1][here, shared], wide[2][here, shared]
            for tile in _tiles(length, length):
                mine = slice(at + tile.start, at + tile.stop)
                found = _plain(wide[0][mine, head], one_k, one_v, wide[3][mine, head],
                               tile.start if causal else None)  # fmt: skip
                made["out"][mine, head], made["dq"][mine, head] = found[:2]
                made["dk"][here, shared] += found[2]
                made["dv"][here, shared] += found[3]
        at += length
    return made


def _plain(
    q: Array, k: Array, v: Array, dout: Array, first: int | None
) -> tuple[Array, Array, Array, Array]:
    """(out, dq, dk, dv) of some rows of one head; row i sees keys up to `first` + i."""
    scale = q.shape[1] ** -0.5
    score = q @ k.T * scale
    if first is not None:
        score[np.arange(len(k))[None, :] > first + np.arange(len(q))[:, None]] = -np.inf
    prob = np.exp(score - score.max(axis=1, keepdims=True))
    prob /= prob.sum(axis=1, keepdims=True)
    dprob = dout @ v.T
    dscore = prob * (dprob - (prob * dprob).sum(axis=1, keepdims=True)) * scale
    return prob @ v, dscore @ k, dscore.T @ q, prob.T @ dout


def deviation(got: Array, truth: Array) -> float:
    """The largest |got - truth| / (1 + |truth|): what `allclose` would need as its tolerances."""
    if got.shape != truth.shape:
        return float("inf")
    if not truth.size:
        return 0.0
    off = np.abs(np.asarray(got, np.float64) - truth) / (1 + np.abs(truth))
    return float("inf") if np.isnan(off).any() else float(off.max())


__all__ = [
    "BACKWARD_FLOPS", "FORWARD_FLOPS", "Array", "Block", "Blocks", "Layout", "Partial",
    "Precision", "attend", "attend_backward", "check_layout", "contiguous", "deviation",
    "from_wire", "halves", "mask", "merge", "places", "reference", "row_sums", "rows", "to_wire",
    "visible_pairs", "wire_dtype", "zigzag",
]  # fmt: skip
