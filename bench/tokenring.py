"""Attention over many ranks: times and bytes, ours beside every classic, and the arithmetic.

Prints JSON. `mesh` and `port` are modelled (one layer of LLaMA2-7B, 4,096 rows a rank, links of
10 GB/s, H100s): seconds forwards, gigabytes on the busiest direction of a link and out of the
busiest rank. `says` compares the egress behind one port. `attend` is measured on this machine
beside torch's own attention, in flop/s; `virtual` is the cost of simulating.
"""

from __future__ import annotations

import itertools
import json
import time

import numpy as np

from orrery import World, run
from orrery.models.attention import attend
from orrery.systems.collectives.baselines.bidirectional_ring import BidirectionalRing
from orrery.systems.collectives.baselines.ring_attention import RingAttention
from orrery.systems.collectives.baselines.ulysses import Ulysses
from orrery.systems.collectives.baselines.zigzag_ring import ZigzagRing
from orrery.systems.collectives.problems.long_attention import LongAttention
from orrery.systems.collectives.tokenring import TokenRing
from orrery.world.hardware import Machine

PARTS = {
    "TokenRing": TokenRing(), "one way": TokenRing(both_ways=False), "Ring": RingAttention(),
    "Zigzag": ZigzagRing(), "Bidirectional": BidirectionalRing(), "Ulysses": Ulysses(),
}  # fmt: skip
GPU = Machine(accelerators=("H100-SXM",))
LINKS = {"machine": GPU, "latency_s": 2e-6, "bandwidth_Bps": 1e10, "jitter": 0.0}


def worlds(n: int) -> dict[str, World]:
    """A link for each pair, and one shared port a rank."""
    pairs = list(itertools.combinations(range(n), 2))
    return {"mesh": World.graph(pairs, n=n, **LINKS), "port": World.lan(n, model="flows", **LINKS)}


def table(n: int, **knobs: object) -> dict[str, dict[str, dict[str, float]]]:
    """Every part in both worlds."""
    shape = {"tokens": 4096 * n, "heads": 32, "head_dim": 128, "dtype": "bf16", "sized": True}
    problem = LongAttention(**{**shape, "causal": False, "backward": False, **knobs})
    found: dict[str, dict[str, dict[str, float]]] = {}
    for place, world in worlds(n).items():
        for name, part in PARTS.items():
            metrics = run(part, problem=problem, world=world).metrics
            found.setdefault(place, {})[name] = {
                "forward_s": round(metrics["forward_s"], 5),
                "link_GB": round(metrics["link_B"] / 1e9, 4),
                "egress_GB": round(metrics["egress_B"] / 1e9, 4),
            }
    return found


def says(port: dict[str, dict[str, float]]) -> str:
    """What a shared port means for who sends more."""
    ours, ring = port["TokenRing"]["egress_GB"], port["Ring"]["egress_GB"]
    least = "not below" if ours >= ring else "below"
    return (
        f"behind one shared port TokenRing sends {ours} GB (Q + out + lse), which is {least} "
        f"Ring Attention's {ring} GB (K + V)"
    )


def arithmetic(rows: int = 1024, heads: int = 8, dim: int = 64) -> dict[str, float]:
    """Our blockwise attention beside torch's, in flop/s of one pass."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((rows, heads, dim)).astype(np.float32) for _ in range(3))
    flops = 4.0 * rows * rows * heads * dim
    found = {"numpy_flops": flops / best(lambda: attend(q, k, v))}
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(1)
    parts = [torch.from_numpy(x).transpose(0, 1)[None].contiguous() for x in (q, k, v)]
    kernel = torch.nn.functional.scaled_dot_product_attention
    found["torch_flops"] = flops / best(lambda: kernel(*parts))
    return found


def best(work: object, times: int = 5) -> float:
    """The CPU seconds of the quickest of some calls."""
    took = []
    for _ in range(times):
        began = time.process_time()
        work()  # type: ignore[operator]
        took.append(time.process_time() - began)
    return max(min(took), 1e-9)


def virtual(n: int = 32) -> dict[str, float]:
    """CPU seconds to simulate a forward and backward pass of n ranks."""
    problem = LongAttention(tokens=1 << 20, heads=32, head_dim=128, dtype="bf16", sized=True)
    began = time.process_time()
    made = run(TokenRing(), problem=problem, world=worlds(n)["port"])
    took = time.process_time() - began
    return {"ranks": n, "cpu_s": took, "transfers_per_cpu_s": made.extra["transfers"] / took}


if __name__ == "__main__":
    eight = table(8)
    print(json.dumps({
        "ranks_4": table(4), "ranks_8": eight, "ranks_8_grouped": table(8, kv_heads=4),
        "ranks_8_causal": table(8, causal=True), "says": says(eight["port"]),
        "attend": arithmetic(), "virtual": virtual(),
    }))  # fmt: skip
