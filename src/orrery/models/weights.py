"""The list of a model's weights and how a parallel layout spreads them over devices.

Everything that counts parameters, bytes of weights or flops of matrix products starts from this one
list, so the three cannot disagree.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from orrery.base.errors import SpecError
from orrery.world.spec import Spec

if TYPE_CHECKING:
    from orrery.models.specs import ModelSpec

Degree = Annotated[int, Meta(ge=1, le=65536)]
Split = Literal["none", "column", "row", "vocab", "expert", "qkv"]
Part = Literal["embedding", "attention", "mlp", "norm", "final", "head"]


class Layout(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is spread: tensor, pipeline, expert and context parallel degrees.

    tp   each layer's matrices are split over so many devices
    pp   layers are split into so many stages
    ep   experts are spread over so many devices; with ep <= tp the experts live inside the tensor
         group (tp / ep devices share each expert), with ep > tp over ep / tp groups of their own
         requests, which exchange tokens
    cp   the tokens of a sequence are split over so many devices
    sequence_parallel   norms work on a share of the tokens (Megatron's sequence parallelism)
    """

    label: ClassVar[str] = "layout"
    error: ClassVar[type[SpecError]] = SpecError
    tp: Degree = 1
    pp: Degree = 1
    ep: Degree = 1
    cp: Degree = 1
    sequence_parallel: bool = False

    def _check(self) -> None:
        if self.tp % self.ep and self.ep % self.tp:
            fix = f"give a divisor or a multiple of tp ({self.tp})"
            raise self._refuse("ep", f"{self.ep} is refused", fix)

    @property
    def expert_tp(self) -> int:
        """Over how many devices one expert is split."""
        return max(1, self.tp // self.ep)

    @property
    def token_groups(self) -> int:
        """How many tensor groups bring their tokens to the same experts."""
        return max(1, self.ep // self.tp)

    def check_fits(self, model: ModelSpec) -> None:
        """Refuse a layout that does not divide the model."""
        if model.heads % self.tp:
            fix = f"give a divisor of {model.heads} heads"
            raise self._refuse("tp", f"{self.tp} does not divide {model.name}", fix)
        if max(model.kv_heads, self.tp) % min(model.kv_heads, self.tp):
            fix = f"give a divisor or multiple of {model.kv_heads} KV heads"
            raise self._refuse("tp", f"{self.tp} does not suit {model.name}", fix)
        if model.intermediate % self.tp:
            fix = f"give a divisor of intermediate ({model.intermediate})"
            raise self._refuse("tp", f"{self.tp} does not divide {model.name}", fix)
        if self.pp > model.layers:
            fix = f"give at most {model.layers} stages"
            raise self._refuse("pp", f"{self.pp} stages for {model.name}", fix)
        if self.ep > 1 and (not model.experts or model.experts % self.ep):
            fix = f"give a divisor of {model.experts} experts" if model.experts else "give 1"
            raise self._refuse("ep", f"{self.ep} does not suit {model.name}", fix)
        if model.experts and model.expert_intermediate % self.expert_tp:
            fix = f"give a divisor of expert_intermediate ({model.expert_intermediate})"
            raise self._refuse("tp", f"an expert split {self.expert_tp} ways", fix)


ONE_DEVICE = Layout()


class Weight(msgspec.Struct, frozen=True):
    """One matrix (or vector, with one row) of a model.

    rows, columns   what goes in and what comes out; `kv_columns` of the columns belong to KV heads
    bias            it has one value for each column besides
    copies          how many of it a layer has (experts)
    layers          how many layers have it
    split           how tensor parallelism cuts it; "none": every device has it whole
    quantised       whether a quantised model keeps it in the narrow dtype
    """

    name: str
    part: Part
    rows: int
    columns: int
    split: Split = "none"
    layers: int = 1
    copies: int = 1
    bias: bool = False
    kv_columns: int = 0
    quantised: bool = True

    @property
    def matrix(self) -> bool:
        """Whether it multiplies activations, rather than scales or shifts them."""
        return self.rows > 1

    @property
    def each(self) -> int:
        """Parameters of one copy in one layer."""
        return self.rows * self.columns + (self.columns if self.bias else 0)

    @property
    def total(self) -> int:
        """Parameters in the whole model."""
        return self.each * self.copies * self.layers


@functools.lru_cache(maxsize=256)
def weights_of(model: ModelSpec) -> tuple[Weight, ...]:
    """Every weight of a model."""
    norm_rows = 2 if model.norm == "layer" else 1
    found = [Weight("embedding", "embedding", model.vocab, model.hidden, "vocab")]
    if model.positions:
        found.append(Weight("positions", "embedding", model.positions, model.hidden))
    if model.embedding_norm:
        found.append(Weight("embedding_norm", "embedding", 1, model.hidden * norm_rows))
    if model.norms:
        width = model.hidden * norm_rows * model.norms
        found.append(Weight("norms", "norm", 1, width, layers=model.layers))
    found += _latent_attention(model) if model.kv_lora_rank else _attention(model)
    dense = model.layers - model.moe_layers
    if dense:
        found += _mlp(model, "", model.intermediate, dense)
    if model.moe_layers:
        found += _experts(model)
    found.append(Weight("final_norm", "final", 1, model.hidden * norm_rows))
    if not model.tied:
        found.append(Weight("head", "head", model.hidden, model.vocab, "vocab"))
    return tuple(found)


def _attention(model: ModelSpec) -> list[Weight]:
    width, kv = model.heads * model.head_dim, 2 * model.kv_heads * model.head_dim
    found = [
        Weight(
            "qkv", "attention", model.hidden, width + kv, "qkv", model.layers,
            bias=model.qkv_bias, kv_columns=kv,
        ),
        Weight(
            "out", "attention", width, model.hidden, "row", model.layers, bias=model.out_bias
        ),
    ]  # fmt: skip
    if model.qk_norm:
        found.append(Weight("qk_norm", "norm", 1, 2 * model.head_dim, layers=model.layers))
    if model.sinks:
        found.append(Weight("sinks", "attention", 1, model.heads, "column", model.layers))
    return found


def _latent_attention(model: ModelSpec) -> list[Weight]:
    query = model.heads * (model.qk_nope_dim + model.qk_rope_dim)
    latent, layers = model.kv_lora_rank, model.layers
    found = []
    if model.q_lora_rank:
        found += [
            Weight("q_down", "attention", model.hidden, model.q_lora_rank, layers=layers),
            Weight("q_norm", "norm", 1, model.q_lora_rank, layers=layers),
            Weight("q_up", "attention", model.q_lora_rank, query, "column", layers),
        ]
    else:
        found.append(Weight("q", "attention", model.hidden, query, "column", layers))
    up = model.heads * (model.qk_nope_dim + model.v_head_dim)
    return [
        *found,
        Weight("kv_down", "attention", model.hidden, latent + model.qk_rope_dim, layers=layers),
        Weight("kv_norm", "norm", 1, latent, layers=layers),
        Weight("kv_up", "attention", latent, up, "column", layers),
        Weight("out", "attention", model.heads * model.v_head_dim, model.hidden, "row", layers),
    ]


def _mlp(model: ModelSpec, prefix: str, width: int, layers: int) -> list[Weight]:
    up = 2 * width if model.gated else width
    bias = model.mlp_bias
    return [
        Weight(f"{prefix}up", "mlp", model.hidden, up, "column", layers, bias=bias),
        Weight(f"{prefix}down", "mlp", width, model.hidden, "row", layers, bias=bias),
    ]


def _experts(model: ModelSpec) -> list[Weight]:
    layers, width = model.moe_layers, model.expert_intermediate
    up, bias = (2 * width if model.gated else width), model.expert_bias
    found = [
        Weight(
            "router", "mlp", model.hidden, model.experts, layers=layers,
            bias=model.router_bias, quantised=False,
        ),
        Weight(
            "expert_up", "mlp", model.hidden, up, "expert", layers, model.experts, bias=bias
        ),
        Weight(
            "expert_down", "mlp", width, model.hidden, "expert", layers, model.experts, bias=bias
        ),
    ]  # fmt: skip
    if model.shared_experts:
        found += _mlp(model, "shared_", model.shared_experts * width, layers)
    return found


# -- on one device


def split_matrix(weight: Weight, model: ModelSpec, layout: Layout) -> tuple[int, int]:
    """(rows, columns) of the slice of one copy that a device holds."""
    rows, columns = weight.rows, weight.columns
    if weight.split == "column":
        columns //= layout.tp
    elif weight.split == "row":
        rows //= layout.tp
    elif weight.split == "vocab":  # the vocabulary is padded to a multiple
        if weight.part == "head":
            columns = -(-columns // layout.tp)
        else:
            rows = -(-rows // layout.tp)
    elif weight.split == "expert":
        if weight.name == "expert_up":
            columns //= layout.expert_tp
        else:
            rows //= layout.expert_tp
    elif weight.split == "qkv":
        # Where there are fewer KV heads than devices, each device keeps a whole one.
        kv = 2 * max(1, model.kv_heads // layout.tp) * model.head_dim
        columns = (columns - weight.kv_columns) // layout.tp + kv
    return rows, columns


def stage_layers(layers: int, pp: int, stage: int) -> tuple[int, int]:
    """The first layer of a stage and the one after its last; early stages take the rest."""
    base, more = divmod(layers, pp)
    first = stage * base + min(stage, more)
    return first, first + base + (stage < more)


def on_device(model: ModelSpec, layout: Layout, stage: int = 0) -> list[tuple[Weight, int]]:
    """Each weight with the number of its parameters on a device of this stage."""
    layout.check_fits(model)
    found = []
    for weight in weights_of(model):
        rows, columns = split_matrix(weight, model, layout)
        bias = columns if weight.bias else 0
        copies = weight.copies // (layout.ep if weight.split == "expert" else 1)
        count = _layers_here(model, layout, stage, weight)
        # With tied matrices the last stage has a copy of the embedding as its output matrix.
        last = stage == layout.pp - 1
        if weight.name == "embedding" and model.tied and last and stage:
            count = 1
        if count:
            found.append((weight, (rows * columns + bias) * copies * count))
    return found


def _layers_here(model: ModelSpec, layout: Layout, stage: int, weight: Weight) -> int:
    if weight.part == "embedding":
        return int(stage == 0)
    if weight.part in ("final", "head"):
        return int(stage == layout.pp - 1)
    first, end = stage_layers(model.layers, layout.pp, stage)
    if weight.layers == model.layers:
        return end - first
    dense_here = max(0, min(end, model.layers - model.moe_layers) - first)
    # What not all layers have belongs either to the dense ones in front or to those with experts.
    of_experts = weight.split == "expert" or weight.name in ("router", "shared_up", "shared_down")
    return end - first - dense_here if of_experts else dense_here


__all__ = ["ONE_DEVICE", "Layout", "Weight", "on_device", "split_matrix", "stage_layers"]
