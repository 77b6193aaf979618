"""How fast graphs are judged and runs made, and how sparse a graph each kind of consensus bears."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from orrery import World, run
from orrery.base.rand import Stream
from orrery.systems.protocols.baselines.dolev_strong_consensus import DolevStrongConsensus
from orrery.systems.protocols.baselines.min_max_crash import MinMaxCrash, one_reach
from orrery.systems.protocols.baselines.trimmed_mean import TrimmedMean, iterative
from orrery.systems.protocols.baselines.unsigned_directed import UnsignedDirected, three_reach
from orrery.systems.protocols.directed_byzantine_auth import DirectedAuth, brute, conditions
from orrery.systems.protocols.problems.digraphs import complete, drawn, thinned
from orrery.systems.protocols.problems.directed_consensus import DirectedConsensus
from orrery.systems.protocols.problems.signing import RealKeys, TokenKeys

PARTS = (
    DirectedAuth(), DirectedAuth(tight=True), DirectedAuth(timing="asynchronous"),
    DolevStrongConsensus(), UnsignedDirected(), MinMaxCrash(), TrimmedMean(),
)  # fmt: skip


def cpu_s(act: Callable[[], Any]) -> float:
    """CPU seconds of a call."""
    began = time.process_time()
    act()
    return time.process_time() - began


def checkers() -> dict[str, Any]:
    """Graphs a CPU-second: bits beside the definitions, and beside NetworkX for the sources."""
    rng = Stream(1, 0, "bench")
    graphs = [drawn(7, 0.5 + 0.5 * rng.random(), rng) for _ in range(60)]
    found: dict[str, Any] = {}
    for name, fast, slow in (
        ("synchronous", conditions.synchronous, brute.synchronous),
        ("asynchronous", conditions.asynchronous, brute.asynchronous),
    ):
        quick_s = cpu_s(lambda fast=fast: [fast(graph, 2) for graph in graphs])
        plain_s = cpu_s(lambda slow=slow: [slow(graph, 2) for graph in graphs])
        found[name] = {"per_cpu_s": 60 / quick_s, "definition_per_cpu_s": 60 / plain_s}
    found["synchronous"]["networkx_per_cpu_s"] = 60 / cpu_s(
        lambda: [_by_networkx(graph, 2) for graph in graphs]
    )
    large = complete(16)
    found["n16_f4_s"] = cpu_s(lambda: conditions.synchronous(large, 4))
    found["n12_f3_asynchronous_s"] = cpu_s(lambda: conditions.asynchronous(complete(12), 3))
    return found


def _by_networkx(graph: Any, f: int) -> bool:
    """The same condition by the strong components of a library."""
    import itertools

    import networkx as nx

    whole = nx.DiGraph(graph.links)
    whole.add_nodes_from(range(graph.n))
    for without in itertools.combinations(range(graph.n), f):
        left = whole.subgraph(v for v in range(graph.n) if v not in without)
        joined = nx.condensation(left)
        sources = [v for v in joined if joined.in_degree(v) == 0]
        if len(sources) != 1 or len(joined.nodes[sources[0]]["members"]) < f + 1:
            return False
    return True


def runs(n: int, f: int) -> dict[str, Any]:
    """Each part on the complete graph."""
    found = {}
    for part in PARTS:
        began = time.process_time()
        problem = DirectedConsensus(tolerated=f)
        made = run(part, problem=problem, world=World.lan(n), seed=1)
        found[repr(part)] = {
            "rounds": made.metrics["rounds"], "messages": made.messages, "bytes": made.bytes,
            "violations": len(made.violations), "cpu_s": time.process_time() - began,
        }  # fmt: skip
    return found


def sparsest(n: int) -> dict[str, int]:
    """Links that are left when no further one can go, f = 1."""
    tests = {
        "signed, synchronous": conditions.synchronous, "signed, asynchronous":
        conditions.asynchronous, "unsigned": three_reach, "crashes": one_reach,
        "trimmed means": iterative,
    }  # fmt: skip
    found = {}
    for name, holds in tests.items():
        good = lambda graph, holds=holds: holds(graph, 1)  # noqa: E731
        found[name] = len(thinned(complete(n), 0.0, Stream(1, n, "sparse"), good).links)
    return found


def signatures() -> dict[str, float]:
    """Microseconds to sign and to check."""
    found = {}
    for name, keys in (("token", TokenKeys(0)), ("ed25519", RealKeys(0))):
        token = keys.sign(b"a statement")
        found[f"{name}_sign_us"] = cpu_s(lambda keys=keys: [keys.sign(b"x") for _ in range(500)])
        found[f"{name}_check_us"] = cpu_s(
            lambda keys=keys, token=token: [keys.good(0, b"a statement", token) for _ in range(500)]
        )
    return {name: 1e6 * spent_s / 500 for name, spent_s in found.items()}


if __name__ == "__main__":
    print(json.dumps({
        "checkers_n7_f2": checkers(),
        "runs_n4_f1": runs(4, 1),
        "runs_n7_f2": runs(7, 2),
        "links_n7_f1": sparsest(7),
        "signatures": signatures(),
    }))  # fmt: skip
