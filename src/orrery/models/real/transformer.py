"""A decoder-only transformer of any `ModelSpec`, over a paged cache and a ragged batch.

Grouped-query, multi-head and latent attention (MLA, in its absorbed form), dense and
mixture-of-experts MLPs, RMS or layer norms. One step takes prompt chunks and decodes together: all
tokens lie in one flat dimension, so that each matrix is multiplied once a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orrery.base.errors import SpecError, UsageError
from orrery.models.real.attend import Plan
from orrery.models.real.backend import pick_device, pick_dtype, torch
from orrery.models.real.paged import PagedCache, Piece
from orrery.models.real.tensors import (
    EPSILON,
    Layer,
    Source,
    build_layers,
    parts_of,
    random_source,
)
from orrery.models.specs import ModelSpec

ROPE_BASE = 10_000.0


class Transformer:
    """Weights and arithmetic. `Transformer.random(spec, seed=7)`, or from a `Source` of tensors.

    rope_base, epsilon   constants of a model that its shape does not tell
    """

    def __init__(
        self, spec: ModelSpec, source: Source, *, device: str = "auto", dtype: str = "fp32",
        rope_base: float = ROPE_BASE, epsilon: float = EPSILON, max_context: int | None = None,
    ) -> None:  # fmt: skip
        refuse_unknown(spec)
        self.spec, self.device = spec, pick_device(device)
        self.dtype_name, self.dtype = dtype, pick_dtype(dtype)
        self.max_context = min(spec.max_context, max_context or spec.max_context)
        whole = build_layers(spec, source, self.device, self.dtype, epsilon)
        self.embedding, self.positions, self.first_norm = whole[:3]
        self.layers, self.final_norm, self.head = whole[3:]
        self.latent = bool(spec.kv_lora_rank)
        self.width = spec.qk_nope_dim + spec.qk_rope_dim if self.latent else spec.head_dim
        self.scale = self.width**-0.5
        self._make_rotations(rope_base)

    @classmethod
    def random(cls, spec: ModelSpec, *, seed: int = 0, **options: Any) -> Transformer:
        """A model with random weights: the same ones for a seed, a device kind and a type."""
        device, dtype = pick_device(options.get("device", "auto")), options.get("dtype", "fp32")
        source = random_source(seed, device, pick_dtype(dtype))
        return cls(spec, source, **{**options, "device": device})

    def _make_rotations(self, base: float) -> None:
        width = self.spec.qk_rope_dim if self.latent else self.spec.head_dim
        powers = torch.arange(0, width, 2, dtype=torch.float64) / width
        angles = torch.outer(torch.arange(self.max_context, dtype=torch.float64), base**-powers)
        self._cos = angles.cos().to(self.device, self.dtype)[:, None]
        self._sin = angles.sin().to(self.device, self.dtype)[:, None]

    def new_cache(
        self, blocks: int, block_tokens: int = 16, *, spare: bool = False
    ) -> PagedCache:  # fmt: skip
        """Memory for so many blocks; `spare`: and one that nobody is given."""
        return PagedCache(
            self.spec, blocks, block_tokens, device=self.device, dtype=self.dtype, spare=spare
        )

    @property
    def bytes(self) -> int:
        """Bytes of all weights."""
        mine = [self.embedding, self.positions, None if self.spec.tied else self.head]
        mine += [*parts_of(self.first_norm), *parts_of(self.final_norm)]
        tensors = [each for each in mine if each is not None]
        tensors += [each for layer in self.layers for each in layer.tensors()]
        return sum(each.numel() * each.element_size() for each in tensors)

    # -- one step

    def step(
        self, pieces: Sequence[Piece], cache: PagedCache, plans: tuple[Any, Any] | None = None
    ) -> Any:
        """Logits [sampled pieces, vocabulary] of a step; the cache is written.

        `plans` are given instead of pieces when a padded step is recorded: one for layers that see
        everything, and one for those with a window.
        """
        if plans is None and not pieces:
            return torch.empty(0, self.spec.vocab, device=self.device, dtype=self.dtype)
        if plans is None:
            self._refuse(pieces, cache)
        with torch.inference_mode():
            if plans is None:
                plan = Plan(pieces, cache)
                windowed = plan
                if self.spec.window:
                    windowed = Plan(pieces, cache, window=self.spec.window)
            else:
                plan, windowed = plans
            x = torch.nn.functional.embedding(plan.tokens, self.embedding)
            if self.positions is not None:
                x = x + self.positions[plan.positions]
            if self.first_norm is not None:
                x = self.first_norm(x)
            turn = (self._cos[plan.positions], self._sin[plan.positions])
            for number, layer in enumerate(self.layers):
                sees = windowed if layer.windowed else plan
                made = self._attention(number, layer, layer.norm_1(x), sees, cache, turn)
                x = x + (layer.after_1(made) if layer.after_1 else made)
                made = self._mlp(layer, layer.norm_2(x))
                x = x + (layer.after_2(made) if layer.after_2 else made)
            return self.final_norm(x[plan.ends]) @ self.head

    def greedy(self, pieces: Sequence[Piece], cache: PagedCache) -> list[int]:
        """The likeliest next token of each sampled piece."""
        logits = self.step(pieces, cache)
        return logits.argmax(-1).tolist() if len(logits) else []

    def _refuse(self, pieces: Sequence[Piece], cache: PagedCache) -> None:
        size = cache.block_tokens
        for number, piece in enumerate(pieces):
            length = piece.start + len(piece.tokens)
            if not len(piece.tokens) or piece.start < 0:
                raise UsageError(f"pieces[{number}]: {len(piece.tokens)} tokens at {piece.start}")
            if length > self.max_context:
                raise UsageError(
                    f"pieces[{number}]: {length} tokens, the context is {self.max_context}"
                )
            if len(piece.table) * size < length:
                raise UsageError(
                    f"pieces[{number}]: {len(piece.table)} blocks of {size} for {length} tokens"
                )
            if not 0 <= min(piece.tokens) <= max(piece.tokens) < self.spec.vocab:
                raise UsageError(
                    f"pieces[{number}]: a token beyond the vocabulary of {self.spec.vocab}"
                )

    # -- attention

    def _attention(
        self, number: int, layer: Layer, x: Any, plan: Plan, cache: PagedCache, turn: Any
    ) -> Any:
        if self.latent:
            return self._latent_attention(number, layer, x, plan, cache, turn)
        spec, width = self.spec, self.spec.head_dim
        mixed = times(x, layer.qkv, layer.qkv_bias)
        both = spec.heads + spec.kv_heads
        rotated = mixed[:, : both * width].view(-1, both, width)
        v = mixed[:, both * width :].view(-1, spec.kv_heads, width)
        if layer.q_norm is not None:
            q, k = layer.q_norm(rotated[:, : spec.heads]), layer.k_norm(rotated[:, spec.heads :])
            rotated = torch.cat([q, k], 1)
        if spec.rope:
            rotated = rotate(rotated, *turn)
        q, k = rotated[:, : spec.heads], rotated[:, spec.heads :]
        cache.write(number, plan.slots, k, v)
        seen = plan.attend(q, cache.keys[number], cache.values[number], self.scale)
        flat = seen.reshape(-1, spec.heads * width)
        return times(flat, layer.out, layer.out_bias)

    def _latent_attention(
        self, number: int, layer: Layer, x: Any, plan: Plan, cache: PagedCache, turn: Any
    ) -> Any:
        """MLA with the key matrix moved to the queries: all heads share one key, the latent."""
        spec = self.spec
        rank, heads = spec.kv_lora_rank, spec.heads
        if layer.q_down is not None:
            x_q = layer.q_norm(x @ layer.q_down)
        else:
            x_q = x
        q = (x_q @ layer.q_up).view(-1, heads, self.width)
        plain, turned = q[..., : spec.qk_nope_dim], rotate(q[..., spec.qk_nope_dim :], *turn)
        q = torch.cat([torch.einsum("thn,hnr->thr", plain, layer.k_up), turned], -1)
        down = x @ layer.kv_down
        key = rotate(down[:, None, rank:], *turn)
        kept = torch.cat([layer.kv_norm(down[:, :rank])[:, None], key], -1)
        cache.write(number, plan.slots, kept, None)
        seen = plan.attend(q, cache.keys[number], cache.values[number], self.scale)
        values = torch.einsum("thr,hvr->thv", seen, layer.v_up)
        return times(values.reshape(-1, heads * spec.v_head_dim), layer.out, layer.out_bias)

    # -- MLPs

    def _mlp(self, layer: Layer, x: Any) -> Any:
        if layer.router is None:
            return self._dense(x, layer.up, layer.down, layer.up_bias, layer.down_bias)
        made = self._experts(layer, x)
        if layer.shared_up is not None:
            made = made + self._dense(x, layer.shared_up, layer.shared_down)
        return made

    def _dense(
        self, x: Any, up: Any, down: Any, up_bias: Any = None, down_bias: Any = None
    ) -> Any:  # fmt: skip
        return times(self._gate(times(x, up, up_bias)), down, down_bias)

    def _gate(self, hidden: Any) -> Any:
        nn = torch.nn.functional
        if not self.spec.gated:
            return nn.gelu(hidden)
        gate, up = hidden.chunk(2, -1)
        return nn.silu(gate) * up

    def _experts(self, layer: Layer, x: Any) -> Any:
        """Each token goes to its best experts, weighted by a softmax over those."""
        nn, spec = torch.nn.functional, self.spec
        scores, chosen = nn.linear(x, layer.router, layer.router_bias).topk(spec.experts_active)
        weights = scores.softmax(-1).flatten()
        order = chosen.flatten().argsort(stable=True)
        rows = order // spec.experts_active
        counts = torch.bincount(chosen.flatten(), minlength=spec.experts)
        sorted_x = x[rows]
        if x.device.type == "cuda" and x.dtype == torch.bfloat16 and layer.expert_up_bias is None:
            ends = counts.cumsum(0).to(torch.int32)
            hidden = nn.grouped_mm(sorted_x, layer.expert_up.transpose(1, 2), offs=ends)
            made = nn.grouped_mm(self._gate(hidden), layer.expert_down.transpose(1, 2), offs=ends)
        else:
            parts, first = [], 0
            for expert, count in enumerate(counts.tolist()):
                if count:
                    part = sorted_x[first : first + count]
                    up, down, up_bias, down_bias = layer.expert(expert)
                    hidden = self._gate(nn.linear(part, up, up_bias))
                    parts.append(nn.linear(hidden, down, down_bias))
                    first += count
            made = torch.cat(parts)
        made = made * weights[order, None].to(made.dtype)
        return torch.zeros_like(x).index_add_(0, rows, made)


def times(x: Any, matrix: Any, bias: Any = None) -> Any:
    """A matrix (inputs, outputs) times each row, plus a bias where there is one."""
    return x @ matrix if bias is None else torch.addmm(bias, x, matrix)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Rotary positions: the two halves of a head turn against each other."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def refuse_unknown(spec: ModelSpec) -> None:
    """Name what a shape has that this transformer does not compute."""
    if spec.sinks:
        raise SpecError(f"{spec.name}.sinks", "attention sinks are not computed", "turn them off")
    if spec.norms not in (2, 4):
        raise SpecError(f"{spec.name}.norms", f"{spec.norms} norms a layer", "give 2 or 4")
    rotated = spec.qk_rope_dim if spec.kv_lora_rank else spec.head_dim
    if spec.rope and rotated % 2:
        raise SpecError(f"{spec.name}.head_dim", f"{rotated} is odd", "rotation needs pairs")


__all__ = ["Transformer", "refuse_unknown", "rotate"]
