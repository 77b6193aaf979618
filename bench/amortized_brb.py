"""Bytes, steps and CPU time of reliable broadcast, ours beside every classic of the problem."""

from __future__ import annotations

import json
import time

import numpy as np

from orrery import World, run
from orrery.systems.protocols.amortized_brb import AmortizedBRB
from orrery.systems.protocols.baselines.bracha import Bracha
from orrery.systems.protocols.baselines.bracha_hashes import BrachaHashes
from orrery.systems.protocols.baselines.coded_broadcast import CodedBroadcast, codes
from orrery.systems.protocols.baselines.dolev_strong import DolevStrong
from orrery.systems.protocols.baselines.sampled_broadcast import SampledBroadcast
from orrery.systems.protocols.problems.reliable_broadcast import ReliableBroadcast

PARTS = (AmortizedBRB(), Bracha(), BrachaHashes(), CodedBroadcast(), SampledBroadcast(),
         DolevStrong())  # fmt: skip
MOST_SHOWN = ("copies_per_node", "latency_steps", "rounds_per_shot")


def streams(n: int, size_B: int, shots: int) -> dict[str, dict[str, float]]:
    """Each part on the same stream."""
    found = {}
    problem = ReliableBroadcast(shots=shots, size_B=size_B, settle_s=5.0)
    for part in PARTS:
        began = time.process_time()
        made = run(part, problem=problem, world=World.lan(n), seed=1)
        cpu_s = time.process_time() - began
        found[type(part).__name__] = {
            **{name: round(made.metrics[name], 4) for name in MOST_SHOWN},
            "violations": len(made.violations),
            "cpu_s_per_shot": cpu_s / shots,
            "messages_per_cpu_s": made.messages / cpu_s,
        }
    return found


def coding(n: int, size_B: int) -> dict[str, float]:
    """How fast the code runs, in payload bytes for each CPU-second."""
    k = n - 2 * ((n - 1) // 3)
    message = np.random.default_rng(1).bytes(size_B)
    began = time.process_time()
    fragments = codes.encode(message, n, k)
    encoded = time.process_time()
    lost = {place: fragments[place] for place in range(n - k, n)}
    assert codes.decode(lost, n, k) == message
    decoded = time.process_time()
    return {
        "encode_Bps": size_B / max(encoded - began, 1e-9),
        "decode_Bps": size_B / max(decoded - encoded, 1e-9),
    }


if __name__ == "__main__":
    print(json.dumps({
        "n31_64KiB": streams(31, 64 << 10, 5),
        "code_n31_1MiB": coding(31, 1 << 20),
    }))  # fmt: skip
