"""How long does Coral take to plan, beside the monolithic program; and the table of stage 1.

    python -m bench.coral             seconds to solve: 3 models x 8 offers, 6 models x 20 offers
    python -m bench.coral --profile   the throughput of every template anew, into rates.json

Bounds that are judged here: under 5 s for the smaller fleet and under 60 s for the larger one, with
a proven gap of at most 1 %. The peer is the same solver (HiGHS) on the program without stage 1.
"""

from __future__ import annotations

import json
import sys
import time
from multiprocessing import Pool
from pathlib import Path

from tests.systems.serve.fleet_cases import large_case

from orrery.systems.serve.baselines.monolithic_program import MonolithicProgram
from orrery.systems.serve.coral import Coral, front
from orrery.systems.serve.problems import llm_fleet
from orrery.systems.serve.problems.llm_fleet import GPUS, MODELS, Target95
from orrery.systems.serve.problems.llm_fleet.data import digest
from orrery.systems.serve.problems.llm_fleet.rates import (
    BLOCK_TOKENS,
    key_of,
    measured_rate,
    most_context,
)
from orrery.systems.serve.problems.llm_fleet.scenarios import draw
from orrery.systems.serve.problems.llm_fleet.templates import strategies

PROMISE = Target95()


def timed(planner, market, demand, templates) -> dict[str, float]:
    """Seconds of one plan, its cost and what was proven."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    plan = planner.plan(market, demand, templates, {})
    return {
        "wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s,
        "cost_per_h": plan.cost_per_h, "gap": plan.gap, "nodes": plan.nodes,
        "columns": plan.columns,
    }  # fmt: skip


def beside(market, demand, templates, gap: float) -> dict[str, object]:
    """Coral, the monolithic program, and stage 1 alone."""
    start_s = time.perf_counter()
    kept = len(front(templates, market))
    stage_1_s = time.perf_counter() - start_s
    return {
        "templates": len(templates), "kept": kept, "stage_1_s": stage_1_s,
        "coral": timed(Coral(gap=gap), market, demand, templates),
        "monolithic": timed(MonolithicProgram(gap=gap), market, demand, templates),
    }  # fmt: skip


def solve_times() -> dict[str, object]:
    """Both fleets."""
    rates = (30.0, 8.0, 6.0)
    small = draw(MODELS, GPUS, rates, PROMISE, 0, plenty=("L40S", "A100-80-SXM"))
    found = {
        "3x8": beside(small.market, small.demand, small.templates, 0.005),
        "6x20": beside(*large_case(), 0.01),
    }
    for name, limit_s in (("3x8", 5.0), ("6x20", 60.0)):
        found[name]["within"] = found[name]["coral"]["wall_s"] < limit_s
    return found


def _one(strategy) -> tuple[str, float]:
    return key_of(strategy, PROMISE), measured_rate(strategy, PROMISE)


def profile() -> dict[str, object]:
    """Every rate of the default fleet by replays, written beside the problem."""
    context = most_context(PROMISE.workload) + BLOCK_TOKENS
    todo = [each for model in MODELS for each in strategies(model, sorted(GPUS), context)]
    start_s = time.perf_counter()
    with Pool() as pool:
        rates = dict(pool.imap_unordered(_one, todo, chunksize=2))
    place = Path(llm_fleet.__file__).with_name("rates.json")
    place.write_text(json.dumps({"rates": dict(sorted(rates.items()))}, indent=0) + "\n")
    seconds = time.perf_counter() - start_s
    # The new digest goes into data.py by hand: a table that changed should be looked at.
    return {"strategies": len(todo), "seconds": seconds, "digest": digest(place.read_bytes())}


if __name__ == "__main__":
    print(json.dumps(profile() if "--profile" in sys.argv[1:] else solve_times()))
