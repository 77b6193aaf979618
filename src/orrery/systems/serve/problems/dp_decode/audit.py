"""What must hold of a run, found again from its log alone; and what is measured of it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from orrery.base.violation import Violation
from orrery.check.conservation import exactly_once
from orrery.parts import Metric
from orrery.systems.serve.problems.dp_decode.cluster import Admission, Log
from orrery.systems.serve.problems.dp_decode.loads import Load
from orrery.systems.serve.problems.dp_decode.steptime import StepTime

METRICS: Mapping[str, Metric] = {
    "imbalance": Metric("", "lower", "(max - mean) / mean of the workers' KV tokens, over steps"),
    "imbalance_p95": Metric("", "lower", "the same, of the worst twentieth of the steps"),
    "tokens_per_s": Metric("1/s", "higher", "made"),
    "requests_per_s": Metric("1/s", "higher", "answered"),
    "step_s": Metric("s", "lower", "mean of a step"),
    "efficiency": Metric("", "higher", "seconds of perfectly balanced steps / seconds taken"),
    "bound_share": Metric("", "higher", "least seconds that any plan needs / seconds decoding"),
    "kv_mean": Metric("", "", "tokens in the cache of a worker"),
    "ttft_mean_s": Metric("s", "lower", "from arrival to the first token"),
    "ttft_p99_s": Metric("s", "lower", "from arrival to the first token"),
    "latency_mean_s": Metric("s", "lower", "from arrival to the last token"),
    "latency_p99_s": Metric("s", "lower", "from arrival to the last token"),
    "waiting_min": Metric("", "", "fewest requests that waited in a step"),
    "busy": Metric("", "higher", "share of the slots that decode, over steps"),
    "overtaken_max": Metric("", "lower", "most younger requests assigned before an older one"),
    "requeued": Metric("", "lower", "requests that waited again because their worker died"),
    "unanswered": Metric("", "lower", "requests without an answer at the end"),
    "decision_s": Metric("s", "lower", "median time of a decision; 0 in virtual time"),
    "decision_p99_s": Metric("s", "lower", "time of a slow decision; 0 in virtual time"),
}


def overtaken(load: Load, admissions: list[Admission]) -> np.ndarray:
    """For each request, how many younger ones were assigned before it was. O(n log n)."""
    order = np.full(len(load), len(admissions), np.int64)
    for place, each in enumerate(admissions):
        if not each.again and 0 <= each.request < len(load):
            order[each.request] = min(order[each.request], place)
    found = np.zeros(len(load), np.int64)
    younger: list[int] = []
    for request in range(len(load) - 1, -1, -1):
        at = int(order[request])
        found[request] = bisect_left(younger, at)
        if at < len(admissions):
            insort(younger, at)
    return found


class Stay:
    """One stay of a request on a worker, in the worker's own steps."""

    __slots__ = ("admission", "done", "end")

    def __init__(self, admission: Admission, end: int, done: bool | None) -> None:
        self.admission, self.end, self.done = admission, end, done


def stays(log: Log) -> tuple[list[Stay], list[Violation]]:
    """Admissions joined to endings; and what does not fit: moved, twice on a worker, from nowhere.

    A request may be admitted again only after the worker that it was on has died.
    """
    found: list[Stay] = []
    wrong: list[Violation] = []
    here: dict[int, Stay] = {}
    events: list[tuple[float, int, Any]] = [(e.at_s, 0, e) for e in log.endings]
    events += [(a.at_s, 1, a) for a in log.admissions]
    finished: set[int] = set()
    for _, is_admission, each in sorted(events, key=lambda event: event[:2]):
        if is_admission:
            if each.request in here:
                text = f"request {each.request} is on worker {here[each.request].admission.worker} "
                wrong.append(Violation("moved", f"{text}and was given to {each.worker} as well"))
            elif each.request in finished:
                wrong.append(Violation("served_twice", f"request {each.request} was answered, and "
                                       f"given to worker {each.worker} again"))  # fmt: skip
            stay = here[each.request] = Stay(each, log.worker_steps[each.worker], None)
            found.append(stay)
            continue
        ended = here.pop(each.request, None)
        if ended is None or ended.admission.worker != each.worker:
            text = f"request {each.request} ends on worker {each.worker}, where it never was"
            wrong.append(Violation("moved", text))
            continue
        ended.end, ended.done = each.step, each.done
        if each.done:
            finished.add(each.request)
    return found, wrong


def faults_of(log: Log, bound: int | None) -> Iterator[Violation]:
    """What must never happen: lost, served twice, moved, too full, overtaken too often, cut."""
    found, wrong = stays(log)
    yield from wrong
    answered = [e.request for e in log.endings if e.done]
    yield from exactly_once(range(len(log.load)), answered, still_open=log.open)
    for request in sorted(set(answered) & set(log.open)):
        yield Violation("still_open", f"request {request} is answered and open")
    yield from _too_full(log, found)
    yield from _cut(log, found)
    if bound is not None:
        worst = overtaken(log.load, log.admissions)
        if len(worst) and worst.max() > bound:
            who = int(worst.argmax())
            text = f"request {who} was overtaken by {worst[who]} younger ones, more than {bound}"
            yield Violation("overtaken", text)
    for text in log.faults:
        yield Violation("worker_said", text)


def _too_full(log: Log, found: list[Stay]) -> Iterator[Violation]:
    """Slots and cache of every worker, step by step, rebuilt from the stays."""
    length = max(log.worker_steps, default=0) + 2
    count = np.zeros((length, log.workers), np.int64)
    base = np.zeros((length, log.workers), np.int64)
    for stay in found:
        begin, end, worker = stay.admission.step, stay.end, stay.admission.worker
        if end <= begin:
            continue
        count[begin, worker] += 1
        count[end, worker] -= 1
        base[begin, worker] += stay.admission.tokens - begin
        base[end, worker] -= stay.admission.tokens - begin
    count, base = count.cumsum(axis=0), base.cumsum(axis=0)
    # In step s a stay that began in step b holds its tokens and s - b more, and writes another.
    kv = base + count * (np.arange(length)[:, None] + 1)
    for name, values, most in (("slots", count, log.slots), ("kv", kv, log.capacity)):
        if (values > most).any():
            step, worker = (int(each) for each in np.argwhere(values > most)[0])
            text = f"worker {worker} holds {values[step, worker]} in step {step}, more than {most}"
            yield Violation(f"{name}_exceeded", text)


def _cut(log: Log, found: list[Stay]) -> Iterator[Violation]:
    """An answered request made all its tokens, one a step, over all its stays."""
    made = np.zeros(len(log.load), np.int64)
    for stay in found:
        if 0 <= stay.admission.request < len(made):
            made[stay.admission.request] += max(stay.end - stay.admission.step, 0)
    for ending in log.endings:
        request = ending.request
        if ending.done and made[request] != log.load.output[request]:
            text = f"request {request} made {made[request]} tokens of {log.load.output[request]}"
            yield Violation("cut_short", text)
            return


def least_seconds(load: Load, workers: int, slots: int, time: StepTime) -> float:
    """No plan decodes this load in fewer seconds, even one that knows everything beforehand.

    Every plan makes the same tokens and reads the same cache in all; a step takes at least what the
    mean worker takes, and there are at least as many steps as full slots allow, and as the longest
    answer has tokens.
    """
    if not len(load):
        return 0.0
    tokens = int(load.output.sum())
    read = float((load.output * load.prompt + load.output * (load.output - 1) // 2).sum())
    steps = max(-(-tokens // (workers * slots)), int(load.output.max()))
    return float(time.fixed_s * steps + (time.sequence_s * tokens + time.token_s * read) / workers)


def figures(log: Log, time: StepTime | None) -> dict[str, float]:
    """The metrics of a log, those of steps without the warm-up; `time`: None for real workers."""
    skip = log.warm_up * (1 if log.barrier else log.workers)
    steps = log.steps[skip:] or log.steps
    if not steps:
        return {}
    begin_s, seconds, kv_max, kv_mean, _, tokens, waiting = (
        np.array(column, float) for column in zip(*steps, strict=True)
    )
    loaded = kv_mean > 0
    imbalance = (kv_max[loaded] - kv_mean[loaded]) / kv_mean[loaded]
    ended = [e for e in log.endings if e.done]
    at_s = np.array([e.at_s for e in ended])
    who = np.array([e.request for e in ended], np.int64)
    recent = at_s > begin_s[0]
    span_s = (begin_s + seconds).max() - begin_s[0] if log.barrier else np.ptp(begin_s)
    span_s = max(float(span_s), 1e-12)
    counted = tokens if log.barrier else tokens[begin_s < begin_s.max()]
    latency_s = (at_s - log.load.arrival_s[who])[recent]
    ttft_s = (log.first_s - log.load.arrival_s)[who][recent]
    share = 1 if log.barrier else log.workers  # a step's tokens are those of all, or of one worker
    decided = log.decided_s or [0.0]
    found = {
        "imbalance": float(imbalance.mean()) if len(imbalance) else 0.0,
        "imbalance_p95": float(np.quantile(imbalance, 0.95)) if len(imbalance) else 0.0,
        "tokens_per_s": float(counted.sum()) / span_s,
        "requests_per_s": float(recent.sum()) / span_s,
        "step_s": float(seconds.mean()),
        "kv_mean": float(kv_mean.mean()), "waiting_min": float(waiting.min()),
        "busy": float(tokens.mean()) * share / (log.workers * log.slots),
        "overtaken_max": float(overtaken(log.load, log.admissions).max(initial=0)),
        "requeued": float(sum(not e.done for e in log.endings)),
        "unanswered": float(len(log.load) - len(ended)),
        "decision_s": float(np.median(decided)),
        "decision_p99_s": float(np.quantile(decided, 0.99)),
    }  # fmt: skip
    if time is not None:
        even_s = time.seconds(tokens / log.workers * share, kv_mean)
        found["efficiency"] = float(even_s.sum() / seconds.sum())
        if len(ended) == len(log.load) and log.barrier:
            least_s = least_seconds(log.load, log.workers, log.slots, time)
            found["bound_share"] = least_s / sum(step.seconds for step in log.steps)
    for name, values in (("ttft", ttft_s), ("latency", latency_s)):
        if len(values):
            found[f"{name}_mean_s"] = float(values.mean())
            found[f"{name}_p99_s"] = float(np.quantile(values, 0.99))
    return found


__all__ = ["METRICS", "faults_of", "figures", "least_seconds", "overtaken", "stays"]
