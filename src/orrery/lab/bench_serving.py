"""How many requests the serving model simulates per CPU-second."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

from orrery.lab.run import run
from orrery.systems.serve.baselines.kv_aware import KVAware
from orrery.systems.serve.problems.llm_routing import LLMRouting
from orrery.world import worlds

# The cache is kept small enough that some requests lose their blocks, as on a busy machine.
BLOCKS = 1500
# Requests a second and replica: about what one H100 takes of such requests before queues grow.
RATE_PER_S = 8.0


def serving_bench(trace: Path | None, replicas: int, requests: int = 0) -> dict[str, Any]:
    """Serve a trace on replicas of an 8B model, and tell what the simulation cost.

    Reading the trace and building the cluster count too. Arrivals are sped up so that each replica
    has work, however many there are.
    """
    began = time.process_time()
    problem = LLMRouting(
        model="Llama-3.1-8B", tp=1, trace=str(trace) if trace else "", blocks=BLOCKS,
        requests=requests or (10_000_000 if trace else 20_000), rate_per_s=RATE_PER_S * replicas,
    )  # fmt: skip
    done = run(KVAware(), problem=problem, world=worlds.get(f"h100_pod:{replicas}"))
    cpu_s = time.process_time() - began
    count = len(done.records)
    return {
        "requests": count, "requests_per_cpu_s": count / cpu_s, "seconds": done.seconds,
        "extrapolated_ops": int(done.metrics["extrapolated"]), "replicas": replicas,
        "cpu_s": cpu_s, "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "preemptions": int(done.metrics["preemptions"]), "hit_ratio": done.metrics["hit_ratio"],
        "violations": len(done.violations), "digest": done.digest,
    }  # fmt: skip


__all__ = ["serving_bench"]
