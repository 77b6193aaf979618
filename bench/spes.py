"""A mixture of experts trained by scattered nodes: loss, bytes kept and sent, and the arithmetic.

Prints JSON. `training` has 4 nodes and 8 experts, equal tokens, the mean of 3 seeds: the held-out
loss (measured, real arithmetic), and bytes of optimiser state, handed in and got back at a
synchronisation. The dense model costs as much for a token. `gradient` is measured on this machine:
CPU milliseconds of one forward and backward pass beside PyTorch with the same routing, for all
experts and for two of eight; the hidden width is large there, so that arithmetic counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from orrery import World, run
from orrery.models.learn import language, mixture
from orrery.systems.train import DataParallel, DiLoCo, LocalSGD, NoTalk, Synchronous
from orrery.systems.train.spes import SPES

LARGE = mixture.Shape(64, 128, 2, 4, 64, experts=8, top=2, hidden=512)
RIVALS = {
    "SPES": (SPES(every=10), "experts"), "no warm-up": (SPES(every=10, merge=0.0), "experts"),
    "every node trains all": (SPES(every=10, owners=4, merge=0.0), "experts"),
    "centralised": (Synchronous(), "experts"), "DiLoCo": (DiLoCo(every=10), "experts"),
    "isolated, averaged": (NoTalk(), "experts"), "dense, centralised": (Synchronous(), "language"),
    "dense, local SGD": (LocalSGD(every=10), "language"),
}  # fmt: skip


def training(steps: int = 160, seeds: int = 3) -> dict[str, dict[str, float]]:
    """Every rival at equal tokens."""
    found = {}
    for name, (part, task) in RIVALS.items():
        more = {"experts": 8} if task == "experts" else {}
        problem = DataParallel(task=task, steps=steps, more=more)
        runs = [
            run(part, problem=problem, world=World.lan(4), seed=seed).metrics
            for seed in range(seeds)
        ]
        found[name] = {
            key: round(float(np.mean([metrics[key] for metrics in runs])), 4)
            for key in ("loss", "optimiser_B", "up_B", "down_B", "sent_B") if key in runs[0]
        }  # fmt: skip
    return found


def gradient(rows: int = 8) -> dict[str, float]:
    """Our pass beside PyTorch's, in CPU milliseconds."""
    rng = np.random.default_rng(0)
    flat = language.filled(mixture.layout_of(LARGE), LARGE, rng)
    tokens = rng.integers(0, LARGE.vocabulary, (1, rows, LARGE.context + 1))
    found = {
        "all_experts_ms": 1e3 * best(
            lambda: mixture.gradients(LARGE, flat[None], tokens, 0.01, [range(8)])
        ),
        "two_of_eight_ms": 1e3 * best(
            lambda: mixture.gradients(LARGE, flat[None], tokens, 0.01, [(0, 1)])
        ),
    }  # fmt: skip
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(1)
    return found | {"torch_ms": 1e3 * best(lambda: peer(torch, flat, tokens[0]))}


def peer(torch: Any, flat: Any, rows: Any) -> None:
    """The same pass as one would write it in PyTorch: each expert reads its own tokens."""
    functional, size = torch.nn.functional, LARGE
    leaf = torch.tensor(flat, requires_grad=True)
    layout = mixture.layout_of(size)
    w = {name: leaf[at].reshape(layout.shapes[name]) for name, at in layout.slices.items()}
    rows = torch.tensor(rows)
    read, asked = rows[:, :-1], rows[:, 1:]

    def norm(x: Any, gain: Any) -> Any:
        return functional.rms_norm(x, (size.width,), gain, language.EPS)

    x, extra = w["tokens"][read] + w["places"], 0.0
    for n in range(size.layers):
        qkv = (norm(x, w[f"{n}.norm"]) @ w[f"{n}.qkv"]).chunk(3, -1)
        q, k, v = (p.reshape(*read.shape, size.heads, -1).transpose(1, 2) for p in qkv)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(x.shape) @ w[f"{n}.out"]
        y = norm(x, w[f"{n}.norm2"]).reshape(-1, size.width)
        shares = torch.softmax(y @ w[f"{n}.router"], -1)
        gates, chosen = torch.topk(shares, size.top)
        out = torch.zeros_like(y)
        for e in range(size.experts):
            at, slot = torch.nonzero(chosen == e, as_tuple=True)
            said = torch.relu(y[at] @ w[f"{n}.{e}.up"]) @ w[f"{n}.{e}.down"]
            out = out.index_add(0, at, gates[at, slot, None] * said)
        x = x + out.reshape(x.shape)
        load = torch.bincount(chosen.reshape(-1), minlength=size.experts) / chosen.numel()
        extra = extra + size.experts / size.layers * (load * shares.mean(0)).sum()
    logits = norm(x, w["norm"]) @ w["head"]
    loss = functional.cross_entropy(logits.reshape(-1, size.vocabulary), asked.reshape(-1))
    (loss + 0.01 * extra).backward()


def best(work: Callable[[], object], times: int = 5) -> float:
    """The CPU seconds of the quickest of some calls."""
    took = []
    for _ in range(times):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return max(min(took), 1e-9)


if __name__ == "__main__":
    print(json.dumps({"gradient": gradient(), "training": training()}))
