"""What one pass of one micro-batch does on a device of a stage: kernels, and messages by group.

Matrix products come from the model's weights; vector operations cost their traffic. Unfused
attention writes its scores to memory and reads them again for the softmax, the dropout and the
second product; fused attention does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from orrery.models.ops import (
    COLLECTIVES,
    Batch,
    Op,
    attention_ops,
    causal_pairs,
    dense_ops,
    gemm,
)
from orrery.models.specs import WEIGHT_B, ModelSpec
from orrery.models.training.passes import backward_of
from orrery.models.training.plan import OPTIMISER_B, TrainingPlan
from orrery.models.weights import Weight, split_matrix, weights_of

OF_EXPERTS = (
    "router", "routing", "experts", "shared_up", "shared_activation", "shared_down", "dispatch",
    "combine", "expert_up", "expert_down",
)  # fmt: skip
OF_DENSE = ("up", "activation", "down")
# Which group a message goes over, by the name of its operation.
SLOT = {"dispatch": "ep", "combine": "ep", "ring": "cp"}
WEIGHT_PASS = ".weight"
SCORES = ("scores", "softmax", "score_dropout", "context")


class Times(NamedTuple):
    """An operation, and how often a pass does it."""

    op: Op
    times: float


class Message(NamedTuple):
    """A collective of a pass: over which group, of how many bytes, how often."""

    slot: str
    op: str
    size_B: float
    calls: float


class Work(msgspec.Struct, frozen=True):
    """The kernels and the messages of one pass.

    Messages that are `hidden` run beside kernels, those that are gradients of weights, and cost
    only what is left of them when these are done.
    """

    kernels: tuple[Times, ...]
    messages: tuple[Message, ...]
    hidden: tuple[Message, ...] = ()

    @property
    def flops(self) -> float:
        """Floating-point operations of matrix products and attention."""
        return float(sum(op.flops * count for op, count in self.kernels))


def _split(parts: Sequence[Times], beside: bool = False) -> Work:
    kernels = tuple(each for each in parts if each.op.kind not in COLLECTIVES)
    messages: list[Message] = []
    hidden: list[Message] = []
    for op, count in parts:
        if op.kind in COLLECTIVES:
            slot = SLOT.get(op.name.split(".")[0], "tp")
            # The gradient of a layer's input is summed while that of its weight is computed; a
            # gradient that is gathered is needed at once.
            covered = beside and op.name == "layer_reduce.back" and op.kind != "all_gather"
            told = Message(slot, op.kind, float(op.dims["bytes"]), count)
            (hidden if covered else messages).append(told)
    return Work(kernels, tuple(messages), tuple(hidden))


# -- one layer


def layer(model: ModelSpec, plan: TrainingPlan, moe: bool) -> list[Times]:
    """The forward pass of one layer, dense or with experts."""
    tokens, layout = plan.tokens(model), plan.layout
    wrong = OF_DENSE if moe else OF_EXPERTS
    outer = ("embedding", "embedding_reduce", "kv_write", "norms", "stage")
    exchanged = moe and layout.token_groups > 1 and not model.shared_experts
    found = [
        # One message after attention, one after the MLP, unless experts bring theirs.
        Times(op, (1 if exchanged else 2) if op.name == "layer_reduce" else 1)
        for op in dense_ops(model, tokens, layout)
        if op.name not in outer and op.name not in wrong
    ]
    kept = tokens / layout.tp if plan.sequence_parallel else tokens
    row_B = kept * model.hidden * WEIGHT_B[model.dtype]
    mask_B = kept * model.hidden * plan.dropout
    found += [
        Times(_traffic("norm", "norm", row_B, row_B, model), model.norms),
        # Dropout and addition to the residual are one kernel, as in Megatron-LM.
        Times(_traffic("norm", "residual", 2 * row_B, row_B + mask_B, model), 2),
    ]
    return found + _attention(model, plan)


def _traffic(kind: str, name: str, read_B: float, write_B: float, model: ModelSpec) -> Op:
    return Op(kind, name, read_B=read_B, write_B=write_B, dtype=model.dtype)


def _attention(model: ModelSpec, plan: TrainingPlan) -> list[Times]:
    length = plan.length(model)
    if plan.attention == "fused":
        batch = Batch(((length, 0),) * plan.micro_batch)
        return [
            Times(op, op.times / model.layers) for op in attention_ops(model, batch, plan.layout)
        ]
    width = WEIGHT_B[model.dtype]
    heads = model.heads // plan.tp
    query, value = head_widths(model)
    tokens = plan.tokens(model)
    scores = tokens * length * heads
    scores_B = scores * width
    first = Op(
        "gemm", "scores", flops=2 * scores * query, read_B=2 * tokens * heads * query * width,
        write_B=scores_B, dims={"m": length, "n": length, "k": query}, dtype=model.dtype,
    )  # fmt: skip
    second = Op(
        "gemm", "context", flops=2 * scores * value,
        read_B=scores_B + tokens * heads * value * width, write_B=tokens * heads * value * width,
        dims={"m": length, "n": value, "k": length}, dtype=model.dtype,
    )  # fmt: skip
    found = [first, _traffic("norm", "softmax", scores_B, scores_B, model)]
    if plan.dropout:
        found.append(_traffic("norm", "score_dropout", scores_B, scores_B + scores, model))
    return [Times(op, 1) for op in (*found, second)]


def head_widths(model: ModelSpec) -> tuple[int, int]:
    """(width of a head's query and key, of its value)."""
    if model.kv_lora_rank:
        return model.qk_nope_dim + model.qk_rope_dim, model.v_head_dim
    return model.head_dim, model.head_dim


# -- the ends of the pipeline


def embedding(model: ModelSpec, plan: TrainingPlan) -> list[Times]:
    """The lookup of the tokens, on the first stage."""
    ops = dense_ops(model, plan.tokens(model), plan.layout)
    return [Times(op, 1) for op in ops if op.name in ("embedding", "embedding_reduce")]


def head(model: ModelSpec, plan: TrainingPlan) -> list[Times]:
    """The last norm, the output matrix and the loss, on the last stage."""
    tokens, layout, wide = plan.tokens(model), plan.layout, WEIGHT_B["fp32"]
    kept = tokens / layout.tp if plan.sequence_parallel else tokens
    row_B = kept * model.hidden * WEIGHT_B[model.dtype]
    weight = Weight("head", "head", model.hidden, model.vocab, "vocab")
    logits_B = tokens * split_matrix(weight, model, layout)[1] * wide
    found = [
        _traffic("norm", "final_norm", row_B, row_B, model),
        gemm(model, weight, layout, tokens, 1),
        # The maximum, the sum, and the gradient, which is made with the loss.
        Op("loss", "loss", read_B=2 * logits_B, write_B=logits_B, dtype=model.dtype),
    ]
    if layout.tp > 1:
        found.append(
            Op("all_reduce", "loss_reduce", dims={"bytes": tokens * 3 * wide}, group=layout.tp)
        )
        if plan.sequence_parallel:
            size_B = tokens * model.hidden * WEIGHT_B[model.dtype]
            found.append(
                Op("all_gather", "head_gather", dims={"bytes": size_B}, group=layout.tp)
            )  # fmt: skip
    return [Times(op, 1) for op in found]


# -- passes


def forward(model: ModelSpec, plan: TrainingPlan, stage: int, chunk: int = 0) -> Work:
    """The forward pass of a micro-batch through a chunk of a stage."""
    return _split([*_layers(model, plan, stage, chunk), *_ends(model, plan, stage, chunk)])


def _layers(model: ModelSpec, plan: TrainingPlan, stage: int, chunk: int) -> list[Times]:
    found: list[Times] = []
    for moe, layers in enumerate(plan.kinds(model, stage, chunk)):
        if layers:
            found += [Times(op, n * layers) for op, n in layer(model, plan, bool(moe))]
    return found


def _ends(model: ModelSpec, plan: TrainingPlan, stage: int, chunk: int) -> list[Times]:
    found: list[Times] = []
    if stage == 0 and chunk == 0:
        found += embedding(model, plan)
    if stage == plan.pp - 1 and chunk == plan.chunks - 1:
        found += head(model, plan)
    return found


def again(model: ModelSpec, plan: TrainingPlan, stage: int, chunk: int = 0) -> list[Times]:
    """What is computed a second time before the backward pass."""
    if plan.recompute == "none":
        return []
    found = _layers(model, plan, stage, chunk)
    if plan.recompute == "full":
        return found
    return [
        each for each in found
        if each.op.name in SCORES or each.op.kind.startswith("attention")
    ]  # fmt: skip


def backward(
    model: ModelSpec, plan: TrainingPlan, stage: int, chunk: int = 0, part: str = "B"
) -> Work:
    """The backward pass, with what is computed again before it.

    part   "B": all of it; "input": without the gradients of weights; "weight": these alone
    """
    first = again(model, plan, stage, chunk)
    done = [*_layers(model, plan, stage, chunk), *_ends(model, plan, stage, chunk)]
    back = [Times(op, n) for each, n in done for op in backward_of(each)]
    if plan.attention == "unfused":
        # Both inputs of these products are activations: neither gradient is one of weights.
        names = {f"{name}{WEIGHT_PASS}": f"{name}.other" for name in SCORES}
        back = [
            Times(msgspec.structs.replace(op, name=names.get(op.name, op.name)), n)
            for op, n in back
        ]
    if part == "input":
        return _split([*first, *(each for each in back if not of_weights(each.op))])
    if part == "weight":
        return _split([each for each in back if of_weights(each.op)])
    return _split([*first, *back], beside=plan.overlap_tensor)


def of_weights(op: Op) -> bool:
    """Whether a kernel computes the gradient of a weight."""
    return op.name.endswith(WEIGHT_PASS)


# -- parameters and the optimiser


def params_of(model: ModelSpec, plan: TrainingPlan, stage: int) -> dict[str, float]:
    """Parameters on a device of a stage: of layers, of their experts, of embedding and head."""
    dense, moe = plan.kinds(model, stage)
    first, last = stage == 0, stage == plan.pp - 1
    found = {"layers": 0.0, "experts": 0.0, "ends": 0.0}
    for weight in weights_of(model):
        rows, columns = split_matrix(weight, model, plan.layout)
        each = float(rows * columns + (columns if weight.bias else 0))
        if weight.part == "embedding":
            # With tied matrices the last stage has a copy of the embedding as its output matrix.
            copy = weight.name == "embedding" and model.tied and last
            found["ends"] += each * (first or copy)
        elif weight.part in ("final", "head"):
            found["ends"] += each * last
        elif weight.split == "expert":
            found["experts"] += each * weight.copies // plan.ep * moe
        elif weight.name in OF_EXPERTS:
            found["layers"] += each * moe
        else:
            found["layers"] += each * (dense if weight.name in OF_DENSE else dense + moe)
    return found


def optimiser_bytes(plan: TrainingPlan, model: ModelSpec) -> float:
    """Traffic of the update for each parameter that a device updates, in bytes.

    The gradient is unscaled (with fp16, whose loss is scaled), its norm taken, and it is clipped;
    the update reads it with the states and the fp32 weight and writes these; the narrow weight is
    made; the gradient is zeroed.
    """
    wide, narrow = WEIGHT_B[plan.gradient_dtype], WEIGHT_B[model.dtype]
    unscale = 2 * wide if model.dtype == "fp16" else 0.0
    clip = wide + 2 * wide
    update = wide + 2 * (OPTIMISER_B[plan.optimizer] + 4.0)
    return unscale + clip + update + (4.0 + narrow if narrow < 4 else 0.0) + wide


# -- flops of a whole step


def model_flops(model: ModelSpec, plan: TrainingPlan, causal: bool = False) -> float:
    """Floating-point operations that a step of the whole batch needs, whatever is done again.

    Three times the forward pass: 2 for each parameter that multiplies and token, and 4 for each
    pair of tokens and element of the heads. As in the papers of Megatron-LM all pairs count;
    `causal` counts those that a causal mask leaves.
    """
    length = plan.length(model)
    query, value = head_widths(model)
    pairs = causal_pairs(length, 0) if causal else length * length
    attention = 2 * pairs * model.heads * (query + value) * model.layers
    return 3.0 * plan.global_batch * (2 * model.matmul_params * length + attention)


def hardware_flops(model: ModelSpec, plan: TrainingPlan) -> float:
    """Floating-point operations that all devices do in a step, recomputed ones included."""
    total = 0.0
    for stage in range(plan.pp):
        for chunk in range(plan.chunks):
            passes = forward(model, plan, stage, chunk), backward(model, plan, stage, chunk)
            total += sum(each.flops for each in passes)
    return total * plan.micro_batches * plan.dp * plan.cp * plan.tp


__all__ = [
    "Message", "Times", "Work", "backward", "forward", "hardware_flops", "head_widths",
    "model_flops", "of_weights", "optimiser_bytes", "params_of",
]  # fmt: skip
