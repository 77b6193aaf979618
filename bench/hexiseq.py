"""HexiSeq: what a plan costs, how near the optimum it is, and the lead over every rival.

Prints JSON. `plan` has measured CPU seconds for 1M tokens on mixes of 32 to 128 devices; the bound
of the line is 10 s for 128. `model` is the time that the model gives a step over that of the run in
virtual time. `leads` are modelled: tokens a second over those of each rival, by cluster and model;
1.11x on average and up to 1.19x are published for testbeds, 1.36x and 1.72x for simulations.
"""

from __future__ import annotations

import json
import time
from typing import Any

from orrery import run
from orrery.systems.train.baselines.even_context import EvenContext
from orrery.systems.train.baselines.even_heads import EvenHeads
from orrery.systems.train.baselines.even_mesh import EvenMesh
from orrery.systems.train.baselines.flops_shards import FlopsShards
from orrery.systems.train.hexiseq import HexiSeq, plan
from orrery.systems.train.problems.mixed_cluster_attention import MixedClusterAttention
from orrery.systems.train.problems.split_costs import Cluster

FOUR = ("H200", "H100-SXM", "A100-80-SXM", "A100-40-SXM")
CLUSTERS = {
    "8 H100, 8 A100": ("H100-SXM", "A100-80-SXM"),
    "32 of two models": ("H100-SXM",) * 2 + ("A100-80-SXM",) * 2,
    "64 of four models": FOUR * 2,
}
SIZES = (("Llama-3.2-3B", 1 << 18), ("Llama-3.1-8B", 1 << 20), ("Llama-3.1-70B", 1 << 20))
RIVALS = {
    "even-context": EvenContext(), "even-heads": EvenHeads(), "even-mesh": EvenMesh(),
    "flops-shards": FlopsShards(),
}  # fmt: skip


def asked(nodes: tuple[str, ...], model: str, tokens: int) -> MixedClusterAttention:
    """A model on a cluster of nodes of eight, timing only."""
    return MixedClusterAttention(cluster=nodes, gpus=8, model=model, tokens=tokens, dtype="bf16",
                                 sized=True)  # fmt: skip


def plans() -> dict[str, dict[str, float]]:
    """CPU seconds of a plan for 1M tokens, the cluster's tables included."""
    found = {}
    for nodes in (FOUR, FOUR * 2, FOUR * 4):
        problem = asked(nodes, "Llama-3.1-8B", 1 << 20)
        job, world = problem.batch(), problem.world()
        began = time.process_time()
        cluster = Cluster(world, job)
        split = plan(cluster)
        took_s = time.process_time() - began
        found[f"{cluster.size} devices"] = {
            "cpu_s": took_s, "groups": len(split.groups), "step_s": cluster.step_s(split),
        }  # fmt: skip
    return found


def leads() -> dict[str, dict[str, Any]]:
    """Tokens a second of ours over those of each rival; null where the rival does not fit."""
    found: dict[str, dict[str, Any]] = {}
    for name, nodes in CLUSTERS.items():
        for model, tokens in SIZES:
            problem = asked(nodes, model, tokens)
            if model.endswith("70B") and len(nodes) < 8:
                continue  # its weights alone fill the small clusters
            ours = run(HexiSeq(), problem=problem).metrics
            row: dict[str, Any] = {"mfu": ours["mfu"], "model": ours["model_s"] / ours["step_s"]}
            for rival, part in RIVALS.items():
                made = run(part, problem=problem)
                fits = all(one.kind != "out_of_memory" for one in made.violations)
                ratio = ours["tokens_per_s"] / made.metrics["tokens_per_s"]
                row[rival] = round(ratio, 3) if fits else None
            found[f"{name}, {model}, {tokens} tokens"] = row
    return found


if __name__ == "__main__":
    print(json.dumps({"plan": plans(), "leads": leads()}))
