"""Pipelines: what a pass costs in virtual time, and real stages beside PyTorch's.

Prints JSON. `virtual` has CPU seconds and passes a CPU second of PipeDream by the number of stages,
with the delay that was measured and the law's. `walk` has the CPU seconds of the same stale block
SGD with stages and without. `real` has batches a wall second of a small transformer in 2 processes
with 8 micro-batches to a flush: ours over sockets, and `torch.distributed.pipelining`'s 1F1B over
gloo with a model of the same shape; starting processes is not counted on either side.
"""

from __future__ import annotations

import json
import tempfile
import time
from typing import Any

import numpy as np

from orrery import World, run
from orrery.models.learn import Language
from orrery.systems.train.baselines.one_f_one_b import OneFOneB
from orrery.systems.train.baselines.pipedream import PipeDream
from orrery.systems.train.problems.cuts import cut
from orrery.systems.train.problems.pipeline_training import PipelineTraining
from orrery.systems.train.problems.stage import picked
from orrery.systems.train.randomized_pipedream import RandomizedPipeDream, delay_law, walk

STAGES, MICRO, FLUSHES = 2, 8, 30


def virtual() -> dict[str, dict[str, float]]:
    """CPU seconds of a full pipeline, by stages."""
    found = {}
    for stages in (4, 16, 64):
        steps = 2 * stages + 64
        world = World.lan(stages, latency_s=0.0, jitter=0.0, bandwidth_Bps=1e18)
        problem = PipelineTraining(
            task="quadratic", steps=steps, scale=1e12, forward_share=0.5, audit=False,
            more={"numbers": stages},
        )  # fmt: skip
        began = time.process_time()
        made = run(PipeDream(), problem=problem, world=world)
        took = time.process_time() - began
        found[str(stages)] = {
            "cpu_s": round(took, 3),
            "passes_per_cpu_s": round(2 * stages * steps / took),
            "delay": made.metrics["delay_first"],
            "law": delay_law(stages),
        }
    return found


def with_and_without_stages(stages: int = 8, steps: int = 400) -> dict[str, float]:
    """CPU seconds of the same walk."""
    part = RandomizedPipeDream()
    problem = PipelineTraining(task="quadratic", steps=steps, rate=0.01, audit=False)
    began = time.process_time()
    made = run(part, problem=problem, world=World.lan(stages))
    staged = time.process_time()
    key = next(r.values["key"] for r in made.records if "key" in r.values)
    whole = cut(problem.learning(), stages, key)
    _, ends = walk(
        lambda points, k: whole.gradient(points[0], k)[None], whole.whole, whole.slices,
        picked(part.block_seed, steps, stages)[None], part.delays(stages, steps),
        np.array([0.01]),
    )  # fmt: skip
    straight = time.process_time()
    apart = abs(whole.task.judge(ends[0]) - made.metrics["loss"])
    return {
        "stages_cpu_s": round(staged - began, 3),
        "straight_cpu_s": round(straight - staged, 3),
        "loss_apart": apart,
    }


def ours() -> float:
    """Batches a second of 1F1B on real stages, from the first pass to the last."""
    problem = PipelineTraining(task="language", steps=MICRO * FLUSHES, audit=False)
    made = run(
        OneFOneB(micro_batches=MICRO), problem=problem, world=World.lan(STAGES),
        engine="processes",
    )  # fmt: skip
    return float(made.metrics["batches_per_s"])


def _torch_stage(rank: int, store: str, answers: Any) -> None:
    import torch
    from torch import nn
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.set_num_threads(1)
    task = Language()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=STAGES
    )
    layer = nn.TransformerEncoderLayer(
        task.width, task.heads, 4 * task.width, dropout=0.0, batch_first=True, norm_first=True
    )
    inside: nn.Module = (
        nn.Sequential(nn.Embedding(task.symbols, task.width), layer)
        if rank == 0
        else nn.Sequential(layer, nn.Linear(task.width, task.symbols))
    )
    stage = PipelineStage(inside, rank, STAGES, torch.device("cpu"))

    def loss(out: Any, asked: Any) -> Any:
        return nn.functional.cross_entropy(out.reshape(-1, task.symbols), asked.reshape(-1))

    schedule = Schedule1F1B(stage, MICRO, loss_fn=loss)
    optimiser = torch.optim.SGD(inside.parameters(), lr=1e-3)
    tokens = torch.randint(0, task.symbols, (MICRO * task.batch, task.context + 1))
    began = 0.0
    for flush in range(FLUSHES + 3):
        if flush == 3:  # what is set up in the first flushes is not counted
            torch.distributed.barrier()
            began = time.perf_counter()
        optimiser.zero_grad()
        if rank == 0:
            schedule.step(tokens[:, :-1])
        else:
            schedule.step(target=tokens[:, 1:])
        optimiser.step()
    torch.distributed.barrier()
    if rank == 0:
        answers.put(MICRO * FLUSHES / (time.perf_counter() - began))
    torch.distributed.destroy_process_group()


def theirs() -> float | None:
    """The same by PyTorch; None where it is not installed."""
    try:
        import torch.multiprocessing as mp
    except ImportError:
        return None
    answers = mp.get_context("spawn").Queue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_torch_stage, (f"{folder}/store", answers), nprocs=STAGES)
    return float(answers.get())


def main() -> None:
    torch_rate = theirs()
    real = {"ours_batches_per_s": round(ours(), 1)}
    if torch_rate is not None:
        real["torch_batches_per_s"] = round(torch_rate, 1)
    answer = {"virtual": virtual(), "walk": with_and_without_stages(), "real": real}
    print(json.dumps(answer, indent=2))


if __name__ == "__main__":
    main()
