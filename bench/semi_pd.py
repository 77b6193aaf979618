"""How fast is the problem of phases in virtual time, and the shared allocator for real?

`python bench/semi_pd.py` prints requests and steps per CPU-second of every policy, the time of one
decision of semi-PD, and operations per second of the allocator from one process, beside a plain
multiprocessing lock around the same work. `python bench/semi_pd.py device` measures, where there is
a CUDA device (needs CuPy; PyTorch for the matrix products), how much of the memory bandwidth k of
the multiprocessors read: alone, beside arithmetic on the others, and beside reads on the others.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

KERNELS = r"""
extern "C" __global__ void __launch_bounds__(1024) reads(const float4* p, long n, float* out) {
  extern __shared__ float hold[];
  long step = (long)gridDim.x * blockDim.x, i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  float s = 0;
  for (; i + 7 * step < n; i += 8 * step) {
    float4 v[8];
    #pragma unroll
    for (int j = 0; j < 8; j++) v[j] = __ldcs(p + i + j * step);
    #pragma unroll
    for (int j = 0; j < 8; j++) s += v[j].x + v[j].y + v[j].z + v[j].w;
  }
  if (s == 12345.678f) { hold[0] = s; out[0] = hold[0]; }
}
extern "C" __global__ void __launch_bounds__(1024) sums(long rounds, float* out) {
  extern __shared__ float hold[];
  float a = threadIdx.x, b = 1.0001f, c = 0.5f, d = 2.0f;
  for (long i = 0; i < rounds; i++) { a = a * b + c; d = d * b + c; c = c * b + a; b = b * 0.9f + 0.1f; }
  if (a + d == 12345.678f) { hold[0] = a; out[0] = hold[0]; }
}
"""  # noqa: E501
HOLD_B = 200 * 1024  # shared memory of a block, so that a multiprocessor takes one


def device() -> dict[str, Any]:
    """Bandwidth by multiprocessors, alone and in company, and matrix products by them."""
    import cupy as cp

    module = cp.RawModule(code=KERNELS)
    reads, sums = module.get_function("reads"), module.get_function("sums")
    for kernel in (reads, sums):
        kernel.max_dynamic_shared_size_bytes = HOLD_B
    units = cp.cuda.Device().attributes["MultiProcessorCount"]
    size_B = 6 << 30
    data = [cp.zeros(size_B // 4, cp.float32) for _ in range(2)]
    out = cp.zeros(4, cp.float32)
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]

    def read(k: int, which: int, stream: Any) -> None:
        reads((k,), (1024,), (data[which], size_B // 16, out), shared_mem=HOLD_B, stream=stream)

    def timed(k: int, beside: str) -> float:
        """TB/s of k readers; in company the other kernel runs for longer than they do."""
        best = 0.0
        for _ in range(3):
            begin, end = cp.cuda.Event(), cp.cuda.Event()
            cp.cuda.Device().synchronize()
            if beside == "sums":
                sums((units - k,), (1024,), (200_000, out), shared_mem=HOLD_B, stream=streams[1])
            elif beside == "reads":
                for _ in range(1 + 4 * max(1, (units - k) // k)):
                    read(units - k, 1, streams[1])
            begin.record(streams[0])
            read(k, 0, streams[0])
            end.record(streams[0])
            cp.cuda.Device().synchronize()
            best = max(best, size_B / cp.cuda.get_elapsed_time(begin, end) / 1e9)
        return best

    counts = [8, 13, 20, 26, 33, 40, 46, 53, 59, 66, 79, 92, 99, 106, 119, 131]
    found: dict[str, Any] = {"device": cp.cuda.runtime.getDeviceProperties(0)["name"].decode(),
                             "multiprocessors": units}  # fmt: skip
    timed(66, "")
    for beside in ("", "sums", "reads"):
        found[f"TBps beside {beside or 'nothing'}"] = {k: timed(k, beside) for k in counts}
    found["products"] = products(units)
    return found


def products(units: int) -> dict[str, float] | str:
    """TFLOP/s of bf16 matrix products that leave out so many multiprocessors."""
    try:
        import torch

        carve = torch._C._set_sm_carveout_experimental
    except (ImportError, AttributeError) as error:
        return f"not measured: {error}"
    found, n = {}, 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for left_out in (0, 33, 66, 99):
        carve(left_out)
        for _ in range(3):
            a @ b
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            a @ b
        end.record()
        torch.cuda.synchronize()
        found[f"{units - left_out}"] = 10 * 2 * n**3 / begin.elapsed_time(end) / 1e9
    return found


def virtual() -> dict[str, Any]:
    """Requests, steps and decisions per CPU-second."""
    from orrery.systems.serve.baselines.phase_chunked import PhaseChunked
    from orrery.systems.serve.baselines.phase_disaggregated import PhaseDisaggregated
    from orrery.systems.serve.baselines.phase_static_split import PhaseStaticSplit
    from orrery.systems.serve.baselines.phase_unchunked import PhaseUnchunked
    from orrery.systems.serve.problems.llm_phases import LLMPhases
    from orrery.systems.serve.semi_pd import SemiPD

    problem = LLMPhases(requests=1500, rate_per_s=10.0)
    found: dict[str, Any] = {"measured_tables": problem.costs(4).measured}
    decided: list[float] = []

    class Timed(SemiPD):
        """semi-PD with a watch on its decisions."""

        def share(self, view: Any) -> float:
            began = time.thread_time()
            answer = super().share(view)
            decided.append(time.thread_time() - began)
            return answer

    parts = {"semi-PD": Timed(), "chunks of 512": PhaseChunked(), "whole": PhaseUnchunked(),
             "static": PhaseStaticSplit(share_of_prefill=0.8),
             "disaggregated": PhaseDisaggregated(prefill=2)}  # fmt: skip
    for name, part in parts.items():
        problem.play(part, 1)  # curves and tables are made when first needed
        began = time.process_time()
        log = problem.play(part, 1, notes=True)
        cpu_s = time.process_time() - began
        found[name] = {"requests_per_cpu_s": len(log.answers) / cpu_s,
                       "steps_per_cpu_s": len(log.notes or ()) / cpu_s}  # fmt: skip
    found["decision_median_s"] = statistics.median(decided)
    found["decision_max_s"] = max(decided)
    return found


def allocator(rounds: int = 20_000) -> dict[str, float]:
    """Operations per second: our lock and journal, and the same book under a plain lock."""
    import multiprocessing

    from orrery.models.real.phases import Arena, BlockBook, owner_of

    found = {}
    with Arena.create("bench", 8 * BlockBook.words(1024)) as arena:
        words = arena.words(0, BlockBook.words(1024))
        for name, lock in (("kernel lock", arena.lock()), ("plain lock", multiprocessing.Lock())):
            book = BlockBook(words, 1024, lock)
            began = time.perf_counter()
            for at in range(rounds):
                owner = owner_of(1, at)
                book.give(owner, book.take(owner, 4) or [])
            found[f"{name}: operations_per_s"] = 2 * rounds / (time.perf_counter() - began)
        del words, book
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["device"]:
        print(json.dumps(device()))
    else:
        print(json.dumps({"virtual": virtual(), "allocator": allocator()}, indent=1))
