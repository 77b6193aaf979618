"""The problem `total_order`: replicas, of which some may lie, put requests in one order.

Clients stand on the driver, whose word cannot be forged. Each sends its next request to every
replica and waits until enough of them (one more than may lie) give the same answer. The checker
looks at correct replicas only: no sequence number has two values, logs are in order and without
gaps, each request is one that a client made and is applied once, each client's requests keep their
order; and when the faults are over, requests are answered and every correct replica catches up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from orrery.base.errors import DeadlineExceeded, PartError, Refused
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.check.agreement import prefix_consistent, state_machine_safety
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
from orrery.systems.protocols.common import as_violations, last_fault_end_s, quantile
from orrery.world import Byzantine, World


class Request(msgspec.Struct, frozen=True, array_like=True):
    """What a client asks for: its own number, the number of the request, and a value."""

    client: int
    number: int
    value: int


class OrderNode(Node):
    """The port: one replica of an ordering service.

    It reports `emit(ordered=(number, requests))` for each sequence number in turn, with the
    requests that it applied there (perhaps none), and `emit(began=True)` when it begins from
    nothing after a crash. One that has leaders reports `emit(view=number)` when it enters a view.
    """

    def tolerated(self, size: int) -> int:
        """How many of `size` replicas may lie; a client trusts one answer more than that."""
        return 0

    @rpc
    async def submit(self, request: Request, sender: int) -> int:
        """Answer with the sequence number at which the request was applied, once it was."""
        raise PartError(f"{type(self).__name__} has no submit(request, sender); write the order")


class Asked(msgspec.Struct):
    """One request as its client saw it; `done_s` is None while it has no trusted answer."""

    request: Request
    call_s: float
    done_s: float | None = None
    number: int = -1


class Orders(msgspec.Struct):
    """What the workload leaves for the checker."""

    asked: list[Asked]
    healed_s: float = 0.0
    probed_s: float = 0.0
    stalled: str = ""


class TotalOrder(Problem):
    """Clients send requests, one at a time each; replicas must apply them in one order.

    Knobs: `clients`, each with `requests` requests and up to 2 `think_s` between them; `retry_s`,
    after which a client asks all replicas again; `give_up_s`, when it lets a request be;
    `recover_s`, within which one more request must be answered when all faults are over;
    `settle_s`, the time that replicas then have to catch up.

    >>> TotalOrder(clients=1).clients
    1
    """

    clients: Count = 3
    requests: Count = 10
    think_s: NonNegative = 0.02
    retry_s: Positive = 0.5
    give_up_s: Positive = 10.0
    recover_s: Positive = 10.0
    settle_s: NonNegative = 1.0

    port: ClassVar[type] = OrderNode
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "requests_per_s": Metric("1/s", "higher", "requests with a trusted answer"),
        "latency_p50_s": Metric("s", "lower", "of answered requests, as the client sees it"),
        "latency_p99_s": Metric("s", "lower", "of answered requests, as the client sees it"),
        "unanswered": Metric("", "lower", "requests that a client gave up"),
        "views": Metric("", "lower", "the highest view (term of a leader) that was entered"),
        "messages_per_request": Metric("", "lower", "all messages for each answered request"),
        "recovery_s": Metric("s", "lower", "from the end of the faults to the answered probe"),
    }

    def world(self) -> World:
        """Four machines on one switch: the fewest of which one may lie."""
        return World.lan(4)

    # -- the workload

    async def drive(self, driver: Driver) -> Orders:
        """Run the clients, wait for the faults to end, then probe."""
        orders = Orders([])
        # Every draw is made before anything waits, so that engines ask the same questions.
        streams = [Stream.keyed(driver.rng.word()) for _ in range(self.clients)]
        await driver.all(*(
            self._client(driver, orders, name, rng) for name, rng in enumerate(streams)
        ))  # fmt: skip
        healed_s = last_fault_end_s(driver.world)
        await driver.sleep(max(0.0, healed_s - driver.now))
        orders.healed_s = driver.now
        probe = Request(self.clients, 1, 0)
        if await self._ask(driver, orders, probe, self.recover_s) is None:
            orders.stalled = f"no answer within {self.recover_s:g} s of healing"
        orders.probed_s = driver.now
        await driver.sleep(self.settle_s)
        return orders

    async def _client(self, driver: Driver, orders: Orders, name: int, rng: Stream) -> None:
        for number in range(1, self.requests + 1):
            pause_s = 2.0 * self.think_s * rng.random()
            request = Request(name, number, rng.below(1 << 31))
            await driver.sleep(pause_s)
            await self._ask(driver, orders, request, self.give_up_s)

    async def _ask(
        self, driver: Driver, orders: Orders, request: Request, limit_s: float
    ) -> int | None:
        """Ask all replicas until enough of them give the same answer, or time is up."""
        asked = Asked(request, driver.now)
        orders.asked.append(asked)
        answers = driver.queue()
        needed = driver.part.tolerated(len(driver.nodes)) + 1
        tasks = [
            driver.spawn(_insist(driver, node, request, self.retry_s, answers))
            for node in driver.nodes
        ]
        given: dict[int, list[int]] = {}
        try:
            async with driver.deadline(limit_s):
                while True:
                    node, number = await answers.get()
                    who = given.setdefault(number, [])
                    who.append(node)
                    if len(who) >= needed:
                        asked.done_s, asked.number = driver.now, number
                        return number
        except DeadlineExceeded:
            return None
        finally:
            for task in tasks:
                task.cancel()

    # -- the checker

    def check(self, outcome: Outcome) -> list[Violation]:
        """Safety of what correct replicas did, then validity, order and life after healing."""
        lives = ordered_by(outcome, correct_nodes(outcome))
        found = []
        for name, entries in lives.items():
            found += state_machine_safety({name: entries}, 1)
        same = [v for v in state_machine_safety(lives) if v.kind == "unsafe_apply"]
        found += [msgspec.structs.replace(v, kind="two_values") for v in same]
        logs = {name: [r for _, rs in entries for r in rs] for name, entries in lives.items()}
        found += prefix_consistent(logs) if not same else []
        orders = outcome.driven
        if isinstance(orders, Orders):
            found += _invalid(logs, orders)
            found += self._dead(outcome, lives, orders)
        elif not outcome.violations:
            found.append(Violation(kind="unfinished", message="the workload did not end"))
        return as_violations(found, outcome.seconds)

    def _dead(self, outcome: Outcome, lives: Any, orders: Orders) -> list[Violation]:
        if orders.stalled:
            return [Violation(kind="not_live", message=orders.stalled)]
        due = max((each.number for each in orders.asked), default=0)
        last: dict[int, int] = {}
        for (node, _), entries in lives.items():
            last[node] = entries[-1][0] if entries else 0
        return [
            Violation(kind="lagging", node=node,
                      message=f"replica {node} stands at {last.get(node, 0)}; {due} was answered")
            for node in correct_nodes(outcome)
            if outcome.alive[node] and last.get(node, 0) < due
        ]  # fmt: skip

    # -- the metrics

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Throughput, latency, views, and the cost in messages."""
        orders = outcome.driven
        asked = orders.asked if isinstance(orders, Orders) else []
        waits = [each.done_s - each.call_s for each in asked if each.done_s is not None]
        views = [view for _, _, view in outcome.emitted("view")]
        seconds = max(outcome.seconds, 1e-9)
        return {
            "requests_per_s": len(waits) / seconds,
            "latency_p50_s": quantile(waits, 0.5),
            "latency_p99_s": quantile(waits, 0.99),
            "unanswered": float(len(asked) - len(waits)),
            "views": float(max(views, default=0)),
            "messages_per_request": outcome.messages / max(len(waits), 1),
            "recovery_s": orders.probed_s - orders.healed_s if asked else 0.0,
        }

    def decisions(self, outcome: Outcome) -> list[Request] | None:
        """The one log of a single client's requests; several clients may be served in any order."""
        if self.clients > 1:
            return None
        lives = ordered_by(outcome, correct_nodes(outcome))
        logs = [[r for _, rs in entries for r in rs] for entries in lives.values()]
        return max(logs, key=len, default=[])


async def _insist(driver: Driver, node: int, request: Request, retry_s: float, out: Any) -> None:
    """Ask one replica again and again until it answers."""
    while True:
        try:
            async with driver.deadline(retry_s):
                out.put((node, await driver.ask(node, OrderNode.submit, request)))
                return
        except DeadlineExceeded:
            continue
        except Refused:
            await driver.sleep(retry_s)


def correct_nodes(outcome: Outcome) -> list[int]:
    """The nodes that no fault of the run has made lie."""
    liars = {
        node
        for fault in outcome.world.schedule(outcome.seed)
        if isinstance(fault, Byzantine)
        for node in outcome.world.targets(fault)
    }
    return [node for node in range(outcome.world.size) if node not in liars]


Lives = dict[tuple[int, int], list[tuple[int, tuple[Request, ...]]]]


def ordered_by(outcome: Outcome, nodes: list[int]) -> Lives:
    """What each of these nodes applied in each of its lives, as (number, requests)."""
    wanted = set(nodes)
    life = dict.fromkeys(nodes, 0)
    lives: Lives = {(node, 0): [] for node in nodes}
    for _, node, values in outcome.records:
        if node not in wanted:
            continue
        if "began" in values:
            life[node] += 1
            lives[node, life[node]] = []
        elif "ordered" in values:
            number, requests = values["ordered"]
            made = tuple(msgspec.convert(each, Request) for each in requests)
            lives[node, life[node]].append((number, made))
    return lives


def _invalid(logs: Mapping[Any, list[Request]], orders: Orders) -> list[Violation]:
    """Requests that nobody made, that were applied twice, or that overtook an earlier one."""
    made = {each.request for each in orders.asked}
    found = []
    for (node, _), log in logs.items():
        last: dict[int, int] = {}
        for request in log:
            if request not in made:
                text = f"replica {node} applied {request}, which no client asked for"
                found.append(Violation(kind="invented", message=text, node=node))
            elif request.number <= last.get(request.client, 0):
                text = f"replica {node} applied {request} after {last[request.client]}"
                found.append(Violation(kind="applied_again", message=text, node=node))
            last[request.client] = max(last.get(request.client, 0), request.number)
    return found
