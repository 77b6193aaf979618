"""Shapes of language models: how many parameters, how many bytes, how much KV cache a token needs.

`spec("Llama-3.1-8B")` gives a model of the catalogue (`models.toml`, each with its source), and
`from_huggingface(config)` reads the `config.json` of any other one of the same families.
"""

from __future__ import annotations

import functools
import re
import tomllib
from importlib import resources
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from orrery.base.errors import SpecError, did_you_mean
from orrery.models.weights import ONE_DEVICE, Layout, Weight, on_device, weights_of
from orrery.world.hardware import DTYPE_B
from orrery.world.spec import Spec, Text, brief, build

Size = Annotated[int, Meta(ge=1, le=1 << 32)]
Some = Annotated[int, Meta(ge=0, le=1 << 32)]

# Elements of microscaled fp4 share one byte of scale for each 32 (OCP Microscaling formats, v1.0).
WEIGHT_B = {**DTYPE_B, "mxfp4": 0.5 + 1 / 32}


class ModelSpec(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of one decoder-only transformer.

    layers, hidden, heads, intermediate, vocab   as in every configuration file
    kv_heads                 heads whose keys and values are kept; 0 stands for `heads`
    head_dim                 width of a head; 0 stands for hidden / heads
    tied                     the output matrix is the embedding matrix
    gated                    the MLP has three matrices (SwiGLU, GeGLU), not two
    norm, norms              "rms" or "layer" (which has a bias), how many a layer has
    qkv_bias, out_bias, mlp_bias, router_bias, expert_bias   which matrices have one
    qk_norm, sinks, embedding_norm, positions                small extra parameters
    window, window_layers    so many layers see only the last `window` tokens
    kv_lora_rank, q_lora_rank, qk_nope_dim, qk_rope_dim, v_head_dim   latent attention (MLA)
    experts, experts_active, shared_experts, expert_intermediate, first_dense   mixture of experts
    dtype                    of activations and of all that is not quantised
    linear_dtype, expert_dtype   of quantised matrices; empty: as `dtype`
    kv_dtype                 of the KV cache; empty: as `dtype`
    """

    label: ClassVar[str] = "model"
    error: ClassVar[type[SpecError]] = SpecError
    name: Annotated[str, Meta(min_length=1, max_length=120)]
    layers: Size
    hidden: Size
    heads: Size
    intermediate: Size
    vocab: Size
    kv_heads: Some = 0
    head_dim: Some = 0
    tied: bool = False
    gated: bool = True
    norm: Literal["rms", "layer"] = "rms"
    norms: Some = 2
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    embedding_norm: bool = False
    positions: Some = 0
    rope: bool = True
    window: Some = 0
    window_layers: Some = 0
    q_lora_rank: Some = 0
    kv_lora_rank: Some = 0
    qk_nope_dim: Some = 0
    qk_rope_dim: Some = 0
    v_head_dim: Some = 0
    experts: Some = 0
    experts_active: Some = 0
    shared_experts: Some = 0
    expert_intermediate: Some = 0
    first_dense: Some = 0
    router_bias: bool = False
    expert_bias: bool = False
    dtype: str = "bf16"
    linear_dtype: str = ""
    expert_dtype: str = ""
    kv_dtype: str = ""
    max_context: Size = 4096
    source: Text = ""

    def _prepare(self) -> None:
        put = msgspec.structs.force_setattr
        whole = all(isinstance(each, int) for each in (self.heads, self.hidden))
        if self.kv_heads == 0:
            put(self, "kv_heads", self.heads)
        if self.head_dim == 0 and whole and self.heads > 0 and not self.kv_lora_rank:
            if self.hidden % self.heads:
                raise self._refuse(
                    "head_dim", f"hidden {self.hidden} is no multiple of heads {self.heads}",
                    "give head_dim",
                )  # fmt: skip
            put(self, "head_dim", self.hidden // self.heads)

    def _check(self) -> None:
        for field in ("dtype", "linear_dtype", "expert_dtype", "kv_dtype"):
            value = getattr(self, field)
            if value not in WEIGHT_B and (value or field == "dtype"):
                raise self._refuse(field, f"unknown dtype {value!r}", did_you_mean(value, WEIGHT_B))
        if self.heads % self.kv_heads:
            fix = f"give a divisor of heads ({self.heads})"
            raise self._refuse("kv_heads", f"{self.kv_heads} is refused", fix)
        if bool(self.window) != bool(self.window_layers) or self.window_layers > self.layers:
            raise self._refuse(
                "window_layers", f"{self.window_layers} with window {self.window}",
                f"give both, and at most {self.layers} layers",
            )  # fmt: skip
        if self.kv_lora_rank:
            for field in ("qk_nope_dim", "qk_rope_dim", "v_head_dim"):
                if not getattr(self, field):
                    raise self._refuse(field, "is missing", "latent attention needs it")
        if self.experts:
            if not 1 <= self.experts_active <= self.experts:
                raise self._refuse(
                    "experts_active", f"{self.experts_active} of {self.experts} experts",
                    "give at least 1 and at most all",
                )  # fmt: skip
            if not self.expert_intermediate:
                raise self._refuse("expert_intermediate", "is missing", "experts need it")
            if self.first_dense > self.layers:
                raise self._refuse(
                    "first_dense", f"{self.first_dense} of {self.layers} layers", "give fewer"
                )
        elif self.experts_active or self.shared_experts or self.first_dense:
            raise self._refuse("experts", "is 0", "give the number of experts")

    # -- what kind it is

    @property
    def attention(self) -> str:
        """MHA, GQA, MQA or MLA."""
        if self.kv_lora_rank:
            return "MLA"
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"

    @property
    def moe_layers(self) -> int:
        """How many layers have experts."""
        return self.layers - self.first_dense if self.experts else 0

    # -- parameters

    def weights(self) -> tuple[Weight, ...]:
        """Every matrix and vector, with how often it occurs and how it is split."""
        return weights_of(self)

    @property
    def params(self) -> int:
        """All parameters.

        >>> spec("Llama-3.1-8B").params
        8030261248
        """
        return sum(each.total for each in self.weights())

    @property
    def active_params(self) -> int:
        """The parameters that one token meets: of the experts, only those chosen for it."""
        unused = self.experts - self.experts_active
        return self.params - sum(
            each.total // self.experts * unused for each in self.weights() if each.split == "expert"
        )

    @property
    def matmul_params(self) -> int:
        """The parameters that multiply one token's vector: active, without embeddings and vectors.

        Twice this is the number of flops of a token, without attention. A tied output matrix
        multiplies too, so it counts although it is no parameter of its own.
        """
        total = self.vocab * self.hidden
        for each in self.weights():
            if each.matrix and each.part in ("attention", "mlp"):
                share = self.experts_active if each.split == "expert" else each.copies
                total += each.rows * each.columns * share * each.layers
        return total

    # -- bytes

    def dtype_of(self, weight: Weight) -> str:
        """How a weight is kept."""
        if weight.split == "expert":
            return self.expert_dtype or self.linear_dtype or self.dtype
        quantised = weight.matrix and weight.part in ("attention", "mlp") and weight.quantised
        return (self.linear_dtype or self.dtype) if quantised else self.dtype

    def weight_bytes(self, layout: Layout = ONE_DEVICE) -> int:
        """Bytes of the weights on the fullest device of a layout.

        >>> spec("Llama-2-7B").weight_bytes() / spec("Llama-2-7B").params
        2.0
        """
        return max(
            round(
                sum(n * WEIGHT_B[self.dtype_of(weight)] for weight, n in on_device(self, layout, s))
            )
            for s in range(layout.pp)
        )

    def params_on_device(self, layout: Layout = ONE_DEVICE, stage: int = 0) -> int:
        """Parameters on each device of one pipeline stage."""
        if not 0 <= stage < layout.pp:
            raise SpecError("stage", f"{stage} is refused", f"give 0 to {layout.pp - 1}")
        return sum(n for _, n in on_device(self, layout, stage))

    def kv_elements_per_token(self, layout: Layout = ONE_DEVICE) -> int:
        """KV-cache elements that a device keeps for one token, over its layers."""
        layers = -(-self.layers // layout.pp)
        if self.kv_lora_rank:
            return layers * (self.kv_lora_rank + self.qk_rope_dim)  # every device keeps it whole
        return layers * 2 * max(1, self.kv_heads // layout.tp) * self.head_dim

    def kv_bytes_per_token(self, layout: Layout = ONE_DEVICE) -> int:
        """KV-cache bytes that a device keeps for one token of context.

        Windowed layers count in full, as engines without a hybrid cache keep them.

        >>> spec("Llama-3.1-8B").kv_bytes_per_token()
        131072
        """
        return round(self.kv_elements_per_token(layout) * WEIGHT_B[self.kv_dtype or self.dtype])

    def kv_tokens_that_fit(
        self,
        memory_B: float,
        layout: Layout = ONE_DEVICE,
        *,
        share: float = 0.9,
        other_B: float = 0,
    ) -> int:
        """Tokens of context that fit beside the weights when an engine may fill `share` of memory.

        0.9 is vLLM's default (`gpu_memory_utilization`); `other_B` is what activations and the
        runtime need. The context of a context-parallel group is spread over its devices.
        """
        if not 0 < share <= 1:
            raise SpecError("share", f"{share!r} is refused", "give a fraction in (0, 1]")
        free_B = memory_B * share - self.weight_bytes(layout) - other_B
        return max(0, int(free_B // self.kv_bytes_per_token(layout))) * layout.cp


# -- the catalogue


@functools.cache
def _catalogue() -> dict[str, dict[str, Any]]:
    text = resources.files("orrery.models").joinpath("models.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


_TAILS = re.compile(r"-(hf|instruct|chat|base|it|thinking|distill|\d{4}|v\d\.\d)$")


def _folded(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.rpartition("/")[2].strip().lower())


@functools.cache
def _index() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, data in _catalogue().items():
        for each in (name, *data.get("aliases", ())):
            found[_folded(each)] = name
    return found


def spec(name: str) -> ModelSpec:
    """A model of the catalogue; the organisation and endings such as -Instruct do not matter.

    >>> spec("meta-llama/Llama-3.1-8B-Instruct").name
    'Llama-3.1-8B'
    """
    if not isinstance(name, str) or not name.strip():
        raise SpecError("model", f"{brief(name)} is refused", "give a name, such as Llama-3.1-8B")
    index, wanted = _index(), _folded(name)
    while wanted not in index:
        shorter = _TAILS.sub("", wanted)
        if shorter == wanted:
            shown = {_folded(each): each for each in _catalogue()}
            fix = did_you_mean(wanted, shown)
            for folded, proper in shown.items():
                fix = fix.replace(f'"{folded}"', f'"{proper}"')
            raise SpecError("model", f"unknown model {brief(name)}", fix)
        wanted = shorter
    return _spec(index[wanted])


@functools.cache
def _spec(name: str) -> ModelSpec:
    data = {k: v for k, v in _catalogue()[name].items() if k not in ("aliases", "params")}
    return build(ModelSpec, {"name": name, **data}, f"models.{name}")


def spec_names() -> tuple[str, ...]:
    """The names of the catalogue."""
    return tuple(_catalogue())


def published_params(name: str) -> int | None:
    """The parameter count that the publisher gives, or None when it is only a rounded one."""
    found = _catalogue()[spec(name).name].get("params")
    return None if found is None else int(found)


__all__ = ["WEIGHT_B", "Layout", "ModelSpec", "published_params", "spec", "spec_names"]
