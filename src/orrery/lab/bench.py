"""`orrery bench kernel`: the event kernel through the public `Node` API, beside SimPy.

Four questions (timers, a ring of messages, PHOLD, rpc with a deadline) are asked of Orrery and of
an idiomatic SimPy program in the same process, one after the other, and answered in events per
CPU-second. Digest, latency, loss and liveness are on. Two more have no peer here: fluid flows, and
100,000 coroutine nodes that are all active.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from typing import Any

from orrery.base.errors import DeadlineExceeded
from orrery.engines.virtual.engine import Engine
from orrery.parts import Node, rpc
from orrery.world import World

LOSS = 1e-9  # so small that no message is lost, yet every message draws for it
LATENCY_S = 0.0005
NODES = 100


class Ticker(Node):
    """Sleeps again and again."""

    ticks: int = 1000

    async def main(self) -> None:
        for _ in range(self.ticks):
            await self.sleep(0.001)


class RingHop(Node):
    """Hands a token to the next node of a ring until it has gone far enough."""

    hops: int = 1000
    tokens: int = 1

    @rpc
    def token(self, left: int) -> None:
        if left:
            self.tell(self.after, RingHop.token, left - 1)

    def start(self) -> None:
        self.after = (self.id + 1) % (len(self.peers) + 1)

    async def main(self) -> None:
        if self.id < self.tokens:
            self.tell(self.after, RingHop.token, self.hops)


class Phold(Node):
    """PHOLD: every message is answered by one to a random node after a random think time."""

    until_s: float = 1.0
    start_with: int = 4

    def start(self) -> None:
        self.nodes = len(self.peers) + 1

    @rpc
    async def job(self) -> None:
        await self.sleep(self.rng.expovariate(1000.0))
        if self.now < self.until_s:
            self.tell(self.rng.below(self.nodes), Phold.job)

    async def main(self) -> None:
        for _ in range(self.start_with):
            self.tell(self.rng.below(self.nodes), Phold.job)


class Caller(Node):
    """Asks the node beside it, each time under a deadline."""

    calls: int = 1000

    @rpc
    def double(self, x: int) -> int:
        return 2 * x

    async def main(self) -> None:
        peer = self.id ^ 1
        for i in range(self.calls):
            try:
                async with self.deadline(1.0):
                    await self.ask(peer, Caller.double, i)
            except DeadlineExceeded:
                pass


class Gossiper(Node):
    """Keeps a message under way from every node, for the run with 100,000 nodes."""

    rounds: int = 10

    def start(self) -> None:
        self.heard = 0

    @rpc
    def hello(self, value: int) -> None:
        self.heard += value

    async def main(self) -> None:
        nodes = len(self.peers) + 1
        for i in range(self.rounds):
            await self.sleep(0.01)
            self.tell(self.rng.below(nodes), Gossiper.hello, i)


class Mover(Node):
    """Keeps one bulk transfer open to a random node."""

    transfers: int = 10
    size_B: int = 1_000_000

    async def main(self) -> None:
        import numpy as np

        data = np.zeros(self.size_B, dtype=np.uint8)
        for _ in range(self.transfers):
            await self.transfer(self.rng.choice(self.peers), data)


def _world(n: int) -> World:
    return World.lan(n, latency_s=LATENCY_S, jitter=0.0, drop=LOSS)


def cpu_of(fn: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """The least CPU time of a few runs, and what the last one gave."""
    best, value = math.inf, None
    for _ in range(repeat):
        gc.collect()
        start = time.process_time()
        value = fn()
        best = min(best, time.process_time() - start)
    return best, value


def _orrery_rate(part: Node, n: int, count: Callable[[Any], int], kernel: str | None,
                 repeat: int) -> float:  # fmt: skip
    def once() -> int:
        engine = Engine({"node": part}, world=_world(n), seed=1, kernel=kernel)
        engine.run()
        return count(engine.kernel)

    seconds, counted = cpu_of(once, repeat)
    return float(counted / seconds)


def _delivered(kernel: Any) -> int:
    return int(kernel.delivered)


def kernel_bench(kernel: str | None = None, *, scale: float = 1.0, repeat: int = 3,
                 peers: bool = True, big: bool = True) -> dict[str, Any]:  # fmt: skip
    """Every kernel benchmark, as the contract's JSON; `scale` shrinks the work for a quick look."""
    from orrery.engines.virtual import kernel as kernels

    size = lambda n: max(10, int(n * scale))  # noqa: E731
    ours = {
        "timers": _orrery_rate(Ticker(ticks=size(2000)), 100, lambda k: k.events, kernel, repeat),
        "messages": _orrery_rate(
            RingHop(hops=size(2000), tokens=100), 100, _delivered, kernel, repeat
        ),
        "phold": _orrery_rate(Phold(until_s=0.3 * scale), 100, _delivered, kernel, repeat),
        # One rpc is a request and its answer.
        "rpc": _orrery_rate(
            Caller(calls=size(1000)), 100, lambda k: k.delivered // 2, kernel, repeat
        ),
    }
    theirs: dict[str, float] = {}
    if peers:
        from orrery.lab.bench_simpy import simpy_bench

        theirs = simpy_bench(scale, repeat)
    out: dict[str, Any] = {}
    for name, rate in ours.items():
        peer = theirs.get(name)
        out[name] = {
            "orrery_per_s": rate,
            "simpy_per_s": peer,
            "ratio": rate / peer if peer else None,
        }
    out["flows"] = {"per_s": flows_rate(size(20_000))}
    out["kernel"] = kernels.load(kernel).NAME
    if big:
        out["nodes_100k"] = many_nodes(100_000, kernel)
    return out


def flows_rate(completions: int) -> float:
    """Completions per CPU-second: 1,000 open flows, random routes of 5 of 100 links."""
    from orrery.base.rand import Stream
    from orrery.engines.virtual.flows import FlowNet

    rng = Stream(1, 0, "flows")
    net = FlowNet([rng.uniform(1e9, 1e10) for _ in range(100)])
    links = range(100)

    def start(now: int) -> None:
        net.start(now, rng.sample(links, 5), rng.uniform(1e6, 1e8), math.inf, None)

    for _ in range(1000):
        start(0)
    done = 0
    began = time.process_time()
    while done < completions:
        now = net.next_ns()
        for _ in net.finish_due(now):
            done += 1
            start(now)
    return done / (time.process_time() - began)


def many_nodes(n: int, kernel: str | None = None) -> dict[str, float]:
    """So many coroutine nodes, all active: messages per CPU-second, and memory added in MB."""
    before = _rss_mb()
    began = time.process_time()
    engine = Engine({"node": Gossiper(rounds=10)}, world=_world(n), seed=1, kernel=kernel)
    engine.run()
    seconds = time.process_time() - began
    return {"per_s": engine.kernel.delivered / seconds, "rss_mb": max(_rss_mb(), before)}


def _rss_mb() -> float:
    """The peak resident memory of this process, in MB."""
    try:
        import resource
    except ImportError:
        return math.nan  # Windows does not tell
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)
