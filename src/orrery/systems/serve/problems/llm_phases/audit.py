"""What is measured of a run, and what must never happen in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from orrery.base.violation import Violation
from orrery.check.conservation import exactly_once
from orrery.parts import Metric
from orrery.systems.serve.problems.llm_phases.engine import Change, Note
from orrery.systems.serve.problems.llm_phases.session import Log

METRICS: Mapping[str, Metric] = {
    "attainment": Metric("", "higher", "share of requests within both targets"),
    "goodput_per_s": Metric("1/s", "higher", "requests within both targets, by time of arrivals"),
    "capacity_per_s": Metric("1/s", "higher", "highest rate at which `goal` attain their targets"),
    "ttft_attainment": Metric("", "higher", "share of requests whose first token is in time"),
    "gap_attainment": Metric("", "higher", "share whose 99th percentile of gaps is in time"),
    "ttft_mean_s": Metric("s", "lower", "to the first token"),
    "ttft_p50_s": Metric("s", "lower", "to the first token"),
    "ttft_p99_s": Metric("s", "lower", "to the first token"),
    "gap_p50_s": Metric("s", "lower", "median of the requests' 99th percentiles of gaps"),
    "gap_p99_s": Metric("s", "lower", "99th percentile of the requests' 99th percentiles"),
    "tpot_mean_s": Metric("s", "lower", "of each further token"),
    "latency_mean_s": Metric("s", "lower", "to the last token"),
    "latency_p99_s": Metric("s", "lower", "to the last token"),
    "tokens_per_s": Metric("1/s", "higher", "made, until the last one"),
    "share_mean": Metric("", "", "multiprocessors that prefill has, after decisions"),
    "changes": Metric("", "", "decisions for another share"),
    "room_tokens": Metric("", "higher", "KV tokens that fit where requests decode"),
    "moved_B": Metric("B", "lower", "of caches that went to another engine"),
    "preemptions": Metric("", "lower", "requests that lost their blocks"),
    "refused": Metric("", "lower", "share of requests that never fit"),
    "target_gap_s": Metric("s", "", "between two tokens, as users expect"),
    "measured_tables": Metric("", "", "1: step times are from measured tables"),
    "extrapolated": Metric("", "lower", "steps beyond the measured tables"),
}


def figures(log: Log) -> dict[str, float]:
    """The metrics of a log that follow from it alone."""
    count, done = max(len(log.requests), 1), log.answers
    span_s = max((asked.arrival_s for asked in log.requests), default=0.0)
    met = sum(each.met for each in done)
    found = {
        "attainment": met / count, "goodput_per_s": met / max(span_s, 1e-9),
        "refused": len(log.refused) / count, "changes": float(len(log.changes)),
        "room_tokens": float(log.room_tokens), "preemptions": float(log.preemptions),
        "moved_B": float(sum(each.size_B for each in log.transfers)),
        "tokens_per_s": sum(each.output_tokens for each in done) / max(log.seconds, 1e-9),
        "extrapolated": float(log.extrapolated),
    }  # fmt: skip
    if log.capacity_per_s is not None:
        found["capacity_per_s"] = log.capacity_per_s
    if not done:
        return found
    asked = {each.id: each for each in log.requests}
    ttft = np.array([each.ttft_s for each in done])
    gaps = np.array([each.gap_s for each in done])
    latency = np.array([each.latency_s for each in done])
    in_time = sum(each.ttft_s <= asked[each.id].ttft_s for each in done)
    smooth = sum(each.gap_s <= asked[each.id].gap_s for each in done)
    return found | {
        "ttft_attainment": in_time / count, "gap_attainment": smooth / count,
        "ttft_mean_s": float(ttft.mean()), "ttft_p50_s": float(np.quantile(ttft, 0.5)),
        "ttft_p99_s": float(np.quantile(ttft, 0.99)), "gap_p50_s": float(np.quantile(gaps, 0.5)),
        "gap_p99_s": float(np.quantile(gaps, 0.99)),
        "tpot_mean_s": float(np.mean([each.tpot_s for each in done])),
        "latency_mean_s": float(latency.mean()), "latency_p99_s": float(np.quantile(latency, 0.99)),
    }  # fmt: skip


def faults_of(log: Log) -> list[Violation]:
    """What must never happen: a request lost or served twice, tokens missing, blocks lost."""
    found = list(exactly_once(
        [each.id for each in log.requests], [each.id for each in log.answers],
        [number for number, _ in log.refused],
    ))  # fmt: skip
    wanted = dict(zip((each.id for each in log.requests), log.outputs, strict=True))
    for each in log.answers:
        if each.output_tokens != wanted.get(each.id, each.output_tokens):
            made = f"{each.output_tokens} tokens of {wanted[each.id]}"
            found.append(Violation(kind="cut_short", message=f"request {each.id} made {made}"))
        if not each.arrival_s <= each.started_s < each.first_s <= each.last_s:
            found.append(Violation(kind="out_of_time", message=f"request {each.id}: {each}"))
    found += [Violation(kind="cache_books", message=text) for text in log.faults]
    for number, reason in log.refused:
        if not reason:
            found.append(Violation(kind="no_reason", message=f"request {number} was refused"))
    return found


def slow_switches(notes: Sequence[Note], changes: Sequence[Change]) -> list[str]:
    """Where a phase did more than one step on the old share after another one was decided.

    The one step that is allowed is the one that was under way.
    """
    found = []
    for at, change in enumerate(changes):
        later = [each.decided_s for each in changes[at + 1 :] if each.engine == change.engine]
        until_s = min(later, default=float("inf"))
        for phase in ("prefill", "decode"):
            wanted = change.after if phase == "prefill" else 1.0 - change.after
            old = [
                note for note in notes
                if note.engine == change.engine and note.phase == phase
                and change.decided_s < note.ended_s and note.began_s < until_s
                and abs(note.share - wanted) > 1e-9
            ]  # fmt: skip
            begun = [note for note in old if note.began_s >= change.decided_s]
            if begun or len(old) > 1:
                found.append(f"at {change.decided_s:.3f} s {phase} did {len(old)} more steps on "
                             f"the old share, {len(begun)} of them begun later")  # fmt: skip
    return found


__all__ = ["METRICS", "faults_of", "figures", "slow_switches"]
