"""The same four questions to SimPy, each written as its tutorial would, and as quick as it allows.

Waits are merged where that gives the same times with fewer events, so that the peer is not slowed
down by our taste.
"""

from __future__ import annotations

import random
from typing import Any

from orrery.base.errors import PlatformLacks
from orrery.lab.bench import LATENCY_S, LOSS, NODES, cpu_of

THINK_PER_S = 1000.0


def simpy_bench(scale: float = 1.0, repeat: int = 3) -> dict[str, float]:
    """Events per CPU-second of SimPy, by name of the question."""
    try:
        import simpy
    except ImportError:
        raise PlatformLacks(
            'SimPy, the peer, is not installed; pip install "orrery[bench]"'
        ) from None
    ticks, hops, calls = (max(10, int(n * scale)) for n in (2000, 400, 100))
    questions = {
        "timers": lambda: _timers(simpy, ticks),
        "messages": lambda: _messages(simpy, hops),
        "phold": lambda: _phold(simpy, 0.3 * scale),
        "rpc": lambda: _calls(simpy, calls),
    }
    rates = {}
    for name, ask in questions.items():
        seconds, counted = cpu_of(ask, repeat)
        rates[name] = counted / seconds
    return rates


def _timers(simpy: Any, ticks: int) -> int:
    env = simpy.Environment()

    def tick() -> Any:
        for _ in range(ticks):
            yield env.timeout(0.001)

    for _ in range(NODES):
        env.process(tick())
    env.run()
    return NODES * ticks


def _messages(simpy: Any, hops: int) -> int:
    env, rng, count = simpy.Environment(), random.Random(1), 0
    stores = [simpy.Store(env) for _ in range(NODES)]

    def node(i: int) -> Any:
        nonlocal count
        inbox, after = stores[i], stores[(i + 1) % NODES]
        while True:
            left = yield inbox.get()
            count += 1
            if left and rng.random() >= LOSS:
                yield env.timeout(LATENCY_S)
                after.put(left - 1)

    for i in range(NODES):
        env.process(node(i))
        stores[i].put(hops)
    env.run()
    return count


def _phold(simpy: Any, until_s: float) -> int:
    env, rng, count = simpy.Environment(), random.Random(1), 0
    stores = [simpy.Store(env) for _ in range(NODES)]

    def node(i: int) -> Any:
        nonlocal count
        while True:
            yield stores[i].get()
            count += 1
            # Thinking and travelling are one wait.
            yield env.timeout(rng.expovariate(THINK_PER_S) + LATENCY_S)
            if env.now < until_s and rng.random() >= LOSS:
                stores[rng.randrange(NODES)].put(0)

    for i in range(NODES):
        env.process(node(i))
        for _ in range(4):
            stores[rng.randrange(NODES)].put(0)
    env.run()
    return count


def _calls(simpy: Any, each: int) -> int:
    env, rng, count = simpy.Environment(), random.Random(1), 0
    stores = [simpy.Store(env) for _ in range(NODES)]

    def server(i: int) -> Any:
        while True:
            value, answer = yield stores[i].get()
            yield env.timeout(LATENCY_S)
            if rng.random() >= LOSS:
                answer.succeed(2 * value)

    def client(i: int) -> Any:
        nonlocal count
        for k in range(each):
            answer = env.event()
            yield env.timeout(LATENCY_S)
            if rng.random() >= LOSS:
                stores[i ^ 1].put((k, answer))
            yield answer | env.timeout(1.0)
            count += answer.triggered

    for i in range(NODES):
        env.process(server(i))
        env.process(client(i))
    env.run()
    return count
