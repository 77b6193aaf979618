"""`LayerAttention`: a rank that trains an attention layer on its rows of one long sequence.

Around the attention, which a part spreads over the ranks as it likes, stands what every rank does
with its own rows: the projections to Q, K and V, the output matrix, the loss and its gradient. All
ranks then sum the gradients of the four matrices and take the same step. The checker holds loss,
gradients and new weights against one process that has all rows, in float64.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from orrery.base.errors import KnobError, PartError
from orrery.base.rand import Stream
from orrery.models import attention
from orrery.models.attention import Array
from orrery.models.specs import ModelSpec, spec
from orrery.parts import Count, Fraction, NonNegative
from orrery.systems.collectives import AttentionJob, SequenceAttention
from orrery.systems.train.problems.splits import Split
from orrery.world import World

# Weights and gradients in bf16, and Adam's two moments with a copy of the weights in fp32: 16 B a
# parameter (Rajbhandari et al., ZeRO, 2020), here in equal shares on all devices.
STATE_B = 16
# What a layer holds of a row while it is computed, besides its input: Q, K, V, the output, a
# residual and their like (6 x hidden), and the inner rows of a gated MLP (3 x intermediate).
HELD_HIDDEN, HELD_INNER = 6, 3


class LayerJob(AttentionJob):
    """An attention layer and one sequence; with `model`, a layer of that model and its memory.

    Knobs: `hidden`, the width of a row; `model`, whose shape counts in place of `heads`, `kv_heads`
    `head_dim` and `hidden`; `recompute`, whether each layer runs forwards a second time before it
    runs backwards, so that only the inputs of layers are kept; `memory_share` of a device that
    may be filled; `rate`, the step size of the matrices; and those of `AttentionJob`.

    >>> LayerJob(hidden=8, heads=2, head_dim=4).linear_flops
    512
    """

    hidden: Count = 16
    model: str = ""
    recompute: bool = True
    memory_share: Fraction = 0.9
    rate: NonNegative = 0.1

    @property
    def shape(self) -> ModelSpec | None:
        """The model, where one is named."""
        return spec(self.model) if self.model else None

    @property
    def project_flops(self) -> int:
        """Flops that a row takes to become Q, K and V."""
        return 2 * self.hidden * (self.heads + 2 * self.groups) * self.head_dim

    @property
    def linear_flops(self) -> int:
        """Flops of a row in all matrices of a layer, forwards; the last one's are shared out."""
        if self.shape is not None:
            return round(2 * self.shape.matmul_params / self.shape.layers)
        return self.project_flops + 2 * self.hidden * self.heads * self.head_dim

    @property
    def layers(self) -> int:
        return self.shape.layers if self.shape is not None else 1

    def state_B(self, size: int) -> float:
        """What a device holds of weights, gradients and the optimiser's state."""
        params = self.shape.params if self.shape is not None else self._matrices()
        return STATE_B * params / size

    @property
    def row_B(self) -> float:
        """What a device holds for a row of its own: the inputs of all layers, and one layer."""
        inner = self.shape.intermediate if self.shape is not None else 0
        kept = self.layers * self.hidden
        return self.item_B * (kept + HELD_HIDDEN * self.hidden + HELD_INNER * inner)

    def _matrices(self) -> int:
        return 2 * self.hidden * (self.heads + self.groups) * self.head_dim

    def check_job(self) -> None:
        super().check_job()
        name = type(self).__name__
        if self.documents:
            problem = f"{len(self.documents)} documents are refused"
            raise KnobError(f"{name}.documents", problem, "give one sequence, by tokens")
        if self.memory_share == 0:
            problem = "0 leaves no memory"
            raise KnobError(f"{name}.memory_share", problem, "give a share, as 0.9")


class LayerAttention(SequenceAttention):
    """The port: one rank of a group that trains an attention layer on a spread sequence.

    A part writes `split`, which says who has which rows and heads, and, as in `SequenceAttention`,
    `layout`, `forward` and `backward`.
    """

    job: AttentionJob = LayerJob()

    def split(self, job: LayerJob, size: int, world: World) -> Split:
        """Who has which rows and heads. Pure: every rank asks it."""
        raise PartError(f"{type(self).__name__} has no split(job, size, world)")

    @property
    def layer(self) -> LayerJob:
        """The job, as what it is here."""
        if not isinstance(self.job, LayerJob):
            raise PartError(f"{type(self).__name__} needs a LayerJob; run it on its problem")
        return self.job

    def start(self) -> None:
        super().start()
        self.matrices: dict[str, Array] | None = None

    async def round(self, number: int) -> dict[str, Any]:
        job = self.layer
        self.shards = self.layout(job, self.size, self.world)
        if self.matrices is None and not job.sized:
            self.matrices = {name: start_matrix(job, name) for name in shapes(job)}
        x, target = self._rows(number)
        await self.barrier(tag="between rounds")
        (out, y), forward = await self.timed(self._layer(x))
        share = self.row_share()
        found: dict[str, Any] = {"round": number, "rank": self.rank, "forward": forward}
        off = (y - target) * np.float32(share / max(len(y), 1)) if not job.sized else y
        grads, found["backward"] = await self.timed(self._layer_back(x, out, off))
        if not job.sized:
            # Who is through early must not send where others are still computing.
            await self.barrier(tag="before the sum")
            local = share * 0.5 * float(((y - target) ** 2).sum()) / max(len(y), 1)
            found |= await self._learn(number, y, local, grads)
        return found

    def row_share(self) -> float:
        """The weight of this rank's mean loss: its share of all rows, for shards are uneven."""
        return attention.rows(self.mine) / max(self.job.tokens, 1)

    def _rows(self, number: int) -> tuple[Array, Array]:
        """This rank's rows of the input and of the wanted output."""
        job = self.layer
        if job.sized:
            rows = self.zeros((attention.rows(self.mine), job.hidden))
            return rows, rows
        _, here = attention.places(self.mine)
        return layer_rows(job, number, "x")[here], layer_rows(job, number, "target")[here]

    # -- the layer

    async def _layer(self, x: Array) -> tuple[Array, Array]:
        """The output of the attention and of the layer, for this rank's rows."""
        job, count = self.layer, len(x)
        many, few = (count, job.heads, job.head_dim), (count, job.groups, job.head_dim)
        kinds = {"q": many, "k": few, "v": few}
        q, k, v = await self.work(
            lambda: [(x @ self._matrix(name)).reshape(shape) for name, shape in kinds.items()],
            flops=float(count * job.project_flops),
            blanks=lambda: [self.zeros(shape) for shape in kinds.values()],
        )
        out = await self.forward(q, k, v)
        y = await self.work(
            lambda: out.reshape(count, job.heads * job.head_dim) @ self._matrix("o"),
            flops=float(count * (job.linear_flops - job.project_flops)), blanks=lambda: x,
        )  # fmt: skip
        return out, y

    async def _layer_back(self, x: Array, out: Array, off: Array) -> dict[str, Array]:
        """The gradients of the four matrices from this rank's rows."""
        job, count = self.layer, len(x)
        wide = (count, job.heads * job.head_dim)
        grown, dout = await self.work(
            lambda: (out.reshape(wide).T @ off, (off @ self._matrix("o").T).reshape(out.shape)),
            flops=2.0 * count * (job.linear_flops - job.project_flops), blanks=lambda: (x, out),
        )  # fmt: skip
        parts = await self.backward(dout)
        made = await self.work(
            lambda: [x.T @ part.reshape(count, part.shape[1] * part.shape[2]) for part in parts],
            flops=2.0 * count * job.project_flops, blanks=lambda: [x, x, x],
        )  # fmt: skip
        return {**dict(zip("qkv", made, strict=True)), "o": grown}

    async def _learn(
        self, number: int, y: Array, local: float, grads: dict[str, Array]
    ) -> dict[str, Any]:
        """Sum loss and gradients over the ranks, take the step, and see how far off it all is."""
        job = self.layer
        flat = [np.float32([local]), *(grads[name].reshape(-1) for name in shapes(job))]
        total = await self.sum(np.concatenate(flat).astype(np.float32), tag="gradients")
        assert self.matrices is not None
        truth = true_step(job, number)
        _, here = attention.places(self.mine)
        errors = {
            "out": attention.deviation(y, truth["y"][here]),
            "loss": attention.deviation(total[:1], truth["loss"]),
        }
        at = 1
        for name, shape in shapes(job).items():
            grad = total[at : at + shape[0] * shape[1]].reshape(shape)
            at += shape[0] * shape[1]
            self.matrices[name] = self.matrices[name] - np.float32(job.rate) * grad
            errors[f"gradient of {name}"] = attention.deviation(grad, truth[f"d{name}"])
            errors[f"weights of {name}"] = attention.deviation(self.matrices[name], truth[name])
        return {"errors": errors, "loss": float(total[0])}

    def _matrix(self, name: str) -> Array:
        assert self.matrices is not None
        return self.matrices[name]


# -- the data, and the truth


def shapes(job: LayerJob) -> dict[str, tuple[int, int]]:
    """The four matrices of a layer."""
    many, few = job.heads * job.head_dim, job.groups * job.head_dim
    return {"q": (job.hidden, many), "k": (job.hidden, few), "v": (job.hidden, few),
            "o": (many, job.hidden)}  # fmt: skip


@functools.lru_cache(maxsize=64)
def start_matrix(job: LayerJob, name: str) -> Array:
    """A matrix before the first step: normal, of variance 1 / its rows."""
    shape = shapes(job)[name]
    values = Stream(job.data_seed, name, "layer matrices").numpy().standard_normal(shape)
    made = (values / np.sqrt(shape[0])).astype(np.float32)
    made.flags.writeable = False
    return made


@functools.lru_cache(maxsize=16)
def layer_rows(job: LayerJob, number: int, name: str) -> Array:
    """The input or the wanted output of a round, all rows."""
    stream = Stream(job.data_seed, name, f"layer rows {number}")
    made = stream.numpy().standard_normal((job.tokens, job.hidden)).astype(np.float32)
    made.flags.writeable = False
    return made


@functools.lru_cache(maxsize=8)
def true_step(job: LayerJob, number: int) -> dict[str, Array]:
    """Output, loss, gradients and new weights of a round, by one process in float64.

    It begins with the weights of the round before, which is still known: ranks go in step.
    """
    before = true_step(job, number - 1) if number else {}
    now = {name: before[name] if number else np.asarray(start_matrix(job, name), np.float64)
           for name in shapes(job)}  # fmt: skip
    x, target = (np.asarray(layer_rows(job, number, n), np.float64) for n in ("x", "target"))
    heads = {"q": job.heads, "k": job.groups, "v": job.groups}
    q, k, v = ((x @ now[n]).reshape(len(x), heads[n], job.head_dim) for n in "qkv")
    lengths, wide = (job.tokens,), (len(x), job.heads * job.head_dim)
    out = attention.reference(q, k, v, np.zeros(q.shape), lengths, job.causal)["out"]
    y = out.reshape(wide) @ now["o"]
    off = (y - target) / max(job.tokens, 1)
    dout = (off @ now["o"].T).reshape(q.shape)
    back = attention.reference(q, k, v, dout, lengths, job.causal)
    grads = {n: x.T @ back[f"d{n}"].reshape(len(x), now[n].shape[1]) for n in "qkv"}
    grads["o"] = out.reshape(wide).T @ off
    loss = 0.5 * ((y - target) ** 2).sum() / max(job.tokens, 1)
    return {
        "y": y, "loss": np.array([loss]),
        **{name: now[name] - job.rate * grads[name] for name in now},
        **{f"d{name}": grads[name] for name in grads},
    }  # fmt: skip


__all__ = ["LayerAttention", "LayerJob", "layer_rows", "shapes", "start_matrix", "true_step"]
