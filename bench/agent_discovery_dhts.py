"""How long do 30 virtual minutes of churn among 4096 agents take, on each overlay?

Prints one JSON document. The line of the catalogue asks for less than 300 s on one core. Beside it:
how long a cold network of 1024 nodes needs until lookups can be relied on, and how many messages a
node has sent by then (the run is repeated up to that moment, which its seed makes possible); and
the six directories side by side on one workload of 256 nodes.

`python -m bench.agent_discovery_dhts --stationary 100000` asks instead for a network at rest of so
many nodes: every agent publishes, clients look offers up, and every overlay below the one control
plane runs in a process of its own, so that its memory is its own. The tables are those of a network
at rest from the first moment (`warm`): each node cuts its own from the sorted list of all places,
as joining one by one would take longer than all the rest. Also printed: reliability, and hops
beside the closed forms.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time

from orrery import run
from orrery.systems.protocols.agent_discovery_dhts import AgentDirectory
from orrery.systems.protocols.baselines.central_registry import CentralRegistry
from orrery.systems.protocols.baselines.flood_search import FloodSearch
from orrery.systems.protocols.baselines.one_hop_gossip import OneHopGossip
from orrery.systems.protocols.problems.agent_discovery import AgentDiscovery
from orrery.systems.protocols.problems.discovery_world import discovery_world
from orrery.systems.protocols.problems.lookup import Lookup

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


# Chord (Stoica et al. 2001): half of log2 n on average. Pastry (Rowstron and Druschel 2001): about
# log16 n with digits of 4 bits. Kademlia (Maymounkov and Mazieres 2002): at most log2 n.
CLOSED_FORMS = {
    "chord": lambda n: 0.5 * math.log2(n),
    "pastry": lambda n: math.log(n, 16),
    "kademlia": lambda n: math.log2(n),
}


def at_rest(overlay: str, nodes: int) -> dict[str, object]:
    """One overlay with so many nodes at rest: owners and hops first, then the directory."""
    part = directory(overlay)
    began = time.process_time()
    owners = run(
        part.node(), world=discovery_world(nodes), seed=1,
        problem=Lookup(keys=2000, lookups=2000, final=0, join_s=0.5, spread_s=5.0, deadline_s=5.0),
    )  # fmt: skip
    found = {
        "lookup_cpu_s": round(time.process_time() - began, 1),
        "right_owners": owners.metrics["success_rate"], "mean_hops": owners.metrics["mean_hops"],
        "closed_form_hops": CLOSED_FORMS[overlay](nodes), "violations": len(owners.violations),
        "lookup_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip
    del owners
    problem = AgentDiscovery(
        nodes=nodes, ttl_s=300.0, join_s=1.0, publish_s=10.0, lookups=2000, span_s=5.0, final=0,
        grace_s=8.0, deadline_s=5.0,
    )  # fmt: skip
    row = timed(part, problem)
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {**found, "directory": row, "peak_rss_mb": rss_mb, "kB_per_node": 1024 * rss_mb / nodes}


def stationary(nodes: int) -> dict[str, object]:
    """All overlays at rest, each in a process of its own."""
    found = {}
    for overlay in OVERLAYS:
        done = subprocess.run(
            [sys.executable, "-m", "bench.agent_discovery_dhts", "--stationary", str(nodes),
             "--overlay", overlay], stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        found[overlay] = json.loads(done.stdout)
    return {"nodes": nodes, "stationary": found}


def settings() -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(description="A directory of agents on three overlays.")
    parser.add_argument("nodes", nargs="?", type=int, default=4096, help="for the churn")
    parser.add_argument("--stationary", type=int, metavar="N", help="N nodes at rest instead")
    parser.add_argument("--overlay", choices=OVERLAYS, help="only this one at rest")
    return parser.parse_args()


if __name__ == "__main__":
    asked = settings()
    if asked.stationary and asked.overlay:
        answer = at_rest(asked.overlay, asked.stationary)
    else:
        answer = stationary(asked.stationary) if asked.stationary else main(asked.nodes)
    print(json.dumps(answer, indent=1))
