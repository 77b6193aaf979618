"""The problem of what a replicated store shows: sessions write and read while the network parts.

Every session stays with one replica. The replicas tell what they applied, the driver what was
asked and answered, so that the views of all observers can be rebuilt from the records of the run
and placed by whatever order of models one likes. The checker asks little: no read invents a value,
and when the faults are over every replica gets every write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from orrery.base.errors import Refused
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.parts import (
    Count,
    Driver,
    Fraction,
    Metric,
    Node,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    Record,
    rpc,
)
from orrery.systems.protocols.common import client_session, last_fault_end_s, try_ask
from orrery.world import World


class Shown(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a read: the value (0: none yet), and how many writes were applied there."""

    value: int
    applied: int


class ViewStore(Node):
    """The port: a replica that serves reads and writes at once, and spreads writes on its own.

    It emits ``applied=(value, rank)`` for each write in the order of application. The rank is
    None where the order of application is the order that reads go by, else what they sort by.
    """

    @rpc
    async def put(self, session: int, key: str, value: int) -> int:
        """Write a value that nobody else writes; the answer is how many writes are applied."""
        raise Refused(f"{type(self).__name__} takes no writes")

    @rpc
    async def get(self, session: int, key: str) -> Shown:
        """Read a key at this replica."""
        raise Refused(f"{type(self).__name__} answers no reads")


class ReplicatedViews(Problem):
    """What do the sessions of a replicated store see while the network is parted?

    >>> ReplicatedViews(sessions=6).sessions
    6
    """

    port: ClassVar[type] = ViewStore
    metrics: ClassVar[Mapping[str, Metric]] = {
        "operations": Metric("", "higher", "reads and writes that were answered"),
        "unanswered": Metric("", "lower", "operations without an answer in time"),
        "lagging": Metric("", "lower", "replicas that lack a write at the end"),
        "messages_per_write": Metric("", "lower", "messages for each write that was answered"),
    }

    sessions: Count = 3
    ops: Count = 20
    keys: Count = 3
    reads: Fraction = 0.6
    think_s: Positive = 0.05
    op_s: Positive = 1.0
    settle_s: NonNegative = 3.0

    def world(self) -> World:
        """Three replicas on one switch."""
        return World.lan(3)

    async def drive(self, driver: Driver) -> dict[str, int]:
        """Run the sessions, let the store settle after the last fault, read all keys everywhere."""
        count = {"answered": 0, "unanswered": 0, "writes": 0}
        plans = [Stream.keyed(driver.rng.word()) for _ in range(self.sessions)]
        await driver.all(*(self._session(driver, s, plans[s], count) for s in range(self.sessions)))
        healed_s = last_fault_end_s(driver.world)
        await driver.sleep(max(0.0, healed_s - driver.now) + self.settle_s)
        for node in driver.nodes:
            for key in range(self.keys):
                await self._get(driver, self.sessions + node, node, f"k{key}", count, True)
        return count

    async def _session(
        self, driver: Driver, session: int, plan: Stream, count: dict[str, int]
    ) -> None:
        """Reads and writes at one replica; every value written is another one."""
        node = session % len(driver.nodes)
        number = 0

        async def step(pick: float, key: str) -> None:
            nonlocal number
            number += 1
            if pick < self.reads:
                await self._get(driver, session, node, key, count, False)
                return
            value = session << 20 | number
            # Told before the answer, so that a write whose answer is late is known as well.
            driver.emit(writes=(session, key, value, driver.now))
            if await try_ask(driver, node, self.op_s, ViewStore.put, session, key, value) is None:
                count["unanswered"] += 1
                return
            driver.emit(wrote=(value, driver.now))
            count["answered"] += 1
            count["writes"] += 1

        await client_session(driver, plan, self.ops, self.keys, self.think_s, step)

    async def _get(self, driver: Driver, session: int, node: int, key: str,
                   count: dict[str, int], settled: bool) -> None:  # fmt: skip
        asked_s = driver.now
        shown = await try_ask(driver, node, self.op_s, ViewStore.get, session, key)
        if shown is None:
            count["unanswered"] += 1
            return
        driver.emit(saw=(session, node, key, shown.value, shown.applied, asked_s, settled))
        count["answered"] += 1

    def check(self, outcome: Outcome) -> list[Violation]:
        """No invented value, no write applied twice, and all replicas whole in the end."""
        if not isinstance(outcome.driven, dict):
            return [Violation(kind="unfinished", message="the workload did not end")]
        found = []
        keys = {value: key for _, _, (_, key, value, _) in outcome.emitted("writes")}
        for time_s, _, (session, node, key, value, *_) in outcome.emitted("saw"):
            if value and keys.get(value) != key:
                text = f"session {session} read {value} from {key}, where nobody wrote it"
                found.append(Violation("invented", text, time_s=time_s, node=node))
        for node, values in _applied(outcome.records).items():
            if len(set(values)) < len(values):
                text = f"node {node} applied a write twice"
                found.append(Violation("applied_twice", text, node=node))
        for node, lacks in self._lagging(outcome).items():
            text = f"node {node} lacks {len(lacks)} writes after {self.settle_s:g} s of calm"
            found.append(Violation("lagging", text, tuple(lacks[:6]), node=node))
        return found

    def _lagging(self, outcome: Outcome) -> dict[int, list[int]]:
        wrote = [value for _, _, (value, _) in outcome.emitted("wrote")]
        applied = _applied(outcome.records)
        lacks = {
            node: [value for value in wrote if value not in set(applied.get(node, []))]
            for node in range(len(outcome.alive)) if outcome.alive[node]
        }  # fmt: skip
        return {node: values for node, values in lacks.items() if values}

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Answers, lag and messages."""
        count = outcome.driven
        if not isinstance(count, dict):
            return {}
        return {
            "operations": float(count["answered"]),
            "unanswered": float(count["unanswered"]),
            "lagging": float(len(self._lagging(outcome))),
            "messages_per_write": outcome.messages / max(1, count["writes"]),
        }


def _applied(records: Iterable[Record]) -> dict[int, list[Any]]:
    """The values that each node applied, in its order."""
    found: dict[int, list[Any]] = {}
    for record in records:
        if "applied" in record.values:
            found.setdefault(record.node, []).append(record.values["applied"][0])
    return found
