"""From the key of an attention operator back to a model with that attention."""

from __future__ import annotations

import functools

from orrery.models.specs import ModelSpec
from orrery.systems.ops.dooly.operators import Key


@functools.lru_cache(maxsize=512)
def cache_spec(key: Key, layers: int = 2) -> ModelSpec:
    """A model with the attention of a key, for the engine's own cache to be built from."""
    whole = [tuple(int(d) for d in dims) for dims in key.dims]
    base = {"name": "cache", "layers": layers, "intermediate": 1, "vocab": 2}
    if not whole:
        return ModelSpec(**base, hidden=8, heads=1, head_dim=8)
    if key.op.endswith("write"):
        held = whole[0][1:]
        kv, width = held if len(held) == 2 else (1, held[0])
        return ModelSpec(**base, hidden=kv * width, heads=kv, head_dim=width)
    heads, width = whole[0]
    if len(whole) == 3:
        rank = whole[2][-1]
        return ModelSpec(
            **base, hidden=heads, heads=heads, kv_lora_rank=rank, qk_rope_dim=width - rank,
            qk_nope_dim=1, v_head_dim=1,
        )  # fmt: skip
    kv = whole[1][1] if len(whole[1]) == 3 else 1
    return ModelSpec(**base, hidden=heads * width, heads=heads, kv_heads=kv, head_dim=width)


@functools.lru_cache(maxsize=512)
def attention_spec(key: Key) -> ModelSpec:
    """The same with one layer, in the key's number type and with its window."""
    spec = cache_spec(key, 1)
    more = {"window": key.window, "window_layers": 1} if key.window else {}
    return spec.replace(dtype=key.dtype, **more)


__all__ = ["attention_spec", "cache_spec"]
