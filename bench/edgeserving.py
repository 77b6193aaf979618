"""How long does a decision of EdgeServing take, and how fast is its problem in virtual time?

With `--profile FILE` it measures the networks on this machine instead, and writes the table that
`DNNEdgeServing(profile=FILE)` takes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orrery import run
from orrery.base.rand import Stream
from orrery.systems.serve.problems.dnn_edge_serving import (
    DNNEdgeServing,
    Profile,
    View,
    plain_profile,
)
from orrery.systems.serve.problems.dnn_edge_serving.networks import (
    SHAPES,
    accuracies,
    trained,
)

BATCHES = (1, 2, 4, 8)
EIGHT = (1, 2, 4, 8, 16, 32, 64, 128)


def measured_row(network: Any, data: Any, exit: int, repeats: int) -> list[float]:
    """Seconds of each batch size: the 90th percentile of the CPU time, which others cannot take."""
    row = []
    for batch in BATCHES:
        rows, taken = data.test[:batch], []
        for _ in range(repeats):
            began = time.thread_time()
            network.forward(rows, exit)
            taken.append(time.thread_time() - began)
        row.append(float(np.quantile(taken, 0.9)))
    return row


def measure_profile(names: tuple[str, ...], repeats: int = 60) -> Profile:
    """The table of some networks, measured here and now."""
    seconds, right = [], []
    for name in names:
        network, data = trained(name)
        exits = range(len(network.stops))
        for exit in exits:
            measured_row(network, data, exit, 3)
        table = [measured_row(network, data, exit, repeats) for exit in exits]
        # A larger batch is never faster; where the clock says so, it is noise.
        table = [list(itertools.accumulate(row, max)) for row in table]
        seconds.append(tuple(tuple(round(t, 9) for t in row) for row in table))
        right.append(tuple(accuracies(network, data)))
    where = f"{platform.machine()}, one core, NumPy {np.__version__}"
    source = f"measured, 90th percentile of {repeats} runs each, CPU time; {where}"
    return Profile(models=names, batches=BATCHES, seconds=tuple(seconds), accuracy=tuple(right),
                   source=source).check()  # fmt: skip


def busy_views(models: int, exits: int, count: int, waiting: int) -> list[View]:
    """Views with so many requests waiting for each model, some of them hopeless."""
    rng = Stream(1, "bench", "edgeserving")
    profile = plain_profile(models, exits, EIGHT)
    slo_s = tuple(rng.uniform(3.0, 10.0) * profile.full_s(m) for m in range(models))
    views = []
    for step in range(count):
        now_s = 0.002 * step
        queues = tuple(
            tuple(sorted(now_s + rng.uniform(-0.1, 1.0) * slo for _ in range(waiting)))
            for slo in slo_s
        )
        oldest_s = (now_s - slo_s[0],) * models
        arrived = (step * waiting,) * models
        views.append(View(now_s, queues, oldest_s, slo_s, arrived, profile))
    return views


def decision_s(models: int = 8, exits: int = 4, waiting: int = 8, count: int = 300) -> Any:
    """Median and 99th percentile of the CPU seconds of one decision."""
    from orrery.systems.serve.edgeserving import EdgeServing

    policy, taken = EdgeServing(), []
    policy.start()
    for view in busy_views(models, exits, count, waiting):
        began = time.thread_time()
        policy.next_turn(view)
        taken.append(time.thread_time() - began)
    return {"median_s": float(np.median(taken)), "p99_s": float(np.quantile(taken, 0.99))}


def main() -> dict[str, Any]:
    """Decision times at three queue lengths, and requests per CPU-second in virtual time."""
    from orrery.systems.serve.baselines.edge_edf import EdgeEDF
    from orrery.systems.serve.edgeserving import EdgeServing

    found: dict[str, Any] = {"models": 8, "exits": 4, "batches": len(EIGHT)}
    for waiting in (1, 8, 64):
        found[f"decision_{8 * waiting}_waiting"] = decision_s(waiting=waiting)
    problem = DNNEdgeServing(load=0.9, seconds=3.0)
    for part in (EdgeServing(), EdgeEDF()):
        began = time.process_time()
        made = run(part, problem=problem, seed=1)
        taken_s = time.process_time() - began
        count = len(problem.requests(1))
        found[type(part).__name__] = {"requests_per_cpu_s": count / taken_s, **made.metrics}
    return found


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--profile", type=Path, help="measure the networks and write the table")
    options.add_argument("--models", default=",".join(name for name in SHAPES if name != "digits"))
    given = options.parse_args()
    if given.profile:
        made = measure_profile(tuple(given.models.split(",")))
        text = msgspec.json.format(msgspec.json.encode(made), indent=1)
        given.profile.write_bytes(text + b"\n")
        print(json.dumps({"profile": str(given.profile), "source": made.source}))
    else:
        print(json.dumps(main()))
