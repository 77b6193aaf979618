"""The problem `broadcast`: what one node is told, every node must learn.

Clients outside the world hand values to random live nodes at random times. A node delivers a value
by `self.emit(delivered=value)`. The checker is that of reliable broadcast: whatever a lasting node
accepted or delivered, all nodes that are alive at the end deliver; nothing is invented; no node
delivers a value twice in one life.

A crash takes a node's memory, so a restarted node is an empty one: it has to learn and deliver all
values again, and its deliveries before the crash no longer count for agreement.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

from orrery.base.errors import PartError
from orrery.base.violation import Violation
from orrery.check import broadcast as checks
from orrery.parts import (
    Count,
    Driver,
    Metric,
    Node,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    rpc,
)
from orrery.parts.rpc import rpcs_of
from orrery.systems.protocols.common import (
    as_violations,
    downtimes,
    last_fault_end_s,
    restarts,
)
from orrery.world import World

CLIENTS = "clients"


class Broadcaster(Node):
    """The port of `Broadcast`: values come in by `broadcast`, go out by `emit(delivered=value)`."""

    @rpc
    async def broadcast(self, value: int) -> None:
        """Spread this value to all nodes, oneself included."""
        raise PartError(f"{type(self).__name__} has no broadcast(value); write what spreads it")


class Broadcast(Problem):
    """Hand `values` values to random nodes, then see whether every live node delivers them all.

    Knobs: `values`; `spread_s`, the time over which they are handed out; `settle_s`, how long the
    run goes on after the last value and the last fault. A plain `Node` that gossips a set, with an
    rpc `learn(values)` and the set in `self.seen`, is taken as it is: what enters `seen` counts as
    delivered.

    >>> Broadcast(values=5).knobs()
    {'values': 5, 'spread_s': 0.2, 'settle_s': 2.0}
    """

    values: Count = 20
    spread_s: NonNegative = 0.2
    settle_s: Positive = 2.0

    port: ClassVar[type] = Broadcaster
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "coverage": Metric("", "higher", "share of (value, live node) pairs delivered by the end"),
        "time_to_50_s": Metric("s", "lower", "mean time until half of the live nodes have a value"),
        "time_to_99_s": Metric("s", "lower", "the same for 99 % of them"),
        "time_to_100_s": Metric(
            "s", "lower", "the same for all; a value that never got so far counts the whole run"
        ),
        "messages_per_value": Metric("", "lower", "all messages of the run over the values"),
        "bytes_per_value": Metric("B", "lower", "all bytes of the run over the values"),
    }

    def world(self) -> World:
        return World.lan(20)

    def accept(self, part: Any) -> None:
        if not _is_set_gossip(part):
            super().accept(part)

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        return super().host(_watched(part) if _is_set_gossip(part) else part, world)

    async def drive(self, driver: Driver) -> None:
        rng = driver.rng
        times = sorted(rng.uniform(0.0, self.spread_s) for _ in range(self.values))
        for value, at_s in enumerate(times):
            await driver.sleep(max(0.0, at_s - driver.now))
            up = [node for node in driver.nodes if driver.alive(node)]
            node = rng.choice(up or driver.nodes)
            # Recorded and not returned, so that a run cut short can be judged as far as it went.
            driver.emit(offered=value, to=node)
            driver.tell(node, Broadcaster.broadcast, value)
        calm_s = max(driver.now, last_fault_end_s(driver.world))
        await driver.sleep(calm_s - driver.now + self.settle_s)

    def check(self, outcome: Outcome) -> list[Violation]:
        offers = _offers(outcome)
        lives = _lives(outcome)
        invented: dict[Any, list[tuple[str, int]]] = {
            CLIENTS: [("broadcast", value) for value, _, _ in offers]
        }
        invented |= {
            (node, number): [("deliver", value) for value, _ in life]
            for node, of_node in lives.items()
            for number, life in enumerate(of_node)
        }
        found = checks.integrity(invented)
        if outcome.ended == "driven":  # else the values had no time to arrive
            logs = self._final_logs(outcome, offers, lives)
            live = {node for node, up in enumerate(outcome.alive) if up}
            found += checks.validity(logs, live) + checks.agreement(logs, live)
        return as_violations(found, outcome.seconds)

    def _final_logs(
        self,
        outcome: Outcome,
        offers: list[tuple[int, int, float]],
        lives: dict[int, list[list[tuple[int, float]]]],
    ) -> dict[Any, list[tuple[str, int]]]:
        """Each node's last life; a value offered to a node that fell afterwards is nobody's."""
        down = downtimes(outcome)
        logs: dict[Any, list[tuple[str, int]]] = {node: [] for node in range(len(outcome.alive))}
        logs[CLIENTS] = []
        for value, node, time_s in offers:
            spans = down.get(node, ())
            fell = any(end is None or end >= time_s for _, end in spans)
            logs[CLIENTS if fell else node].append(("broadcast", value))
        for node, of_node in lives.items():
            logs[node] += [("deliver", value) for value, _ in of_node[-1]]
        return logs

    def measure(self, outcome: Outcome) -> dict[str, float]:
        live = [node for node, up in enumerate(outcome.alive) if up]
        lives = _lives(outcome)
        have = sum(len({value for value, _ in lives[node][-1]}) for node in live if node in lives)
        metrics = {"coverage": have / (self.values * len(live)) if live else 0.0}
        first = _first_times(lives, set(live))
        for percent in (50, 99, 100):
            wanted = max(1, -(-len(live) * percent // 100))
            taken = []
            for value in range(self.values):
                times = first.get(value, [])
                reached = len(times) >= wanted
                taken.append(times[wanted - 1] - times[0] if reached else outcome.seconds)
            metrics[f"time_to_{percent}_s"] = sum(taken) / len(taken)
        metrics["messages_per_value"] = outcome.messages / self.values
        metrics["bytes_per_value"] = outcome.bytes / self.values
        return metrics

    def decisions(self, outcome: Outcome) -> dict[int, list[int]]:
        """What each node that is alive at the end has delivered in its last life."""
        lives = _lives(outcome)
        return {
            node: sorted({value for value, _ in lives[node][-1]}) if node in lives else []
            for node, up in enumerate(outcome.alive)
            if up
        }


def _offers(outcome: Outcome) -> list[tuple[int, int, float]]:
    """Every (value, node, time) that the clients handed out."""
    return [
        (record.values["offered"], record.values["to"], record.time_s)
        for record in outcome.records
        if "offered" in record.values
    ]


def _lives(outcome: Outcome) -> dict[int, list[list[tuple[int, float]]]]:
    """What each node delivered and when, one list for each of its lives."""
    begun = restarts(outcome)
    lives: dict[int, list[list[tuple[int, float]]]] = {
        node: [[] for _ in range(len(times) + 1)] for node, times in begun.items()
    }
    for time_s, node, value in outcome.emitted("delivered"):
        # A nanosecond of grace: engines keep whole nanoseconds, schedules do not.
        times = begun.get(node)
        number = sum(begin <= time_s + 1e-9 for begin in times) if times else 0
        lives.setdefault(node, [[]])[number].append((value, time_s))
    return lives


def _first_times(
    lives: dict[int, list[list[tuple[int, float]]]], live: set[int]
) -> dict[int, list[float]]:
    """For each value, when the live nodes first delivered it, in order of time."""
    times: dict[int, list[float]] = {}
    for node, of_node in lives.items():
        if node not in live:
            continue
        seen: dict[int, float] = {}
        for life in of_node:
            for value, time_s in life:
                seen.setdefault(value, time_s)
        for value, time_s in seen.items():
            times.setdefault(value, []).append(time_s)
    for of_value in times.values():
        of_value.sort()
    return times


# -- a plain node that gossips a set


def _is_set_gossip(part: Any) -> bool:
    if not isinstance(part, Node) or isinstance(part, Broadcaster):
        return False
    learn = rpcs_of(type(part)).get("learn")
    return learn is not None and learn.params == ("values",)


def _watched(part: Node) -> Node:
    """The same part with the port around it: values come in by `learn`, `seen` is reported."""
    cls = type(part)
    body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    made: type[Node] = type(cls.__name__, (_SetGossip, cls), body)
    return made(**part.changed_knobs())


class _SetGossip(Broadcaster):
    """Put before a class with `learn(values)` and `seen`; adds `broadcast` and the reports."""

    seen: ClassVar[Any] = frozenset()
    _reported: frozenset[int] = frozenset()

    @rpc
    async def broadcast(self, value: int) -> None:
        await self.learn(frozenset({value}))

    @rpc
    async def learn(self, values: frozenset[int]) -> None:
        learnt = super().learn(values)  # type: ignore[misc]
        if inspect.isawaitable(learnt):
            await learnt
        for value in sorted(self.seen - self._reported):
            self.emit(delivered=value)
        self._reported = self._reported | self.seen
