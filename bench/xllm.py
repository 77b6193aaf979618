"""How long do xLLM's decisions take, and how does its memory compare with gathering blocks?

The peers: a paged cache that gathers its blocks for every step (what engines without virtual
memory do on a CPU), and vLLM's scheduler. Modelled gains of the engine over a series of models
stand beside them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from orrery.base.errors import PlatformLacks
from orrery.base.rand import Stream
from orrery.systems.serve.baselines.elastic_synchronous import ElasticSynchronous
from orrery.systems.serve.problems.llm_elastic import LLMElastic, figures, some_profile, some_view
from orrery.systems.serve.problems.llm_elastic.ports import Job
from orrery.systems.serve.xllm import XLLM, GlobalIndex, XTensor, balanced
from orrery.systems.serve.xllm.kvindex import placed
from orrery.world import worlds

SERIES = (("Qwen3-0.6B", 1), ("Qwen2.5-1.5B", 1), ("Qwen3-8B", 1), ("Qwen3-14B", 2),
          ("Qwen3-32B", 4))  # fmt: skip


def cpu_s(work: Callable[[], Any], times: int = 5) -> float:
    """CPU seconds of one call, the median of several."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return float(np.median(taken))


def memory() -> dict[str, float]:
    """Microseconds to read a request's records: mapped in one piece, and gathered from a table."""
    found = {}
    for backend in ("mapped", "table"):
        try:
            made = XTensor(pages=600, page_tokens=4, width=128, backend=backend)
        except PlatformLacks:
            continue
        made.open(1, 2048)
        made.reach(1, 2048)
        found[f"read_2048_{backend}_us"] = 1e6 * cpu_s(lambda m=made: m.view(1).sum(), 50)

        def turns(m: XTensor = made) -> None:
            for owner in range(2, 102):
                m.open(owner, 64)
                m.reach(owner, 64)
                m.close(owner)

        found[f"open_reach_close_{backend}_us"] = 1e4 * cpu_s(turns, 5)
        made.shut()
    return found


def decisions() -> dict[str, float]:
    """Microseconds of a placement among 64 instances with a prefix of 500 blocks, and of roles."""
    rng, index = Stream(1, "bench", "xllm"), GlobalIndex()
    view = some_view(rng, 64)
    for each in range(64):
        index.heard(each, range(100 + each), [])
    job = Job(0, 0.0, 8100, 5, blocks=tuple(range(500)))
    part = XLLM(grouping="EP-D")
    part.start()
    part.begin(some_profile())
    return {
        "place_us": 1e6 * cpu_s(lambda: placed(job, view.instances, index, some_profile(), 1e-4)),
        "roles_us": 1e6 * cpu_s(lambda: part.roles(view)),
        "balance_64_experts_us": 1e6 * cpu_s(lambda: balanced(1 / np.arange(1, 65), 8, 10)),
        "balance_256_experts_us": 1e6 * cpu_s(lambda: balanced(1 / np.arange(1, 257), 32, 9)),
    }


def gains() -> dict[str, float]:
    """Modelled throughput within 50 ms a token over the synchronous stand-in, by model."""
    found = {}
    for model, tp in SERIES:
        problem = LLMElastic(model=model, tp=tp, requests=400, rate_per_s=1000.0, sample=0)
        ours, theirs = (
            figures(problem.play(part, 1, worlds.get("a100_pod:1")), problem.target)
            for part in (XLLM(paced=True), ElasticSynchronous())
        )
        found[model] = ours["paced_tokens_per_s"] / theirs["paced_tokens_per_s"]
    return found


def main() -> dict[str, Any]:
    """Everything, with the rate of the problem in virtual time."""
    problem = LLMElastic(requests=1000, sample=0)
    rates = {
        f"{name}_requests_per_cpu_s": 1000 / cpu_s(lambda p=part: problem.play(p, 1), 3)
        for name, part in (("fused", XLLM()), ("split", XLLM(grouping="EP-D")))
    }
    return {**memory(), **decisions(), **rates, "gain_over_synchronous": gains()}


if __name__ == "__main__":
    print(json.dumps(main()))
