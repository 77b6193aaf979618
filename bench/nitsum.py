"""How long does Nitsum's controller take for 16 GPUs, and how fast is its world in virtual time?

A published bound: less than 100 ms a decision for 16 GPUs. There is no library for the same job to
stand beside; the whole search in Python is what an integer program would otherwise do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from orrery.systems.serve.nitsum import Nitsum
from orrery.systems.serve.problems.llm_parallelism import LLMParallelism, log_of


def cpu_s(work: Callable[[], Any]) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def deciding(gpus: int) -> dict[str, float]:
    """Milliseconds of one look at all plans, from the second one on, in a cluster at work."""
    problem = LLMParallelism(
        gpus=gpus, windows=1, window_s=12.0, interactive_per_s=(3.5 * gpus,),
        background_per_s=(0.5 * gpus,), tables="",
    )  # fmt: skip
    cluster = problem.cluster(Nitsum(), 1).play(8.0)
    view = cluster.look()
    policy = cluster.policy
    taken = [cpu_s(lambda: policy.plan(view)) for _ in range(9)]
    looking = [cpu_s(cluster.look) for _ in range(9)]
    return {
        "plans": len(view.plans), "decide_ms": 1e3 * float(np.median(taken)),
        "worst_ms": 1e3 * max(taken), "look_ms": 1e3 * float(np.median(looking)),
    }  # fmt: skip


def main() -> dict[str, Any]:
    """Decisions for 8 and 16 GPUs, and requests a second of the modelled cluster."""
    problem = LLMParallelism(windows=2, window_s=30.0, tables="")
    requests, rig = problem.requests(1), problem.rig()
    taken_s = cpu_s(lambda: log_of(problem.cluster(Nitsum(), 1, None, requests, rig).play()))
    return {
        "gpus_8": deciding(8), "gpus_16": deciding(16),
        "requests_per_cpu_s": len(requests) / taken_s,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main()))
