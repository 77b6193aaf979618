"""A small transformer language model on a stack of replicas, with its gradient written out.

Everything has a leading axis of replicas: weights are (replicas, numbers), tokens are (replicas,
rows, length + 1). NumPy multiplies such a stack matrix by matrix, so each replica gets the bits
that it would get alone, and the cost of Python is paid once for all. The model is a decoder with
learned positions, RMS norms before each block, causal attention with several heads, a ReLU block
four times as wide, and an output matrix of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from orrery.base.errors import PartError
from orrery.models.learn.layout import Layout
from orrery.parts.collectives import Array

EPS = 1e-5


class Shape(NamedTuple):
    """The size of a model; `context` is the longest row it reads."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    context: int


@lru_cache(maxsize=64)
def layout_of(shape: Shape) -> Layout:
    """Which arrays a model of this shape has, in the order of the forward pass."""
    vocabulary, width, layers, heads, context = shape
    if min(shape) < 1 or width % heads:
        raise PartError(f"{shape}: sizes are at least 1, and heads divide the width")
    shapes: dict[str, tuple[int, ...]] = {"tokens": (vocabulary, width), "places": (context, width)}
    for layer in range(layers):
        shapes |= {
            f"{layer}.norm": (width,), f"{layer}.qkv": (width, 3 * width),
            f"{layer}.out": (width, width), f"{layer}.norm2": (width,),
            f"{layer}.up": (width, 4 * width), f"{layer}.down": (4 * width, width),
        }  # fmt: skip
    shapes |= {"norm": (width,), "head": (width, vocabulary)}
    return Layout(shapes)


def layers_of(shape: Shape) -> dict[str, slice]:
    """The flat vector cut by layer: "embed", "0", "1", …, "head"."""
    return by_layer(layout_of(shape))


def by_layer(layout: Layout) -> dict[str, slice]:
    """The same for any model whose arrays in the layers are named after them: "0.norm"."""
    named = {name: name.split(".")[0] if "." in name else "head" for name in layout.slices}
    return layout.groups(named | {"tokens": "embed", "places": "embed"})


def start_weights(shape: Shape, rng: np.random.Generator) -> Array:
    """Small random matrices, and norms of one."""
    return filled(layout_of(shape), shape, rng)


def filled(layout: Layout, shape: Any, rng: np.random.Generator) -> Array:
    """The same for a layout with further arrays in its layers."""
    flat = np.empty(layout.size, np.float32)
    for name, view in layout.views(flat).items():
        if "norm" in name:
            view[:] = 1.0
        else:
            fan_in = shape.width if name in ("tokens", "places") else view.shape[0]
            # What adds to the stream of the residuals is smaller, the deeper the model.
            deep = 2 * shape.layers if name.endswith((".out", ".down")) else 1
            view[:] = rng.standard_normal(view.shape) / np.sqrt(fan_in * deep)
    return flat


def flops_of(shape: Shape, rows: int, length: int) -> float:
    """Operations of a forward and backward pass over `rows` of `length` tokens."""
    matrices = shape.layers * 12 * shape.width**2 + shape.width * shape.vocabulary
    attention = shape.layers * 2 * shape.width * length
    return 6.0 * rows * length * (matrices + attention)


class _Norm(NamedTuple):
    unit: Array
    inverse: Array


def rms_norm(x: Array, gain: Array) -> tuple[Array, _Norm]:
    """(each row over its root mean square, times the gain; what the way back needs)."""
    inverse = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(EPS))
    unit = x * inverse
    return unit * gain[:, None, :], _Norm(unit, inverse)


def rms_norm_back(up: Array, gain: Array, kept: _Norm) -> tuple[Array, Array]:
    """(gradient of the input, of the gain)."""
    unit, inverse = kept
    inner = up * gain[:, None, :]
    back = inverse * (inner - unit * np.mean(inner * unit, axis=-1, keepdims=True))
    return back, np.sum(up * unit, axis=1)


def turned(x: Array) -> Array:
    """Each matrix of a stack with rows for columns."""
    return np.swapaxes(x, -1, -2)


class Pass:
    """One forward pass with what the backward pass needs; a subclass may have other wide layers."""

    def __init__(self, shape: Any, flat: Array, tokens: Array, keep: Any = None) -> None:
        self.shape = shape
        self.layout = self.layout_of(shape)
        self.weights = self.layout.views(flat)
        replicas, rows, longer = tokens.shape
        self.size = (replicas, rows, longer - 1)
        if longer - 1 > shape.context or longer < 2:
            raise PartError(
                f"rows of {longer - 1} tokens: this model reads 1 to {shape.context}; cut them"
            )
        self.read, self.asked = tokens[..., :-1], tokens[..., 1:]
        self.keep = keep
        self.kept: list[Any] = []
        self.logits = self._forward()

    @staticmethod
    def layout_of(shape: Any) -> Layout:
        """Which arrays a model of this shape has."""
        return layout_of(shape)

    def _forward(self) -> Array:
        replicas, rows, length = self.size
        weights, width = self.weights, self.shape.width
        pick = np.arange(replicas)[:, None, None]
        x = weights["tokens"][pick, self.read] + weights["places"][:, None, :length]
        x = x.reshape(replicas, rows * length, width)
        for layer in range(self.shape.layers):
            x = self._block(layer, x)
        normed, self.last = rms_norm(x, weights["norm"])
        self.normed = normed
        return normed @ weights["head"]

    def _block(self, layer: int, x: Array) -> Array:
        weights = self.weights
        y, norm = rms_norm(x, weights[f"{layer}.norm"])
        mixed, attention = self._attend(y @ weights[f"{layer}.qkv"])
        x = x + mixed @ weights[f"{layer}.out"]
        y2, norm2 = rms_norm(x, weights[f"{layer}.norm2"])
        added, wide = self.wide(layer, y2)
        self.kept.append((y, norm, mixed, attention, y2, norm2, wide))
        return x + added

    def wide(self, layer: int, y: Array) -> tuple[Array, Any]:
        """(what the wide block of a layer adds, what its backward pass needs)."""
        weights = self.weights
        wide = np.maximum(y @ weights[f"{layer}.up"], 0.0)
        if self.keep is not None:  # dropout: which numbers stay, and by how much they grow
            wide = wide * self.keep[layer]
        return wide @ weights[f"{layer}.down"], wide

    def _heads(self, x: Array) -> Array:
        """(replicas, tokens, width) as (replicas, rows, heads, length, width of a head)."""
        replicas, rows, length = self.size
        heads = self.shape.heads
        return x.reshape(replicas, rows, length, heads, -1).transpose(0, 1, 3, 2, 4)

    def _flat(self, x: Array) -> Array:
        replicas, rows, length = self.size
        return x.transpose(0, 1, 3, 2, 4).reshape(replicas, rows * length, -1)

    def _attend(self, qkv: Array) -> tuple[Array, Any]:
        length = self.size[2]
        q, k, v = (self._heads(part) for part in np.split(qkv, 3, axis=-1))
        scale = np.float32(1.0 / np.sqrt(q.shape[-1]))
        scores = (q @ turned(k)) * scale + _mask(length)
        scores -= scores.max(axis=-1, keepdims=True)
        share = np.exp(scores)
        share /= share.sum(axis=-1, keepdims=True)
        return self._flat(share @ v), (q, k, v, share, scale)

    def losses(self) -> Array:
        """The mean cross-entropy of each replica, in nats a token."""
        return -np.mean(self._log_share(), axis=1)

    def _log_share(self) -> Array:
        """The logarithm of the chance that each replica gave to each next token."""
        logits = self.logits - self.logits.max(axis=-1, keepdims=True)
        asked = self.asked.reshape(self.size[0], -1, 1)
        picked = np.take_along_axis(logits, asked, axis=-1)[..., 0]
        return picked - np.log(np.exp(logits).sum(axis=-1))

    def gradient(self, out: Array) -> None:
        """Write the gradient of each replica's loss into `out`, which has the weights' shape."""
        self.write(self.layout.views(out))

    def write(self, grads: dict[str, Array]) -> None:
        """Write the gradient into arrays that are named as the weights are."""
        weights = self.weights
        replicas, rows, length = self.size
        up = np.exp(self.logits - self.logits.max(axis=-1, keepdims=True))
        up /= up.sum(axis=-1, keepdims=True)
        asked = self.asked.reshape(replicas, -1, 1)
        here = np.take_along_axis(up, asked, axis=-1)
        np.put_along_axis(up, asked, here - 1.0, axis=-1)
        up /= np.float32(rows * length)
        grads["head"][:] = turned(self.normed) @ up
        back, gain = rms_norm_back(up @ turned(weights["head"]), weights["norm"], self.last)
        grads["norm"][:] = gain
        for layer in reversed(range(self.shape.layers)):
            back = self._block_back(layer, back, grads)
        by_place = back.reshape(replicas, rows, length, -1)
        grads["places"][:] = 0.0
        grads["places"][:, :length] = by_place.sum(axis=1)
        grads["tokens"][:] = 0.0
        for replica in range(replicas):  # adding at repeated places does not stack
            np.add.at(grads["tokens"][replica], self.read[replica].reshape(-1), back[replica])

    def _block_back(self, layer: int, back: Array, grads: dict[str, Array]) -> Array:
        weights = self.weights
        y, norm, mixed, attention, y2, norm2, wide = self.kept[layer]
        up = self.wide_back(layer, back, y2, wide, grads)
        inner, gain = rms_norm_back(up, weights[f"{layer}.norm2"], norm2)
        grads[f"{layer}.norm2"][:] = gain
        back = back + inner
        grads[f"{layer}.out"][:] = turned(mixed) @ back
        up = self._attend_back(back @ turned(weights[f"{layer}.out"]), attention)
        grads[f"{layer}.qkv"][:] = turned(y) @ up
        inner, gain = rms_norm_back(
            up @ turned(weights[f"{layer}.qkv"]), weights[f"{layer}.norm"], norm
        )
        grads[f"{layer}.norm"][:] = gain
        return back + inner

    def wide_back(
        self, layer: int, back: Array, y: Array, wide: Any, grads: dict[str, Array]
    ) -> Array:
        """The gradient of what went into the wide block; writes those of its matrices."""
        weights = self.weights
        grads[f"{layer}.down"][:] = turned(wide) @ back
        up = back @ turned(weights[f"{layer}.down"])
        up = np.where(wide > 0.0, up, np.float32(0.0))
        if self.keep is not None:
            up = up * self.keep[layer]
        grads[f"{layer}.up"][:] = turned(y) @ up
        return up @ turned(weights[f"{layer}.up"])

    def _attend_back(self, up: Array, kept: Any) -> Array:
        q, k, v, share, scale = kept
        out = self._heads(up)
        of_share = out @ turned(v)
        of_scores = share * (of_share - np.sum(of_share * share, axis=-1, keepdims=True)) * scale
        parts = (of_scores @ k, turned(of_scores) @ q, turned(share) @ out)
        return np.concatenate([self._flat(part) for part in parts], axis=-1)


@lru_cache(maxsize=16)
def _mask(length: int) -> Array:
    mask = np.triu(np.full((length, length), -1e9, np.float32), 1)
    mask.flags.writeable = False
    return mask


def losses(shape: Shape, flat: Array, tokens: Array) -> Array:
    """The loss of each replica on its own rows of tokens."""
    with np.errstate(over="ignore", invalid="ignore"):  # a model that diverged has a loss of nan
        return Pass(shape, flat, tokens).losses()


def gradients(shape: Shape, flat: Array, tokens: Array, keep: Any = None) -> tuple[Array, Array]:
    """(loss of each replica, gradient of each) on their own rows of tokens.

    `keep` holds an array for each layer that the wide activations are multiplied with: dropout.
    """
    out = np.empty_like(flat)
    with np.errstate(over="ignore", invalid="ignore"):
        passed = Pass(shape, flat, tokens, keep)
        passed.gradient(out)
        return passed.losses(), out
