"""The tensors of a transformer: which ones a shape has, where they come from, how they are kept.

A `Source` gives a tensor for a name and a shape. Names are ours: `embedding`, `3.q`, `3.k`, `3.v`,
`3.out`, `3.gate`, `3.up`, `3.down`, `3.norm_1`, `final_norm`, `head`, and the like. A matrix has
the shape (outputs, inputs) in a source. Matrices that are multiplied with the same input are kept
as one, and all are kept as (inputs, outputs): a BLAS on a CPU is then faster by a quarter for small
batches, and its time grows more evenly with the batch. Experts stay as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from orrery.base.errors import SpecError
from orrery.base.rand import key_of
from orrery.models.real.backend import torch
from orrery.models.specs import ModelSpec

Source = Callable[[str, tuple[int, ...]], Any]
EPSILON = 1e-5


class Norm:
    """An RMS norm, or a layer norm where there is a bias."""

    __slots__ = ("bias", "epsilon", "weight")

    def __init__(self, weight: Any, bias: Any, epsilon: float) -> None:
        self.weight, self.bias, self.epsilon = weight, bias, epsilon

    def __call__(self, x: Any) -> Any:
        nn = torch.nn.functional
        if self.bias is None:
            return nn.rms_norm(x, self.weight.shape, self.weight, self.epsilon)
        return nn.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


def parts_of(norm: Norm | None) -> list[Any]:
    """The tensors of a norm, if there is one."""
    parts = [] if norm is None else [norm.weight, norm.bias]
    return [each for each in parts if each is not None]


class Layer:
    """The tensors of one layer; None where the shape has none."""

    __slots__ = (
        "after_1", "after_2", "down", "down_bias", "expert_down", "expert_down_bias", "expert_up",
        "expert_up_bias", "k_norm", "k_up", "kv_down", "kv_norm", "norm_1", "norm_2", "out",
        "out_bias", "q_down", "q_norm", "q_up", "qkv", "qkv_bias", "router", "router_bias",
        "shared_down", "shared_up", "up", "up_bias", "v_up", "windowed",
    )  # fmt: skip

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, None)

    def tensors(self) -> Iterator[Any]:
        """Every tensor that is there."""
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Norm):
                yield from parts_of(value)
            elif value is not None and not isinstance(value, bool):
                yield value

    def expert(self, number: int) -> tuple[Any, Any, Any, Any]:
        """One expert's matrices and biases: up, down, and the biases of both."""
        biases = (self.expert_up_bias, self.expert_down_bias)
        up_bias, down_bias = (None if each is None else each[number] for each in biases)
        return self.expert_up[number], self.expert_down[number], up_bias, down_bias


def random_source(seed: int, device: str, dtype: Any) -> Source:
    """Random weights: each tensor has its own generator, so none depends on another's shape."""

    def draw(name: str, shape: tuple[int, ...]) -> Any:
        if "norm" in name.rpartition(".")[2]:
            fill = torch.zeros if name.endswith("bias") else torch.ones
            return fill(shape, device=device, dtype=dtype)
        generator = torch.Generator(device=device)
        generator.manual_seed(key_of(seed, name, "weights") >> 1)
        made = torch.randn(shape, generator=generator, device=device, dtype=dtype)
        # Outputs keep the size of inputs, so that deep models neither vanish nor blow up.
        return made.mul_(0.02 if len(shape) == 1 else shape[-1] ** -0.5)

    return draw


class _Reader:
    """Reads the tensors of a shape from a source, checked and placed."""

    def __init__(
        self, spec: ModelSpec, source: Source, device: str, dtype: Any, epsilon: float
    ) -> None:
        self.spec, self.source, self.device, self.dtype = spec, source, device, dtype
        self.epsilon = epsilon

    def one(self, name: str, *shape: int) -> Any:
        found = self.source(name, shape)
        if tuple(found.shape) != shape:
            raise SpecError(
                f"{self.spec.name}.{name}", f"has the shape {tuple(found.shape)}", f"give {shape}"
            )
        return found.to(self.device, self.dtype)

    def matrix(self, name: str, outputs: int, inputs: int) -> Any:
        """A matrix, turned."""
        return self.one(name, outputs, inputs).t().contiguous()

    def together(self, names: str, place: str, inputs: int, *outputs: int) -> Any:
        """Several matrices with one input, as one."""
        parts = [
            self.one(f"{place}{name}", rows, inputs)
            for name, rows in zip(names.split(), outputs, strict=True)
        ]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def norm(self, name: str, width: int) -> Norm:
        layered = self.spec.norm == "layer"
        bias = self.one(f"{name}_bias", width) if layered else None
        return Norm(self.one(name, width), bias, self.epsilon)

    # -- a layer

    def layer(self, number: int) -> Layer:
        spec, made, place = self.spec, Layer(), f"{number}."
        made.norm_1 = self.norm(f"{place}norm_1", spec.hidden)
        made.norm_2 = self.norm(f"{place}norm_2", spec.hidden)
        if spec.norms == 4:
            made.after_1 = self.norm(f"{place}norm_after_1", spec.hidden)
            made.after_2 = self.norm(f"{place}norm_after_2", spec.hidden)
        if spec.kv_lora_rank:
            self._latent(made, place)
        else:
            self._heads(made, place)
        if spec.experts and number >= spec.first_dense:
            self._experts(made, place)
        else:
            made.up, made.down = self._turned(place, spec.intermediate)
            if spec.mlp_bias:
                made.up_bias = self.one(f"{place}up_bias", made.up.shape[1])
                made.down_bias = self.one(f"{place}down_bias", spec.hidden)
        # Windowed layers are spread evenly, as in the models that mix both kinds.
        some, every = spec.window_layers, spec.layers
        made.windowed = (number + 1) * some // every > number * some // every
        return made

    def _heads(self, made: Layer, place: str) -> None:
        spec = self.spec
        own, shared = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        mixed = self.together("q k v", place, spec.hidden, own, shared, shared)
        made.qkv = mixed.t().contiguous()
        made.out = self.matrix(f"{place}out", spec.hidden, own)
        if spec.qkv_bias:
            made.qkv_bias = self.one(f"{place}qkv_bias", own + 2 * shared)
        if spec.out_bias:
            made.out_bias = self.one(f"{place}out_bias", spec.hidden)
        if spec.qk_norm:
            made.q_norm = Norm(self.one(f"{place}q_norm", spec.head_dim), None, self.epsilon)
            made.k_norm = Norm(self.one(f"{place}k_norm", spec.head_dim), None, self.epsilon)

    def _latent(self, made: Layer, place: str) -> None:
        spec = self.spec
        rank, heads = spec.kv_lora_rank, spec.heads
        width = heads * (spec.qk_nope_dim + spec.qk_rope_dim)
        if spec.q_lora_rank:
            made.q_down = self.matrix(f"{place}q_down", spec.q_lora_rank, spec.hidden)
            made.q_norm = Norm(self.one(f"{place}q_norm", spec.q_lora_rank), None, self.epsilon)
        made.q_up = self.matrix(f"{place}q", width, spec.q_lora_rank or spec.hidden)
        made.kv_down = self.matrix(f"{place}kv_down", rank + spec.qk_rope_dim, spec.hidden)
        made.kv_norm = Norm(self.one(f"{place}kv_norm", rank), None, self.epsilon)
        up = self.one(f"{place}kv_up", heads * (spec.qk_nope_dim + spec.v_head_dim), rank)
        up = up.view(heads, -1, rank)
        made.k_up = up[:, : spec.qk_nope_dim].contiguous()
        made.v_up = up[:, spec.qk_nope_dim :].contiguous()
        made.out = self.matrix(f"{place}out", spec.hidden, heads * spec.v_head_dim)
        if spec.out_bias:
            made.out_bias = self.one(f"{place}out_bias", spec.hidden)

    def _mlp(self, place: str, width: int) -> tuple[Any, Any]:
        hidden = self.spec.hidden
        if self.spec.gated:
            up = self.together("gate up", place, hidden, width, width)
        else:
            up = self.one(f"{place}up", width, hidden)
        return up, self.one(f"{place}down", hidden, width)

    def _turned(self, place: str, width: int) -> tuple[Any, Any]:
        up, down = self._mlp(place, width)
        return up.t().contiguous(), down.t().contiguous()

    def _experts(self, made: Layer, place: str) -> None:
        spec = self.spec
        made.router = self.one(f"{place}router", spec.experts, spec.hidden)
        if spec.router_bias:
            made.router_bias = self.one(f"{place}router_bias", spec.experts)
        width = spec.expert_intermediate
        pairs = [self._mlp(f"{place}experts.{n}.", width) for n in range(spec.experts)]
        made.expert_up = torch.stack([up for up, _ in pairs])
        made.expert_down = torch.stack([down for _, down in pairs])
        if spec.expert_bias:
            rows = made.expert_up.shape[1]
            made.expert_up_bias = self.one(f"{place}expert_up_bias", spec.experts, rows)
            made.expert_down_bias = self.one(f"{place}expert_down_bias", spec.experts, spec.hidden)
        if spec.shared_experts:
            shared = width * spec.shared_experts
            made.shared_up, made.shared_down = self._turned(f"{place}shared.", shared)


def build_layers(
    spec: ModelSpec, source: Source, device: str, dtype: Any, epsilon: float = EPSILON
) -> tuple[Any, Any, Norm | None, list[Layer], Norm, Any]:
    """(embedding, learned positions, norm after them, layers, final norm, head); None: absent."""
    reader = _Reader(spec, source, device, dtype, epsilon)
    embedding = reader.one("embedding", spec.vocab, spec.hidden)
    positions = reader.one("positions", spec.positions, spec.hidden) if spec.positions else None
    first = reader.norm("embedding_norm", spec.hidden) if spec.embedding_norm else None
    layers = [reader.layer(number) for number in range(spec.layers)]
    final = reader.norm("final_norm", spec.hidden)
    if not spec.tied:
        head = reader.matrix("head", spec.vocab, spec.hidden)
    else:
        # A turned copy pays on a CPU; on a GPU it would only take memory.
        head = embedding.t().contiguous() if device == "cpu" else embedding.t()
    return embedding, positions, first, layers, final, head


__all__ = ["EPSILON", "Layer", "Norm", "Source", "build_layers", "parts_of", "random_source"]
