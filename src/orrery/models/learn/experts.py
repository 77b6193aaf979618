"""`Experts`: the language task for a model whose wide layers are mixtures of experts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from orrery.base.errors import KnobError, UsageError
from orrery.base.rand import Stream
from orrery.models.learn import language, mixture
from orrery.models.learn.optim import make
from orrery.models.learn.tasks import Language, Passages
from orrery.parts import Count, NonNegative, Whole, cost, together
from orrery.parts.collectives import Array

PROBED = 64


class Experts(Language):
    """Say the next symbol of a text, with a small transformer of `experts` experts a layer.

    Knobs: `experts`; `top`, how many of them read a token; `hidden`, the width inside an expert
    (0: such that a token costs as much as in the dense model of `Language`); `balance`, the weight
    of the penalty on uneven loads; `normal`, whether the shares of the chosen add up to one;
    `dense_steps`: the experts begin as copies of the wide layers of a dense model that one machine
    has trained for so many steps; `dense_path`: they begin as copies of those of a checkpoint, a
    flat vector of `Language` in a .npy file. And those of `Language`; there is no dropout.

    >>> task = Experts(experts=4)
    >>> [sum(part.stop - part.start for part in piece) for piece in task.pieces()]
    [10144, 8192, 8192, 8192, 8192]
    """

    experts: Count = 4
    top: Count = 2
    hidden: Whole = 0
    balance: NonNegative = 0.01
    normal: bool = False
    dense_steps: Whole = 0
    dense_path: str = ""

    def sizes(self) -> mixture.Shape:
        """The size of the model with its experts."""
        if self.dropout:
            raise KnobError(
                "Experts.dropout", f"{self.dropout}: experts have no dropout", "set it to 0"
            )
        hidden = self.hidden or max(4 * self.width // self.top, 1)
        return mixture.Shape(*self.shape(), self.experts, self.top, hidden, self.normal)

    def pieces(self) -> tuple[tuple[slice, ...], ...]:
        """Where the shared weights lie in the flat vector, then where each expert does."""
        return mixture.pieces_of(self.sizes())

    def start_weights(self) -> Array:
        sizes = self.sizes()
        rng = Stream(self.data_seed, "experts", "start").numpy()
        flat = language.filled(mixture.layout_of(sizes), sizes, rng)
        if self.dense_path:
            return mixture.upcycled(sizes, _checkpoint(self.dense_path), flat)
        if self.dense_steps:
            return mixture.upcycled(sizes, _dense(self.dense(), self.dense_steps), flat)
        return flat

    def dense(self) -> Language:
        """The dense task of the same sizes."""
        return Language(
            **{name: getattr(self, name) for name in Language().knobs() if name != "scale"}
        )

    def layers(self) -> dict[str, slice]:
        return language.by_layer(mixture.layout_of(self.sizes()))

    def judge(self, weights: Array) -> float:
        return float(mixture.losses(self.sizes(), weights[None], self.held_out()[None])[0])

    def loads(self, weights: Array) -> Array:
        """How many tokens at the beginning of the text each expert reads with these weights."""
        row = self.context + 1
        rows = self.text()[: PROBED * row]
        return mixture.counts(
            self.sizes(), weights, rows[: len(rows) // row * row].reshape(-1, row)
        )

    def share(self, rank: int, size: int, rng: Any) -> Routed:
        return Routed(self, rank, rng)


class Routed(Passages):
    """A rank's passages, and the experts that it trains: all of them, or those in `own`."""

    def __init__(self, task: Experts, rank: int, rng: Any) -> None:
        super().__init__(task, rank, rng)
        self.own: tuple[int, ...] | None = None

    def trained(self) -> tuple[int, ...]:
        """The experts for which there is a gradient."""
        return tuple(range(self.task.experts)) if self.own is None else self.own

    @staticmethod
    def _many(calls: Sequence[tuple[Any, Array]]) -> list[Array]:
        task: Experts = calls[0][0].task
        rows = np.stack([share.rows(share.next_step()) for share, _ in calls])
        own = [share.trained() for share, _ in calls]
        weights = np.stack([weights for _, weights in calls])
        found, slopes = mixture.gradients(task.sizes(), weights, rows, task.balance, own)
        for (share, _), loss in zip(calls, found, strict=True):
            share.last_loss = float(loss)
        return [
            mixture.whole(task.sizes(), slope) if share.own is None else slope
            for (share, _), slope in zip(calls, slopes, strict=True)
        ]

    @together(lambda calls: Routed._many(calls))
    @cost(
        flops=lambda self, weights: (
            self.task.scale
            * mixture.flops_of(
                self.task.sizes(), self.task.batch, self.task.context, len(self.trained())
            )
        )
    )
    def grad(self, weights: Array) -> Array:
        """The gradient of the next batch; with `own`, of the shared weights and those experts."""
        return Routed._many([(self, weights)])[0]

    def loss(self, weights: Array) -> float:
        """The loss on the rank's first batch."""
        return float(mixture.losses(self.task.sizes(), weights[None], self.rows(0)[None])[0])


@lru_cache(maxsize=8)
def _dense(task: Language, steps: int) -> Array:
    """A dense model that one machine has trained for a while."""
    weights, share, inner = task.start_weights(), task.share(0, 1, None), make("adamw", task.rate)
    for _ in range(steps):
        weights = inner.step(weights, share.grad(weights))
    weights.flags.writeable = False
    return weights


def _checkpoint(path: str) -> Array:
    """The flat vector of a .npy file."""
    if not os.path.isfile(path):
        raise UsageError(f"dense_path = {path!r:.120}: no such file; give a .npy file of weights")
    try:
        found = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError):
        raise UsageError(
            f"dense_path = {path!r:.120}: no array in it; save one with numpy.save"
        ) from None
    if not isinstance(found, np.ndarray) or found.dtype.kind != "f" or not np.isfinite(found).all():
        raise UsageError(
            f"dense_path = {path!r:.120}: not one array of finite floats; save the flat weights"
        )
    return np.asarray(found, np.float32)
