"""The job of Kademlia for the `kademlia` package of PyPI: real datagrams on the loopback.

The package has no clock of its own to simulate with, so its nodes are servers in one event loop,
each with a socket. Their routing tables are filled with the contacts of a network at rest, as ours
and SimPy's are; then lookups run, some at a time.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

AT_A_TIME = 16


def measure(lookups: int, sizes: tuple[int, ...], most_cpu_s: float) -> dict[str, Any]:
    """The largest of these networks that it sets up and searches within so many CPU-seconds."""
    try:
        import kademlia.network
    except ImportError:
        return {"skipped": "the package kademlia is not installed; pip install kademlia"}
    best: dict[str, Any] = {}
    for n in sizes:
        try:
            best = asyncio.run(_lookups(kademlia.network.Server, n, lookups))
        except OSError as failure:  # no more sockets
            best["stopped_by"] = f"{n} nodes: {failure}"
            break
        if best["cpu_s"] + best["setup_cpu_s"] > most_cpu_s:
            best["stopped_by"] = f"more than {most_cpu_s:g} CPU-seconds at {n} nodes"
            break
    return best


async def _lookups(server_class: Any, n: int, lookups: int) -> dict[str, Any]:
    from kademlia.crawling import NodeSpiderCrawl
    from kademlia.node import Node

    rng, began = random.Random(1), time.process_time()
    servers = [server_class(ksize=20) for _ in range(n)]
    try:
        nodes = []
        for server in servers:
            await server.listen(0, "127.0.0.1")
            server.refresh_loop.cancel()
            port = server.transport.get_extra_info("sockname")[1]
            nodes.append(Node(server.node.id, "127.0.0.1", port))
        order = sorted(nodes, key=lambda node: node.long_id)
        for server in servers:
            for node in _contacts(order, server.node.long_id, 20, rng):
                server.protocol.router.add_contact(node)
        await asyncio.sleep(0)
        ready, sent = time.process_time(), _count(servers)
        gate, right = asyncio.Semaphore(AT_A_TIME), 0

        async def one() -> None:
            nonlocal right
            server, key = rng.choice(servers), Node(rng.randbytes(20))
            async with gate:
                near = server.protocol.router.find_neighbors(key)
                crawl = NodeSpiderCrawl(server.protocol, key, near, server.ksize, server.alpha)
                found = await crawl.find()
            best = min((*found, server.node), key=key.distance_to)
            right += best.id == min(nodes, key=key.distance_to).id

        await asyncio.gather(*(one() for _ in range(lookups)))
        cpu_s = time.process_time() - ready
        return {
            "nodes": n, "messages": sent[0], "cpu_s": cpu_s, "setup_cpu_s": ready - began,
            "per_cpu_s": sent[0] / cpu_s, "success_rate": right / lookups,
        }  # fmt: skip
    finally:
        for server in servers:
            server.stop()


def _count(servers: list[Any]) -> list[int]:
    """Count the datagrams that are sent from now on."""
    sent = [0]
    for server in servers:
        inner = server.transport.sendto

        def sendto(data: bytes, address: Any = None, inner: Any = inner) -> None:
            sent[0] += 1
            inner(data, address)

        server.protocol.transport = _Counted(server.transport, sendto)
    return sent


class _Counted:
    """A transport whose sendings are counted; transports take no new attributes themselves."""

    def __init__(self, inner: Any, sendto: Any) -> None:
        self._inner, self.sendto = inner, sendto

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _contacts(order: list[Any], me: int, k: int, rng: random.Random) -> list[Any]:
    """Up to k nodes for each length of common prefix; the nodes stand in order."""
    chosen, low, high = [], 0, len(order)
    for i in range(159, -1, -1):
        if high - low <= 1:
            break
        edge = (me >> i | 1) << i
        middle = next((j for j in range(low, high) if order[j].long_id >= edge), high)
        first, last = (low, middle) if me >> i & 1 else (middle, high)
        low, high = (middle, high) if me >> i & 1 else (low, middle)
        chosen += rng.sample(order[first:last], min(k, last - first))
    return chosen
