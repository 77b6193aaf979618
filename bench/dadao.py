"""DADAO: what a drift and a plan of rates cost, and every method's counts on the same problem.

Prints JSON. `drift` has measured microseconds of CPU for one lazy drift of a state of 6 x 64
numbers: from our tables, and with SciPy's matrix exponential in each event (null without SciPy).
`rates` has CPU seconds of the semidefinite program, and the messages that it saves over uniform
rates. `counts` are modelled: gradients and messages of a node, and virtual seconds, until all nodes
of a graph of 8 are within 1e-4 of the optimum, at a condition number of 10.
"""

from __future__ import annotations

import importlib
import json
import time
from typing import Any

import numpy as np

from orrery import World, run
from orrery.base.rand import Stream
from orrery.systems.train.baselines.adom_plus import ADOMPlus
from orrery.systems.train.baselines.continuized import Continuized
from orrery.systems.train.baselines.gradient_tracking import GradientTracking
from orrery.systems.train.baselines.msda import MSDA
from orrery.systems.train.dadao import DADAO, Constants, Drift, optimised_rates, uniform_rates
from orrery.systems.train.problems.decentralised_optimum import DecentralisedOptimum
from orrery.systems.train.problems.gossip_graphs import graph_of

TICKS = 1 << 20
PARTS: dict[str, Any] = {
    "dadao": DADAO(), "dadao, uniform": DADAO(rates="uniform"), "adom-plus": ADOMPlus(),
    "adom-plus, one exchange": ADOMPlus(multi_consensus=False), "msda (dual)": MSDA(),
    "continuized (dual)": Continuized(), "gradient-tracking": GradientTracking(),
}  # fmt: skip


def drifts(count: int = 5000) -> dict[str, float | None]:
    """Microseconds of CPU for a drift."""
    matrix = np.array(Constants.of(0.01, 1.0, 1.0).matrix())
    rng = Stream(0, "bench", "drift").numpy()
    state, steps = rng.standard_normal((6, 64)), rng.integers(1, TICKS, count).tolist()
    drift = Drift(matrix, TICKS)
    began = time.process_time()
    for ticks in steps:
        drift.moved(state, ticks)
    found: dict[str, float | None] = {"tables_us": 1e6 * (time.process_time() - began) / count}
    try:
        expm = importlib.import_module("scipy.linalg").expm
    except ImportError:
        return found | {"scipy_us": None}
    few = steps[: count // 10]
    began = time.process_time()
    for ticks in few:
        expm(matrix * (ticks / TICKS)) @ state
    return found | {"scipy_us": 1e6 * (time.process_time() - began) / len(few)}


def plans() -> dict[str, dict[str, float]]:
    """CPU seconds of the program, and how many times fewer messages its rates need."""
    found = {}
    for name, nodes in (("grid", 16), ("barbell", 24), ("cliques", 12), ("cliques", 30)):
        graph = graph_of(name, nodes)
        began = time.process_time()
        rates = optimised_rates(graph)
        found[f"{name} {nodes}"] = {
            "edges": len(graph.edges), "cpu_s": time.process_time() - began,
            "saves": float(uniform_rates(graph).sum() / rates.sum()),
        }  # fmt: skip
    return found


def counts() -> dict[str, dict[str, dict[str, float]]]:
    """Gradients, messages and virtual seconds of each method on three graphs."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for graph in ("ring", "cliques", "complete"):
        problem = DecentralisedOptimum(graph=graph, condition=10.0, target=1e-4)
        found[graph] = {}
        for name, part in PARTS.items():
            metrics = run(part, problem=problem, world=World.lan(8), seed=1).metrics
            found[graph][name] = {
                key: round(metrics[key], 2) for key in ("gradients", "messages", "time_s")
            }
    return found


if __name__ == "__main__":
    print(json.dumps({"drift": drifts(), "rates": plans(), "counts": counts()}))
