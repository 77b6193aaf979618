"""How long does it take to ask what a step takes, from rooflines and from measured tables?"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from orrery.models.steps import steps_for

STEPS = {
    "decode": ([], 32, 20_000),
    "one_chunk": ([(512, 0)], 30, 20_000),
    "two_chunks": ([(512, 1500), (128, 0)], 30, 20_000),
}


def microseconds(call: Any, *arguments: Any, times: int = 20_000, rounds: int = 5) -> float:
    """The best of some rounds, as the machine may be shared; CPU time."""
    call(*arguments)
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(times):
            call(*arguments)
        best = min(best, time.process_time() - began)
    return round(best / times * 1e6, 2)


def ask(model: str, device: str, tp: int, tables: str | None) -> dict[str, Any]:
    """Microseconds of each kind of question, and of making the answers ready."""
    began = time.process_time()
    steps = steps_for(model, device, tp, tables=tables)
    steps.seconds([(1, 0)], 1, 10)
    ready_s = time.process_time() - began
    found: dict[str, Any] = {"steps": type(steps).__name__, "ready_s": round(ready_s, 3)}
    for name, step in STEPS.items():
        found[f"{name}_us"] = microseconds(steps.seconds, *step)
    found["run_of_200_us"] = microseconds(steps.decode_run, 32, 20_000, 200)
    found["joules_us"] = microseconds(steps.joules, *STEPS["decode"], times=2_000)
    return found


if __name__ == "__main__":
    answers = {}
    for model, device, tp in (("Llama-3.1-8B", "H100-SXM", 1), ("gpt-oss-120b", "H100-SXM", 1)):
        answers[f"{model} roofline"] = ask(model, device, tp, None)
        if os.environ.get("ORRERY_DATA"):
            answers[f"{model} tables"] = ask(model, device, tp, "auto")
    print(json.dumps(answers))
