"""The problem `lookup`: any node, asked for a key, must name the node that owns it.

Nodes and keys have places in a ring of 2^bits identifiers. Which live node owns a key is the
overlay's own rule: Chord gives it to the first node at or after it, Kademlia to the nearest by XOR,
Pastry to the nearest by number. Clients ask random nodes for random keys while nodes crash, come
back, leave and join. An answer counts as right when a scan of all live nodes gives the same owner.
During trouble a wrong answer only lowers the success rate; once all faults and all comings and
goings are over and `settle_s` has passed, every answer must be right, and where nodes report ring
pointers the ring must be one ring.
"""

from __future__ import annotations

import functools
import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from orrery.base.errors import PartError, did_you_mean
from orrery.base.violation import Violation
from orrery.check import overlay as checks
from orrery.parts import (
    Count,
    Driver,
    Metric,
    Node,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    Whole,
    rpc,
)
from orrery.systems.protocols.common import as_violations, last_fault_end_s, quantile, try_ask
from orrery.world import World

Bits = Annotated[int, msgspec.Meta(ge=4, le=62)]


@functools.lru_cache(maxsize=1 << 20)
def place_of(node: int, bits: int) -> int:
    """The identifier of a node: a hash of its number, the same on every machine."""
    word = hashlib.blake2b(f"node {node}".encode(), digest_size=8).digest()
    return int.from_bytes(word, "big") >> (64 - bits)


@functools.lru_cache(maxsize=16)
def ring_of(size: int, bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """All nodes of a world of this size in the order of the ring: (identifiers, nodes)."""
    order = sorted((place_of(node, bits), node) for node in range(size))
    return tuple(place for place, _ in order), tuple(node for _, node in order)


class Overlay(Node):
    """The port of `Lookup`: answer `lookup`, and come and go when told.

    A node joins in `main()`, again after a crash. One that keeps a ring reports its pointers by
    `self.emit(successor=node)` and `self.emit(predecessor=node)` whenever they change; the ring is
    then checked too. `owner_rule` says who owns a key: "successor", "xor" or "nearest".
    """

    bits: Bits = 48

    owner_rule: ClassVar[str] = "successor"

    @rpc
    async def lookup(self, key: int) -> tuple[int, int]:
        """The owner of a key, and how many hops it took to reach the node before it."""
        raise PartError(f"{type(self).__name__} has no lookup(key); write how a key is found")

    @rpc
    async def leave(self) -> None:
        """Leave the overlay in good order."""
        raise PartError(f"{type(self).__name__} has no leave(); use Lookup(churn=0) or write it")

    @rpc
    async def join(self, via: int) -> None:
        """Join again after a leave, with the help of a node that is in."""
        raise PartError(f"{type(self).__name__} has no join(via); use Lookup(churn=0) or write it")


class OwnerScan:
    """A scan of all live places for the owner of a key: brute force, but on arrays."""

    RULES: ClassVar[tuple[str, ...]] = ("successor", "xor", "nearest")

    def __init__(self, rule: str, bits: int) -> None:
        self.rule = rule
        self.size = 1 << bits
        self.seen: Sequence[int] | None = None
        self.places: Any = None

    def __call__(self, key: int, live: Sequence[int]) -> int:
        """The owning place among these, which stand in order."""
        if self.seen is not live:
            self.seen, self.places = live, np.array(live, dtype=np.int64)
        places = self.places
        if self.rule == "xor":
            away = places ^ np.int64(key)
        elif self.rule == "successor":
            away = (places - np.int64(key)) % np.int64(self.size)
        else:  # the shorter way round the ring counts; of two equals, the lower place
            gap = (places - np.int64(key)) % np.int64(self.size)
            away = np.minimum(gap, np.int64(self.size) - gap)
        # The first of equals is the lowest place, as the places stand in order.
        return int(places[int(np.argmin(away))])


@functools.lru_cache(maxsize=8)
def owner_scan(rule: str, bits: int) -> OwnerScan:
    """The scan by a rule, kept from one question to the next with its array of all places."""
    return OwnerScan(rule, bits)


class Lookup(Problem):
    """Ask random nodes for random keys, in calm and in trouble; compare with a scan of all nodes.

    Knobs: `keys`, how many different keys there are; `lookups`, how many are asked for over
    `spread_s`; `churn`, departures a second in that time, each back after `away_s`; `final`, how
    many more lookups follow when all is calm; `join_s`, how long the overlay has to form before the
    first question; `settle_s`, how long after the last trouble it must be right; `deadline_s`, when
    a client gives up. Without faults and churn every lookup is judged, not only the final ones.

    >>> Lookup(lookups=10).knobs()["lookups"]
    10
    """

    keys: Count = 100
    lookups: Whole = 200
    churn: NonNegative = 0.0
    spread_s: Positive = 2.0
    away_s: Positive = 0.5
    final: Whole = 50
    join_s: NonNegative = 2.0
    settle_s: NonNegative = 4.0
    deadline_s: Positive = 2.0

    port: ClassVar[type] = Overlay
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "success_rate": Metric("", "higher", "share of lookups that named the right live node"),
        "mean_hops": Metric("", "lower", "hops to the node before the key, the last step left out"),
        "p99_latency_s": Metric("s", "lower", "of the answered lookups, as the client sees it"),
        "messages_per_node_per_s": Metric("1/s", "lower", "all messages, upkeep included"),
        "bytes_per_node_per_s": Metric("B/s", "lower", "all bytes, upkeep included"),
    }

    def world(self) -> World:
        return World.lan(32)

    def accept(self, part: Any) -> None:
        """Refuse a part that is no overlay, or whose rule of ownership nobody knows."""
        super().accept(part)
        rule = getattr(part, "owner_rule", OwnerScan.RULES[0])
        if rule not in OwnerScan.RULES:
            fix = did_you_mean(rule, OwnerScan.RULES)
            raise PartError(f"{type(part).__name__}.owner_rule = {rule!r} is unknown; {fix}")

    # -- the workload

    async def drive(self, driver: Driver) -> None:
        rng = driver.rng
        bits = driver.part.bits
        keys = [rng.getrandbits(bits) for _ in range(self.keys)]
        away: dict[int, None] = {}
        troubled = bool(driver.world.faults) or self.churn > 0
        await driver.sleep(self.join_s)
        begin_s = driver.now
        plan = sorted(rng.uniform(0.0, self.spread_s) for _ in range(self.lookups))
        # All draws are made before anything waits, so that engines ask the same questions.
        asks = [(at_s, rng.choice(keys), rng.random()) for at_s in plan]
        await driver.all(
            self._come_and_go(driver, begin_s, self._departures(driver), away),
            *(self._ask(driver, begin_s + at_s, key, origin, away, not troubled)
              for at_s, key, origin in asks),
        )  # fmt: skip
        if troubled:
            calm_s = max(driver.now, last_fault_end_s(driver.world)) + self.settle_s
            await driver.sleep(calm_s - driver.now)
        begin_s = driver.now
        asks = [(0.01 * i, rng.choice(keys), rng.random()) for i in range(self.final)]
        await driver.all(*(self._ask(driver, begin_s + at_s, key, origin, away, True)
                           for at_s, key, origin in asks))  # fmt: skip

    def _departures(self, driver: Driver) -> list[tuple[float, float, float]]:
        """When somebody leaves, and the two draws that pick who, and through whom it returns."""
        planned = []
        at_s = 0.0
        while self.churn > 0:
            at_s += driver.rng.expovariate(self.churn)
            if at_s >= self.spread_s:
                break
            planned.append((at_s, driver.rng.random(), driver.rng.random()))
        return planned

    async def _come_and_go(
        self,
        driver: Driver,
        begin_s: float,
        leaving: Sequence[tuple[float, float, float]],
        away: dict[int, None],
    ) -> None:
        returns: list[tuple[float, int, float]] = []
        events = [(at_s, who, via, True) for at_s, who, via in leaving]
        while events or returns:
            if returns and (not events or returns[0][0] <= events[0][0]):
                at_s, node, via = returns.pop(0)
                await driver.sleep(max(0.0, begin_s + at_s - driver.now))
                del away[node]
                inside = [other for other in _present(driver, away) if other != node]
                if inside:
                    through = inside[int(via * len(inside))]
                    driver.tell(node, Overlay.join, through)
                continue
            at_s, who, via, _ = events.pop(0)
            await driver.sleep(max(0.0, begin_s + at_s - driver.now))
            inside = _present(driver, away)
            if len(inside) > 2:
                node = inside[int(who * len(inside))]
                away[node] = None
                driver.tell(node, Overlay.leave)
                returns.append((at_s + self.away_s, node, via))

    async def _ask(
        self, driver: Driver, at_s: float, key: int, origin: float, away: dict[int, None],
        judged: bool,
    ) -> None:  # fmt: skip
        await driver.sleep(max(0.0, at_s - driver.now))
        node = _from(driver, away, driver.nodes, int(origin * len(driver.nodes)))
        if node is None:
            return
        began_s = driver.now
        answer = await try_ask(driver, node, self.deadline_s, Overlay.lookup, key)
        owner, hops = answer or (None, 0)
        right = _owner(driver, away, key)
        driver.emit(key=key, asked=node, owner=owner, hops=hops, took_s=driver.now - began_s,
                    right=right, judged=judged)  # fmt: skip

    # -- the verdict

    def check(self, outcome: Outcome) -> list[Violation]:
        if outcome.ended != "driven":
            return []
        bits, rule = outcome.part.bits, outcome.part.owner_rule
        live = [node for node, up in enumerate(outcome.alive) if up]
        if not live:
            return []
        places = {place_of(node, bits) for node in live}
        answers = [
            (
                place_of(one["asked"], bits),
                one["key"],
                None if one["owner"] is None else place_of(one["owner"], bits),
            )
            for one in _answers(outcome)
            if one["judged"]
        ]
        found = checks.lookups(answers, places, owner_scan(rule, bits))
        successors, predecessors = (
            {place_of(node, bits): place_of(other, bits) for node, other in last.items()}
            for last in (_last(outcome, "successor"), _last(outcome, "predecessor"))
        )
        if successors and len(live) > 1:
            found += checks.ring(successors, places, predecessors or None)
        return as_violations(found, outcome.seconds)

    def measure(self, outcome: Outcome) -> dict[str, float]:
        answers = _answers(outcome)
        answered = [one for one in answers if one["owner"] is not None]
        right = sum(one["owner"] == one["right"] for one in answers)
        node_s = max(1, len(outcome.alive)) * max(outcome.seconds, 1e-9)
        hops = [one["hops"] for one in answered]
        return {
            "success_rate": right / len(answers) if answers else 0.0,
            "mean_hops": sum(hops) / len(hops) if hops else 0.0,
            "p99_latency_s": quantile([one["took_s"] for one in answered], 0.99),
            "messages_per_node_per_s": outcome.messages / node_s,
            "bytes_per_node_per_s": outcome.bytes / node_s,
        }

    def decisions(self, outcome: Outcome) -> list[tuple[int, int]]:
        """Every judged (key, owner), each once."""
        judged = (one for one in _answers(outcome) if one["judged"] and one["owner"] is not None)
        return sorted({(one["key"], one["owner"]) for one in judged})


def _present(driver: Driver, away: Mapping[int, None]) -> list[int]:
    return [node for node in driver.nodes if node not in away and driver.alive(node)]


def _from(driver: Driver, away: Mapping[int, None], nodes: Sequence[int], start: int) -> int | None:
    """The first node that is there, going round from a place in the list."""
    for i in range(len(nodes)):
        node = nodes[(start + i) % len(nodes)]
        if node not in away and driver.alive(node):
            return node
    return None


def _owner(driver: Driver, away: Mapping[int, None], key: int) -> int | None:
    """The owner of a key, by the overlay's own rule, among those that are there now."""
    places, nodes = ring_of(len(driver.nodes), driver.part.bits)
    scan = owner_scan(driver.part.owner_rule, driver.part.bits)
    best = nodes[bisect_left(places, scan(key, places))]
    if best not in away and driver.alive(best):  # the owner of all is the owner of some
        return best
    there = [
        place
        for place, node in zip(places, nodes, strict=True)
        if node not in away and driver.alive(node)
    ]
    if not there:
        return None
    return nodes[bisect_left(places, OwnerScan(scan.rule, driver.part.bits)(key, there))]


def _answers(outcome: Outcome) -> list[dict[str, Any]]:
    return [record.values for record in outcome.records if "judged" in record.values]


def _last(outcome: Outcome, name: str) -> dict[int, int]:
    """The last value of a pointer at each node; None, for a pointer given up, is left out."""
    last = {node: value for _, node, value in outcome.emitted(name)}
    return {node: value for node, value in last.items() if value is not None}
