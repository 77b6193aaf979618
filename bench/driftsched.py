"""How long does DriftSched take to learn from an answer, and to choose from a long queue?

The peer is scikit-learn's incremental regressor, which could learn the same factors from
finished requests; it is left out where scikit-learn is not installed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from orrery.models.ports import EngineView, Hit
from orrery.models.requests import Running
from orrery.systems.serve.driftsched import Drift, DriftSched
from orrery.systems.serve.problems.llm_tenants import LLMTenants

LEARNT, QUEUED = 20_000, 2_000


def cpu_s(work: Callable[[], Any], times: int = 1) -> float:
    """CPU seconds of one call, the median of several."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return float(np.median(taken))


def learning() -> dict[str, float]:
    """Microseconds for each finished request, and for the peer."""
    drift = Drift()
    found = {"learn_us": 1e6 / LEARNT * cpu_s(
        lambda: [drift.learn("a/x", 100.0, 50.0 + i % 90) for i in range(LEARNT)])}  # fmt: skip
    try:
        from sklearn.linear_model import SGDRegressor
    except ImportError:
        return found
    peer, row = SGDRegressor(), np.array([[1.0]])
    taken_s = cpu_s(lambda: [peer.partial_fit(row, [0.5 + i % 9]) for i in range(500)])
    return {**found, "sklearn_sgd_us": 1e6 / 500 * taken_s}


def choosing() -> dict[str, float]:
    """Microseconds to choose from a queue when one slot is free, by policy."""
    offers = LLMTenants(requests=QUEUED).offers(1)
    waiting = [Running(each, each.arrival_s) for each in offers]
    running = [Running(each, 0.0) for each in offers[:15]]
    view = EngineView(1e4, waiting, running, 10_000, 16, lambda seq: Hit(0, 0), lambda seq: 0)
    found = {}
    for policy in ("fifo", "priority", "weighted", "sjf", "aging"):
        part = DriftSched(policy=policy, max_seqs=16)
        part.start()
        found[policy] = 1e6 * cpu_s(lambda part=part: part.queue(view), 9)
    return found


def main() -> dict[str, Any]:
    """Everything, with the rate of the problem in virtual time."""
    problem = LLMTenants(requests=1000)
    taken_s = cpu_s(lambda: problem.desk(DriftSched(), 1).play())
    return {
        **learning(), "choose_us": choosing(), "queued": QUEUED,
        "requests_per_cpu_s": 1000 / taken_s,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main()))
