"""An all-reduce of 64 MB over 8 processes on the loopback: PCCL beside Gloo, in turns.

Both are measured in this run, by rounds that alternate; a round makes a fresh group and takes the
median of its operations after the first ones, which warm memory and connections up. An operation
lasts from the moment the last peer begins it until the last peer has the sum. Prints JSON; also
which CPU time each needs, since a busy machine moves wall times but hardly that.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import time
from typing import Any

import numpy as np

from orrery import World, run
from orrery.parts import Count
from orrery.systems.collectives.pccl import PCCL
from orrery.systems.collectives.pccl.coding import error_bound
from orrery.systems.collectives.problems.churned_all_reduce import ChurnedAllReduce

WARM_UP = 3


class Speed(PCCL):
    """A peer that does nothing but sum one array again and again."""

    megabytes: Count = 64
    times: Count = 12

    async def main(self) -> None:
        array = np.full(self.megabytes << 18, float(self.id), np.float32)
        memory = [np.zeros_like(array), np.zeros_like(array)]
        await self.enter()
        for number in range(self.times):
            began_s, cpu_s = self.now, time.process_time()
            done = await self.all_reduce(array, out=memory[number % 2])
            right = done.value is not None and done.value[-1] == sum(done.members)
            self.emit(number=number, began_s=began_s, ended_s=self.now, right=bool(right),
                      cpu_s=time.process_time() - cpu_s)  # fmt: skip
        self.over.set()


class Timing(ChurnedAllReduce):
    """Runs until all peers have ended; the peers themselves say what they measured."""

    def check(self, outcome: Any) -> list[Any]:
        return []

    def measure(self, outcome: Any) -> dict[str, float]:
        return {}


def ours(peers: int, megabytes: int, times: int, **knobs: Any) -> list[tuple[float, float]]:
    """(wall seconds, CPU seconds of all peers) of each operation."""
    part = Speed(megabytes=megabytes, times=times, probe_B=0, silence_s=20.0, timeout_s=100.0,
                 **knobs)  # fmt: skip
    world = World.lan({"coordinator": 1, "peer": peers})
    made = run(part, problem=Timing(), world=world, engine="processes", raw=True,
               nodes_per_process=1)  # fmt: skip
    return _operations([r.values for r in made.records if "number" in r.values], peers)


def gloo(peers: int, megabytes: int, times: int) -> list[tuple[float, float]]:
    """The same by torch.distributed with the backend Gloo."""
    import torch

    torch.set_num_threads(1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    read, write = os.pipe()
    pids = []
    for rank in range(peers):
        pid = os.fork()
        if pid == 0:
            _gloo_peer(rank, peers, port, megabytes, times, write)
        pids.append(pid)
    os.close(write)
    with os.fdopen(read) as lines:
        told = [json.loads(line) for line in lines]
    for pid in pids:
        os.waitpid(pid, 0)
    return _operations(told, peers)


def _gloo_peer(rank: int, peers: int, port: int, megabytes: int, times: int, pipe: int) -> None:
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=peers)
    array = torch.empty(megabytes << 18)
    for number in range(times):
        array.fill_(float(rank))
        dist.barrier()
        began_s, cpu_s = time.monotonic(), _cpu_s()
        dist.all_reduce(array)
        told = {"number": number, "began_s": began_s, "ended_s": time.monotonic(),
                "cpu_s": _cpu_s() - cpu_s,
                "right": float(array[-1]) == sum(range(peers))}  # fmt: skip
        os.write(pipe, json.dumps(told).encode() + b"\n")
    dist.barrier()
    os._exit(0)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _operations(told: list[dict[str, Any]], peers: int) -> list[tuple[float, float]]:
    found = []
    for number in sorted({one["number"] for one in told}):
        rows = [one for one in told if one["number"] == number]
        if len(rows) != peers or not all(one["right"] for one in rows):
            raise SystemExit(f"operation {number}: a peer has no sum, or a wrong one")
        wall_s = max(one["ended_s"] for one in rows) - max(one["began_s"] for one in rows)
        found.append((wall_s, sum(one["cpu_s"] for one in rows)))
    return found[WARM_UP:]


def modelled(connections: int) -> dict[str, float]:
    """CPU time of one modelled operation, and what the model says of it."""
    world = World.lan({"coordinator": 1, "peer": 8}, latency_s=0.02, window_B=3.0 * (1 << 20))
    problem = ChurnedAllReduce(ops=2, items=1 << 30, hollow=True, timeout_s=1e6)
    began = time.process_time()
    made = run(PCCL(connections=connections, timeout_s=1e6), problem=problem, world=world)
    return {
        "bandwidth_Gbps": round(made.metrics["bandwidth_Gbps"], 3),
        "cpu_s_per_operation": round((time.process_time() - began) / 2, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=12)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--piece", type=int, default=8, help="MiB")
    asked = parser.parse_args()
    sizes = (asked.peers, asked.megabytes, asked.times)
    knobs = {"connections": asked.connections, "piece_B": asked.piece << 20}
    found: dict[str, list[tuple[float, float]]] = {"pccl": [], "gloo": []}
    for _ in range(asked.rounds):
        found["pccl"] += ours(*sizes, **knobs)
        found["gloo"] += gloo(*sizes)
    wall = {name: statistics.median(w for w, _ in rows) for name, rows in found.items()}
    cpu = {name: statistics.median(c for _, c in rows) for name, rows in found.items()}
    moved_B = asked.megabytes << 20
    print(json.dumps({
        "peers": asked.peers, "megabytes": asked.megabytes, "operations": len(found["pccl"]),
        "median_s": wall, "cpu_s": cpu,
        "array_Bps": {name: moved_B / s for name, s in wall.items()},
        "rate_of_gloo": wall["gloo"] / wall["pccl"], "cpu_of_gloo": cpu["gloo"] / cpu["pccl"],
        "load": os.getloadavg()[0],
        "modelled_1_connection": modelled(1), "modelled_16_connections": modelled(16),
        "int8_error_bound_8_peers": error_bound(8),
    }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
