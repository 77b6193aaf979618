"""How fast are traces read, and how fast are they replayed? Prints JSON.

Reading is timed beside protobuf's own library where that is installed (C, one object a node).
Replays: 64 ranks x 2,000 nodes (bound 10 s), the 9,216-GPU step of SimAI with and without a slow
NIC where ORRERY_DATA has it (bound 10 s), and with --large 1,024 ranks x 10,000 nodes (bound
10 minutes and 6 GB). Bounds are judged by CPU time, as the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.systems.ops.test_chakra import many
from tests.unit.test_chakra_codec import chain, protobuf_node_class

from orrery.inputs import chakra
from orrery.inputs.aicb import read_aicb
from orrery.inputs.chakra.stream import read_messages
from orrery.models.taskgraph import critical_path, from_aicb, replay
from orrery.world import World, worlds

BOUND_S, BOUND_LARGE_S, BOUND_LARGE_B = 10.0, 600.0, 6e9


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """(what it gave, CPU and wall seconds)."""
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    found = work()
    took = {"cpu_s": time.process_time() - cpu_s, "wall_s": time.perf_counter() - wall_s}
    return found, {name: round(value, 3) for name, value in took.items()}


def peak_B() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def codec(nodes: int) -> dict[str, Any]:
    """Write and read a trace of so many nodes."""
    found: dict[str, Any] = {"nodes": nodes}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.et"
        _, found["save"] = timed(lambda: chakra.save(path, chain(nodes)))
        _, found["load_columns"] = timed(lambda: chakra.load(path))
        _, found["stream_objects"] = timed(lambda: sum(1 for _ in chakra.open_trace(path)[1]))
        try:
            cls = protobuf_node_class()
        except BaseException:  # pytest's skip, where protobuf is not installed
            found["protobuf"] = None
        else:

            def theirs() -> int:
                messages = read_messages(path)
                next(messages)
                return len([cls.FromString(message) for message in messages])

            _, found["protobuf"] = timed(theirs)
    found["peak_B"] = peak_B()
    return found


def simai() -> dict[str, Any] | None:
    """The 9,216-GPU step: even links, and one NIC at half rate."""
    path = Path(os.environ.get("ORRERY_DATA", "")) / "training" / "simai_9216gpu_workload.txt"
    if not path.is_file():
        return None
    workload = read_aicb(path)
    even = worlds.h100_pod(1152, rank_per_gpu=True)
    (group,) = even.groups
    machine = even.machines[group.machine]
    parts = (group.replace(count=1000), group.replace(count=1, machine="slow"),
             group.replace(count=8215))  # fmt: skip
    half = machine.replace(nic_Bps=machine.nic_Bps / 2)
    slow = even.replace(groups=parts, machines={**even.machines, "slow": half})
    rows = {}
    for name, world in (("even", even), ("slow_nic", slow)):
        graph, made = timed(lambda world=world: from_aicb(workload, world))
        row: dict[str, Any] = {"classes": graph.ranks, "tasks": len(graph), "build": made}
        for label, contention in (("alone", False), ("shared", True)):
            times, row[label] = timed(
                lambda g=graph, w=world, c=contention: replay(g, w, contention=c)
            )
            row[label]["step_s"] = times.seconds
        path_s, row["critical_path"] = timed(lambda g=graph, w=world: critical_path(g, w).seconds)
        row["critical_path"]["step_s"] = path_s
        row["within_bound"] = made["cpu_s"] + row["shared"]["cpu_s"] < BOUND_S
        rows[name] = row
    return rows


def grid(ranks: int, tasks: int, world: World, bound_s: float) -> dict[str, Any]:
    """So many ranks with so many tasks each."""
    graph, made = timed(lambda: many(ranks, tasks))
    times, took = timed(lambda: replay(graph, world))
    return {"tasks": len(graph), "build": made, "replay": took, "step_s": times.seconds,
            "shared": times.shared, "peak_B": peak_B(),
            "within_bound": took["cpu_s"] < bound_s and peak_B() < BOUND_LARGE_B}  # fmt: skip


def main() -> None:
    """Time everything and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200_000, help="of the trace to read")
    parser.add_argument("--large", action="store_true", help="also 1,024 ranks x 10,000 nodes")
    settings = parser.parse_args()
    answer: dict[str, Any] = {"machine": platform.machine(), "codec": codec(settings.nodes)}
    lan = World.lan(64, latency_s=5e-6, jitter=0.0, bandwidth_Bps=50e9)
    answer["64x2000"] = grid(64, 2000, lan, BOUND_S)
    answer["simai_9216"] = simai()
    if settings.large:
        pod = worlds.h100_pod(128, rank_per_gpu=True)
        answer["1024x10000"] = grid(1024, 10_000, pod, BOUND_LARGE_S)
    json.dump(answer, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
