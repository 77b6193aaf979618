"""Tasks cut into the stages of a pipeline: which block each stage has, and its two passes.

A stage sees its own block of the weights and what its neighbours send: activations go forward,
gradients with respect to them come back. Where a model has layers (`language`) a stage has some of
them. Where a block is only a part of the coordinates (`quadratic`, `logistic`), the sum of partial
products travels forward, from which the last stage finds the slope that travels back; each stage
multiplies it with its own columns. Either way a block gradient needs the other blocks only through
what travels, so it belongs to the versions that the other stages had when the batch went by.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from orrery.base.errors import PartError
from orrery.base.rand import Stream
from orrery.models.learn import Language, LearningTask, Logistic, Quadratic, language
from orrery.models.learn.tasks import Bowl
from orrery.parts import cost
from orrery.parts.collectives import Array, part_items
from orrery.parts.shapes import work_of


class Turned(Quadratic):
    """A quadratic whose axes are turned, so that every block of coordinates depends on all others.

    Knobs and losses are those of `Quadratic`, whose blocks would not see each other at all.

    >>> bool(abs(Turned().judge(Turned().start_weights())
    ...     - Quadratic().judge(Quadratic().start_weights())) < 1e-9)
    True
    """

    def turn(self) -> Array:
        """The matrix whose columns are the axes."""
        return _turn(self.data_seed, self.numbers)

    def start_weights(self) -> Array:
        return self.turn() @ super().start_weights()

    def share(self, rank: int, size: int, rng: Any) -> TurnedBowl:
        return TurnedBowl(self, rank, rng, size)

    def judge(self, weights: Array) -> float:
        return super().judge(self.turn().T @ weights)


class TurnedBowl(Bowl):
    """The bowl of a turned quadratic."""

    @cost(flops=lambda self, weights: 4 * weights.size * self.task.scale)
    def grad(self, weights: Array) -> Array:
        turn = self.task.turn()
        return np.asarray(turn @ super().grad(turn.T @ weights))

    def loss(self, weights: Array) -> float:
        return super().loss(self.task.turn().T @ weights)

    def slope(self, along: Array) -> Array:
        """The gradient of the next batch along the axes, at a point given along the axes."""
        return super().grad(along)


@lru_cache(maxsize=16)
def _turn(seed: int, numbers: int) -> Array:
    rng = Stream(seed, "quadratic", "turn").numpy()
    turn = np.linalg.qr(rng.standard_normal((numbers, numbers)))[0]
    turn.flags.writeable = False
    return np.asarray(turn)


class Cut:
    """A task cut into stages; `key` says which batches are drawn, alike at all stages.

    A subclass writes `forward(stage, block, x, batch)`, which gives what the next stage reads and
    what is kept for the way back, and `backward(stage, block, kept, up, batch)`, which gives the
    gradient of the block and what the stage before reads. The first stage reads no `x`, the last
    one no `up`.
    """

    def __init__(self, task: LearningTask, stages: int, key: int) -> None:
        self.task, self.stages = task, stages
        self.share: Any = task.share(0, 1, Stream.keyed(key))
        self.whole = task.start_weights()
        self.slices = self.blocks()
        work = work_of(self.share.grad, (self.whole,))
        self._flops = work.flops / max(self.whole.size, 1) if work else 0.0

    def blocks(self) -> list[slice]:
        """The blocks of the weights, one a stage."""
        if self.stages > self.whole.size:
            raise PartError(
                f"{self.stages} stages for {self.whole.size} weights; give fewer nodes, or more "
                "weights (numbers)"
            )
        ends = np.cumsum([0, *part_items(self.whole.size, self.stages)]).tolist()
        return [slice(a, b) for a, b in pairwise(ends)]

    def flops(self, stage: int) -> float:
        """Operations of both passes of a batch through a stage: its part of the weights' work."""
        where = self.slices[stage]
        return float(self._flops * (where.stop - where.start))

    def block(self, stage: int) -> Array:
        """Where the weights of a stage begin."""
        return np.array(self.whole[self.slices[stage]])

    def gradient(self, weights: Array, batch: int) -> Array:
        """The gradient of a batch at whole weights, as the task itself has it, without stages."""
        self.share.taken = batch
        return np.asarray(self.share.grad(weights))

    def excess(self, weights: Array) -> float:
        """The loss on the data trained on, above the least that any weights have; where known."""
        return float(self.share.loss(weights) - self.least())

    def least(self) -> float:
        """The least loss on the data trained on."""
        return 0.0

    def forward(self, stage: int, block: Array, x: Any, batch: int) -> tuple[Any, Any]:
        """(what the next stage reads, what is kept)."""
        raise PartError(f"{type(self).__name__} has no forward pass; write it")

    def backward(
        self, stage: int, block: Array, kept: Any, up: Any, batch: int
    ) -> tuple[Array, Any]:
        """(the gradient of the block, what the stage before reads)."""
        raise PartError(f"{type(self).__name__} has no backward pass; write it")


class QuadraticCut(Cut):
    """Forward travels the point along the axes, as far as it is summed; back the slope there."""

    def forward(self, stage: int, block: Array, x: Any, batch: int) -> tuple[Any, Any]:
        part = self._rows(stage).T @ block
        along = part if x is None else x + part
        return along, along if stage == self.stages - 1 else None

    def backward(
        self, stage: int, block: Array, kept: Any, up: Any, batch: int
    ) -> tuple[Array, Any]:
        if up is None:
            self.share.taken = batch
            up = self.share.slope(kept)
        return np.asarray(self._rows(stage) @ up), up

    def _rows(self, stage: int) -> Array:
        return np.asarray(self.task.turn()[self.slices[stage]])  # type: ignore[attr-defined]


class LogisticCut(Cut):
    """Forward travel the sums of products for each row of the batch; back their slopes."""

    def forward(self, stage: int, block: Array, x: Any, batch: int) -> tuple[Any, Any]:
        points, _ = self._batch(batch)
        mine = points[:, self.slices[stage]]
        part = mine @ block
        total = part if x is None else x + part
        return total, (mine, total if stage == self.stages - 1 else None)

    def backward(
        self, stage: int, block: Array, kept: Any, up: Any, batch: int
    ) -> tuple[Array, Any]:
        mine, total = kept
        if up is None:
            _, y = self._batch(batch)
            up = -y / (1.0 + np.exp(y * total)) / len(y)
        return mine.T @ up + self.task.decay * block, up  # type: ignore[attr-defined]

    def least(self) -> float:
        task: Any = self.task
        return float(self.share.loss(task.optimum(1)))

    def _batch(self, batch: int) -> tuple[Array, Array]:
        share = self.share
        rows = _rows(share.seed, len(share.y), min(self.task.batch, len(share.y)), batch)
        return share.x[rows], share.y[rows]


@lru_cache(maxsize=256)
def _rows(seed: int, rows: int, size: int, batch: int) -> Array:
    """The rows of a batch, as `Points` draws them: all stages ask for them, one draws."""
    return Stream(seed, 0, f"batch {batch}").numpy().integers(0, rows, size)


class LanguageCut(Cut):
    """Activations of a transformer travel forward between its layers, their gradients back."""

    def blocks(self) -> list[slice]:
        layers = list(self.task.layers().items())
        if self.stages > len(layers):
            raise PartError(
                f"{self.stages} stages for a model of {len(layers)} layers; give fewer nodes, or "
                "more layers (layer_count)"
            )
        if self.task.dropout:  # type: ignore[attr-defined]
            raise PartError("dropout in a pipeline is not supported; give dropout = 0")
        cuts = even_cuts([where.stop - where.start for _, where in layers], self.stages)
        self.names = [[name for name, _ in layers[a:b]] for a, b in cuts]
        return [slice(layers[a][1].start, layers[b - 1][1].stop) for a, b in cuts]

    def excess(self, weights: Array) -> float:
        # The text is generated without end, so held-out text is as good as that trained on.
        return self.task.judge(weights) - self.task.best()

    def forward(self, stage: int, block: Array, x: Any, batch: int) -> tuple[Any, Any]:
        passed = _Part(self, stage, block, batch)
        out = passed.forward(x)
        return (None if stage == self.stages - 1 else out), passed

    def backward(
        self, stage: int, block: Array, kept: Any, up: Any, batch: int
    ) -> tuple[Array, Any]:
        part: _Part = kept
        part.use(block)
        return part.backward(up)


class _Part(language.Pass):
    """The pass of a batch through the layers of one stage; arithmetic as in the whole model."""

    def __init__(self, cut: LanguageCut, stage: int, block: Array, batch: int) -> None:
        task: Any = cut.task
        self.shape, self.keep = task.shape(), None
        self.names, where = cut.names[stage], cut.slices[stage]
        layout = language.layout_of(self.shape)
        self.inside = {
            name: (slice(at.start - where.start, at.stop - where.start), layout.shapes[name])
            for name, at in layout.slices.items()
            if where.start <= at.start and at.stop <= where.stop
        }
        rows = cut.share.rows(batch)[None]
        self.read, self.asked = rows[..., :-1], rows[..., 1:]
        self.size = self.read.shape
        self.blocks = [int(name) for name in self.names if name.isdigit()]
        # A block appends what it keeps, and finds it again under the number of its layer.
        self.kept = [None] * (self.blocks[0] if self.blocks else 0)
        self.use(block)

    def use(self, block: Array) -> None:
        """Take these weights for what follows; without stashing they change between passes."""
        self.weights = self._views(block)

    def _views(self, flat: Array) -> dict[str, Array]:
        return {name: flat[at].reshape(1, *shape) for name, (at, shape) in self.inside.items()}

    def forward(self, x: Any) -> Array:
        weights = self.weights
        if "embed" in self.names:
            x = weights["tokens"][:, self.read[0]] + weights["places"][:, None, : self.size[2]]
            x = x.reshape(1, -1, self.shape.width)
        for layer in self.blocks:
            x = self._block(layer, x)
        if "head" in self.names:
            self.normed, self.last = language.rms_norm(x, weights["norm"])
            self.logits = self.normed @ weights["head"]
        return np.asarray(x)

    def backward(self, up: Any) -> tuple[Array, Any]:
        """(the gradient of the stage's weights, that of what it read)."""
        flat = np.empty(sum(at.stop - at.start for at, _ in self.inside.values()), np.float32)
        grads = self._views(flat)
        if "head" in self.names:
            up = self._head_back(grads)
        for layer in reversed(self.blocks):
            up = self._block_back(layer, up, grads)
        if "embed" in self.names:
            self._embed_back(up, grads)
            up = None
        return flat, up

    def _head_back(self, grads: dict[str, Array]) -> Array:
        up = np.exp(self.logits - self.logits.max(axis=-1, keepdims=True))
        up /= up.sum(axis=-1, keepdims=True)
        asked = self.asked.reshape(1, -1, 1)
        np.put_along_axis(up, asked, np.take_along_axis(up, asked, axis=-1) - 1.0, axis=-1)
        up /= np.float32(asked.size)
        grads["head"][:] = language.turned(self.normed) @ up
        back = up @ language.turned(self.weights["head"])
        down, grads["norm"][:] = language.rms_norm_back(back, self.weights["norm"], self.last)
        return down

    def _embed_back(self, up: Array, grads: dict[str, Array]) -> None:
        _, rows, length = self.size
        grads["places"][:], grads["tokens"][:] = 0.0, 0.0
        grads["places"][:, :length] = up.reshape(1, rows, length, -1).sum(axis=1)
        np.add.at(grads["tokens"][0], self.read[0].reshape(-1), up[0])


def even_cuts(costs: list[int], parts: int) -> list[tuple[int, int]]:
    """Neighbours in `parts` groups, none empty, so that the largest sum is least; as (from, to).

    >>> even_cuts([1, 9, 9, 1], 2), even_cuts([5, 1, 1, 1], 3)
    ([(0, 2), (2, 4)], [(0, 1), (1, 2), (2, 4)])
    """
    ends = np.cumsum([0, *costs])
    # best[n] is (largest sum, cuts) of the first n with the groups so far.
    best = {n: (int(ends[n]), [(0, n)]) for n in range(1, len(costs) + 1)}
    for group in range(2, parts + 1):
        best = {
            n: min(
                (max(best[a][0], int(ends[n] - ends[a])), [*best[a][1], (a, n)])
                for a in range(group - 1, n)
            )
            for n in range(group, len(costs) + 1)
        }
    return best[len(costs)][1]


_CUTS: tuple[tuple[type[LearningTask], type[Cut]], ...] = (
    (Turned, QuadraticCut), (Logistic, LogisticCut), (Language, LanguageCut),
)  # fmt: skip


def cut(task: Any, stages: int, key: int = 0) -> Cut:
    """The task cut into so many stages, reading the batches that the key names."""
    for kind, maker in _CUTS:
        if isinstance(task, kind):
            return maker(task, stages, key)
    known = ", ".join(kind.__name__ for kind, _ in _CUTS)
    raise PartError(f"{type(task).__name__} cannot be cut into stages; give one of {known}")
