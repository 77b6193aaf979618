"""The keys of model shapes by hand: what a reader of the engine's code would write down.

Nothing here uses the tracer. A rule gives (operator, dimensions, largest request size) for each
thing that a step computes; `points` are those of a sweep.
"""

from __future__ import annotations

GRID = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
        2048, 3072, 4096, 6144, 8192, 16384, 32768, 65536)  # fmt: skip
T = "*0"


def texts(*dims):
    return tuple(tuple(str(d) for d in each) for each in dims)


def turn(heads, half):
    """Rotary positions: four products, a difference, a sum, and the halves put together."""
    yield "mul.Tensor", texts((T, heads, half), (T, 1, half))
    for name in ("sub.Tensor", "add.Tensor", "cat.default"):
        yield name, texts((T, heads, half), (T, heads, half))


def heads_rules(m):
    d, both = m.head_dim, m.heads + m.kv_heads
    columns = (both + m.kv_heads) * d
    if m.qkv_bias:
        yield "addmm.default", texts((columns,), (T, m.hidden), (m.hidden, columns))
    else:
        yield "matmul.default", texts((T, m.hidden), (m.hidden, columns))
    if m.qk_norm:
        yield "rms_norm.default", texts((T, m.heads, d), (d,))
        yield "rms_norm.default", texts((T, m.kv_heads, d), (d,))
        yield "cat.default", texts((T, m.heads, d), (T, m.kv_heads, d))
    yield from turn(both, d // 2)
    yield "matmul.default", texts((T, m.heads * d), (m.heads * d, m.hidden))


def latent_rules(m):
    rank, rope, nope = m.kv_lora_rank, m.qk_rope_dim, m.qk_nope_dim
    width = m.heads * (nope + rope)
    yield "matmul.default", texts((T, m.hidden), (m.hidden, width))
    yield from turn(m.heads, rope // 2)
    yield "einsum.default", texts((T, m.heads, nope), (m.heads, nope, rank))
    yield "cat.default", texts((T, m.heads, rank), (T, m.heads, rope))
    yield "matmul.default", texts((T, m.hidden), (m.hidden, rank + rope))
    yield from turn(1, rope // 2)
    yield "rms_norm.default", texts((T, rank), (rank,))
    yield "cat.default", texts((T, 1, rank), (T, 1, rope))
    yield "einsum.default", texts((T, m.heads, rank), (m.heads, m.v_head_dim, rank))
    yield "reshape.default", texts((T, m.heads, m.v_head_dim))
    yield "matmul.default", texts((T, m.heads * m.v_head_dim), (m.heads * m.v_head_dim, m.hidden))


def mlp_rules(hidden, inner):
    yield "matmul.default", texts((T, hidden), (hidden, 2 * inner))
    yield "silu.default", texts((T, inner))
    yield "mul.Tensor", texts((T, inner), (T, inner))
    yield "matmul.default", texts((T, inner), (inner, hidden))


def expert_rules(m):
    """(operator, dimensions, how many rows for each token; None: as many as the data says)."""
    h, inner, k = m.hidden, m.expert_intermediate, m.experts_active
    yield "linear.default", texts((T, h), (m.experts, h)), 1
    yield f"topk.default of {k}", texts((T, m.experts)), 1
    yield "softmax.int", texts((T, k)), 1
    yield "argsort.stable", texts((T,)), k
    yield f"floor_divide.default of {k}", texts((T,)), k
    yield f"bincount.default of {m.experts}", texts((T,)), k
    yield "index.Tensor", texts((T, h), ("*1",)), k
    yield "linear.default", texts(("?", h), (2 * inner, h)), None
    yield "silu.default", texts(("?", inner)), None
    yield "mul.Tensor", texts(("?", inner), ("?", inner)), None
    yield "linear.default", texts(("?", inner), (h, inner)), None
    yield "cat.default", texts(("?", h)), k
    yield "index.Tensor", texts((T, 1), (T,)), k
    yield "mul.Tensor", texts((T, h), (T, 1)), k
    yield "zeros_like.default", texts((T, h)), 1
    yield "index_add_.default", texts((T, h), ("*1",), ("*1", h)), 1


def plain_rules(m, tokens, rows):
    """Every (operator, dimensions, largest size) of a model that is not attention."""
    yield "embedding.default", texts((m.vocab, m.hidden), (T,)), tokens
    half = (m.qk_rope_dim if m.kv_lora_rank else m.head_dim) // 2
    yield "index.Tensor", texts(("~", 1, half), (T,)), tokens
    yield "rms_norm.default", texts((T, m.hidden), (m.hidden,)), tokens
    yield "add.Tensor", texts((T, m.hidden), (T, m.hidden)), tokens
    for name, dims in latent_rules(m) if m.kv_lora_rank else heads_rules(m):
        yield name, dims, tokens
    if not m.experts or m.first_dense:
        for name, dims in mlp_rules(m.hidden, m.intermediate):
            yield name, dims, tokens
    if m.experts:
        for name, dims, each in expert_rules(m):
            yield name, dims, tokens * (1 if each is None else each)
    if m.shared_experts:
        for name, dims in mlp_rules(m.hidden, m.shared_experts * m.expert_intermediate):
            yield name, dims, tokens
    yield "index.Tensor", texts((T, m.hidden), ("*1",)), rows
    yield "matmul.default", texts((T, m.hidden), (m.hidden, m.vocab)), rows
    yield "argmax.default", texts((T, m.vocab)), rows


def state_rules(m, block=16):
    """The engine's methods on its cache, with the window of those layers."""
    window = m.window if m.window_layers else 0
    yield "Plan.__init__", (), window
    if m.kv_lora_rank:
        width = m.kv_lora_rank + m.qk_rope_dim
        yield "PagedCache.write", texts((block, width)), 0
        seen = texts((m.heads, width), (block, width), (block, m.kv_lora_rank))
        yield "Plan.attend", seen, window
    else:
        held = (m.kv_heads, m.head_dim)
        yield "PagedCache.write", texts((block, *held)), 0
        yield "Plan.attend", texts((m.heads, m.head_dim), (block, *held)), window


def wanted(m, sweep):
    """Every measurement that a model needs: (operator, dimensions, window, point)."""
    found = {}
    for name, dims, limit in plain_rules(m, sweep.step_tokens, sweep.max_sequences):
        for size in [*(n for n in GRID if n < limit), limit]:
            found["aten." + name, dims, 0, (size,)] = None
    for name, dims, window in state_rules(m):
        for point in sweep.batches():
            found[name, dims, window, point] = None
    return found


def named(key):
    """The operator of a key as the rules name it: with the number that it is called with."""
    if any(name in key.op for name in ("topk", "floor_divide", "bincount")):
        return f"{key.op} of {next(text for text in key.scalars if text.isdigit())}"
    return key.op
