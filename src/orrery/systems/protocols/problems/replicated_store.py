"""The problem of a replicated key-value store: one register for each key, on machines that fail.

Clients on the driver read, write and compare-and-swap; every operation is recorded with its outcome
(it happened, or nobody knows). The checker asks what a user of such a store is promised: the
history is linearizable, no two nodes disagree on what was applied, no term has two leaders, and
when the faults are over the store serves again and every live node catches up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

import msgspec

from orrery.base.errors import DeadlineExceeded, KnobError, Refused
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.check import CasRegister, History, linearizable
from orrery.check.agreement import one_leader_per_term, state_machine_safety
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
    Whole,
    rpc,
)
from orrery.systems.protocols.common import (
    client_session,
    last_fault_end_s,
    quantile,
    try_ask,
)
from orrery.world import World


class Op(msgspec.Struct, frozen=True, array_like=True):
    """What a client wants: `read`, `write` value, or `cas` from expected to value, of one key."""

    f: str
    key: str
    value: int | None = None
    expected: int | None = None


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """What a node says: done, with the result; or not known here, and perhaps who leads."""

    done: bool
    result: int | bool | None = None
    leader: int = -1


class StoreNode(Node):
    """The port: one replica of the store.

    What a replica emits is what the checker can see of it; a system without terms or snapshots
    leaves the records out that mean nothing to it:

    - ``leads=term`` when it becomes the leader of a term;
    - ``applied=(index, command)`` for each command it applies, in the order of the log;
    - ``restored=index`` when it begins anew from a snapshot up to that index (0: from nothing);
    - ``state=(index, fingerprint)`` now and then: a number that depends on all of its state.
    """

    @rpc
    async def command(self, client: int, number: int, op: Op) -> Reply:
        """Carry out operation `number` of a client once, however often it is asked for."""
        raise Refused(f"{type(self).__name__} does not serve commands")

    @rpc
    async def reconfigure(self, members: tuple[int, ...]) -> Reply:
        """Change who takes part; the new members differ from the old ones by one node."""
        raise Refused(f"{type(self).__name__} has a fixed membership")


class Trial(msgspec.Struct):
    """What the workload leaves for the checker."""

    history: History
    healed_s: float
    probed_s: float
    work_ended_s: float
    changes: int = 0
    stalled: str = ""


class ReplicatedStore(Problem):
    """Clients of a replicated key-value store; see the module for what is checked.

    >>> ReplicatedStore(clients=1).clients
    1
    """

    port: ClassVar[type] = StoreNode
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "commits_per_s": Metric("1/s", "higher", "writes and swaps that were acknowledged"),
        "latency_p50_s": Metric("s", "lower", "of acknowledged operations"),
        "latency_p99_s": Metric("s", "lower", "of acknowledged operations"),
        "unknown": Metric("", "lower", "operations whose outcome the client never learnt"),
        "elections": Metric("", "lower", "times that a node became leader"),
        "unavailable_s": Metric("s", "lower", "longest time in which no operation ended well"),
        "messages_per_op": Metric("", "lower", "messages for each acknowledged operation"),
        "recovery_s": Metric("s", "lower", "from the end of the faults to the end of the probe"),
    }

    clients: Count = 6
    ops: Count = 25
    keys: Count = 3
    reads: Fraction = 0.4
    swaps: Fraction = 0.2
    think_s: NonNegative = 0.1
    attempt_s: Positive = 0.25
    op_s: Positive = 1.5
    wander: Fraction = 0.3
    changes: Whole = 0
    recover_s: Positive = 6.0
    settle_s: NonNegative = 1.0

    def world(self) -> World:
        """Five machines on one switch."""
        return World.lan(5)

    def accept(self, part: Any) -> None:
        """Refuse a part that is no replica, and shares of operations above one."""
        super().accept(part)
        if self.reads + self.swaps > 1:
            raise KnobError(
                "ReplicatedStore.reads",
                f"reads + swaps = {self.reads + self.swaps:g} is more than all operations",
                "give shares whose sum is at most 1",
            )

    # -- the workload

    async def drive(self, driver: Driver) -> Trial:
        """Run the clients through the faults, then probe that the store serves again."""
        history = History()
        # Every plan is drawn before anything happens, so that timing cannot change it.
        people = [
            Client(self, driver, history, name, Stream.keyed(driver.rng.word()))
            for name in range(self.clients + 1)
        ]
        prober = people.pop()
        healed_s = last_fault_end_s(driver.world)
        jobs = [person.work() for person in people]
        trial = Trial(history, healed_s, 0.0, 0.0)
        if self.changes:
            # Two at once and in no accord, so that changes meet other changes under way.
            jobs += [self._change_members(driver, trial) for _ in range(2)]
        await driver.all(*jobs)
        trial.work_ended_s = driver.now
        if driver.now < healed_s:
            await driver.sleep(healed_s - driver.now)
        trial.healed_s = driver.now
        trial.stalled = await self._probe(driver, prober)
        trial.probed_s = driver.now
        await driver.sleep(self.settle_s)
        return trial

    async def _probe(self, driver: Driver, prober: Client) -> str:
        """Put all nodes back, then write and read every key; the answer names what failed."""
        try:
            async with driver.deadline(self.recover_s):
                if self.changes:
                    await self._restore_members(driver)
                for key in range(self.keys):
                    for f in ("write", "read"):
                        await prober.do(f, f"k{key}", self.recover_s)
        except DeadlineExceeded:
            return f"no progress within {self.recover_s:g} s of healing"
        return ""

    async def _change_members(self, driver: Driver, trial: Trial) -> None:
        """Take nodes out and put them back, one at a time, while the clients work."""
        everyone = tuple(driver.nodes)
        rng = Stream.keyed(driver.rng.word())
        for _ in range(self.changes):
            await driver.sleep(rng.uniform(0.0, 1.0) * self.ops * self.think_s / self.changes)
            lost = rng.choice(everyone)
            fewer = tuple(node for node in everyone if node != lost)
            for members in (fewer, everyone) if len(everyone) > 1 else ():
                trial.changes += await _reconfigure(driver, members, self.attempt_s)
                await driver.sleep(rng.uniform(0.0, 2.0) * self.think_s)

    async def _restore_members(self, driver: Driver) -> None:
        """Bring back whoever is still out; the outcome of earlier changes may be unknown."""
        everyone = tuple(driver.nodes)
        while not await _reconfigure(driver, everyone, self.op_s):
            await driver.sleep(self.attempt_s)

    # -- the checker

    def check(self, outcome: Outcome) -> list[Violation]:
        """Linearizability, agreement of the replicas, leaders, and life after healing."""
        found = _records_agree(outcome)
        trial = outcome.driven
        if not isinstance(trial, Trial):
            if not outcome.violations:
                found.append(Violation(kind="unfinished", message="the workload did not end"))
            return found
        verdict = linearizable(trial.history, CasRegister())
        found += verdict.violations
        if verdict.ok is None:
            found.append(Violation(kind="undecided", message="the search ran out of budget"))
        if trial.stalled:
            found.append(Violation(kind="not_live", message=trial.stalled, time_s=trial.probed_s))
        else:
            found += _laggards(outcome, trial)
        return found

    # -- the metrics

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Throughput, latency, elections and how long nothing went through."""
        trial = outcome.driven
        if not isinstance(trial, Trial):
            return {}
        ends = [op for op in trial.history if op.state == "ok" and op.ret_s is not None]
        waits = [(op.ret_s or 0.0) - op.call_s for op in ends]
        commits = sum(op.f != "read" for op in ends)
        times = sorted(op.ret_s or 0.0 for op in ends if (op.ret_s or 0.0) <= trial.work_ended_s)
        marks = [0.0, *times, trial.work_ended_s]
        gaps = [b - a for a, b in itertools.pairwise(marks)]
        return {
            "commits_per_s": commits / outcome.seconds if outcome.seconds > 0 else 0.0,
            "latency_p50_s": quantile(waits, 0.5),
            "latency_p99_s": quantile(waits, 0.99),
            "unknown": float(sum(state in ("unknown", "open") for state in trial.history.states)),
            "elections": float(len(outcome.emitted("leads"))),
            "unavailable_s": max(gaps),
            "messages_per_op": outcome.messages / len(ends) if ends else math.inf,
            "recovery_s": trial.probed_s - trial.healed_s,
        }

    def decisions(self, outcome: Outcome) -> Any:
        """The answers of the only client, in order; with several clients no outcome is unique."""
        trial = outcome.driven
        if self.clients > 1 or not isinstance(trial, Trial):
            return None
        return [
            (op.process, op.f, op.key, op.value, op.state, op.result if op.f != "write" else None)
            for op in trial.history
        ]


class Client:
    """One session: sequential operations, each retried at other nodes until it ends or time is up.

    A retry carries the number of the first try, so that a store with sessions acts once.
    """

    def __init__(
        self, problem: ReplicatedStore, driver: Driver, history: History, name: int, rng: Stream
    ) -> None:
        self.problem = problem
        self.driver = driver
        self.history = history
        self.name = name
        self.number = 0
        self.node = name % len(driver.nodes)
        self.seen: dict[str, int | None] = {}
        self._plan = rng  # only for what to do, so that the plan is the same in every engine
        self._ways = Stream.keyed(rng.word())

    async def work(self) -> None:
        """The planned operations, with time to think between them."""
        p = self.problem

        async def step(pick: float, key: str) -> None:
            f = "read" if pick < p.reads else "cas" if pick < p.reads + p.swaps else "write"
            await self.do(f, key, p.op_s)

        await client_session(self.driver, self._plan, p.ops, p.keys, p.think_s, step)

    async def do(self, f: str, key: str, limit_s: float) -> None:
        """One operation, from the call to its outcome in the history."""
        driver, history = self.driver, self.history
        self.number += 1
        # Written values are unique: that makes the history quick and sharp to judge.
        fresh = None if f == "read" else (self.name << 32) | self.number
        expected = self.seen.get(key) if f == "cas" else None
        said = (expected, fresh) if f == "cas" else fresh
        entry = history.invoke(self.name, f, key, said, driver.now)
        try:
            async with driver.deadline(limit_s):
                reply = await self._until_done(Op(f, key, fresh, expected))
        except DeadlineExceeded:
            history.unknown(entry, driver.now)
            return
        history.ok(entry, None if f == "write" else reply.result, driver.now)
        if f == "read" or reply.result is not False:
            self.seen[key] = reply.result if f == "read" else fresh

    async def _until_done(self, op: Op) -> Reply:
        driver, nodes = self.driver, len(self.driver.nodes)
        if self._ways.random() < self.problem.wander:
            self.node = self._ways.below(nodes)
        while True:
            reply: Reply | None = await try_ask(
                driver, self.node, self.problem.attempt_s, StoreNode.command,
                self.name, self.number, op,
            )  # fmt: skip
            if reply is not None and reply.done:
                return reply
            known = -1 if reply is None else reply.leader
            if known not in (-1, self.node):
                self.node = known
            else:
                self.node = self._ways.below(nodes)
                await driver.sleep(self._ways.uniform(0.2, 1.0) * self.problem.attempt_s / 5)


async def _reconfigure(driver: Driver, members: tuple[int, ...], limit_s: float) -> bool:
    """Ask every node in turn until one has made the change, or time is up."""
    until_s = driver.now + limit_s
    while driver.now < until_s:
        for node in driver.nodes:
            reply = await try_ask(driver, node, limit_s / 4, StoreNode.reconfigure, members)
            if reply is not None and reply.done:
                return True
        await driver.sleep(limit_s / 20)
    return False


def _records_agree(outcome: Outcome) -> list[Violation]:
    """What the replicas emitted: leaders, commands by index, states by index."""
    leaders = [(term, node) for _, node, term in outcome.emitted("leads")]
    lives: dict[Hashable, list[tuple[int, Any]]] = {}
    life: dict[int, int] = {}
    begins: dict[Hashable, int] = {}
    states: dict[int, tuple[int, int]] = {}
    found: list[Violation] = []
    for time_s, node, values in outcome.records:
        if "applied" in values:
            lives.setdefault((node, life.get(node, 0)), []).append(values["applied"])
        elif "restored" in values:
            life[node] = life.get(node, 0) + 1
            begins[node, life[node]] = values["restored"] + 1
        elif "state" in values:
            index, mark = values["state"]
            other, theirs = states.setdefault(index, (node, mark))
            if mark != theirs:
                text = f"after command {index}, nodes {other} and {node} have different states"
                evidence = {"index": index, "states": ((other, theirs), (node, mark))}
                found.append(Violation(kind="state_fork", message=text, evidence=evidence,
                                       time_s=time_s, node=node))  # fmt: skip
    return found + one_leader_per_term(leaders) + _safe(lives, begins)


def _safe(
    lives: Mapping[Hashable, list[tuple[int, Any]]], begins: Mapping[Hashable, int]
) -> list[Violation]:
    """State-machine safety over all lives of all nodes; a life begins after what was restored."""
    found: list[Violation] = []
    for name, applied in lives.items():
        found += state_machine_safety({name: applied}, begins.get(name))
    # Order and gaps were judged above, each life with its own beginning; here only the commands.
    return found + [v for v in state_machine_safety(lives) if v.kind == "unsafe_apply"]


def _laggards(outcome: Outcome, trial: Trial) -> list[Violation]:
    """Live nodes that have not applied by the end what was applied when the probe ended."""
    reached = [0] * len(outcome.alive)
    due = 0
    for time_s, node, values in outcome.records:
        index = values["applied"][0] if "applied" in values else values.get("restored")
        if index is not None:
            reached[node] = index
            if time_s <= trial.probed_s:
                due = max(due, index)
    return [
        Violation(kind="lagging", node=node, time_s=outcome.seconds,
                  message=f"node {node} is up and stands at command {index}, {due} was applied "
                          f"elsewhere {outcome.seconds - trial.probed_s:g} s before")
        for node, index in enumerate(reached) if outcome.alive[node] and index < due
    ]  # fmt: skip
