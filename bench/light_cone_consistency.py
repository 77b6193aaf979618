"""How long do 10,000 and 100,000 events take to place, with views and without?

Beside it: `orrery.check.linearizable`, the room's own checker of one model, on as many operations.
"""

from __future__ import annotations

import json
import time

from orrery.check import linearizable
from orrery.check.generate import linearizable_history
from orrery.systems.protocols.light_cone_consistency import NAMED, LightCone
from orrery.systems.protocols.light_cone_consistency.play import causal_case, causal_trace


def cpu_s(work) -> float:
    """The processor time of a call."""
    began = time.process_time()
    work()
    return round(time.process_time() - began, 3)


def main() -> None:
    """Measure and print one JSON document."""
    judge = LightCone()
    answer: dict[str, object] = {}
    for events in (10_000, 100_000):
        trace = causal_trace(events, seed=1)
        answer[f"trace_{events}_cpu_s"] = cpu_s(lambda trace=trace: judge.place(trace))
    case = causal_case(10_000, seed=1)
    for name in ("read_your_writes", "monotonic_reads", "monotonic_writes", "writes_follow_reads",
                 "eventual", "causal_convergence", "pram", "causal"):  # fmt: skip
        answer[f"history_10000_{name}_cpu_s"] = cpu_s(
            lambda name=name: judge.holds(case, NAMED[name])
        )
    other = linearizable_history(10_000, clients=12, keys=50, seed=1)
    answer["check_linearizable_10000_cpu_s"] = cpu_s(lambda: linearizable(other))
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
