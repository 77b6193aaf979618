"""A tiny transformer that is trained to count down, and queues before a real engine of it.

A prompt ends with a number n; the answer is n - 1, n - 2, … 0, and 0 ends it. So the model itself
decides how long an answer is, and a test can choose that by the prompt.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

from orrery.base.rand import Stream
from orrery.inputs.draws import normals, uniforms
from orrery.models.real import RealReplica, Transformer, profile, serve_all
from orrery.models.real.jobs import Job
from orrery.models.real.measure import ProcessorClock
from orrery.models.replica import Replica, drain
from orrery.models.requests import Running
from orrery.models.specs import ModelSpec
from orrery.systems.serve.problems.tenant_loads import Offer

MOST, SLOTS = 60, 8
DRIFTS = {"a/sum": 0.5, "a/chat": 0.8, "b/code": 1.5, "b/think": 3.0}
SHAPE = ModelSpec(
    name="countdown", layers=1, hidden=32, heads=4, kv_heads=2, intermediate=64, vocab=96,
    max_context=128,
)  # fmt: skip


def _turn(x):
    half = x.shape[-1] // 2
    powers = torch.arange(half, dtype=x.dtype) / half
    angles = torch.outer(torch.arange(x.shape[1], dtype=x.dtype), 10_000.0**-powers)[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def _logits(weights, tokens):
    """The model as a formula that can be differentiated; [batch, time] to [batch, time, vocab]."""
    s, (batch, time) = SHAPE, tokens.shape
    norm = lambda x, name: torch.nn.functional.rms_norm(x, (s.hidden,), weights[name], 1e-5)  # noqa: E731
    x = weights["embedding"][tokens]
    h = norm(x, "0.norm_1")
    q, k, v = (
        (h @ weights[f"0.{name}"].T).view(batch, time, -1, s.head_dim) for name in ("q", "k", "v")
    )
    k, v = (each.repeat_interleave(s.heads // s.kv_heads, 2) for each in (_turn(k), v))
    seen = torch.nn.functional.scaled_dot_product_attention(
        _turn(q).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
    )
    x = x + seen.transpose(1, 2).reshape(batch, time, -1) @ weights["0.out"].T
    h = norm(x, "0.norm_2")
    gate, up = h @ weights["0.gate"].T, h @ weights["0.up"].T
    x = x + (torch.nn.functional.silu(gate) * up) @ weights["0.down"].T
    return norm(x, "final_norm") @ weights["head"].T


@functools.cache
def countdown() -> Transformer:
    """The trained model."""
    torch.manual_seed(0)
    weights: dict = {}

    def new(name, shape):
        ones = "norm" in name
        made = torch.ones(shape) if ones else torch.randn(shape) / shape[-1] ** 0.5
        weights[name] = made.double().requires_grad_()
        return weights[name].detach()

    Transformer(SHAPE, new, device="cpu", dtype="fp64")  # asks for every tensor that it has
    learner = torch.optim.Adam(weights.values(), lr=3e-3)
    for _ in range(300):
        first = torch.randint(1, MOST + 1, (32, 1))
        numbers = (first - torch.arange(MOST + 4)).clamp(min=0)
        words = torch.randint(MOST + 1, SHAPE.vocab, (32, 3))
        tokens = torch.cat([words, numbers], 1)
        logits = _logits(weights, tokens[:, :-1])[:, 3:]
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, SHAPE.vocab), tokens[:, 4:].reshape(-1)
        )
        learner.zero_grad()
        loss.backward()
        learner.step()
    trained = {name: each.detach() for name, each in weights.items()}
    return Transformer(SHAPE, lambda name, shape: trained[name], device="cpu", dtype="fp64")


def offers_of(count: int, seed: int, rate_per_s: float) -> list[Offer]:
    """Requests with estimates that drift by their kind."""
    kinds = sorted(DRIFTS)
    pick = (uniforms(Stream(seed, "real", "kind"), count) * len(kinds)).astype(int)
    estimate = np.rint(6 + 14 * uniforms(Stream(seed, "real", "estimate"), count))
    noise = np.exp(0.3 * normals(Stream(seed, "real", "noise"), count))
    gaps = -np.log1p(-uniforms(Stream(seed, "real", "gaps"), count)) / rate_per_s
    found = []
    for at, at_s in enumerate(np.cumsum(gaps).tolist()):
        kind = kinds[pick[at]]
        true = int(np.clip(round(estimate[at] * DRIFTS[kind] * noise[at]), 1, MOST))
        found.append(Offer(at, at_s, 4, true, kind=kind, estimate=float(estimate[at])))
    return found


@functools.cache
def step_table():
    """What a step of the real engine takes, on the processor's clock."""
    torch.set_num_threads(1)
    return profile(
        countdown(), blocks=200, max_sequences=SLOTS, step_tokens=64, max_context=80, count=60,
        clock=ProcessorClock(),
    )[0]  # fmt: skip


def medians_of(part, count: int = 100, seed: int = 1) -> tuple[float, float]:
    """(real, virtual) median latency with one and the same scheduler object."""
    steps = step_table()
    part = part.with_knobs(max_seqs=SLOTS, max_tokens=64)
    mean = float(np.mean([each._output_tokens for each in offers_of(count, seed, 1.0)]))
    capacity_per_s = SLOTS / (mean * steps.seconds([], SLOTS, SLOTS * 20))
    offers = offers_of(count, seed, 1.5 * capacity_per_s)
    done = drain(Replica(steps, part, blocks=200, ahead=False), offers)
    clock, jobs = ProcessorClock(), []
    replica = RealReplica(countdown(), part, blocks=200, clock=clock)
    for offer in offers:
        # The engine knows only the most that a client takes; the model decides when to stop.
        asked = Offer(
            offer.id, offer.arrival_s, 4, MOST + 4, kind=offer.kind, estimate=offer.estimate
        )
        job = Job(asked, [61, 62, 63, offer._output_tokens], end=0)
        job.on_end = lambda answer, asked=asked: tell(part, asked, answer)
        jobs.append(job)
    measured = serve_all(replica, jobs, sleep=clock.sleep)
    made = {answer.id: len(answer.tokens) for answer in measured.answers}
    assert made == {offer.id: offer._output_tokens for offer in offers}, "it counts correctly"
    assert replica.faults() == []
    return tuple(float(np.median([each.latency_s for each in rows]))
                 for rows in (measured.served, done))  # fmt: skip


def tell(part, asked, answer) -> None:
    """The feedback of a finished answer, for engines that do not give it themselves."""
    seq = Running(asked, asked.arrival_s)
    seq.generated = len(answer.tokens)
    part.finished(seq, 0.0)
