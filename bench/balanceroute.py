"""How long does a decision of BalanceRoute take, and how fast is its problem in virtual time?

Decisions: 500 and 1,000 waiting requests, 64 workers of 32 slots. `full`: as many slots are free as
requests end in a step of a full cluster, one in nine workers; `half`: every second slot is free, so
that all 500 are placed in one decision, which is the worst case. CPU time of one thread, medians.
"""

from __future__ import annotations

import json
import platform
import statistics
import time

import numpy as np

from orrery.base.rand import Stream
from orrery.systems.serve.balanceroute import BalanceRoute, BaseRate
from orrery.systems.serve.baselines.dp_least_kv import DPLeastKV
from orrery.systems.serve.baselines.dp_round_robin import DPRoundRobin
from orrery.systems.serve.problems.dp_decode import DPDecode, figures, some_waiting, some_workers
from orrery.systems.serve.problems.dp_decode.ports import Workers, sealed

PARTS = {
    "BR-0": BalanceRoute(), "BR-H (H=8)": BalanceRoute(horizon=8, classifier=BaseRate()),
    "round robin": DPRoundRobin(), "least KV": DPLeastKV(),
}  # fmt: skip
LIMIT_S = {"BR-0": 0.010, "BR-H (H=8)": 0.050}
WORKERS, SLOTS = 64, 32


def busy_workers(rng: Stream) -> Workers:
    """A full cluster in which every ninth worker has just lost a request."""
    made = some_workers(rng, WORKERS, SLOTS, full=True, capacity=10**9)
    free = sealed([int(worker % 9 == 0) for worker in range(WORKERS)])
    return Workers(made.alive, free, made.running, made.kv_tokens, made.free_tokens,
                   (made._used, made._prompt, made._made, made._left))  # fmt: skip


def median_s(part: BalanceRoute, waiting: int, half: bool, repeats: int = 25) -> float:
    """Median CPU seconds of one decision, each on a view of its own."""
    taken = []
    for number in range(repeats):
        rng = Stream(number, "bench", "balanceroute")
        workers = some_workers(rng, WORKERS, SLOTS, capacity=10**9) if half else busy_workers(rng)
        pool = some_waiting(rng, waiting)
        part.start()
        began = time.thread_time()
        part.assign(pool, workers, 0.0)
        taken.append(time.thread_time() - began)
    return statistics.median(taken)


def decisions() -> dict[str, dict[str, float | bool]]:
    """Every part on both views, with the growth from 500 to 1,000 waiting."""
    found = {}
    for name, part in PARTS.items():
        for view in ("full", "half"):
            once, twice = (median_s(part, count, view == "half") for count in (500, 1000))
            row: dict[str, float | bool] = {
                "waiting_500_s": once, "waiting_1000_s": twice, "growth": twice / once,
            }  # fmt: skip
            if name in LIMIT_S:
                row["within_limit"] = once <= LIMIT_S[name] and twice <= 2.5 * once
            found[f"{name}, {view}"] = row
    return found


def cluster() -> dict[str, float]:
    """A full cluster of 36 x 32 slots: steps and tokens modelled in a CPU-second."""
    problem = DPDecode(requests=9000, ahead=2400, steps=400, warm_up=200)
    found = {}
    for name, part in PARTS.items():
        began = time.process_time()
        log = problem.play(part, 1)
        cpu_s = time.process_time() - began
        found[f"{name}: steps_per_cpu_s"] = len(log.steps) / cpu_s
        found[f"{name}: tokens_per_cpu_s"] = sum(step.tokens for step in log.steps) / cpu_s
        found[f"{name}: imbalance"] = figures(log, problem.time())["imbalance"]
    return found


if __name__ == "__main__":
    print(json.dumps({
        "machine": platform.machine(), "python": platform.python_version(),
        "numpy": np.__version__, "decisions": decisions(), "cluster": cluster(),
    }, indent=1))  # fmt: skip
