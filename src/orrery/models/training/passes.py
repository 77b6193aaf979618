"""What one training step does on one device: forward, backward, messages and the optimiser.

For each product of the forward pass the backward pass has two of the same size: one for the
gradient of its input, one for that of its weight. Attention recomputes its scores, so it does five
products where the forward pass does two. Recomputed layers do their forward pass again.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from orrery.base.errors import SpecError
from orrery.models.ops import COLLECTIVES, Batch, Op, attention_ops, collective, dense_ops
from orrery.models.ops import head_ops as _head_ops
from orrery.models.specs import WEIGHT_B, ModelSpec
from orrery.models.weights import ONE_DEVICE, Layout
from orrery.world.spec import Spec

# Backward over forward of fused attention: five matrix products against two (FlashAttention-2).
ATTENTION_BACKWARD = 2.5
Recompute = Literal["none", "selective", "full"]


class Micro(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One microbatch: so many sequences of one length, and what is recomputed of it.

    selective   attention alone (Korthikanti et al., 2022); full   every layer
    """

    label: ClassVar[str] = "micro"
    error: ClassVar[type[SpecError]] = SpecError
    sequences: Annotated[int, Meta(ge=1, le=1 << 24)]
    length: Annotated[int, Meta(ge=1, le=1 << 26)]
    recompute: Recompute = "none"

    @property
    def tokens(self) -> int:
        """Tokens of the microbatch."""
        return self.sequences * self.length


def training_forward(model: ModelSpec, micro: Micro, layout: Layout = ONE_DEVICE) -> list[Op]:
    """The forward pass of a microbatch through all layers; every token meets the output matrix."""
    tokens = micro.tokens / layout.cp
    tokens = int(tokens) if float(tokens).is_integer() else tokens
    batch = Batch(((micro.length, 0),) * micro.sequences)
    # Nothing is kept for later tokens; the loss takes the place of the choice of one.
    layers = [op for op in dense_ops(model, tokens, layout) if op.name != "kv_write"]
    head = [op for op in _head_ops(model, tokens, layout) if op.name not in ("sample", "logits")]
    wide = WEIGHT_B["fp32"]
    logits = tokens * model.vocab / layout.tp
    head.append(
        Op("loss", "loss", read_B=logits * wide, write_B=logits * wide, dtype=model.dtype,
           dims={"elements": 2 * logits})
    )  # fmt: skip
    if layout.tp > 1:  # the maximum, the sum and the own logit of each token
        head.append(collective("all_reduce", "loss", tokens * 3 * wide, layout.tp, 1, "fp32"))
    return [*layers, *attention_ops(model, batch, layout), *head]


def backward_of(op: Op) -> list[Op]:
    """What the backward pass does for one operation of the forward pass."""
    copy = msgspec.structs.replace
    if op.kind == "gemm":
        m, n, k = op.dims["m"], op.dims["n"], op.dims["k"]
        return [
            copy(op, name=f"{op.name}.input", dims={"m": m, "n": k, "k": n}),
            copy(op, name=f"{op.name}.weight", dims={"m": n, "n": k, "k": m}),
        ]
    if op.kind == "moe":
        return [copy(op, name=f"{op.name}.input"), copy(op, name=f"{op.name}.weight")]
    if op.kind.startswith("attention"):
        flops = op.flops * ATTENTION_BACKWARD
        return [copy(op, name=f"{op.name}.back", flops=flops, read_B=op.bytes, write_B=op.bytes)]
    if op.kind in COLLECTIVES:
        # The gradient goes the opposite way: what was gathered is scattered.
        turned = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
        return [copy(op, name=f"{op.name}.back", kind=turned.get(op.kind, op.kind))]
    if op.kind == "loss":
        return []  # its gradient is made with it
    return [copy(op, name=f"{op.name}.back", read_B=op.read_B + op.write_B)]


def training_backward(model: ModelSpec, micro: Micro, layout: Layout = ONE_DEVICE) -> list[Op]:
    """The backward pass of a microbatch, with what is recomputed first."""
    forward = training_forward(model, micro, layout)
    again: list[Op] = []
    if micro.recompute == "full":
        outer = ("embedding", "embedding_reduce", "final_norm", "head", "loss", "stage")
        again = [op for op in forward if op.name not in outer]
    elif micro.recompute == "selective":
        again = [op for op in forward if op.kind.startswith("attention")]
    renamed = [msgspec.structs.replace(op, name=f"{op.name}.again") for op in again]
    return [*renamed, *(each for op in forward for each in backward_of(op))]


def gradient_ops(
    model: ModelSpec, layout: Layout, replicas: int, stage: int = 0, sharded: bool = False,
    gradient_dtype: str = "fp32",
) -> list[Op]:  # fmt: skip
    """The exchange of gradients over data-parallel replicas, and Adam's update.

    sharded   each replica updates its share (ZeRO-1): gradients scatter, weights gather
    """
    if replicas < 1:
        raise SpecError("replicas", f"{replicas} is refused", "give 1 or more")
    params = model.params_on_device(layout, stage)
    wide, narrow = WEIGHT_B[gradient_dtype], WEIGHT_B[model.dtype]
    ops: list[Op] = []
    if replicas > 1 and sharded:
        ops = [
            collective("reduce_scatter", "gradients", params * wide, replicas, 1, gradient_dtype),
            collective("all_gather", "weights", params * narrow, replicas, 1, model.dtype),
        ]
    elif replicas > 1:
        ops = [collective("all_reduce", "gradients", params * wide, replicas, 1, gradient_dtype)]
    own = params / replicas if sharded else params
    # Adam reads the gradient, two moments and the fp32 weight; it writes all but the gradient, and
    # the narrow weight besides.
    ops.append(
        Op("optimiser", "adam", read_B=own * (wide + 12.0), write_B=own * (12.0 + narrow),
           dims={"elements": own}, dtype="fp32")
    )  # fmt: skip
    return ops


__all__ = [
    "ATTENTION_BACKWARD", "Micro", "backward_of", "gradient_ops", "training_backward",
    "training_forward",
]  # fmt: skip
