"""How well and how fast are training steps estimated? Prints JSON.

Published steps of Megatron-LM beside the model (22B fitted, the others not), the 9,216-GPU step of
SimAI with and without a NIC at half rate (bound 10 s of CPU time each, the machine may be shared),
where ORRERY_DATA has them; and the CPU time of estimates of plans of growing size.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orrery.inputs.aicb import read_aicb
from orrery.lab.validate_training import validate_training
from orrery.models.taskgraph import critical_path, from_aicb, replay
from orrery.models.training import (
    TrainingPlan,
    Trouble,
    default_efficiency,
    estimate,
    expected_run,
    fit_efficiency,
    read_points,
    slow_nic,
)
from orrery.models.training.fit import FIT_MODEL
from orrery.models.training.points import of_model
from orrery.world import worlds

BOUND_S = 10.0
DATA = Path(os.environ.get("ORRERY_DATA", "/nowhere")) / "training"


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """(what it gave, CPU seconds)."""
    began = time.process_time()
    found = work()
    return found, round(time.process_time() - began, 3)


def published() -> dict[str, Any] | None:
    """Errors of time and memory by model, and the fit made anew."""
    folder = DATA / "calculon_validation"
    if not folder.is_dir():
        return None
    found, cpu_s = timed(lambda: validate_training(folder))
    fitted = fit_efficiency(of_model(read_points(folder), FIT_MODEL))
    keys = ("name", "predicted_s", "published_s", "err", "memory_err")
    return {
        "models": found["models"], "cpu_s": cpu_s, "gemm_fitted": round(fitted.gemm, 5),
        "gemm_kept": default_efficiency().gemm,
        "rows": [{key: row[key] for key in keys} for row in found["rows"] if row["published_s"]],
    }  # fmt: skip


def simai() -> dict[str, Any] | None:
    """The 9,216-GPU step: even links, and one NIC at half rate."""
    path = DATA / "simai_9216gpu_workload.txt"
    if not path.is_file():
        return None
    workload = read_aicb(path)
    even = worlds.h100_pod(1152, rank_per_gpu=True)
    rows: dict[str, Any] = {}
    for name, world in (("even", even), ("slow_nic", slow_nic(even, 1000))):
        graph, build_s = timed(lambda w=world: from_aicb(workload, w))
        shared, shared_s = timed(lambda g=graph, w=world: replay(g, w).seconds)
        alone = replay(graph, world, contention=False).seconds
        rows[name] = {
            "classes": graph.ranks, "tasks": len(graph), "build_cpu_s": build_s,
            "replay_cpu_s": shared_s, "within_bound": build_s + shared_s < BOUND_S,
            "step_s": shared, "alone_s": alone,
            "critical_path_s": critical_path(graph, world).seconds,
        }  # fmt: skip
    first, second = rows["even"], rows["slow_nic"]
    rows["change_s"] = second["alone_s"] - first["alone_s"]
    rows["change_by_path_s"] = second["critical_path_s"] - first["critical_path_s"]
    return rows


def sizes() -> list[dict[str, Any]]:
    """CPU time of estimates, by devices and tasks."""
    rows = []
    for nodes, pp, batch in ((1, 1, 4), (8, 8, 64), (32, 32, 256), (48, 48, 384)):
        plan = TrainingPlan(tp=8, pp=pp, global_batch=batch, recompute="full")
        world = worlds.a100_pod(nodes, rank_per_gpu=True)
        found, cpu_s = timed(lambda p=plan, w=world: estimate("Megatron-175B", p, w))
        rows.append({"devices": plan.devices, "tasks": found.tasks, "cpu_s": cpu_s,
                     "step_s": found.seconds, "mfu": found.mfu})  # fmt: skip
    return rows


def faulty() -> dict[str, Any]:
    """A month of Llama-3.1-70B on 64 nodes: goodput by the time between failures of a node."""
    plan = TrainingPlan(
        tp=8, pp=4, dp=16, chunks=2, global_batch=512, sequence=8192, sequence_parallel=True,
        sharded_optimizer=True,
    )  # fmt: skip
    found = estimate("Llama-3.1-70B", plan, worlds.h100_pod(64, rank_per_gpu=True))
    steps = round(30 * 86400 / found.seconds)
    rows = {}
    for mtbf_h in (1_000, 10_000, 100_000):
        run = expected_run(found.seconds, steps, Trouble(mtbf_h=mtbf_h, nodes=64),
                           found.dollars_per_h)  # fmt: skip
        rows[str(mtbf_h)] = {"goodput": run.goodput, "interval_s": run.interval_s,
                             "failures": run.failures, "dollars": run.dollars}  # fmt: skip
    return {"step_s": found.seconds, "mfu": found.mfu, "steps": steps, "mtbf_h": rows}


if __name__ == "__main__":
    print(json.dumps({"published": published(), "simai": simai(), "sizes": sizes(),
                      "faulty": faulty()}))  # fmt: skip
