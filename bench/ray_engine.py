"""What does Ray cost beside processes: seconds to start, and messages a second of a ring?

A token goes round a ring of nodes, each in a process of its own, on both engines, with the links as
fast as the machine has them. `start_s` is the wall time of a run outside its first and last event,
with Ray there already; `local_ray_s` is the start of a local Ray, once a process. A call of a Ray
actor's method is measured beside it: the other way in which a message could travel.
"""

from __future__ import annotations

import json
import time
from typing import Any

from orrery import Node, World, rpc, run

NODES, TOKENS, LIMIT_S, REPEATS = 3, 4, 3.0, 3


class RingNode(Node):
    """Passes each token on to its right-hand neighbour as soon as it comes."""

    tokens: int = TOKENS

    def start(self) -> None:
        self.passed = 0

    @rpc
    def take(self, token: int) -> None:
        self.passed += 1
        self.tell((self.id + 1) % NODES, RingNode.take, token + 1)

    async def main(self) -> None:
        if self.id == 0:
            for token in range(self.tokens):
                self.take(token)


def ring(engine: str) -> dict[str, float]:
    """Messages a second of the ring, and the seconds before its first event; the best of a few."""
    best: dict[str, float] = {"messages_per_s": 0.0, "start_s": float("inf")}
    share = {"ray": "nodes_per_actor", "processes": "nodes_per_process"}[engine]
    for _ in range(REPEATS):
        began = time.perf_counter()
        made = run(
            RingNode(), world=World.lan(NODES), engine=engine, raw=True, until_s=LIMIT_S,
            **{share: 1},
        )  # fmt: skip
        wall_s = time.perf_counter() - began
        best["messages_per_s"] = max(best["messages_per_s"], made.messages / made.seconds)
        best["start_s"] = min(best["start_s"], wall_s - made.seconds)
    return {name: round(value, 3) for name, value in best.items()}


def calls_per_s(ray: Any, n: int = 500) -> float:
    """How many calls of an actor's method a second, one after another."""

    class Echo:
        async def echo(self, data: bytes) -> bytes:
            return data

    actor = ray.remote(Echo).options(num_cpus=0).remote()
    ray.get(actor.echo.remote(b""))
    began = time.perf_counter()
    for _ in range(n):
        ray.get(actor.echo.remote(b"x"))
    rate = n / (time.perf_counter() - began)
    ray.kill(actor)
    return round(rate, 1)


def main() -> None:
    """Print the answer as JSON."""
    from orrery.base.errors import PlatformLacks
    from orrery.engines.ray.cluster import connect

    answer: dict[str, Any] = {"nodes": NODES, "tokens": TOKENS, "processes": ring("processes")}
    try:
        began = time.perf_counter()
        ray = connect().ray
        answer["local_ray_s"] = round(time.perf_counter() - began, 3)
        answer["ray"] = ring("ray")
        answer["ray"]["actor_calls_per_s"] = calls_per_s(ray)
        answer["ray_version"] = ray.__version__
    except PlatformLacks as lacks:
        answer["ray"] = {"lacks": str(lacks)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
