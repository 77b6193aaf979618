"""Tiny models, and the obvious slow transformer that the real one must equal."""

from __future__ import annotations

import math

import numpy as np

from orrery.base.rand import Stream
from orrery.models.ports import Batch, Scheduler
from orrery.models.real import Transformer
from orrery.models.real.jobs import make_job
from orrery.models.specs import ModelSpec
from orrery.parts import Fraction, Whole

BASE = {"layers": 2, "hidden": 32, "heads": 4, "intermediate": 48, "vocab": 97, "max_context": 192}
MLA = {"kv_lora_rank": 12, "qk_nope_dim": 8, "qk_rope_dim": 4, "v_head_dim": 6}
MOE = {"experts": 5, "experts_active": 2, "expert_intermediate": 20}
SHAPES = {
    "gqa": {"kv_heads": 2, "tied": True},
    "mha": {},
    "mqa": {"kv_heads": 1, "qkv_bias": True, "out_bias": True},
    "qk_norm": {"kv_heads": 2, "qk_norm": True, "head_dim": 16},
    "moe": {"kv_heads": 2, **MOE},
    "moe_bias": {**MOE, "router_bias": True, "expert_bias": True},
    "mla": MLA,
    "mla_moe": {**MLA, "q_lora_rank": 10, **MOE, "shared_experts": 1, "first_dense": 1},
    "gpt2": {
        "gated": False, "norm": "layer", "qkv_bias": True, "out_bias": True, "mlp_bias": True,
        "rope": False, "positions": 192, "embedding_norm": True,
    },
    "window": {"kv_heads": 2, "window": 5, "window_layers": 1},
    "four_norms": {"kv_heads": 2, "norms": 4},
}  # fmt: skip


def tiny(name: str = "gqa", **more) -> ModelSpec:
    return ModelSpec(name=f"tiny-{name}", **{**BASE, **SHAPES[name], **more})


def model_of(name: str = "gqa", seed: int = 3) -> Transformer:
    return Transformer.random(tiny(name), seed=seed, dtype="fp64", device="cpu")


class Reference:
    """One sequence at a time, no cache, no batch, no fused matrix: NumPy, as one would write it."""

    def __init__(self, spec: ModelSpec, seed: int = 3) -> None:
        import torch

        from orrery.models.real.tensors import random_source

        source = random_source(seed, "cpu", torch.float64)
        self.spec, self._get = spec, lambda name, *shape: source(name, shape).numpy()

    def norm(self, x, name):
        width = x.shape[-1]
        if self.spec.norm == "layer" and not name.endswith(("q_norm", "k_norm", "kv_norm")):
            x = x - x.mean(-1, keepdims=True)
            bias = self._get(f"{name}_bias", width)
        else:
            bias = 0.0
        size = np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return x / size * self._get(name, width) + bias

    def turn(self, x):
        """Rotary positions on [token, head, width]."""
        half = x.shape[-1] // 2
        angles = np.arange(len(x))[:, None] * 10_000.0 ** (-np.arange(half) / half)
        z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None]
        return np.concatenate([z.real, z.imag], -1)

    def attention(self, i, x):
        s = self.spec
        return self.latent(i, x) if s.kv_lora_rank else self.heads(i, x)

    def heads(self, i, x):
        s, d = self.spec, self.spec.head_dim
        own, kv = s.heads * d, s.kv_heads * d
        q = x @ self._get(f"{i}.q", own, s.hidden).T
        k, v = (x @ self._get(f"{i}.{n}", kv, s.hidden).T for n in "kv")
        if s.qkv_bias:
            bias = self._get(f"{i}.qkv_bias", own + 2 * kv)
            q, k, v = q + bias[:own], k + bias[own : own + kv], v + bias[own + kv :]
        q, k, v = (m.reshape(len(x), -1, d) for m in (q, k, v))
        if s.qk_norm:
            q, k = self.norm(q, f"{i}.q_norm"), self.norm(k, f"{i}.k_norm")
        if s.rope:
            q, k = self.turn(q), self.turn(k)
        k, v = (np.repeat(m, s.heads // s.kv_heads, 1) for m in (k, v))
        out = self.look(i, q, k, v).reshape(len(x), own) @ self._get(f"{i}.out", s.hidden, own).T
        return out + (self._get(f"{i}.out_bias", s.hidden) if s.out_bias else 0)

    def latent(self, i, x):
        s = self.spec
        nope, rope, rank = s.qk_nope_dim, s.qk_rope_dim, s.kv_lora_rank
        x_q = x
        if s.q_lora_rank:
            down = x @ self._get(f"{i}.q_down", s.q_lora_rank, s.hidden).T
            x_q = self.norm(down, f"{i}.q_norm")
        q = x_q @ self._get(f"{i}.q", s.heads * (nope + rope), x_q.shape[1]).T
        q = q.reshape(len(x), s.heads, -1)
        q = np.concatenate([q[..., :nope], self.turn(q[..., nope:])], -1)
        down = x @ self._get(f"{i}.kv_down", rank + rope, s.hidden).T
        up = self.norm(down[:, :rank], f"{i}.kv_norm") @ (
            self._get(f"{i}.kv_up", s.heads * (nope + s.v_head_dim), rank).T
        )
        up = up.reshape(len(x), s.heads, -1)
        turned = np.repeat(self.turn(down[:, None, rank:]), s.heads, 1)
        k = np.concatenate([up[..., :nope], turned], -1)
        seen = self.look(i, q, k, up[..., nope:]).reshape(len(x), -1)
        return seen @ self._get(f"{i}.out", s.hidden, seen.shape[1]).T

    def look(self, i, q, k, v):
        s, n = self.spec, len(q)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
        back = np.arange(n)[:, None] - np.arange(n)
        hidden = back < 0
        if s.window and (i + 1) * s.window_layers // s.layers > i * s.window_layers // s.layers:
            hidden |= back >= s.window
        scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)

    def dense(self, place, x, width, up_bias=0.0, down_bias=0.0):
        s = self.spec
        up = x @ self._get(f"{place}up", width, s.hidden).T
        down = self._get(f"{place}down", s.hidden, width).T
        if not s.gated:
            up = up + up_bias
            erf = np.vectorize(math.erf)
            return (up * 0.5 * (1 + erf(up / math.sqrt(2)))) @ down + down_bias
        gate = x @ self._get(f"{place}gate", width, s.hidden).T
        if np.ndim(up_bias):
            gate, up = gate + up_bias[:width], up + up_bias[width:]
        return (gate / (1 + np.exp(-gate)) * up) @ down + down_bias

    def mlp(self, i, x):
        s = self.spec
        if not s.experts or i < s.first_dense:
            biases = ()
            if s.mlp_bias:
                rows = s.intermediate * (2 if s.gated else 1)
                biases = self._get(f"{i}.up_bias", rows), self._get(f"{i}.down_bias", s.hidden)
            return self.dense(f"{i}.", x, s.intermediate, *biases)
        scores = x @ self._get(f"{i}.router", s.experts, s.hidden).T
        if s.router_bias:
            scores = scores + self._get(f"{i}.router_bias", s.experts)
        width, out = s.expert_intermediate, np.zeros_like(x)
        for t, row in enumerate(scores):
            best = np.argsort(-row)[: s.experts_active]
            shares = np.exp(row[best] - row[best].max())
            for e, share in zip(best, shares / shares.sum(), strict=True):
                biases = ()
                if s.expert_bias:
                    biases = (
                        self._get(f"{i}.expert_up_bias", s.experts, 2 * width)[e],
                        self._get(f"{i}.expert_down_bias", s.experts, s.hidden)[e],
                    )
                made = self.dense(f"{i}.experts.{e}.", x[t : t + 1], width, *biases)
                out[t] += share * made[0]
        if s.shared_experts:
            out += self.dense(f"{i}.shared.", x, width * s.shared_experts)
        return out

    def logits(self, tokens):
        """The logits after each token."""
        s = self.spec
        x = self._get("embedding", s.vocab, s.hidden)[list(tokens)]
        if s.positions:
            x = x + self._get("positions", s.positions, s.hidden)[: len(tokens)]
        if s.embedding_norm:
            x = self.norm(x, "embedding_norm")
        for i in range(s.layers):
            made = self.attention(i, self.norm(x, f"{i}.norm_1"))
            x = x + (self.norm(made, f"{i}.norm_after_1") if s.norms == 4 else made)
            made = self.mlp(i, self.norm(x, f"{i}.norm_2"))
            x = x + (self.norm(made, f"{i}.norm_after_2") if s.norms == 4 else made)
        head = self._get("embedding" if s.tied else "head", s.vocab, s.hidden)
        return self.norm(x, "final_norm") @ head.T

    def greedy(self, prompt, count):
        """The likeliest continuation, the whole context computed anew for each token."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(np.argmax(self.logits(tokens)[-1])))
        return tuple(tokens[len(prompt) :])


class Chaos(Scheduler):
    """Legal and mad: random order, random chunks, random preemptions, anybody let in."""

    seed: Whole = 0
    preempts: Fraction = 0.1

    def start(self):
        self._rng = Stream(self.seed, "chaos", "schedule")

    def next_batch(self, view):
        rng = self._rng
        work, preempt = [], []
        running, waiting = list(view.running), list(view.waiting)
        rng.shuffle(running)
        rng.shuffle(waiting)
        for seq in running:
            if rng.random() < self.preempts:
                preempt.append(seq)
            elif rng.random() < 0.8:
                work.append((seq, rng.randint(1, seq.missing)))
        for seq in waiting:
            if rng.random() < 0.5:
                start = view.hit(seq).blocks * view.block_tokens
                work.append((seq, rng.randint(1, seq.length - start)))
        free = view.free_blocks
        stuck = all(view.blocks_for(s.computed + n) - s.blocks_held > free for s, n in work)
        if stuck and not preempt:
            # Somebody must move, or the engine rightly complains.
            preempt = running[:1]
            work = [] if running else [(seq, 1) for seq in waiting[:1]]
        return Batch(work, preempt)


def some_jobs(which: int, count: int, *, vocab: int = 97, size: int = 4, most: int = 16, **options):
    """Jobs of which many share a beginning; some prompts are whole blocks, some are equal."""
    rng = Stream(which, "toys", "jobs")
    trunk = [rng.randrange(vocab) for _ in range(5 * size)]
    jobs = []
    for i in range(count):
        shared = trunk[: rng.choice((0, 0, size, 2 * size, 3 * size, 5 * size))]
        own = [rng.randrange(vocab) for _ in range(rng.choice((0, 1, 3, size, 2 * size + 1)))]
        prompt = (shared + own) or [rng.randrange(vocab)]
        jobs.append(make_job(i, prompt, rng.randint(1, most), block_tokens=size, **options))
    return jobs
