"""A small real training with gloo, profiled; and a probe of its all-reduces. Run as a script.

`torch_job.py train RANK SIZE OUT PORT` writes prof.RANK.json, et.RANK.json and steps.RANK.json;
`torch_job.py probe RANK SIZE OUT PORT` measures all-reduces of several sizes, each after work that
keeps the ranks together as training does, and rank 0 writes probe.json.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function

WIDTH, LAYERS, ROWS, STEPS = 768, 4, 512, 12


def train(rank: int, out: str) -> None:
    torch.manual_seed(rank)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers)
    rule = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows = torch.randn(ROWS, WIDTH)

    def step() -> None:
        rule.zero_grad()
        model(rows).square().mean().backward()
        for weights in model.parameters():
            dist.all_reduce(weights.grad)
        rule.step()

    for _ in range(4):
        step()
    dist.barrier()
    observer = ExecutionTraceObserver()
    observer.register_callback(f"{out}/et.{rank}.json")
    took = []
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer
    ) as recording:
        for number in range(STEPS):
            before = time.perf_counter()
            with record_function(f"step {number}"):
                step()
            took.append(time.perf_counter() - before)
    recording.export_chrome_trace(f"{out}/prof.{rank}.json")
    with open(f"{out}/steps.{rank}.json", "w") as file:
        json.dump(took, file)


def probe(rank: int, out: str) -> None:
    found = []
    work = torch.randn(256, 256)
    for items in (WIDTH, 16_384, 131_072, WIDTH * WIDTH, 2 * WIDTH * WIDTH):
        array, times = torch.ones(items), []
        for _ in range(15):
            work @ work
            dist.barrier()
            before = time.perf_counter()
            dist.all_reduce(array)
            times.append(time.perf_counter() - before)
        found.append((items * 4, sorted(times)[len(times) // 2]))
    if rank == 0:
        with open(f"{out}/probe.json", "w") as file:
            json.dump(found, file)


def main() -> None:
    what, rank, size, out, port = sys.argv[1:]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=int(rank), world_size=int(size))
    {"train": train, "probe": probe}[what](int(rank), out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
