"""How long do 30 virtual minutes of churn among 4096 agents take, on each overlay?

Prints one JSON document. The line of the catalogue asks for less than 300 s on one core. Beside it:
how long a cold network of 1024 nodes needs until lookups can be relied on, and how many messages a
node has sent by then (the run is repeated up to that moment, which its seed makes possible); and
the six directories side by side on one workload of 256 nodes.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from orrery import run
from orrery.systems.protocols.agent_discovery_dhts import AgentDirectory
from orrery.systems.protocols.baselines.central_registry import CentralRegistry
from orrery.systems.protocols.baselines.flood_search import FloodSearch
from orrery.systems.protocols.baselines.one_hop_gossip import OneHopGossip
from orrery.systems.protocols.problems.agent_discovery import AgentDiscovery

OVERLAYS = ("chord", "pastry", "kademlia")
MINUTES_30 = 1800.0
LIMIT_S = 300.0


def churn(nodes: int) -> AgentDiscovery:
    """Sessions with a median of 10 minutes, for 30 minutes."""
    return AgentDiscovery(
        nodes=nodes, session_s=600.0, away_s=120.0, ttl_s=300.0, join_s=5.0, publish_s=60.0,
        lookups=5000, span_s=MINUTES_30 - 72.5, final=0, grace_s=30.0, deadline_s=5.0,
    )  # fmt: skip


def directory(overlay: str) -> AgentDirectory:
    """The settings of the study: upkeep every 30 s, as Chord's authors had it."""
    return AgentDirectory(overlay=overlay, period_s=30.0, refresh_s=120.0, replicas=4)


def timed(part: object, problem: AgentDiscovery) -> dict[str, object]:
    """One run with its processor time."""
    began = time.process_time()
    made = run(part, problem=problem, seed=1)
    cpu_s = time.process_time() - began
    row: dict[str, object] = {name: round(value, 5) for name, value in made.metrics.items()}
    row |= {"cpu_s": round(cpu_s, 1), "virtual_s": round(made.seconds, 1)}
    row |= {"messages": made.messages, "messages_per_cpu_s": round(made.messages / cpu_s)}
    row["violations"] = len(made.violations)
    print(json.dumps({type(part).__name__: repr(part), **row}), file=sys.stderr, flush=True)
    return row


def startup(overlay: str, nodes: int) -> dict[str, float]:
    """A cold start: when lookups can be relied on, and what it cost a node to get there."""
    part = directory(overlay).with_knobs(warm=False, period_s=5.0)
    problem = AgentDiscovery(
        nodes=nodes, ttl_s=300.0, join_s=1.0, publish_s=1.0, early=True, lookups=4000,
        span_s=200.0, final=0, grace_s=30.0, deadline_s=5.0,
    )  # fmt: skip
    from_s = run(part, problem=problem, seed=1).metrics["startup_s"]
    until = run(part, problem=problem, seed=1, until_s=max(from_s, 0.001))
    return {"startup_s": from_s, "messages_per_node": until.messages / nodes}


def main(nodes: int) -> dict[str, object]:
    """All three questions."""
    answer: dict[str, object] = {"nodes": nodes, "limit_s": LIMIT_S}
    rows = {overlay: timed(directory(overlay), churn(nodes)) for overlay in OVERLAYS}
    answer["churn_30_min"] = rows
    answer["within_limit"] = all(row["cpu_s"] < LIMIT_S for row in rows.values())
    answer["cold_start"] = {overlay: startup(overlay, nodes // 4) for overlay in OVERLAYS}
    others = {
        "central": CentralRegistry(refresh_s=120.0),
        "one_hop": OneHopGossip(refresh_s=120.0, replicas=4, period_s=30.0),
        "flood": FloodSearch(refresh_s=120.0, replicas=4, period_s=30.0),
        "walk": FloodSearch(refresh_s=120.0, replicas=4, period_s=30.0, style="walk"),
        **{overlay: directory(overlay) for overlay in OVERLAYS},
    }
    small = churn(max(nodes // 16, 2))
    answer["side_by_side"] = {name: timed(part, small) for name, part in others.items()}
    answer["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return answer


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]) if len(sys.argv) > 1 else 4096), indent=1))
