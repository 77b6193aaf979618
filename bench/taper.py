"""How long does a decision of TAPER take, and how fast is its problem in virtual time?

The decision is timed on views of 256 requests with 8 open branches each: alone; beside one chat
that leaves room for some of the branches, so that all are ranked; and with every second request in
a serial stage. The peer is a simpler greedy choice, by what is left alone, with a heap in Python.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from orrery.base.rand import Stream
from orrery.systems.serve.baselines.irp_eager import IRPEager
from orrery.systems.serve.problems.branch_engine import Live
from orrery.systems.serve.problems.branch_requests import BranchView, Forked, Stage
from orrery.systems.serve.problems.llm_branches import LLMBranches
from orrery.systems.serve.taper import Taper

# Between the step of first branches alone and the step of all.
PACE_S = 0.11
CASES: dict[str, Callable[[int], bool]] = {
    "all_forked": lambda number: True,
    "one_chat": lambda number: number > 0,
    "half_forked": lambda number: bool(number % 2),
}


def some_rows(requests: int, branches: int, forked: Callable[[int], bool]) -> list[Live]:
    """Requests that have decoded a while, some of them in a fork."""
    rng, rows = Stream(1, "bench", "taper"), []
    for number in range(requests):
        row = Live(Forked(number, 0.0, 500 + rng.below(1500), [Stage(300, (100,) * branches)],
                          tpot_s=PACE_S))  # fmt: skip
        row.context, row.due_s = row.request.prompt_tokens, 10.0 + PACE_S
        if forked(number):
            row.open, row.made = list(range(branches)), [rng.below(90) for _ in range(branches)]
            row.own_tokens = row.phase_tokens = sum(row.made)
        rows.append(row)
    return rows


def median_s(work: Callable[[], Any], times: int = 200) -> float:
    """The median time of a call."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def by_heap(view: BranchView, limit: int) -> list[int]:
    """The ranking of TAPER, branch by branch."""
    widths, own, opened = [1] * len(view), view.own.tolist(), view.open.tolist()
    heap = [(-own[i] / 2, i) for i in range(len(view)) if opened[i] > 1]
    heapq.heapify(heap)
    while heap and limit:
        worth, i = heapq.heappop(heap)
        widths[i] += 1
        limit -= 1
        if widths[i] < opened[i]:
            heapq.heappush(heap, (worth * widths[i] / (widths[i] + 1), i))
    return widths


def main() -> dict[str, Any]:
    """Milliseconds of a decision, and steps per CPU-second of the problem."""
    found: dict[str, Any] = {}
    part = Taper()
    part.start()
    seconds = lambda prompts, n, kv: 0.02 + 5e-5 * n + 7e-8 * kv  # noqa: E731
    for n in range(300):
        count, kv = 20 + n % 200, 1000 * (n % 150)
        part.observe(0, count, kv, seconds((), count, kv))
    for name, forked in CASES.items():
        rows = some_rows(256, 8, forked)
        chosen = int(part.widths(BranchView(10.0, rows, (), seconds)).sum()) - len(rows)
        taken_s = median_s(lambda rows=rows: part.widths(BranchView(10.0, rows, (), seconds)))
        found[f"decision_{name}_ms"] = 1e3 * taken_s
        found[f"branches_let_in_{name}"] = chosen
        heap_s = median_s(
            lambda rows=rows, most=chosen: by_heap(BranchView(10.0, rows, (), seconds), most), 20
        )
        found[f"heap_{name}_ms"] = 1e3 * heap_s
    problem = LLMBranches(requests=100, tables="")
    for policy in (Taper(), IRPEager()):
        began = time.process_time()
        log = problem.play(policy, 1)
        rate = len(log.times_s) / (time.process_time() - began)
        found[f"{type(policy).__name__}_steps_per_cpu_s"] = rate
    return found


if __name__ == "__main__":
    print(json.dumps(main()))
