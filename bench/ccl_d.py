"""CCL-D: what the probe costs a real step, and what a virtual job of many ranks costs to watch.

Prints JSON; all of it is measured on this machine. `probe` is the time inside the probe's calls
over the time of the job, on real processes, and the time of one call. `located` is the time that
each system took to name the rank, in virtual seconds, for ten jobs with one fault each. `sound` is
the processor time of a fault-free virtual job.
"""

from __future__ import annotations

import argparse
import json
import time

from orrery import run
from orrery.systems.resilience.baselines.iteration_threshold import IterationThreshold
from orrery.systems.resilience.baselines.pairwise_sweep import PairwiseSweep
from orrery.systems.resilience.baselines.stack_vote import StackVote
from orrery.systems.resilience.baselines.watchdog_timeout import WatchdogTimeout
from orrery.systems.resilience.ccl_d import CCLD
from orrery.systems.resilience.problems.sick_communication import SickCommunication

WATCHERS = (CCLD(), WatchdogTimeout(), StackVote(), IterationThreshold(), PairwiseSweep())


def probe_share(ranks: int, seconds: float) -> dict[str, float]:
    """The part of a sound real job that is spent in the probe; a step is some 100 ms."""
    problem = SickCommunication(
        kind="none", tp=ranks, pp=1, dp=1, step_s=1e-6, grinds=4000, pace_s=0.01, width=500,
        calm_s=seconds, collective="ring", scale=1.0, launcher_s=0.5,
    )  # fmt: skip
    made = run(CCLD(heartbeat_s=0.5), problem=problem, engine="processes")
    step_s = made.seconds / max(made.metrics["steps"], 1.0)
    share = made.metrics["probe_share"]
    return {"step_s": step_s, "probe_share": share, "below_1_percent": share < 0.01}


def call_us(times: int) -> float:
    """Microseconds of one call of the probe, in the middle of an operation's five."""
    probe = CCLD().recorder_for(0, time.perf_counter)
    began = time.process_time()
    for _ in range(times):
        op = probe.enqueue("tp", "tp.0", "all_reduce", 64, [0, 1])
        probe.post(op, 1)
        probe.takes(op, 1)
        probe.took(op, 1)
        probe.shipped(op, 1, 64)
        probe.end(op)
    return (time.process_time() - began) / (5 * times) * 1e6


def located(watcher: object) -> dict[str, float]:
    """How soon, and for how many of ten kinds, the rank is named."""
    problem = SickCommunication(
        kind="all", jobs=10, dp=4, step_s=20.0, after_s=110.0, within_s=20.0
    )
    made = run(watcher, problem=problem)
    return {name: made.metrics[name] for name in ("right", "located_s", "slowest_s", "wrong")}


def sound(tp: int, pp: int, dp: int, hours: float) -> dict[str, float]:
    """Processor seconds of a fault-free job of many ranks with steps of 60 s."""
    began = time.process_time()
    problem = SickCommunication(
        kind="none", tp=tp, pp=pp, dp=dp, step_s=60.0, calm_s=3600.0 * hours
    )
    made = run(CCLD(), problem=problem)
    return {
        "ranks": tp * pp * dp, "hours": hours, "cpu_s": time.process_time() - began,
        "reports": made.metrics["false_alarms"],
    }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--ranks", type=int, default=4)
    asked.add_argument("--seconds", type=float, default=10.0)
    given = asked.parse_args()
    found = {
        "probe": probe_share(given.ranks, given.seconds) | {"call_us": call_us(20_000)},
        "located": {type(watcher).__name__: located(watcher) for watcher in WATCHERS},
        "sound": sound(8, 4, 8, 0.25),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
