"""FCP: what a plan costs, how even it is, and the MFU beside every rival.

Prints JSON. `plan` has measured CPU seconds for 10,000 blocks on 256 workers, by how long the tail
of the batch is: packing, and the exchange in rounds; the bound of the line is 1 s. `imbalance` is
the busiest worker over the mean, which no placement can bring below 1. `mfu` is modelled: one layer
of LLaMA3-8B, forwards and backwards, on 4 DGX H100, by the longest sequence that the batch has.
`scaling` is the MFU of batches that grow with the workers, on pods and behind ports of 100 GB/s.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from orrery import World, run
from orrery.base.rand import Stream
from orrery.systems.collectives import LongAttention, Ulysses, ZigzagRing
from orrery.systems.train.baselines.fixed_groups import FixedGroups
from orrery.systems.train.baselines.short_long_apart import ShortLongApart
from orrery.systems.train.fcp import FCP, Limits, balance, pack
from orrery.systems.train.fcp.rounds import exchange
from orrery.world import worlds
from orrery.world.hardware import Machine

SHAPE = {
    "heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bf16", "sized": True, "tokens": 0,
}  # fmt: skip
PARTS = {
    "fcp": FCP(), "fcp, rigid": FCP(anywhere=False), "zigzag-ring": ZigzagRing(),
    "ulysses": Ulysses(), "short-long-apart": ShortLongApart(), "fixed-groups": FixedGroups(),
}  # fmt: skip


def long_tail(tokens: int, sigma: float, longest: int, seed: int = 0) -> tuple[int, ...]:
    """Lengths of a log-normal batch with a median of 2,048; a larger sigma means a longer tail."""
    rng, found, left = Stream(seed, "d", "tail").numpy(), list[int](), tokens
    while left > 0:
        drawn = int(2048 * np.exp(sigma * rng.standard_normal()))
        found.append(min(max(drawn, 1), longest, left))
        left -= found[-1]
    return tuple(found)


def plans(workers: int = 256, blocks: int = 10_000) -> dict[str, dict[str, float]]:
    """CPU seconds of packing and colouring, the least of three."""
    found = {}
    for sigma in (1.0, 1.5, 2.0, 2.5):
        lengths, took = long_tail(blocks << 10, sigma, 1 << 20), []
        for _ in range(3):
            began = time.process_time()
            layout = pack(lengths, workers, True, Limits())
            packed = time.process_time()
            made = exchange(layout, lengths, True, 4096)
            took.append((packed - began, time.process_time() - packed))
        even = balance(layout, lengths, True)
        pack_s, rounds_s = min(took, key=sum)
        found[f"sigma {sigma}"] = {
            "blocks": sum(-(-length // 1024) for length in lengths), "pack_s": pack_s,
            "rounds_s": rounds_s, "plan_s": pack_s + rounds_s, "parcels": len(made),
            "rounds": made.rounds, "imbalance": even["imbalance"],
            "tokens_over_mean": even["most_tokens"] / even["mean_tokens"],
        }  # fmt: skip
    return found


def figures(part: Any, lengths: tuple[int, ...], world: World) -> dict[str, float]:
    """MFU, balance and bytes of one run."""
    problem = LongAttention(documents=lengths, **SHAPE)  # type: ignore[arg-type]
    metrics = run(part, problem=problem, world=world).metrics
    return {
        "mfu": round(metrics["mfu"], 4), "imbalance": round(metrics["imbalance"], 3),
        "egress_GB": round(metrics["egress_B"] / 1e9, 2),
    }  # fmt: skip


def mfu() -> dict[str, dict[str, dict[str, float]]]:
    """Every part by the longest sequence of the batch."""
    world = worlds.h100_pod(4, rank_per_gpu=True)
    return {
        f"longest {longest}": {
            name: figures(part, long_tail(32 << 15, 1.5, longest), world)
            for name, part in PARTS.items()
        }
        for longest in (8 << 10, 32 << 10, 128 << 10, 256 << 10)
    }


def scaling() -> dict[str, dict[int, float]]:
    """The MFU of FCP where the batch grows with the workers."""
    gpu, batch = Machine(accelerators=("H100-SXM",)), long_tail(8 << 15, 1.5, 64 << 10)
    found: dict[str, dict[int, float]] = {"pods": {}, "ports of 100 GB/s": {}}
    for workers in (8, 64, 256):
        port = World.lan(workers, machine=gpu, latency_s=2e-6, bandwidth_Bps=100e9, jitter=0.0,
                         model="flows")  # fmt: skip
        pod = worlds.h100_pod(workers // 8, rank_per_gpu=True)
        for name, world in (("pods", pod), ("ports of 100 GB/s", port)):
            found[name][workers] = figures(FCP(), batch * (workers // 8), world)["mfu"]
    return found


if __name__ == "__main__":
    print(json.dumps({"plan": plans(), "mfu": mfu(), "scaling": scaling()}))
