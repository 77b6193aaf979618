"""The problem `agent_discovery`: who offers a capability, among agents that come and go.

Every node is an agent that offers one capability, and a node of the directory in which all offers
stand. Clients ask random nodes for random capabilities. An answer counts as right when it holds a
genuine record of an agent that is there; one that names only agents that are gone is stale. A
record that is forged, filed under another key or past its end must never be handed out; once all
faults are over and `settle_s` has passed, every offer must be found.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from orrery.base.errors import DeadlineExceeded, KnobError, PartError, Refused
from orrery.base.violation import Violation
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
)
from orrery.systems.protocols.common import downtimes, last_fault_end_s, quantile
from orrery.systems.protocols.problems.capability_records import genuine, key_of_capability
from orrery.systems.protocols.problems.directory_node import DirectoryNode
from orrery.systems.protocols.problems.discovery_world import discovery_world
from orrery.world import World

# Lookups can be relied on when so many in a row, or more, are right in this share.
WINDOW, DEPENDABLE = 50, 0.99


class AgentDiscovery(Problem):
    """Ask random nodes who offers a capability, in calm and in churn; count what it costs.

    Knobs of the world: `nodes`; `session_s`, the median of the exponential sessions (0: nobody
    leaves), `away_s`, the mean time away (uniform from half to three halves), `mixed`, whether
    cloud nodes stay and edge nodes have sessions six times as long. Knobs of the workload:
    `sharing`, agents to a capability; `ttl_s`, how long a record lives; `publish_s`, the span of
    the first publications, which begin at `join_s`; `lookups`, spread over `span_s` from then on
    (`early`: from the beginning of the run); `final`, lookups after all is calm and `settle_s` has
    passed; `grace_s`, how long an agent has to be there before it must be found; `deadline_s`,
    when a client gives up.

    >>> AgentDiscovery(nodes=64).world().size
    64
    """

    nodes: Count = 24
    session_s: NonNegative = 0.0
    away_s: Positive = 120.0
    mixed: bool = False
    sharing: Count = 1
    ttl_s: Positive = 6.0
    join_s: NonNegative = 1.0
    publish_s: Positive = 0.5
    lookups: Whole = 100
    span_s: Positive = 2.0
    early: bool = False
    final: Whole = 30
    settle_s: NonNegative = 4.0
    grace_s: NonNegative = 4.0
    deadline_s: Positive = 2.0

    port: ClassVar[type] = DirectoryNode
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "success_rate": Metric("", "higher", "share of lookups for a live offer that found it"),
        "stale_rate": Metric("", "lower", "share of answers that name only agents that are gone"),
        "failure_rate": Metric("", "lower", "share of lookups for a live offer that missed it"),
        "mean_latency_s": Metric("s", "lower", "of the answered lookups, as the client sees it"),
        "p99_latency_s": Metric("s", "lower", "of the answered lookups, as the client sees it"),
        "startup_s": Metric("s", "lower", "from when on lookups could be relied on"),
        "messages_per_node_per_s": Metric("1/s", "lower", "all messages, upkeep included"),
        "bytes_per_node_per_s": Metric("B/s", "lower", "all bytes, upkeep included"),
    }

    def world(self) -> World:
        return discovery_world(
            self.nodes,
            session_s=self.session_s,
            between_s=(self.join_s, self.join_s + self.publish_s + self.span_s),
            away_s=self.away_s,
            mixed=self.mixed,
        )

    def accept(self, part: Any) -> None:
        if callable(getattr(part, "roles", None)):
            for one in part.roles().values():
                super().accept(one)
            return
        if isinstance(part, Mapping):
            raise PartError("AgentDiscovery takes one part for all nodes, not a table of roles")
        super().accept(part)

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        if self.sharing > world.size:
            problem = f"{self.sharing} agents to a capability among {world.size}"
            raise KnobError("AgentDiscovery.sharing", problem, f"give at most {world.size}")
        roles = part.roles() if callable(getattr(part, "roles", None)) else {"node": part}
        return dict(roles)

    # -- the workload

    async def drive(self, driver: Driver) -> None:
        rng, size = driver.rng, len(driver.nodes)
        keys = [key_of_capability(i, driver.part.bits) for i in range(-(-size // self.sharing))]
        troubled = bool(driver.world.faults)
        # All draws are made before anything waits, so that engines ask the same questions.
        offers = [self.join_s + rng.uniform(0.0, self.publish_s) for _ in driver.nodes]
        first_s = 0.0 if self.early else self.join_s + self.publish_s + self.grace_s / 4
        plan = sorted(rng.uniform(0.0, self.span_s) for _ in range(self.lookups))
        asks = [(first_s + at_s, rng.choice(keys), rng.random()) for at_s in plan]
        last = [(0.01 * i, rng.choice(keys), rng.random()) for i in range(self.final)]
        for node, at_s in enumerate(offers):
            driver.spawn(self._offer(driver, node, at_s, keys[node // self.sharing]))
        judged = not troubled and not self.early
        await driver.all(*(self._ask(driver, *ask, judged) for ask in asks))
        calm_s = last_fault_end_s(driver.world) if troubled else 0.0
        if self.final:
            calm_s = max(driver.now, calm_s) + (self.settle_s if troubled or self.early else 0.0)
            await driver.all(*(self._ask(driver, calm_s + at_s, key, origin, True)
                               for at_s, key, origin in last))  # fmt: skip

    async def _offer(self, driver: Driver, node: int, at_s: float, key: int) -> None:
        """Have a node publish; one that is away does it when it is back."""
        await driver.sleep(max(0.0, at_s - driver.now))
        while True:
            if driver.alive(node):
                try:
                    async with driver.deadline(self.deadline_s):
                        if await driver.ask(node, DirectoryNode.publish, key, self.ttl_s):
                            return
                except (DeadlineExceeded, Refused):
                    pass
            await driver.sleep(self.deadline_s / 4)

    async def _ask(
        self, driver: Driver, at_s: float, key: int, origin: float, judged: bool
    ) -> None:
        await driver.sleep(max(0.0, at_s - driver.now))
        size = len(driver.nodes)
        turn = ((int(origin * size) + i) % size for i in range(size))
        node = next((each for each in turn if driver.alive(each)), None)
        if node is None:
            return
        began_s, found, answered = driver.now, (), False
        try:
            async with driver.deadline(self.deadline_s):
                found = await driver.ask(node, DirectoryNode.discover, key)
                answered = True
        except (DeadlineExceeded, Refused):
            pass
        scheme = driver.part.signature
        got = [(each.agent, each.expires_ms / 1000, genuine(scheme, each, key)) for each in found]
        driver.emit(key=key, asked=node, began_s=began_s, took_s=driver.now - began_s, got=got,
                    answered=answered, judged=judged)  # fmt: skip

    # -- the verdict

    def check(self, outcome: Outcome) -> list[Violation]:
        found: list[Violation] = []
        truth = _Truth(outcome, self)
        for one in _answers(outcome):
            found += _bad_records(one)
            live = truth.live(one["key"], one["began_s"])
            if one["judged"] and live and not truth.named(one, live):
                text = f"node {one['asked']} found none of the agents {live} under {one['key']}"
                found.append(Violation(kind="not_found", message=text, node=one["asked"],
                                       time_s=one["began_s"]))  # fmt: skip
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        answers = sorted(_answers(outcome), key=lambda one: (one["began_s"], one["key"]))
        truth = _Truth(outcome, self)
        hits: list[tuple[float, bool]] = []
        named = stale = 0
        for one in answers:
            live = truth.live(one["key"], one["began_s"])
            if live:
                hits.append((one["began_s"] + one["took_s"], truth.named(one, live)))
            if one["got"]:
                named += 1
                up = [agent for agent, _, _ in one["got"] if truth.up(agent, one["began_s"])]
                stale += not up
        took_s = [one["took_s"] for one in answers if one["answered"]]
        node_s = max(1, len(outcome.alive)) * max(outcome.seconds, 1e-9)
        right = sum(hit for _, hit in hits)
        success = right / len(hits) if hits else 0.0
        return {
            "success_rate": success,
            "stale_rate": stale / named if named else 0.0,
            "failure_rate": 1.0 - success,
            "mean_latency_s": sum(took_s) / len(took_s) if took_s else 0.0,
            "p99_latency_s": quantile(took_s, 0.99),
            "startup_s": _dependable_from_s(hits),
            "messages_per_node_per_s": outcome.messages / node_s,
            "bytes_per_node_per_s": outcome.bytes / node_s,
        }

    def decisions(self, outcome: Outcome) -> list[tuple[int, tuple[int, ...]]]:
        """Every judged (key, agents found), each once."""
        judged = (one for one in _answers(outcome) if one["judged"] and one["got"])
        return sorted({(one["key"], tuple(sorted(a for a, _, _ in one["got"]))) for one in judged})


class _Truth:
    """Who was there when, from the schedule of faults."""

    def __init__(self, outcome: Outcome, problem: AgentDiscovery) -> None:
        self.grace_s = problem.grace_s
        self.size = len(outcome.alive)
        bits = outcome.part.bits
        self.agents: dict[int, list[int]] = {}
        for node in range(self.size):
            key = key_of_capability(node // problem.sharing, bits)
            self.agents.setdefault(key, []).append(node)
        # A node is up from each of these times until the next one of its downs.
        self.begins: dict[int, list[float]] = {}
        self.ends: dict[int, list[float]] = {}
        for node, spans in downtimes(outcome).items():
            self.begins[node] = [0.0, *(end for _, end in spans if end is not None)]
            self.ends[node] = [at_s for at_s, _ in spans]

    def up_since(self, node: int, time_s: float) -> float | None:
        """Since when a node has been there; None when it is away."""
        if node not in self.begins:
            return 0.0
        lost = bisect_right(self.ends[node], time_s)
        back = bisect_right(self.begins[node], time_s)
        return self.begins[node][back - 1] if back > lost else None

    def up(self, node: int, time_s: float) -> bool:
        return 0 <= node < self.size and self.up_since(node, time_s) is not None

    def live(self, key: int, time_s: float) -> list[int]:
        """The agents under a key that have been there long enough to be found."""
        since = ((agent, self.up_since(agent, time_s)) for agent in self.agents[key])
        return [a for a, s in since if s is not None and (s == 0.0 or time_s - s >= self.grace_s)]

    def named(self, one: Mapping[str, Any], live: Sequence[int]) -> bool:
        return any(agent in live and good for agent, _, good in one["got"])


def _bad_records(one: Mapping[str, Any]) -> list[Violation]:
    found = []
    for agent, expires_s, good in one["got"]:
        where = f"node {one['asked']}, asked for {one['key']},"
        if not good:
            text = f"{where} handed out a record of agent {agent} that is not genuine"
            found.append(Violation(kind="forged_record", message=text, node=one["asked"],
                                   time_s=one["began_s"]))  # fmt: skip
        if expires_s < one["began_s"]:
            text = f"{where} handed out a record that had ended at {expires_s:.3f} s"
            found.append(Violation(kind="expired_record", message=text, node=one["asked"],
                                   time_s=one["began_s"]))  # fmt: skip
    return found


def _dependable_from_s(hits: Sequence[tuple[float, bool]]) -> float:
    """The time after the last window of lookups of which too few were right; 0 if none."""
    from_s = 0.0
    right = 0
    for i, (_, hit) in enumerate(hits):
        right += hit
        if i >= WINDOW:
            right -= hits[i - WINDOW][1]
        if i >= WINDOW - 1 and right < DEPENDABLE * WINDOW:
            from_s = hits[i][0]
    return from_s


def _answers(outcome: Outcome) -> list[dict[str, Any]]:
    return [record.values for record in outcome.records if "answered" in record.values]
