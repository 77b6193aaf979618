"""A model's tensors laid into an arena once, and a model over them in any process."""

from __future__ import annotations

import mmap
import warnings
from typing import Any

from orrery.base.errors import UsageError
from orrery.models.real.backend import DTYPES, pick_dtype, torch
from orrery.models.real.paged import PagedCache
from orrery.models.real.tensors import Layer, Norm
from orrery.models.real.transformer import Transformer
from orrery.models.specs import ModelSpec

ALIGN_B = 64
Entry = tuple[str, tuple[int, ...], int]  # name, shape, where it begins


def tensors_of(model: Transformer) -> dict[str, Any]:
    """Every tensor of a model by a name, in a fixed order."""
    found: dict[str, Any] = {"embedding": model.embedding, "head": model.head,
                             "positions": model.positions, "cos": model._cos,
                             "sin": model._sin}  # fmt: skip
    _norm(found, "first_norm", model.first_norm)
    _norm(found, "final_norm", model.final_norm)
    for number, layer in enumerate(model.layers):
        for slot in Layer.__slots__:
            value = getattr(layer, slot)
            if isinstance(value, Norm):
                _norm(found, f"{number}.{slot}", value)
            elif value is not None and not isinstance(value, bool):
                found[f"{number}.{slot}"] = value
    return {name: value for name, value in found.items() if value is not None}


def _norm(found: dict[str, Any], name: str, norm: Norm | None) -> None:
    if norm is not None:
        found[f"{name}.weight"], found[f"{name}.bias"] = norm.weight, norm.bias


def plan(model: Transformer) -> tuple[list[Entry], int]:
    """Where each tensor goes, and how many bytes there are in all."""
    entries, at = [], 0
    for name, value in tensors_of(model).items():
        entries.append((name, tuple(value.shape), at))
        at += -(-value.numel() * value.element_size() // ALIGN_B) * ALIGN_B
    return entries, at


def lay_down(model: Transformer, memory: mmap.mmap, entries: list[Entry]) -> None:
    """Copy a model's tensors into the arena."""
    for (_, shape, at), value in zip(entries, tensors_of(model).values(), strict=True):
        view_of(memory, model.dtype_name, shape, at).copy_(value)


def view_of(memory: mmap.mmap, dtype: str, shape: tuple[int, ...], at: int) -> Any:
    """A tensor over some of the arena: nothing is copied."""
    kind, count = pick_dtype(dtype), 1
    for size in shape:
        count *= size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an arena is writable, or meant not to be
        return torch.frombuffer(memory, dtype=kind, count=count, offset=at).view(shape)


def model_over(
    spec: ModelSpec, memory: mmap.mmap, entries: list[Entry], dtype: str, epsilon: float,
    max_context: int,
) -> Transformer:  # fmt: skip
    """A model whose tensors are the arena's."""
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is unknown; give one of {', '.join(DTYPES)}")
    found = {name: view_of(memory, dtype, tuple(shape), at) for name, shape, at in entries}
    model = Transformer.__new__(Transformer)
    model.spec, model.device = spec, "cpu"
    model.dtype_name, model.dtype, model.max_context = dtype, pick_dtype(dtype), max_context
    model.embedding, model.head = found["embedding"], found["head"]
    model.positions = found.get("positions")
    model.first_norm = _norm_from(found, "first_norm", epsilon)
    final = _norm_from(found, "final_norm", epsilon)
    assert final is not None
    model.final_norm, model.layers = final, []
    for number in range(spec.layers):
        layer = Layer()
        for slot in Layer.__slots__:
            norm = _norm_from(found, f"{number}.{slot}", epsilon)
            setattr(layer, slot, norm if norm is not None else found.get(f"{number}.{slot}"))
        some, every = spec.window_layers, spec.layers
        layer.windowed = (number + 1) * some // every > number * some // every
        model.layers.append(layer)
    model.latent = bool(spec.kv_lora_rank)
    model.width = spec.qk_nope_dim + spec.qk_rope_dim if model.latent else spec.head_dim
    model.scale = model.width**-0.5
    model._cos, model._sin = found["cos"], found["sin"]
    return model


def _norm_from(found: dict[str, Any], name: str, epsilon: float) -> Norm | None:
    weight = found.get(f"{name}.weight")
    return None if weight is None else Norm(weight, found.get(f"{name}.bias"), epsilon)


class SharedCache(PagedCache):
    """A paged cache over the arena; `written_B` counts what this process wrote into it."""

    def __init__(
        self, spec: ModelSpec, blocks: int, block_tokens: int, memory: mmap.mmap, at: int,
        dtype: str,
    ) -> None:  # fmt: skip
        self.blocks, self.block_tokens = blocks, block_tokens
        self._latent = bool(spec.kv_lora_rank)
        if self._latent:
            raise UsageError("phases over one arena keep keys and values; latent caches are not "
                             "supported, take a model without kv_lora_rank")  # fmt: skip
        shape = (spec.layers, blocks, block_tokens, spec.kv_heads, spec.head_dim)
        size = self.size_B(spec, blocks, block_tokens, dtype) // 2
        self.keys = view_of(memory, dtype, shape, at)
        self.values = view_of(memory, dtype, shape, at + size)
        self.written_B = 0

    @staticmethod
    def size_B(spec: ModelSpec, blocks: int, block_tokens: int, dtype: str) -> int:
        """Bytes of such a cache."""
        width = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}[dtype]
        return 2 * spec.layers * blocks * block_tokens * spec.kv_heads * spec.head_dim * width

    def write(self, layer: int, slots: Any, keys: Any, values: Any) -> None:
        super().write(layer, slots, keys, values)
        self.written_B += 2 * keys.numel() * keys.element_size()


__all__ = ["Entry", "SharedCache", "lay_down", "model_over", "plan", "tensors_of", "view_of"]
