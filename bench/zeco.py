"""Linear attention over many ranks: the scan, weak scaling, ours beside every classic.

Prints JSON. `scan` is modelled, in latencies of a hop, for states that take `ratio` latencies on a
link; `weak` is one layer of a model of 1B, 16,384 rows a rank on DGX H100 nodes, forwards and
backwards, in seconds; `chunks` is measured on this machine: rows a second of the arithmetic in
chunks, beside the plain recurrence in NumPy and in torch.
"""

from __future__ import annotations

import json
import math
import time

import numpy as np

from orrery import World, run, worlds
from orrery.models import linear_attention as linear
from orrery.systems.collectives.baselines.lasp import LASP
from orrery.systems.collectives.baselines.lasp2 import LASP2
from orrery.systems.collectives.baselines.linear_ring import LinearRing
from orrery.systems.collectives.baselines.linear_ulysses import LinearUlysses
from orrery.systems.collectives.problems.long_linear_attention import LongLinearAttention
from orrery.systems.collectives.zeco import ZeCO
from orrery.world.hardware import Machine

PARTS = {
    "ZeCO": ZeCO(), "no pipeline": ZeCO(blocks=1), "no overlap": ZeCO(overlap=False),
    "LASP": LASP(), "LASP-2 ring": LASP2(), "LASP-2 doubling": LASP2(gathering="doubling"),
}  # fmt: skip
LAYER = {"heads": 16, "key_dim": 128, "value_dim": 128, "chunk": 64, "sized": True}
ALPHA_S = 1e-4


def scan(n: int, ratio: float) -> dict[str, float]:
    """How long the last rank waits for its state, in latencies."""
    world = World.lan(
        n,
        machine=Machine(accelerators=("H100-SXM",)),
        latency_s=ALPHA_S,
        bandwidth_Bps=(1 << 20) / (ratio * ALPHA_S),
        jitter=0.0,
        model="flows",
    )
    problem = LongLinearAttention(tokens=0, backward=False, **LAYER)
    blocks = max(1, round(math.sqrt((n - 2) * ratio)))
    found = {"formula": (blocks + n - 2) * (1 + ratio / blocks)}
    for name, part in PARTS.items():
        made = run(part, problem=problem, world=world)
        found[name] = round(made.metrics["scan_s"] / ALPHA_S, 1)
    return found


def weak(nodes: int) -> dict[str, float]:
    """The time of one layer on so many DGX H100 nodes; `alone` is one device with its share."""
    problem = LongLinearAttention(tokens_per_rank=16_384, dense_flops=1e8, dtype="bf16", **LAYER)
    world = worlds.h100_pod(nodes, rank_per_gpu=True)
    found: dict[str, float] = {}
    for name, part in {**PARTS, "Ulysses": LinearUlysses(), "Ring": LinearRing()}.items():
        metrics = run(part, problem=problem, world=world).metrics
        found[name] = round(metrics["time_s"], 6)
        found["alone"] = round(metrics["alone_s"], 6)
    return found


def chunks(rows: int = 2048, heads: int = 4, dim: int = 32) -> dict[str, float]:
    """Rows a CPU-second forwards: in chunks, and by the recurrence in NumPy and torch."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((rows, heads, dim)).astype(np.float32) for _ in range(3))
    g = -rng.exponential(size=k.shape).astype(np.float32) * np.float32(0.1)

    def in_chunks() -> None:
        made = linear.chunk_states(k, v, g, 32)
        entering = linear.carry(made, np.zeros_like(made.added[0]))
        _ = linear.inside(q, k, v, g, 32) + linear.across(q, g, entering, 32)

    def by_rows() -> None:
        state = np.zeros((heads, dim, dim), np.float32)
        for t in range(rows):
            state = np.exp(g[t])[..., None] * state + k[t][..., None] * v[t][:, None]
            np.einsum("hk,hkv->hv", q[t], state)

    found = {
        "chunks_rows_per_s": rows / cpu_s(in_chunks),
        "numpy_rows_per_s": rows / cpu_s(by_rows),
    }
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(1)
    parts = [torch.from_numpy(x) for x in (q, k, v, g)]

    def by_torch() -> None:
        state = torch.zeros(heads, dim, dim)
        for t in range(rows):
            added = parts[1][t][..., None] * parts[2][t][:, None]
            state = torch.exp(parts[3][t])[..., None] * state + added
            torch.einsum("hk,hkv->hv", parts[0][t], state)

    return {**found, "torch_rows_per_s": rows / cpu_s(by_torch)}


def cpu_s(work: object) -> float:
    """The CPU seconds of the quicker of two calls."""
    took = []
    for _ in range(2):
        began = time.process_time()
        work()  # type: ignore[operator]
        took.append(time.process_time() - began)
    return max(min(took), 1e-9)


if __name__ == "__main__":
    print(json.dumps({
        "scan": {f"{n} ranks, T = {ratio} alpha": scan(n, ratio)
                 for n, ratio in ((16, 2), (16, 50), (256, 2), (256, 50))},
        "weak": {f"{8 * nodes} H100": weak(nodes) for nodes in (1, 2, 8)},
        "chunks": chunks(),
    }))  # fmt: skip
