"""What is measured of a serving run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from orrery.models.requests import Served, Target
from orrery.parts import Metric, Outcome

METRICS: Mapping[str, Metric] = {
    "goodput_per_s": Metric("1/s", "higher", "requests that met their target"),
    "attainment": Metric("", "higher", "share of requests that met their target"),
    "ttft_mean_s": Metric("s", "lower", "to the first token"),
    "ttft_p50_s": Metric("s", "lower", "to the first token"),
    "ttft_p95_s": Metric("s", "lower", "to the first token"),
    "ttft_p99_s": Metric("s", "lower", "to the first token"),
    "tpot_mean_s": Metric("s", "lower", "of each further token"),
    "tpot_p50_s": Metric("s", "lower", "of each further token"),
    "tpot_p95_s": Metric("s", "lower", "of each further token"),
    "tpot_p99_s": Metric("s", "lower", "of each further token"),
    "latency_mean_s": Metric("s", "lower", "to the last token"),
    "latency_p50_s": Metric("s", "lower", "to the last token"),
    "latency_p95_s": Metric("s", "lower", "to the last token"),
    "latency_p99_s": Metric("s", "lower", "to the last token"),
    "requests_per_s": Metric("1/s", "higher", "served"),
    "tokens_per_s": Metric("1/s", "higher", "made"),
    "hit_ratio": Metric("", "higher", "share of prompt tokens that were in a cache"),
    "preemptions": Metric("", "lower", "requests that lost their blocks"),
    "imbalance": Metric("", "lower", "busiest replica's time above the mean, as a share of it"),
    "failed": Metric("", "lower", "requests that got no answer"),
    "resent": Metric("", "lower", "times that a request was sent again"),
    "money": Metric("$", "lower", "of the machines, for the time of the run"),
    "extrapolated": Metric("", "lower", "steps beyond the measured tables"),
}


def figures(outcome: Outcome, target: Target) -> dict[str, float]:
    """The metrics of a run of replicas."""
    driven: dict[str, Any] = outcome.driven
    served: list[Served] = driven["served"]
    seconds = max(driven["seconds"], 1e-9)
    found = times(served)
    met = sum(target.met(each.ttft_s, each.tpot_s) for each in served)
    prompt = sum(each.prompt_tokens for each in served)
    busy = np.array(list(driven["busy_s"].values()) or [0.0])
    return found | {
        "goodput_per_s": met / seconds, "attainment": met / max(driven["requests"], 1),
        "requests_per_s": len(served) / seconds,
        "tokens_per_s": sum(each.output_tokens for each in served) / seconds,
        "hit_ratio": sum(each.hit_tokens for each in served) / max(prompt, 1),
        "preemptions": float(driven["preemptions"]),
        "imbalance": float(busy.max() / busy.mean() - 1) if busy.mean() > 0 else 0.0,
        "failed": float(len(driven["failed"])), "resent": float(driven["resent"]),
        "money": outcome.money, "extrapolated": float(driven["extrapolated"]),
    }  # fmt: skip


def times(served: list[Served]) -> dict[str, float]:
    """Mean and quantiles of the three times; nothing for nothing served."""
    found: dict[str, float] = {}
    if not served:
        return found
    for name in ("ttft", "tpot", "latency"):
        values = np.array([getattr(each, f"{name}_s") for each in served])
        found[f"{name}_mean_s"] = float(values.mean())
        for share in (50, 95, 99):
            found[f"{name}_p{share}_s"] = float(np.quantile(values, share / 100))
    return found


__all__ = ["METRICS", "figures", "times"]
