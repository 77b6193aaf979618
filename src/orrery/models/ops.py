"""What one step of a model does on one device: the list of its operations, with flops and bytes.

The list follows from the shape, the parallel layout and what is in the batch. Matrix products and
attention count their flops exactly; operations on vectors count bytes alone, because bytes decide
what they cost. Every count may also be a numpy array of the same question for many batch sizes, so
that a whole curve is made in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from orrery.base.errors import SpecError
from orrery.models.specs import WEIGHT_B, ModelSpec
from orrery.models.weights import ONE_DEVICE, Layout, Weight, split_matrix

Number = Any  # an int, a float or an array of them

# Weights kept in these are widened before they are multiplied; the others multiply as they are.
_WIDENED = ("int4", "mxfp4")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
VECTOR = ("norm", "rope", "activation", "embedding", "routing", "sample", "loss", "optimiser")


class Op(msgspec.Struct, frozen=True):
    """One operation on one device, done `times` over in the step.

    kind      gemm, attention_prefill, attention_decode, moe, a vector operation, a collective
    flops     of one time; read_B and write_B are its traffic with the device's memory
    dims      what it is looked up by in a measured table: m, n, k and so on
    dtype     in which it multiplies
    group     over how many devices a collective goes; `bytes` of its dims is the whole message
    """

    kind: str
    name: str
    flops: Number = 0
    read_B: Number = 0
    write_B: Number = 0
    dims: dict[str, Number] = {}
    dtype: str = "bf16"
    times: int = 1
    group: int = 1

    @property
    def bytes(self) -> Number:
        """Traffic with memory, of one time."""
        return self.read_B + self.write_B


class Batch(msgspec.Struct, frozen=True):
    """What a step works on: prompt chunks (new tokens, tokens already cached), and decodes.

    decode_kv is the number of tokens that the decodes attend to, all together.
    """

    prefill: tuple[tuple[int, int], ...] = ()
    decodes: int = 0
    decode_kv: int = 0

    def __post_init__(self) -> None:
        for i, chunk in enumerate(self.prefill):
            if len(chunk) != 2 or chunk[0] < 1 or chunk[1] < 0:
                fix = "give (new tokens >= 1, cached tokens >= 0)"
                raise SpecError(f"batch.prefill.{i}", f"{chunk!r} is refused", fix)
        if self.decodes < 0:
            raise SpecError("batch.decodes", f"{self.decodes} is refused", "give 0 or more")
        if self.decode_kv < 0 or (self.decode_kv > 0 and not self.decodes):
            fix = "give the context of the decodes, 0 without any"
            raise SpecError("batch.decode_kv", f"{self.decode_kv} is refused", fix)

    @property
    def tokens(self) -> int:
        """Tokens that pass through the layers."""
        return sum(new for new, _ in self.prefill) + self.decodes

    @property
    def sequences(self) -> int:
        """Sequences whose last token goes through the output matrix."""
        return len(self.prefill) + self.decodes


def gemm(
    model: ModelSpec, weight: Weight, layout: Layout, rows: Number, times: int | None = None
) -> Op:
    """A product of activations with one weight."""
    k, n = split_matrix(weight, model, layout)
    kept = model.dtype_of(weight)
    wide = WEIGHT_B[model.dtype]
    narrow = wide if kept in _WIDENED else WEIGHT_B[kept]
    return Op(
        "gemm",
        weight.name,
        flops=2 * rows * n * k,
        read_B=rows * k * narrow + n * k * WEIGHT_B[kept],
        write_B=rows * n * wide,
        dims={"m": rows, "n": n, "k": k},
        dtype=model.dtype if kept in _WIDENED else kept,
        times=weight.layers if times is None else times,
    )


def vector(kind: str, name: str, elements_in: Number, elements_out: Number, model: ModelSpec,
           times: int = 1) -> Op:  # fmt: skip
    """An operation on vectors, which costs its traffic."""
    width = WEIGHT_B[model.dtype]
    return Op(
        kind, name, read_B=elements_in * width, write_B=elements_out * width,
        dims={"elements": elements_in + elements_out}, dtype=model.dtype, times=times,
    )  # fmt: skip


def collective(kind: str, name: str, size_B: Number, group: int, times: int, dtype: str) -> Op:
    """A message between the devices of a group; `size_B` is the whole vector, as NCCL counts it."""
    return Op(kind, name, dims={"bytes": size_B}, dtype=dtype, times=times, group=group)


# -- what depends on the number of tokens alone


def dense_ops(model: ModelSpec, tokens: Number, layout: Layout = ONE_DEVICE) -> list[Op]:
    """All operations of the layers except attention, for so many tokens."""
    layout.check_fits(model)
    width, hidden, layers = WEIGHT_B[model.dtype], model.hidden, model.layers
    named = {weight.name: weight for weight in model.weights()}
    # With sequence parallelism each device of a tensor group keeps a share of the vectors.
    kept = tokens / layout.tp if layout.sequence_parallel else tokens
    ops = [vector("embedding", "embedding", tokens * hidden, tokens * hidden, model)]
    if model.norms:
        ops.append(
            vector("norm", "norms", 2 * kept * hidden, 2 * kept * hidden, model,
                   model.norms * layers)
        )  # fmt: skip
    ops += [
        gemm(model, weight, layout, tokens)
        for weight in named.values()
        if weight.matrix and weight.part == "attention"
    ]
    ops += _positions(model, tokens, layout)
    dense = layers - model.moe_layers
    if dense:
        ops += _mlp_ops(model, named, "", model.intermediate, tokens, layout, dense)
    if model.moe_layers:
        ops += _moe_ops(model, named, tokens, layout)
    size_B = tokens * hidden * width
    # One message after attention; one after the MLP, unless all-to-all brings the experts' work.
    exchanged = model.moe_layers if layout.token_groups > 1 and not model.shared_experts else 0
    ops += _reduce(model, layout, "layer_reduce", size_B, 2 * layers - exchanged)
    ops += _reduce(model, layout, "embedding_reduce", size_B, 1)
    if layout.pp > 1:
        sent_B = size_B / layout.tp if layout.sequence_parallel else size_B
        ops.append(collective("send", "stage", sent_B, 2, layout.pp - 1, model.dtype))
    return ops


def _reduce(model: ModelSpec, layout: Layout, name: str, size_B: Number, times: int) -> list[Op]:
    if layout.tp == 1 or not times:
        return []
    if layout.sequence_parallel:
        return [
            collective(kind, name, size_B, layout.tp, times, model.dtype)
            for kind in ("reduce_scatter", "all_gather")
        ]
    return [collective("all_reduce", name, size_B, layout.tp, times, model.dtype)]


def _positions(model: ModelSpec, tokens: Number, layout: Layout) -> list[Op]:
    """Rotary positions (and norms) of queries and keys, and the write into the KV cache."""
    heads, layers = model.heads // layout.tp, model.layers
    if model.kv_lora_rank:
        turned = heads * model.qk_rope_dim + model.qk_rope_dim
        stored = model.kv_lora_rank + model.qk_rope_dim
    else:
        turned = (heads + max(1, model.kv_heads // layout.tp)) * model.head_dim
        stored = 2 * max(1, model.kv_heads // layout.tp) * model.head_dim
    ops = [vector("rope", "kv_write", tokens * stored, tokens * stored, model, layers)]
    if model.rope:
        ops.append(vector("rope", "rope", tokens * turned, tokens * turned, model, layers))
    if model.qk_norm:
        ops.append(vector("norm", "qk_norm", tokens * turned, tokens * turned, model, layers))
    if model.kv_lora_rank:
        small = model.kv_lora_rank + model.q_lora_rank
        ops.append(vector("norm", "latent_norm", tokens * small, tokens * small, model, layers))
    return ops


def _mlp_ops(
    model: ModelSpec, named: dict[str, Weight], prefix: str, width: int, tokens: Number,
    layout: Layout, layers: int,
) -> list[Op]:  # fmt: skip
    part = width // layout.tp
    inner = tokens * part * (2 if model.gated else 1)
    return [
        gemm(model, named[f"{prefix}up"], layout, tokens, layers),
        vector("activation", f"{prefix}activation", inner, tokens * part, model, layers),
        gemm(model, named[f"{prefix}down"], layout, tokens, layers),
    ]


def experts_touched(model: ModelSpec, tokens: Number, layout: Layout = ONE_DEVICE) -> Number:
    """How many of a device's experts are expected to get a token, when routing is even.

    >>> from orrery.models.specs import spec
    >>> experts_touched(spec("Mixtral-8x7B"), 1)
    2.0
    """
    missed = (1.0 - model.experts_active / model.experts) ** (tokens * layout.token_groups)
    return model.experts / layout.ep * (1.0 - missed)


def _moe_ops(
    model: ModelSpec, named: dict[str, Weight], tokens: Number, layout: Layout
) -> list[Op]:  # fmt: skip
    layers, hidden, width = model.moe_layers, model.hidden, WEIGHT_B[model.dtype]
    up, down = named["expert_up"], named["expert_down"]
    up_rows, up_columns = split_matrix(up, model, layout)
    down_rows, down_columns = split_matrix(down, model, layout)
    one = up_rows * up_columns + down_rows * down_columns
    kept = model.dtype_of(up)
    # Even routing: every expert gets the same number of the tokens of all groups.
    rows = tokens * layout.token_groups * model.experts_active / layout.ep
    touched = experts_touched(model, tokens, layout)
    inner_B = rows * (up_columns + down_rows) * width
    ops = [
        gemm(model, named["router"], layout, tokens, layers),
        vector("routing", "routing", tokens * model.experts, tokens * model.experts_active * 2,
               model, layers),
        Op(
            "moe", "experts",
            flops=2 * rows * one,
            read_B=touched * one * WEIGHT_B[kept] + rows * hidden * width + inner_B,
            write_B=rows * hidden * width + inner_B,
            dims={
                "tokens": tokens * layout.token_groups, "hidden": hidden,
                "intermediate": model.expert_intermediate, "active": model.experts_active,
                "experts": model.experts, "tp": layout.expert_tp, "ep": layout.ep,
            },
            dtype=model.dtype if kept in _WIDENED else kept,
            times=layers,
        ),
    ]  # fmt: skip
    if model.shared_experts:
        inner = model.shared_experts * model.expert_intermediate
        ops += _mlp_ops(model, named, "shared_", inner, tokens, layout, layers)
    if layout.token_groups > 1:
        # Each device sends its share of the tokens to the experts of each, and gets them back.
        size_B = tokens / layout.tp * model.experts_active * hidden * width
        ops += [
            collective("all_to_all", name, size_B, layout.ep, layers, model.dtype)
            for name in ("dispatch", "combine")
        ]
    return ops


# -- attention


def causal_pairs(new: Number, past: Number, window: int = 0) -> Number:
    """Pairs of a query and a key that a causal chunk looks at, in a window if there is one.

    >>> causal_pairs(3, 0), causal_pairs(2, 5), causal_pairs(4, 0, window=2)
    (6, 13, 7)
    """
    if not window:
        return new * past + new * (new + 1) // 2
    # Query i sees min(past + i, window) keys; the first `rising` queries see less than a window.
    rising = np.clip(window - past, 0, new)
    pairs = rising * past + rising * (rising + 1) // 2 + (new - rising) * window
    return pairs if isinstance(pairs, np.ndarray) else int(pairs)


def attention_shape(model: ModelSpec, layout: Layout, decode: bool) -> tuple[int, float, int]:
    """(flops of a pair, bytes of a cached token, elements of a query and its output), a layer."""
    heads, kept = model.heads // layout.tp, WEIGHT_B[model.kv_dtype or model.dtype]
    if not model.kv_lora_rank:
        dim = model.head_dim
        kv = 2 * max(1, model.kv_heads // layout.tp) * dim
        return 4 * heads * dim, kv * kept, 2 * heads * dim
    latent, rope = model.kv_lora_rank, model.qk_rope_dim
    if decode:  # the up-projections are absorbed: heads look straight into the latent cache
        return 2 * heads * (2 * latent + rope), (latent + rope) * kept, heads * (2 * latent + rope)
    query = model.qk_nope_dim + rope
    flops = 2 * heads * (query + model.v_head_dim)
    row = heads * (query + model.v_head_dim)
    return flops, row * kept, row


def attention_ops(model: ModelSpec, batch: Batch, layout: Layout = ONE_DEVICE) -> list[Op]:
    """Attention over the cache: one operation for all chunks, one for all decodes, by window."""
    layout.check_fits(model)
    ops: list[Op] = []
    width = WEIGHT_B[model.dtype]
    spans = [(model.layers - model.window_layers, 0), (model.window_layers, model.window)]
    for layers, window in [span for span in spans if span[0]]:
        tail = "_window" if window else ""
        if batch.prefill:
            flops, kv_B, row = attention_shape(model, layout, decode=False)
            new = sum(n for n, _ in batch.prefill)
            pairs = sum(causal_pairs(n, p, window) for n, p in batch.prefill)
            reach = sum(n + (min(p, window) if window else p) for n, p in batch.prefill)
            ops.append(
                Op(
                    "attention_prefill", "prefill" + tail, flops=flops * pairs / layout.cp,
                    read_B=reach * kv_B + new / layout.cp * row * width / 2,
                    write_B=new / layout.cp * row * width / 2,
                    dims={"pairs": pairs, "new": new, "window": window}, dtype=model.dtype,
                    times=layers,
                )
            )  # fmt: skip
        if batch.decodes:
            flops, kv_B, row = attention_shape(model, layout, decode=True)
            seen = min(batch.decode_kv, batch.decodes * window) if window else batch.decode_kv
            ops.append(
                Op(
                    "attention_decode", "decode" + tail, flops=flops * seen / layout.cp,
                    read_B=seen / layout.cp * kv_B + batch.decodes * row * width / 2,
                    write_B=batch.decodes * row * width / 2,
                    dims={"batch": batch.decodes, "kv": seen, "window": window},
                    dtype=model.dtype, times=layers,
                )
            )  # fmt: skip
    if layout.cp > 1:
        ops += _context_messages(model, batch, layout)
    return ops


def _context_messages(model: ModelSpec, batch: Batch, layout: Layout) -> list[Op]:
    """Keys and values pass round the ring; decodes merge their partial outputs."""
    ops, kv_B = [], attention_shape(model, layout, decode=False)[1]
    if batch.prefill:
        reach = sum(n + p for n, p in batch.prefill)
        ops.append(
            collective("all_gather", "ring", reach * kv_B, layout.cp, model.layers, model.dtype)
        )
    if batch.decodes:
        size_B = batch.decodes * model.heads // layout.tp * model.head_dim * WEIGHT_B[model.dtype]
        ops.append(collective("all_reduce", "merge", size_B, layout.cp, model.layers, model.dtype))
    return ops


# -- the output, and whole steps


def head_ops(model: ModelSpec, rows: Number, layout: Layout = ONE_DEVICE) -> list[Op]:
    """The last norm, the output matrix and the choice of a token, for so many sequences."""
    weight = Weight("head", "head", model.hidden, model.vocab, "vocab")
    wide = WEIGHT_B[model.dtype]
    ops = [
        vector("norm", "final_norm", rows * model.hidden, rows * model.hidden, model),
        gemm(model, weight, layout, rows, 1),
        vector("sample", "sample", rows * model.vocab * 2, rows, model),
    ]
    if layout.tp > 1:
        size_B = rows * model.vocab * wide
        ops.append(collective("all_gather", "logits", size_B, layout.tp, 1, model.dtype))
    return ops


def forward_ops(
    model: ModelSpec,
    prefill: Sequence[tuple[int, int]] = (),
    decodes: int = 0,
    decode_kv: int = 0,
    layout: Layout = ONE_DEVICE,
) -> list[Op]:
    """One step of a serving engine, on each device of the layout."""
    batch = Batch(tuple((int(n), int(p)) for n, p in prefill), decodes, decode_kv)
    if not batch.tokens:
        return []
    # Context parallelism splits the tokens of prompts; a decode is one token and stays whole.
    tokens = sum(new for new, _ in batch.prefill) / layout.cp + decodes
    tokens = int(tokens) if float(tokens).is_integer() else tokens
    return [
        *dense_ops(model, tokens, layout),
        *attention_ops(model, batch, layout),
        *head_ops(model, batch.sequences, layout),
    ]


def totals(ops: Sequence[Op]) -> dict[str, float]:
    """Flops, bytes and bytes of messages of all operations together."""
    return {
        "flops": float(sum(op.flops * op.times for op in ops)),
        "bytes": float(sum(op.bytes * op.times for op in ops)),
        "message_B": float(sum(op.dims.get("bytes", 0) * op.times for op in ops)),
    }


__all__ = [
    "COLLECTIVES", "VECTOR", "Batch", "Op", "attention_ops", "attention_shape", "causal_pairs",
    "collective", "dense_ops", "experts_touched", "forward_ops", "gemm", "head_ops", "totals",
    "vector",
]  # fmt: skip
