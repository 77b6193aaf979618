"""A transformer whose wide layers are mixtures of experts, with its gradient written out.

In each layer a router gives every token a share for each expert; the `top` experts with the largest
shares read the token, and what they say is added up by share. No token is dropped. Expert number e
is the e-th one of every layer. Whoever trains only some experts gets a gradient for those and for
the shared weights, and none is ever made for the others; what flows through the others to the
layers below is the same.

Replicas of a stack get the bits that they would get alone, as in `language`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from orrery.base.errors import KnobError, PartError
from orrery.models.learn import language
from orrery.models.learn.layout import Layout
from orrery.parts.collectives import Array


class Shape(NamedTuple):
    """The size of a model: that of `language.Shape`, and its experts.

    `hidden` is the width inside an expert; `top` experts read a token; with `normal` the shares of
    those add up to one.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    context: int
    experts: int
    top: int
    hidden: int
    normal: bool = False


@lru_cache(maxsize=64)
def layout_of(shape: Shape) -> Layout:
    """Which arrays a model of this shape has, in the order of the forward pass."""
    if min(shape[:8]) < 1 or shape.width % shape.heads:
        raise PartError(f"{shape}: sizes are at least 1, and heads divide the width")
    if shape.top > shape.experts:
        raise KnobError(
            "Experts.top", f"{shape.top} experts read a token, but there are {shape.experts}",
            "choose at most as many as there are",
        )  # fmt: skip
    width, hidden = shape.width, shape.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "tokens": (shape.vocabulary, width), "places": (shape.context, width),
    }  # fmt: skip
    for layer in range(shape.layers):
        shapes |= {
            f"{layer}.norm": (width,), f"{layer}.qkv": (width, 3 * width),
            f"{layer}.out": (width, width), f"{layer}.norm2": (width,),
            f"{layer}.router": (width, shape.experts),
        }  # fmt: skip
        for expert in range(shape.experts):
            shapes |= {
                f"{layer}.{expert}.up": (width, hidden), f"{layer}.{expert}.down": (hidden, width),
            }  # fmt: skip
    shapes |= {"norm": (width,), "head": (width, shape.vocabulary)}
    return Layout(shapes)


@lru_cache(maxsize=64)
def shared_layout(shape: Shape) -> Layout:
    """The arrays that belong to no expert."""
    return Layout({name: size for name, size in layout_of(shape).shapes.items() if not _of(name)})


def _of(name: str) -> bool:
    """Whether an array belongs to an expert: "0.3.up" is of expert 3."""
    return name.count(".") == 2


@lru_cache(maxsize=64)
def pieces_of(shape: Shape) -> tuple[tuple[slice, ...], ...]:
    """Where the pieces of the flat vector lie: the shared weights, then each expert.

    An expert has one slice a layer; neighbours among the shared arrays are one slice.
    """
    layout = layout_of(shape)
    shared: list[slice] = []
    for name, where in layout.slices.items():
        if _of(name):
            continue
        if shared and shared[-1].stop == where.start:
            where = slice(shared.pop().start, where.stop)
        shared.append(where)
    found = [tuple(shared)]
    for expert in range(shape.experts):
        ends = [
            (layout.slices[f"{layer}.{expert}.up"], layout.slices[f"{layer}.{expert}.down"])
            for layer in range(shape.layers)
        ]
        found.append(tuple(slice(up.start, down.stop) for up, down in ends))
    return tuple(found)


def pack(flat: Array, where: Sequence[slice]) -> Array:
    """The numbers of a piece side by side: a copy."""
    return np.concatenate([flat[..., part] for part in where], axis=-1)


def place(flat: Array, where: Sequence[slice], numbers: Array) -> None:
    """Write the numbers of a piece back to where they lie."""
    begin = 0
    for part in where:
        flat[..., part] = numbers[..., begin : begin + part.stop - part.start]
        begin += part.stop - part.start


def flops_of(shape: Shape, rows: int, length: int, trained: int) -> float:
    """Operations of a forward and backward pass in which so many experts are trained.

    Tokens are taken to choose all experts equally often. Through a frozen expert the gradient
    flows, but its own matrices get none: of its six operations for a weight, four remain.
    """
    width = shape.width
    dense = shape.layers * width * (4 * width + 2 * length + shape.experts)
    dense += width * shape.vocabulary
    inside = shape.layers * shape.top * 2 * width * shape.hidden
    return rows * length * (6.0 * dense + (4.0 + 2.0 * trained / shape.experts) * inside)


class Chosen(NamedTuple):
    """Where the tokens of a layer went."""

    shares: Array  # (replicas, tokens, experts), what the router gave
    experts: Array  # (replicas, tokens, top), the chosen ones
    gates: Array  # of the same shape: how much each counts
    total: Array  # what the shares of the chosen were divided by
    routes: list[dict[int, tuple[Array, ...]]]  # by replica and expert: what the way back needs


class Pass(language.Pass):
    """One forward pass through experts, with what the backward pass needs."""

    def __init__(
        self, shape: Shape, flat: Array, tokens: Array, balance: float = 0.0,
        own: Sequence[Sequence[int]] = (),
    ) -> None:  # fmt: skip
        self.balance = balance
        self.own = own
        self.slopes: list[dict[int, Array]] = []
        super().__init__(shape, flat, tokens)

    @staticmethod
    def layout_of(shape: Any) -> Layout:
        return layout_of(shape)

    def wide(self, layer: int, y: Array) -> tuple[Array, Chosen]:
        shape = self.shape
        logits = y @ self.weights[f"{layer}.router"]
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        experts = np.argsort(-shares, axis=-1, kind="stable")[..., : shape.top]
        gates = np.take_along_axis(shares, experts, axis=-1)
        total = gates.sum(axis=-1, keepdims=True) if shape.normal else np.ones_like(gates[..., :1])
        gates = gates / total
        out, routes = np.zeros_like(y), []
        for replica in range(len(y)):
            taken: dict[int, tuple[Array, ...]] = {}
            for expert in range(shape.experts):
                rows, slots = np.nonzero(experts[replica] == expert)
                if not rows.size:
                    continue
                up, down = self._expert(layer, expert, replica)
                read = y[replica, rows]
                inner = np.maximum(read @ up, 0.0)
                said = inner @ down
                out[replica, rows] += gates[replica, rows, slots, None] * said
                taken[expert] = (rows, slots, read, inner, said)
            routes.append(taken)
        return out, Chosen(shares, experts, gates, total, routes)

    def _expert(self, layer: int, expert: int, replica: int) -> tuple[Array, Array]:
        name = f"{layer}.{expert}"
        return self.weights[f"{name}.up"][replica], self.weights[f"{name}.down"][replica]

    def counts(self) -> Array:
        """(replicas, experts): tokens that each expert read, in all layers together."""
        experts = self.shape.experts
        found = np.zeros((self.size[0], experts), np.int64)
        for kept in self.kept:
            for replica, row in enumerate(kept[-1].experts):
                found[replica] += np.bincount(row.reshape(-1), minlength=experts)
        return found

    def penalties(self) -> Array:
        """What each replica pays for an uneven load: E sum(f P) a layer (Switch, 2021), weighed.

        f is the part of the choices that fall on an expert, P its mean share.
        """
        found = np.zeros(self.size[0], self.logits.dtype)
        for kept in self.kept:
            found += np.sum(self._load(kept[-1]) * kept[-1].shares.mean(axis=1), axis=-1)
        worth = self.balance * self.shape.experts / self.shape.layers
        return np.asarray(found * self.logits.dtype.type(worth))

    def _load(self, chosen: Chosen) -> Array:
        """(replicas, experts): the part of the choices that fell on each expert."""
        numbers = range(chosen.shares.shape[-1])
        hits = [(chosen.experts == number).mean(axis=(1, 2)) for number in numbers]
        return np.stack(hits, axis=-1).astype(chosen.shares.dtype)

    def trained_gradients(self) -> list[Array]:
        """For each replica the gradient of its pieces: shared weights, then its own experts."""
        shape = self.shape
        shared = np.empty((self.size[0], shared_layout(shape).size), self.logits.dtype)
        inside = 2 * shape.width * shape.hidden
        self.slopes = [
            {expert: np.zeros((shape.layers, inside), shared.dtype) for expert in own}
            for own in self.own
        ]
        self.write(shared_layout(shape).views(shared))
        return [
            np.concatenate([row, *(slope.reshape(-1) for slope in slopes.values())])
            for row, slopes in zip(shared, self.slopes, strict=True)
        ]

    def wide_back(
        self, layer: int, back: Array, y: Array, wide: Chosen, grads: dict[str, Array]
    ) -> Array:
        shape = self.shape
        of_gates, up = np.zeros_like(wide.gates), np.zeros_like(y)
        for replica, taken in enumerate(wide.routes):
            for expert, (rows, slots, read, inner, said) in taken.items():
                into, out = self._expert(layer, expert, replica)
                asked = back[replica, rows]
                of_gates[replica, rows, slots] = np.sum(asked * said, axis=-1)
                asked = asked * wide.gates[replica, rows, slots, None]
                of_inner = np.where(inner > 0.0, asked @ out.T, asked.dtype.type(0.0))
                up[replica, rows] += of_inner @ into.T
                if expert in self.slopes[replica]:
                    slope = self.slopes[replica][expert][layer]
                    slope[: into.size] = (read.T @ of_inner).reshape(-1)
                    slope[into.size :] = (inner.T @ asked).reshape(-1)
        if shape.normal:
            of_gates = of_gates - np.sum(of_gates * wide.gates, axis=-1, keepdims=True)
        of_shares = np.zeros_like(wide.shares)
        np.put_along_axis(of_shares, wide.experts, of_gates / wide.total, axis=-1)
        if self.balance:
            worth = self.balance * shape.experts / (shape.layers * y.shape[1])
            of_shares += self._load(wide)[:, None] * of_shares.dtype.type(worth)
        within = np.sum(of_shares * wide.shares, axis=-1, keepdims=True)
        of_logits = wide.shares * (of_shares - within)
        grads[f"{layer}.router"][:] = np.swapaxes(y, -1, -2) @ of_logits
        router = self.weights[f"{layer}.router"]
        return np.asarray(up + of_logits @ np.swapaxes(router, -1, -2))


def losses(shape: Shape, flat: Array, tokens: Array) -> Array:
    """The loss of each replica on its own rows of tokens, without what uneven loads cost."""
    with np.errstate(over="ignore", invalid="ignore"):
        return Pass(shape, flat, tokens).losses()


def gradients(
    shape: Shape, flat: Array, tokens: Array, balance: float, own: Sequence[Sequence[int]]
) -> tuple[Array, list[Array]]:
    """(loss of each replica, gradient of each): shared weights first, then its own experts."""
    with np.errstate(over="ignore", invalid="ignore"):
        passed = Pass(shape, flat, tokens, balance, own)
        return passed.losses(), passed.trained_gradients()


def counts(shape: Shape, flat: Array, tokens: Array) -> Array:
    """How many tokens of these rows each expert reads, in all layers together."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(Pass(shape, flat[None], tokens[None]).counts()[0])


def whole(shape: Shape, trained: Array) -> Array:
    """The gradient of all pieces, in the order of the flat vector."""
    flat = np.empty(layout_of(shape).size, trained.dtype)
    begin = 0
    for where in pieces_of(shape):
        size = sum(part.stop - part.start for part in where)
        place(flat, where, trained[begin : begin + size])
        begin += size
    return flat


def upcycled(shape: Shape, dense: Array, flat: Array) -> Array:
    """Weights of this shape in which every expert is a copy of a dense model's wide layer.

    The arrays that both models have are those of the dense one; the routers are those of `flat`.
    """
    plain = language.layout_of(language.Shape(*shape[:5]))
    if shape.hidden != 4 * shape.width:
        raise KnobError(
            "Experts.hidden", f"{shape.hidden}, but a dense model's wide layer has "
            f"{4 * shape.width}", f"an expert that starts as its copy needs {4 * shape.width}",
        )  # fmt: skip
    if dense.shape != (plain.size,):
        raise PartError(
            f"a dense checkpoint of shape {dense.shape}; this model needs {plain.size} numbers in "
            "one row: train `Language` with the same sizes"
        )
    given, made = plain.views(dense), flat.copy()
    for name, array in layout_of(shape).views(made).items():
        layer, _, last = name.partition(".")
        source = f"{layer}.{last.partition('.')[2]}" if _of(name) else name
        if source in given:
            array[:] = given[source]
    return made
