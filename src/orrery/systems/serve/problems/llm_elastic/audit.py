"""What a run of an elastic pool leaves behind, what is wrong with it, and what it measures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from orrery.base.violation import Violation
from orrery.check.conservation import exactly_once
from orrery.models.requests import Served, Target
from orrery.parts import Metric
from orrery.systems.serve.problems.figures import times
from orrery.systems.serve.problems.llm_elastic.ports import Job

WARM_UP = 0.25


class Crashed(NamedTuple):
    """A death: of whom, when, when the service noticed, and how many requests were there."""

    instance: int
    at_s: float
    noticed_s: float
    requests: int


class Log(msgspec.Struct, kw_only=True):
    """The record of a run."""

    jobs: list[Job]
    served: list[Served] = []
    offline: list[Served] = []
    open: list[int] = []
    failed: list[int] = []
    switches: list[tuple[float, int, str, str]] = []
    effects: list[float] = []
    crashes: list[Crashed] = []
    wrong: list[int] = []
    faults: list[str] = []
    busy_s: list[float] = []
    moved_B: float = 0.0
    preemptions: int = 0
    resent: int = 0
    seconds: float = 0.0
    offline_until_s: float = 0.0
    detect_s: float = 0.0


METRICS: Mapping[str, Metric] = {
    "attainment": Metric("", "higher", "share of online jobs that met both targets"),
    "goodput_per_s": Metric(
        "1/s", "higher", "online jobs that met both targets, over the time of arrivals"
    ),
    "paced_tokens_per_s": Metric("1/s", "higher", "tokens of online jobs that met tpot_s"),
    "tokens_per_s": Metric("1/s", "higher", "made for online jobs"),
    "offline_tokens_per_s": Metric("1/s", "higher", "of offline jobs that end after the warm-up"),
    "ttft_mean_s": Metric("s", "lower", "to the first token"),
    "ttft_p50_s": Metric("s", "lower", "to the first token"),
    "ttft_p99_s": Metric("s", "lower", "to the first token"),
    "tpot_mean_s": Metric("s", "lower", "of each further token"),
    "tpot_p50_s": Metric("s", "lower", "of each further token"),
    "tpot_p99_s": Metric("s", "lower", "of each further token"),
    "latency_p50_s": Metric("s", "lower", "to the last token"),
    "latency_p99_s": Metric("s", "lower", "to the last token"),
    "hit_ratio": Metric("", "higher", "share of prompt tokens that were in a cache"),
    "preemptions": Metric("", "lower", "times that a job lost its blocks"),
    "switches": Metric("", "", "changes of role"),
    "switch_effect_s": Metric("s", "lower", "from a change of role to its first work, at most"),
    "moved_GB": Metric("GB", "lower", "caches sent between instances"),
    "detect_s": Metric("s", "lower", "from a death until the service knew, at most"),
    "resent": Metric("", "lower", "times that a job was sent again"),
    "failed": Metric("", "lower", "online jobs that got no answer"),
    "busy": Metric("", "higher", "share of the time that an instance computed"),
}


def faults_of(log: Log) -> list[Violation]:
    """What must never happen: a job lost, answered twice, cut short, or answered wrongly."""
    found = list(exactly_once(
        [job.id for job in log.jobs], [each.id for each in log.served], log.failed
    ))  # fmt: skip
    by_id = {job.id: job for job in log.jobs}
    for each in log.served:
        job = by_id.get(each.id)
        if job is None:
            continue  # said above
        if each.output_tokens != job._output_tokens:
            text = f"job {each.id} made {each.output_tokens} tokens of {job._output_tokens}"
            found.append(Violation("cut_short", text))
        if not job.arrival_s <= each.started_s <= each.first_s <= each.last_s:
            found.append(Violation("out_of_time", f"job {each.id}: {each}"))
    found += [Violation("wrong_answer", f"job {number}") for number in log.wrong]
    found += [Violation("cache_books", text) for text in log.faults]
    if log.detect_s:
        found += [
            Violation("late_notice", f"instance {each.instance} died at {each.at_s:.3f} s, noticed "
                      f"at {each.noticed_s:.3f} s; the bound is {log.detect_s} s")
            for each in log.crashes if each.noticed_s - each.at_s > log.detect_s + 1e-9
        ]  # fmt: skip
    return found


def figures(log: Log, target: Target) -> dict[str, float]:
    """The metrics of a log."""
    served, seconds = log.served, max(log.seconds, 1e-9)
    found = {name: value for name, value in times(served).items() if name in METRICS}
    met = sum(target.met(each.ttft_s, each.tpot_s) for each in served)
    paced = sum(each.output_tokens for each in served if each.tpot_s <= target.tpot_s)
    prompts = sum(each.prompt_tokens for each in served)
    until_s = min(log.offline_until_s, seconds) or seconds
    # Jobs that met their targets, by the time in which jobs came: how long the last answer happens
    # to be says nothing about the pool.
    came_s = log.jobs[-1].arrival_s if len(log.jobs) > 1 else seconds
    # A backlog fills empty instances at first; what is counted begins after a quarter of its time.
    from_s = WARM_UP * until_s
    batch = sum(
        each.output_tokens for each in log.offline if from_s < each.last_s <= until_s
    )  # fmt: skip
    late = [each.noticed_s - each.at_s for each in log.crashes]
    return found | {
        "attainment": met / max(len(log.jobs), 1), "goodput_per_s": met / max(came_s, 1e-9),
        "paced_tokens_per_s": paced / seconds,
        "tokens_per_s": sum(each.output_tokens for each in served) / seconds,
        "offline_tokens_per_s": batch / (until_s - from_s),
        "hit_ratio": sum(each.hit_tokens for each in served) / max(prompts, 1),
        "preemptions": float(log.preemptions), "switches": float(len(log.switches)),
        "switch_effect_s": max(log.effects, default=0.0), "moved_GB": log.moved_B / 1e9,
        "detect_s": max(late, default=0.0), "resent": float(log.resent),
        "failed": float(len(log.failed)),
        "busy": float(np.mean(log.busy_s)) / seconds if log.busy_s else 0.0,
    }  # fmt: skip


__all__ = ["METRICS", "Crashed", "Log", "faults_of", "figures"]
