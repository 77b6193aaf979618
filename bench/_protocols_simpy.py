"""The jobs of `bench.protocols` as SimPy programs, written as its tutorial would write them.

Each node is a process with a `Store` for its inbox; a message is a `Timeout` that puts itself into
the inbox of its receiver, which is the cheapest way that SimPy has for a delay. Each job ends by
checking its own outcome, so that a fast program that does something else is not taken for a peer.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from heapq import nsmallest
from typing import Any

LATENCY_S, JITTER = 0.0005, 0.1


class Net:
    """Inboxes and links with some jitter; it counts what is sent."""

    def __init__(self, simpy: Any, size: int, seed: int) -> None:
        self.simpy, self.env, self.rng = simpy, simpy.Environment(), random.Random(seed)
        self.inboxes = [simpy.Store(self.env) for _ in range(size)]
        self.sent = 0

    def send(self, dst: int, message: Any) -> None:
        self.sent += 1
        delay_s = LATENCY_S * (1.0 + JITTER * self.rng.random())
        put = self.inboxes[dst].put
        self.env.timeout(delay_s, message).callbacks.append(lambda event: put(event.value))


def pbft(simpy: Any, n: int, clients: int, requests: int) -> tuple[int, dict[str, float]]:
    """Order the requests of some clients in three phases, with a fixed correct leader."""
    net = Net(simpy, n + clients, 1)
    env, quorum, weak = net.env, (n + (n - 1) // 3) // 2 + 1, (n - 1) // 3 + 1
    logs: list[list[Any]] = [[] for _ in range(n)]

    def replica(me: int) -> Any:
        prepares: dict[Any, set[int]] = {}
        commits: dict[Any, set[int]] = {}
        proposals: dict[int, Any] = {}
        committed: set[Any] = set()
        known: set[Any] = set()
        number = done = 0
        while True:
            kind, src, slot, request = yield net.inboxes[me].get()
            if kind == "request":
                known.add(request)
                if me == 0:
                    number += 1
                    proposals[number] = request
                    for peer in range(1, n):
                        net.send(peer, ("pre_prepare", me, number, request))
                continue
            key = (slot, request)
            if kind == "pre_prepare":
                proposals[slot] = request
                prepares.setdefault(key, set()).add(me)
                for peer in range(n):
                    if peer != me:
                        net.send(peer, ("prepare", me, slot, request))
            elif kind == "prepare":
                prepares.setdefault(key, set()).add(src)
            else:
                commits.setdefault(key, set()).add(src)
            votes = len(prepares.get(key, ()))
            if key not in committed and proposals.get(slot) == request and votes >= quorum - 1:
                committed.add(key)
                commits.setdefault(key, set()).add(me)
                for peer in range(n):
                    if peer != me:
                        net.send(peer, ("commit", me, slot, request))
            while True:
                ready = (done + 1, proposals.get(done + 1))
                if ready not in committed or len(commits[ready]) < quorum:
                    break
                done += 1
                logs[me].append(ready[1])
                net.send(n + ready[1][0], ("reply", me, done, ready[1]))

    def client(name: int) -> Any:
        rng = random.Random(name)
        for turn in range(requests):
            yield env.timeout(0.04 * rng.random())
            for peer in range(n):
                net.send(peer, ("request", n + name, 0, (name, turn)))
            answers = 0
            while answers < weak:
                _, _, _, request = yield net.inboxes[n + name].get()
                answers += request == (name, turn)

    for me in range(n):
        env.process(replica(me))
    for name in range(clients):
        env.process(client(name))
    env.run()
    assert all(log == logs[0] and len(log) == clients * requests for log in logs)
    return net.sent, {"ordered": float(len(logs[0]))}


def chord(
    simpy: Any, places: tuple[int, ...], bits: int, lookups: int
) -> tuple[int, dict[str, float]]:
    """Pass questions on along fingers, each hop acknowledged in time, on a ring at rest."""
    n, size = len(places), 1 << bits
    net = Net(simpy, n, 1)
    env = net.env
    fingers = []
    for at, place in enumerate(places):
        row = {bisect_left(places, (place + (1 << i)) % size) % n for i in range(bits)} - {at}
        fingers.append(sorted((places[j] - place) % size << 16 | j for j in row))
    answers: list[tuple[int, int, int]] = []
    acks: dict[int, Any] = {}

    def forward(me: int, key: int, origin: int, hops: int, ticket: int) -> Any:
        gap = (key - places[me]) % size
        after = (me + 1) % n
        last = gap <= (places[after] - places[me]) % size
        row = fingers[me]
        node = after if last else row[bisect_left(row, gap << 16) - 1] & 0xFFFF
        acks[ticket] = env.event()
        net.send(node, ("route", me, key, origin, hops if last else hops + 1, ticket, last))
        yield acks[ticket] | env.timeout(0.03)
        assert acks.pop(ticket).triggered

    def node(me: int) -> Any:
        tickets = me << 32
        while True:
            message = yield net.inboxes[me].get()
            if message[0] == "route":
                _, src, key, origin, hops, ticket, last = message
                net.send(src, ("ack", ticket))
                if last:
                    net.send(origin, ("found", key, me, hops))
                else:
                    tickets += 1
                    env.process(forward(me, key, origin, hops, tickets))
            elif message[0] == "ack":
                acks[message[1]].succeed()
            else:
                answers.append(message[1:])

    def ask(at_s: float, origin: int, key: int, ticket: int) -> Any:
        yield env.timeout(at_s)
        env.process(forward(origin, key, origin, 0, ticket))

    for me in range(n):
        env.process(node(me))
    for ticket in range(lookups):
        at_s, origin = net.rng.random(), net.rng.randrange(n)
        env.process(ask(at_s, origin, net.rng.getrandbits(bits), -1 - ticket))
    env.run()
    assert len(answers) == lookups
    assert all(owner == bisect_left(places, key) % n for key, owner, _ in answers)
    return net.sent, {"mean_hops": sum(hops for *_, hops in answers) / lookups}


def kademlia(
    simpy: Any, places: tuple[int, ...], bits: int, lookups: int, k: int = 20, alpha: int = 3
) -> tuple[int, dict[str, float]]:
    """Search for the k nearest by XOR, a few questions at a time, on a network at rest."""
    n = len(places)
    net = Net(simpy, n, 1)
    env = net.env
    tables = [_contacts(places, me, bits, k, net.rng) for me in range(n)]
    waiting: dict[int, Any] = {}
    found: list[tuple[int, int]] = []

    def node(me: int) -> Any:
        table = tables[me]
        while True:
            kind, src, ticket, told = yield net.inboxes[me].get()
            if kind == "find":
                near = nsmallest(k, table, key=lambda j: places[j] ^ told)
                net.send(src, ("nearer", me, ticket, near))
            elif ticket in waiting:
                waiting.pop(ticket).succeed((src, told))

    def search(at_s: float, me: int, key: int, tickets: int) -> Any:
        yield env.timeout(at_s)

        def away(j: int) -> int:
            return places[j] ^ key

        known, asked, answered, out = set(nsmallest(k, tables[me], key=away)), set(), set(), {}
        while True:
            for peer in nsmallest(k, known, key=away):
                if len(out) < alpha and peer not in asked:
                    asked.add(peer)
                    tickets += 1
                    waiting[tickets] = out[tickets] = env.event()
                    net.send(peer, ("find", me, tickets, key))
            if not out:
                break
            done = yield simpy.AnyOf(env, [*out.values(), env.timeout(0.1)])
            for ticket, event in list(out.items()):
                if event in done:
                    src, near = event.value
                    del out[ticket]
                    answered.add(src)
                    known.update(j for j in near if j != me)
        found.append((key, min((*answered, me), key=away)))

    for me in range(n):
        env.process(node(me))
    for i in range(lookups):
        at_s, origin = net.rng.random(), net.rng.randrange(n)
        env.process(search(at_s, origin, net.rng.getrandbits(bits), i << 16))
    env.run()
    right = sum(min(range(n), key=lambda j: places[j] ^ key) == owner for key, owner in found)
    assert len(found) == lookups
    return net.sent, {"success_rate": right / lookups}


def _contacts(places: tuple[int, ...], me: int, bits: int, k: int, rng: random.Random) -> list[int]:
    """Up to k contacts of each bucket, at random: the places stand in order."""
    chosen: list[int] = []
    for i in range(bits):
        low = (places[me] ^ (1 << i)) >> i << i
        first, last = bisect_left(places, low), bisect_left(places, low + (1 << i))
        chosen += rng.sample(range(first, last), min(k, last - first))
    return chosen


def proof_of_work(
    simpy: Any, n: int, blocks: int, interval_s: float
) -> tuple[int, dict[str, float]]:
    """Mine on the longest chain and pass every new block on to all others."""
    net = Net(simpy, n, 1)
    env = net.env
    heads = [(0, 0)] * n  # (height, block)
    parents: dict[int, tuple[int, int]] = {0: (-1, 0)}
    seen: list[set[int]] = [{0} for _ in range(n)]
    end_s = blocks * interval_s

    def take(me: int, height: int, block: int) -> None:
        seen[me].add(block)
        if height > heads[me][0]:
            heads[me] = (height, block)
        for peer in range(n):
            if peer != me:
                net.send(peer, (height, block))

    def miner(me: int) -> Any:
        while True:
            yield env.timeout(net.rng.expovariate(1.0 / (n * interval_s)))
            if env.now > end_s:
                return
            height, head = heads[me]
            block = len(parents)
            parents[block] = (head, me)
            take(me, height + 1, block)

    def listener(me: int) -> Any:
        while True:
            height, block = yield net.inboxes[me].get()
            if block not in seen[me]:
                take(me, height, block)

    for me in range(n):
        env.process(miner(me))
        env.process(listener(me))
    env.run()
    assert len({height for height, _ in heads}) == 1
    return net.sent, {"growth": heads[0][0] / blocks}


JOBS: dict[str, Callable[..., tuple[int, dict[str, float]]]] = {
    "pbft": pbft, "chord": chord, "kademlia": kademlia, "proof_of_work": proof_of_work,
}  # fmt: skip
