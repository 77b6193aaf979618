"""What is measured of a serving run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orrery.models.meters import merged
from orrery.models.requests import Served
from orrery.parts import Metric, Outcome

if TYPE_CHECKING:
    from orrery.systems.serve.problems.loads import Targets
    from orrery.systems.serve.problems.replica_nodes import Tally

MONTH_S = 730 * 3600.0

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
    "itl_mean_s": Metric("s", "lower", "between two tokens of a request"),
    "itl_p50_s": Metric("s", "lower", "between two tokens of a request"),
    "itl_p95_s": Metric("s", "lower", "between two tokens of a request"),
    "itl_p99_s": Metric("s", "lower", "between two tokens of a request"),
    "latency_mean_s": Metric("s", "lower", "to the last token"),
    "latency_p50_s": Metric("s", "lower", "to the last token"),
    "latency_p95_s": Metric("s", "lower", "to the last token"),
    "latency_p99_s": Metric("s", "lower", "to the last token"),
    "requests_per_s": Metric("1/s", "higher", "served"),
    "tokens_per_s": Metric("1/s", "higher", "made"),
    "hit_ratio": Metric("", "higher", "share of prompt tokens that were in a cache"),
    "kv_use": Metric("", "", "share of the cache's blocks in use, while replicas are busy"),
    "kv_peak": Metric("", "lower", "largest share of a replica's blocks that was in use"),
    "preemptions": Metric("", "lower", "requests that lost their blocks"),
    "imbalance": Metric("", "lower", "busiest replica's time above the mean, as a share of it"),
    "failed": Metric("", "lower", "requests that got no answer"),
    "resent": Metric("", "lower", "times that a request was sent again"),
    "replicas_on": Metric("", "lower", "switched on, on average"),
    "starts": Metric("", "lower", "replicas switched on by the autoscaler"),
    "energy_J": Metric("J", "lower", "of the machines that are on, by their data sheets"),
    "joules_per_token": Metric("J", "lower", "energy over tokens made"),
    "money": Metric("$", "lower", "of the machines that are on, for the time of the run"),
    "money_per_month": Metric("$", "lower", "at this rate, for 730 hours"),
    "extrapolated": Metric("", "lower", "steps beyond the measured tables"),
}


def figures(outcome: Outcome, targets: Targets) -> dict[str, float]:
    """The metrics of a run of replicas."""
    driven: dict[str, Any] = outcome.driven
    served: list[Served] = driven["served"]
    tallies: list[Tally] = driven["tallies"]
    seconds = max(driven["seconds"], 1e-9)
    met = sum(targets.of(each.kind).met(each.ttft_s, each.tpot_s) for each in served)
    prompt = sum(each.prompt_tokens for each in served)
    made = sum(each.output_tokens for each in served)
    busy_s = dict.fromkeys(driven["paid_s"], 0.0)
    for tally in tallies:
        busy_s[tally.node] += tally.busy_s
    busy = np.array(list(busy_s.values()) or [0.0])
    return times(served) | gaps_and_blocks(tallies) | bills(outcome, tallies, made) | {
        "goodput_per_s": met / seconds, "attainment": met / max(driven["requests"], 1),
        "requests_per_s": len(served) / seconds, "tokens_per_s": made / seconds,
        "hit_ratio": sum(each.hit_tokens for each in served) / max(prompt, 1),
        "preemptions": float(sum(tally.preemptions for tally in tallies)),
        "imbalance": float(busy.max() / busy.mean() - 1) if busy.mean() > 0 else 0.0,
        "failed": float(len(driven["failed"])), "resent": float(driven["resent"]),
        "replicas_on": sum(driven["paid_s"].values()) / seconds,
        "starts": float(driven["starts"]), "extrapolated": float(driven["extrapolated"]),
    }  # fmt: skip


def gaps_and_blocks(tallies: Sequence[Tally]) -> dict[str, float]:
    """Times between tokens, and how full the caches were."""
    meters = merged(tally.meters for tally in tallies)
    there = sum(tally.blocks * tally.busy_s for tally in tallies)
    found = {
        "kv_use": meters.block_s / there if there else 0.0, "kv_peak": meters.peak_use,
    }  # fmt: skip
    if meters.gaps:
        found["itl_mean_s"] = meters.gap_mean_s()
        for share in (50, 95, 99):
            found[f"itl_p{share}_s"] = meters.gap_quantile_s(share / 100)
    return found


def bills(outcome: Outcome, tallies: Sequence[Tally], tokens: int) -> dict[str, float]:
    """Energy and money: what the engine billed for machines that do nothing, without those that
    were off, and with what devices drew beyond that while they computed."""
    world, paid_s = outcome.world, outcome.driven["paid_s"]
    seconds = max(outcome.driven["seconds"], 1e-9)
    energy_J, rent_s, paid_rent_s = outcome.energy_J, 0.0, 0.0
    for node, on_s in paid_s.items():
        machine = world.machine_of(node)
        energy_J -= (seconds - on_s) * machine.watts(0.0, 0.0)
        price = machine.price_per_h or 0.0
        price += sum(item.price_per_h or 0.0 for item in machine.accelerators)
        rent_s, paid_rent_s = rent_s + price * seconds, paid_rent_s + price * on_s
    for tally in tallies:
        device = world.machine_of(tally.node).accelerators[0]
        energy_J += tally.meters.joules - tally.devices * tally.busy_s * (device.watts(0.0) or 0.0)
    money = outcome.money * (paid_rent_s / rent_s if rent_s else 1.0)
    return {
        "energy_J": energy_J, "joules_per_token": energy_J / max(tokens, 1), "money": money,
        "money_per_month": money / seconds * MONTH_S,
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


__all__ = ["METRICS", "bills", "figures", "gaps_and_blocks", "times"]
