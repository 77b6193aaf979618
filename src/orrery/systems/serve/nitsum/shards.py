"""A float64 transformer whose weights and caches are kept in units, so that ranks can share it.

A unit is a quarter (in general 1 / units) of the heads, of the MLP's columns and of the vocabulary.
A rank of degree t has units / t of them: those of its slice. Slices are nested (`slice_of`), so a
rank that goes to a higher degree keeps a part of what it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from orrery.base.errors import UsageError
from orrery.base.rand import Stream
from orrery.inputs.draws import normals
from orrery.systems.serve.problems.llm_parallelism.plans import slice_of

F64 = np.ndarray
Reduce = Callable[[F64], Awaitable[F64]]
# A cache: by layer and unit, keys and values of one request, (2, tokens, heads of a unit, width).
Cache = dict[tuple[int, int], F64]


class Shape:
    """Sizes of the model; everything is divided into `units`."""

    def __init__(self, layers: int = 2, hidden: int = 32, heads: int = 4, width: int = 8,
                 inner: int = 64, vocab: int = 64, units: int = 4) -> None:  # fmt: skip
        if units & (units - 1) or heads % units or inner % units or vocab % units:
            raise UsageError(
                f"units={units} must be a power of two that divides heads={heads}, inner={inner} "
                f"and vocab={vocab}"
            )
        self.layers, self.hidden, self.heads, self.width = layers, hidden, heads, width
        self.inner, self.vocab, self.units = inner, vocab, units

    def units_of(self, rank: int, degree: int) -> range:
        """The units that a rank has at a degree."""
        low, high = slice_of(rank, degree)
        return range(round(low * self.units), round(high * self.units))

    def unit_B(self) -> int:
        """Bytes of one unit's weights in one layer; the last layer has the vocabulary's besides."""
        per_head = 4 * self.hidden * self.width * self.heads // self.units
        return 8 * (per_head + 2 * self.hidden * self.inner // self.units)

    def cache_B(self, tokens: int) -> int:
        """Bytes of one unit of a request's cache in one layer."""
        return 8 * 2 * tokens * self.width * self.heads // self.units


def draw_unit(shape: Shape, seed: int, layer: int, unit: int) -> F64:
    """The weights of one unit in one layer as one flat array, as a file on disk would give them.

    Order: queries, keys, values, output, MLP up, MLP down; layer `layers` is the vocabulary's.
    """
    if layer == shape.layers:
        count = shape.hidden * shape.vocab // shape.units
    else:
        count = shape.unit_B() // 8
    return normals(Stream(seed, "nitsum", f"layer {layer} unit {unit}"), count)


class Weights:
    """The units that a rank has; `have` names them, `take` and `drop` change that."""

    def __init__(self, shape: Shape, seed: int, units: Sequence[int]) -> None:
        self.shape, self.seed = shape, seed
        width = shape.vocab * shape.hidden
        drawn = normals(Stream(seed, "nitsum", "embedding"), width)
        self.embedding = drawn.reshape(shape.vocab, shape.hidden)  # small: every rank has it
        self.flat: dict[tuple[int, int], F64] = {}
        for unit in units:
            self.load(unit)

    def load(self, unit: int) -> None:
        """A unit from where weights come from at the start."""
        for layer in range(self.shape.layers + 1):
            self.flat[layer, unit] = draw_unit(self.shape, self.seed, layer, unit)

    @property
    def have(self) -> set[int]:
        """Units of which every layer is here."""
        shape = self.shape
        found = {unit for _, unit in self.flat}
        return {u for u in found if all((i, u) in self.flat for i in range(shape.layers + 1))}

    def keep(self, units: Sequence[int]) -> None:
        """Drop all others."""
        wanted = set(units)
        self.flat = {key: flat for key, flat in self.flat.items() if key[1] in wanted}

    def matrices(self, layer: int, unit: int) -> tuple[F64, ...]:
        """Queries, keys, values, output, up, down of a unit."""
        shape, flat = self.shape, self.flat[layer, unit]
        wide, inner = shape.width * shape.heads // shape.units, shape.inner // shape.units
        sizes = [(shape.hidden, wide)] * 3 + [(wide, shape.hidden), (shape.hidden, inner),
                                              (inner, shape.hidden)]  # fmt: skip
        found, at = [], 0
        for rows, columns in sizes:
            found.append(flat[at : at + rows * columns].reshape(rows, columns) / rows**0.5)
            at += rows * columns
        return tuple(found)

    def head(self, unit: int) -> F64:
        """The columns of the output matrix of a unit."""
        shape = self.shape
        flat = self.flat[shape.layers, unit]
        return flat.reshape(shape.hidden, shape.vocab // shape.units)


def _norm(x: F64) -> F64:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-9)


def _turn(shape: Shape, positions: F64) -> F64:
    rates = 50.0 ** -(np.arange(shape.hidden // 2) / (shape.hidden // 2))
    angles = positions[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _attend(q: F64, kv: F64, past: int) -> F64:
    """New rows see all that was cached and those before them; (rows, heads, width)."""
    keys, values = kv
    scores = np.einsum("rhd,thd->hrt", q, keys) / q.shape[-1] ** 0.5
    rows, seen = q.shape[0], keys.shape[0]
    hidden = np.arange(seen)[None, :] > past + np.arange(rows)[:, None]
    scores = np.where(hidden[None], -np.inf, scores)
    scores = np.exp(scores - scores.max(axis=2, keepdims=True))
    scores /= scores.sum(axis=2, keepdims=True)
    return np.einsum("hrt,thd->rhd", scores, values)


async def forward(
    weights: Weights, units: Sequence[int], work: Sequence[tuple[Sequence[int], Cache]],
    add: Reduce, join: Callable[[F64], Awaitable[F64]],
) -> list[int]:  # fmt: skip
    """The next token of each request: new tokens and the cache, which grows by them.

    `add` sums over the ranks of the instance, `join` gives the logits of all units in order.
    """
    shape = weights.shape
    # A rank may still have units that it computes no more, so those of its slice count.
    none = np.zeros((2, 0))
    pasts = [cache.get((0, units[0]), none).shape[1] for _, cache in work]
    cuts = np.cumsum([0, *(len(tokens) for tokens, _ in work)])
    tokens = np.concatenate([np.asarray(each, int) for each, _ in work])
    positions = np.concatenate([
        past + np.arange(len(each)) for past, (each, _) in zip(pasts, work, strict=True)
    ]).astype(float)  # fmt: skip
    x = weights.embedding[tokens] + _turn(shape, positions)
    heads = shape.heads // shape.units
    for layer in range(shape.layers):
        inside, part = _norm(x), np.zeros_like(x)
        for unit in units:
            wq, wk, wv, wo, _, _ = weights.matrices(layer, unit)
            q, k, v = ((inside @ each).reshape(len(x), heads, shape.width) for each in (wq, wk, wv))
            made = np.zeros_like(q)
            for at, (_, cache) in enumerate(work):
                rows = slice(cuts[at], cuts[at + 1])
                new = np.stack([k[rows], v[rows]])
                old = cache.get((layer, unit))
                kv = cache[layer, unit] = new if old is None else np.concatenate([old, new], axis=1)
                made[rows] = _attend(q[rows], kv, pasts[at])
            part += made.reshape(len(x), -1) @ wo
        x = x + await add(part)
        inside, part = _norm(x), np.zeros_like(x)
        for unit in units:
            up, down = weights.matrices(layer, unit)[4:]
            part += np.tanh(inside @ up) @ down
        x = x + await add(part)
    last = _norm(x[cuts[1:] - 1])
    logits = await join(np.stack([last @ weights.head(unit) for unit in units]))
    return [int(row.argmax()) for row in np.concatenate(list(logits), axis=1)]


async def _alone(x: F64) -> F64:
    return x


def reference(shape: Shape, seed: int, prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that one undisturbed process makes, one request at a time."""
    weights = Weights(shape, seed, range(shape.units))
    cache: Cache = {}
    made: list[int] = []
    fed: Sequence[int] = prompt
    for _ in range(count):
        step = forward(weights, range(shape.units), [(fed, cache)], _alone, _alone)
        try:
            step.send(None)
        except StopIteration as end:
            made.append(end.value[0])
        fed = made[-1:]
    return made


__all__ = ["Cache", "Shape", "Weights", "draw_unit", "forward", "reference"]
