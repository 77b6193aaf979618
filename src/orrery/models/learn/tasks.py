"""What replicas learn: tasks with real data, real gradients and a loss that can be judged.

The batch of a rank in a step depends on the seeds of the data and of the run, the rank and the step
alone. Every way to train therefore sees the same samples in the same order, and a difference in the
loss is not one of luck. All tasks work on a flat vector of weights; `scale` says how many times
larger the model is that the small one stands for in virtual time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from orrery.base.errors import PartError, PlatformLacks
from orrery.base.rand import Stream
from orrery.models.learn import language, text
from orrery.parts import Count, Fraction, NonNegative, Positive, Whole, cost, together
from orrery.parts.collectives import Array
from orrery.parts.worker import Task


class LearningTask(Task):
    """A task whose loss can be judged by whoever has weights.

    Knobs: `data_seed`; `batch`, rows that a rank reads in a step; `look_every` steps a trainer
    tells its loss (0: never); `jitter`, the sigma of the log-normal number by which the time of
    each gradient is multiplied in virtual time; and those of `Task`.

    A subclass writes `start_weights`, `share`, and `judge(weights)`, the loss on held-out data.
    """

    data_seed: Whole = 0
    batch: Count = 4
    look_every: Whole = 0
    jitter: NonNegative = 0.0

    def judge(self, weights: Array) -> float:
        """The loss of these weights on data that nobody trains on."""
        raise PartError(f"{type(self).__name__} has no judge(weights); write the held-out loss")

    def layers(self) -> dict[str, slice]:
        """The vector of weights cut by layer, in the order of the forward pass."""
        return {"all": slice(0, self.start_weights().size)}

    def best(self) -> float:
        """The least loss that any weights can have, where it is known; else nan."""
        return float("nan")


class _Share:
    """A rank's share that counts its steps: the n-th gradient reads the n-th batch."""

    def __init__(self, task: Any, rank: int, rng: Any) -> None:
        self.task = self.alike = task
        self.rank = rank
        self.taken = 0
        # The key of the node's stream, and not its next word, which depends on what was drawn.
        self.seed = task.data_seed + (rng.key if rng is not None else 0)

    def draw(self, step: int, purpose: str = "batch") -> np.random.Generator:
        """The generator of this rank's batch in a step."""
        return Stream(self.seed, self.rank, f"{purpose} {step}").numpy()

    def next_step(self) -> int:
        """The number of the batch that the next gradient reads."""
        self.taken += 1
        return self.taken - 1


# -- quadratics with a known optimum


class Quadratic(LearningTask):
    """Every rank has a quadratic bowl of its own; together they have one lowest point.

    Knobs: `numbers`, how many weights; `condition`, the ratio of the steepest curvature to the
    flattest; `spread`, how far apart the ranks' own lowest points lie; `noise` of each gradient.

    >>> Quadratic(numbers=3, condition=100.0).curvature().round(6).tolist()
    [0.01, 0.1, 1.0]
    """

    numbers: Count = 20
    condition: Positive = 10.0
    spread: NonNegative = 1.0
    noise: NonNegative = 0.0
    rate: Positive = 0.5

    def curvature(self) -> Array:
        """The curvature along each axis, from 1/condition to 1."""
        return np.geomspace(1.0 / self.condition, 1.0, self.numbers)

    def start_weights(self) -> Array:
        return (
            Stream(self.data_seed, "quadratic", "start").numpy().standard_normal(self.numbers) * 3
        )

    def centre(self, rank: int) -> Array:
        """The lowest point of a rank's own bowl."""
        rng = Stream(self.data_seed, rank, "centre").numpy()
        return self.spread * rng.standard_normal(self.numbers)

    def share(self, rank: int, size: int, rng: Any) -> Bowl:
        return Bowl(self, rank, rng, size)

    def judge(self, weights: Array) -> float:
        """How much higher than the lowest point of a single rank's bowl."""
        return float(0.5 * np.sum(self.curvature() * (weights - self.centre(0)) ** 2))


class Bowl(_Share):
    """The bowl of a rank; `middle` is the lowest point of all bowls together."""

    def __init__(self, task: Quadratic, rank: int, rng: Any, size: int) -> None:
        super().__init__(task, rank, rng)
        self.size = size
        self.centre = task.centre(rank)
        self.curvature = task.curvature()

    @property
    def middle(self) -> Array:
        return np.mean([self.task.centre(rank) for rank in range(self.size)], axis=0)

    @cost(flops=lambda self, weights: 4 * weights.size * self.task.scale)
    def grad(self, weights: Array) -> Array:
        step = self.next_step()
        found: Array = self.curvature * (weights - self.centre)
        if self.task.noise:
            rng = self.draw(step, "noise")
            found = found + self.task.noise * rng.standard_normal(weights.size)
        return found

    def loss(self, weights: Array) -> float:
        """How much higher than the lowest point of all bowls together."""
        return float(0.5 * np.sum(self.curvature * (weights - self.middle) ** 2))


# -- logistic regression


class Logistic(LearningTask):
    """Tell two kinds of points apart; a little weight decay makes the optimum unique.

    Knobs: `numbers` of a point; `rows` of a rank; `skew`, how differently the ranks' points lie (0:
    alike); `decay` of the weights.
    """

    numbers: Count = 20
    rows: Count = 200
    skew: Fraction = 0.0
    decay: Positive = 0.01
    batch: Count = 16
    rate: Positive = 0.5

    def start_weights(self) -> Array:
        return np.zeros(self.numbers)

    def points(self, rank: int) -> tuple[Array, Array]:
        """(points, +1 or -1) of a rank; rank -1 is the held-out data."""
        truth = Stream(self.data_seed, "logistic", "truth").numpy().standard_normal(self.numbers)
        rng = Stream(self.data_seed, rank, "points").numpy()
        x = rng.standard_normal((self.rows, self.numbers))
        if self.skew and rank >= 0:
            x = x + 2 * self.skew * rng.standard_normal(self.numbers)
        wrong = rng.random(self.rows) < 0.1
        y = np.where((x @ truth > 0) ^ wrong, 1.0, -1.0)
        return x, y

    def share(self, rank: int, size: int, rng: Any) -> Points:
        return Points(self, rank, rng)

    def judge(self, weights: Array) -> float:
        return logistic_loss(*self.points(-1), weights, self.decay)

    def optimum(self, size: int) -> Array:
        """The weights at which the loss over all ranks' points is least, by Newton's method."""
        parts = [self.points(rank) for rank in range(size)]
        x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        weights = self.start_weights()
        for _ in range(100):
            share = 1.0 / (1.0 + np.exp(y * (x @ weights)))
            slope = -(x.T @ (share * y)) / len(y) + self.decay * weights
            bend = (x.T * (share * (1 - share))) @ x / len(y) + self.decay * np.eye(x.shape[1])
            weights = weights - np.linalg.solve(bend, slope)
            if np.linalg.norm(slope) < 1e-13:
                break
        return weights


def logistic_loss(x: Array, y: Array, weights: Array, decay: float) -> float:
    """The mean logistic loss with weight decay."""
    return float(np.mean(np.logaddexp(0, -y * (x @ weights))) + decay / 2 * weights @ weights)


class Points(_Share):
    """A rank's points; each step reads a few of them."""

    def __init__(self, task: Logistic, rank: int, rng: Any) -> None:
        super().__init__(task, rank, rng)
        self.x, self.y = task.points(rank)

    @cost(flops=lambda self, weights: 6 * weights.size * self.task.batch * self.task.scale)
    def grad(self, weights: Array) -> Array:
        rng = self.draw(self.next_step())
        rows = rng.integers(0, len(self.y), min(self.task.batch, len(self.y)))
        return self.slope(weights, rows)

    def slope(self, weights: Array, rows: Any) -> Array:
        """The gradient over some rows; `slice(None)` for all."""
        x, y = self.x[rows], self.y[rows]
        share = y / (1.0 + np.exp(y * (x @ weights)))
        return -(x.T @ share) / len(y) + self.task.decay * weights

    def loss(self, weights: Array) -> float:
        return logistic_loss(self.x, self.y, weights, self.task.decay)


# -- handwritten digits


class Digits(LearningTask):
    """Read handwritten digits of 8 x 8 points with one hidden layer (scikit-learn's data set).

    Knobs: `hidden`, its width; `skew`, the part of a rank's rows that show the rank's own digits
    (0: all ranks draw alike).
    """

    hidden: Count = 32
    skew: Fraction = 0.0
    batch: Count = 16
    rate: Positive = 0.2

    def start_weights(self) -> Array:
        rng = Stream(self.data_seed, "digits", "start").numpy()
        into = rng.standard_normal((64, self.hidden)) / 8
        out = rng.standard_normal((self.hidden, 10)) / np.sqrt(self.hidden)
        parts = (into, np.zeros(self.hidden), out, np.zeros(10))
        return np.concatenate([part.reshape(-1) for part in parts]).astype(np.float32)

    def layers(self) -> dict[str, slice]:
        first = 65 * self.hidden
        return {"hidden": slice(0, first), "out": slice(first, first + 10 * (self.hidden + 1))}

    def share(self, rank: int, size: int, rng: Any) -> Pictures:
        x, y, _, _ = digits()
        rows = np.arange(len(y))
        if self.skew:
            own = rows[y % size == rank % min(size, 10)] if size <= 10 else rows[y == rank % 10]
            rows = np.concatenate([own, rows[: int(len(own) * (1 - self.skew) / self.skew)]])
        return Pictures(self, rank, rng, x[rows], y[rows])

    def judge(self, weights: Array) -> float:
        _, _, x, y = digits()
        return float(digit_losses(weights[None], x[None], y[None], self.hidden)[0][0])


class Pictures(_Share):
    """A rank's pictures."""

    def __init__(self, task: Digits, rank: int, rng: Any, x: Array, y: Array) -> None:
        super().__init__(task, rank, rng)
        self.x, self.y = x, y

    def batch(self) -> tuple[Array, Array]:
        """The pictures of the next step."""
        rng = self.draw(self.next_step())
        rows = rng.integers(0, len(self.y), self.task.batch)
        return self.x[rows], self.y[rows]

    @staticmethod
    def _many(calls: Sequence[tuple[Pictures, Array]]) -> list[Array]:
        batches = [share.batch() for share, _ in calls]
        weights = np.stack([weights for _, weights in calls])
        x, y = (np.stack([batch[i] for batch in batches]) for i in (0, 1))
        return list(digit_losses(weights, x, y, calls[0][0].task.hidden)[1])

    @together(lambda calls: Pictures._many(calls))
    @cost(flops=lambda self, weights: 6 * weights.size * self.task.batch * self.task.scale)
    def grad(self, weights: Array) -> Array:
        return Pictures._many([(self, weights)])[0]

    def loss(self, weights: Array) -> float:
        return float(
            digit_losses(weights[None], self.x[None], self.y[None], self.task.hidden)[0][0]
        )


def digit_losses(weights: Array, x: Array, y: Array, hidden: int) -> tuple[Array, Array]:
    """(loss, gradient) of each replica; everything has a leading axis of replicas."""
    shapes = language.Layout(
        {"into": (64, hidden), "bias": (hidden,), "out": (hidden, 10), "tilt": (10,)}
    )
    w = shapes.views(weights)
    wide = np.maximum(x @ w["into"] + w["bias"][:, None], 0.0)
    logits = wide @ w["out"] + w["tilt"][:, None]
    logits -= logits.max(axis=-1, keepdims=True)
    share = np.exp(logits)
    total = share.sum(axis=-1, keepdims=True)
    asked = y[..., None]
    loss = np.mean(np.log(total) - np.take_along_axis(logits, asked, -1), axis=(1, 2))
    up = share / total
    np.put_along_axis(up, asked, np.take_along_axis(up, asked, -1) - 1.0, -1)
    up /= np.float32(y.shape[1])
    grads = np.empty_like(weights)
    g = shapes.views(grads)
    g["out"][:], g["tilt"][:] = np.swapaxes(wide, -1, -2) @ up, up.sum(axis=1)
    back = np.where(wide > 0, up @ np.swapaxes(w["out"], -1, -2), np.float32(0.0))
    g["into"][:], g["bias"][:] = np.swapaxes(x, -1, -2) @ back, back.sum(axis=1)
    return loss, grads


@lru_cache(maxsize=1)
def digits() -> tuple[Array, Array, Array, Array]:
    """(training pictures, their digits, held-out pictures, their digits)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise PlatformLacks(
            "the digits come with scikit-learn; pip install 'orrery[data]', or learn another task"
        ) from None
    data = load_digits()
    order = Stream(0, "digits", "order").numpy().permutation(len(data.target))
    x, y = (data.data[order] / 16.0).astype(np.float32), data.target[order].astype(np.int64)
    return x[:1400], y[:1400], x[1400:], y[1400:]


# -- language


class Language(LearningTask):
    """Say the next symbol of a text, with a small transformer.

    The text is generated, with a known entropy, or read from the file that `path` names. Knobs:
    `symbols`, `width`, `layer_count`, `heads`, `context` (tokens of a row); `dropout` in the wide
    layers, whose masks depend on `dropout_seed`, the rank and the step.

    >>> task = Language()
    >>> task.start_weights().size, round(task.best(), 2)
    (26272, 1.32)
    """

    symbols: Count = 16
    width: Count = 32
    layer_count: Count = 2
    heads: Count = 2
    context: Count = 16
    path: str = ""
    dropout: Fraction = 0.0
    dropout_seed: Whole = 0
    text_seed: Whole = 7
    rate: Positive = 3e-3

    def shape(self) -> language.Shape:
        """The size of the model."""
        return language.Shape(
            self.symbols, self.width, self.layer_count, self.heads, self.context
        )  # fmt: skip

    def start_weights(self) -> Array:
        return language.start_weights(
            self.shape(), Stream(self.data_seed, "language", "start").numpy()
        )

    def layers(self) -> dict[str, slice]:
        return language.layers_of(self.shape())

    def best(self) -> float:
        return float("nan") if self.path else text.entropy(self.symbols, self.text_seed)

    def text(self) -> Array:
        """The text that all ranks read."""
        if self.path:
            whole = text.read(self.path, self.symbols)
            return whole[: len(whole) * 9 // 10]
        return text.generated(self.symbols, 200_000, self.text_seed)

    def held_out(self) -> Array:
        """Rows of text that nobody trains on."""
        if self.path:
            whole = text.read(self.path, self.symbols)
            rest = whole[len(whole) * 9 // 10 :]
        else:
            rest = text.generated(self.symbols, 8_192, self.text_seed, 1)
        row = self.context + 1
        rows = min(len(rest) // row, 128)
        if not rows:
            raise PartError(f"the held-out text has {len(rest)} symbols; one row needs {row}")
        return rest[: rows * row].reshape(rows, row)

    def share(self, rank: int, size: int, rng: Any) -> Passages:
        return Passages(self, rank, rng)

    def judge(self, weights: Array) -> float:
        return float(language.losses(self.shape(), weights[None], self.held_out()[None])[0])


class Passages(_Share):
    """Where a rank reads: passages of the common text, drawn anew in each step."""

    def __init__(self, task: Language, rank: int, rng: Any) -> None:
        super().__init__(task, rank, rng)
        self.text = task.text()
        self.last_loss = float("nan")

    def rows(self, step: int) -> Array:
        """The passages of a step."""
        rng = self.draw(step)
        begin = rng.integers(0, len(self.text) - self.task.context - 1, self.task.batch)
        return self.text[begin[:, None] + np.arange(self.task.context + 1)]

    def keep(self, step: int) -> Array | None:
        """What dropout leaves in a step: (layers, tokens, 4 width), or None without dropout."""
        task = self.task
        if not task.dropout:
            return None
        rng = Stream(task.dropout_seed, self.rank, f"dropout {step}").numpy()
        size = (task.layer_count, task.batch * task.context, 4 * task.width)
        return (rng.random(size) >= task.dropout).astype(np.float32) / np.float32(1 - task.dropout)

    @staticmethod
    def _many(calls: Sequence[tuple[Passages, Array]]) -> list[Array]:
        task = calls[0][0].task
        steps = [share.next_step() for share, _ in calls]
        rows = np.stack([share.rows(step) for (share, _), step in zip(calls, steps, strict=True)])
        keeps = [share.keep(step) for (share, _), step in zip(calls, steps, strict=True)]
        keep = None if keeps[0] is None else np.stack(keeps, axis=1)
        weights = np.stack([weights for _, weights in calls])
        found, grads = language.gradients(task.shape(), weights, rows, keep)
        for (share, _), loss in zip(calls, found, strict=True):
            share.last_loss = float(loss)
        return list(grads)

    @together(lambda calls: Passages._many(calls))
    @cost(
        flops=lambda self, weights: (
            self.task.scale
            * language.flops_of(self.task.shape(), self.task.batch, self.task.context)
        )
    )
    def grad(self, weights: Array) -> Array:
        return Passages._many([(self, weights)])[0]

    def loss(self, weights: Array) -> float:
        """The loss on the rank's first batch."""
        return float(language.losses(self.task.shape(), weights[None], self.rows(0)[None])[0])
