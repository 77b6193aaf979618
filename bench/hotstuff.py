"""HotStuff beside PBFT: messages for each decision from 4 to 100 replicas, and CPU time."""

from __future__ import annotations

import json
import time

from orrery import World, run
from orrery.systems.protocols.baselines.hotstuff import HotStuff
from orrery.systems.protocols.baselines.pbft import Pbft
from orrery.systems.protocols.problems.total_order import TotalOrder


def one(part: HotStuff | Pbft, n: int, requests: int) -> dict[str, float]:
    """Eight clients on a quiet network: what a request costs, and how fast that is simulated."""
    problem = TotalOrder(clients=8, requests=requests, think_s=0.0, settle_s=0.1)
    began = time.process_time()
    made = run(part, problem=problem, world=World.lan(n), seed=1)
    cpu_s = time.process_time() - began
    numbers = {one.values["ordered"][0] for one in made.records if "ordered" in one.values}
    clients = 2 * n * (8 * requests + 1)
    return {
        "violations": len(made.violations),
        "messages_per_number": (made.messages - clients) / max(len(numbers), 1),
        "latency_p50_s": made.metrics["latency_p50_s"],
        "messages_per_cpu_s": made.messages / cpu_s,
        "cpu_s": cpu_s,
    }


if __name__ == "__main__":
    found = {}
    for n in (4, 7, 16, 31, 61, 100):
        found[f"n{n}"] = {"HotStuff": one(HotStuff(), n, 20)}
        if n <= 31:  # PBFT's square makes larger ones take minutes
            found[f"n{n}"]["Pbft"] = one(Pbft(), n, 20)
    print(json.dumps(found))
