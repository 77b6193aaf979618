"""The problem `binary_consensus`: nodes that propose 0 or 1 agree on one of them, once for each.

The driver hands each node its input for a number of instances and asks until the node tells what
was decided. The checker looks at nodes that never lie: no two of them decide differently, none
changes its mind, if all of them proposed the same then that is decided, and when the faults are
over every one that runs decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from orrery.base.errors import DeadlineExceeded, PartError, Refused
from orrery.base.violation import Violation
from orrery.check.agreement import agreement, integrity, termination, validity
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
from orrery.systems.protocols.problems.total_order import correct_nodes
from orrery.world import Byzantine, World

POLL_S = 0.02


class BinaryNode(Node):
    """The port: one node that takes part in instances of binary consensus.

    It reports `emit(instance=…, decided=0 or 1, round=…)` when it decides; again after a restart
    does no harm.
    """

    @rpc
    async def propose(self, instance: int, value: int) -> int:
        """Take part with this input; answer with what was decided, once it was."""
        raise PartError(f"{type(self).__name__} has no propose(instance, value); write consensus")


class Votes(msgspec.Struct):
    """What the workload leaves for the checker: the inputs, by instance, and times."""

    inputs: list[list[int]]
    begun_s: list[float]
    healed_s: float = 0.0


class BinaryConsensus(Problem):
    """Each node gets 0 or 1; all that do not lie must decide the same one of them.

    Knobs: `instances`, begun `pace_s` apart; `inputs`: "random" for each node, "split" (0 and 1 by
    turns, so that as many nodes propose one as the other), "zero" or "one" for all; `retry_s`,
    after which a node that has not answered is asked again; `recover_s`, within which every node
    must decide once all instances have begun and all faults are over.

    >>> BinaryConsensus(inputs="split").given(4, None)
    [0, 1, 0, 1]
    """

    instances: Count = 10
    inputs: Literal["random", "split", "zero", "one"] = "random"
    pace_s: NonNegative = 0.02
    retry_s: Positive = 0.5
    recover_s: Positive = 20.0

    port: ClassVar[type] = BinaryNode
    metrics: ClassVar[Mapping[str, Metric]] = {
        "rounds_mean": Metric("", "lower", "rounds until the first correct node decides"),
        "rounds_max": Metric("", "lower", "rounds until the last correct node decides"),
        "latency_p50_s": Metric("s", "lower", "from the inputs to the last decision"),
        "latency_p99_s": Metric("s", "lower", "from the inputs to the last decision"),
        "undecided": Metric("", "lower", "instances that some running correct node left open"),
        "messages_per_instance": Metric("", "lower", "those of the driver included"),
    }

    def world(self) -> World:
        """Six machines on one switch: the fewest of which Ben-Or's protocol lets one lie."""
        return World.lan(6)

    def given(self, size: int, rng: Any) -> list[int]:
        """The inputs of one instance, by node."""
        if self.inputs == "random":
            return [rng.below(2) for _ in range(size)]
        return [{"split": node % 2, "zero": 0, "one": 1}[self.inputs] for node in range(size)]

    # -- the workload

    async def drive(self, driver: Driver) -> Votes:
        """Hand out the inputs, then wait until all who can decide have done so."""
        size = len(driver.nodes)
        # Every draw is made before anything waits, so that engines ask the same questions.
        votes = Votes([self.given(size, driver.rng) for _ in range(self.instances)], [])
        answered: list[set[int]] = [set() for _ in votes.inputs]
        for instance, inputs in enumerate(votes.inputs):
            votes.begun_s.append(driver.now)
            for node in driver.nodes:
                driver.spawn(self._ask(driver, node, instance, inputs[node], answered[instance]))
            await driver.sleep(self.pace_s)
        votes.healed_s = max(driver.now, last_fault_end_s(driver.world))
        await driver.sleep(max(0.0, votes.healed_s - driver.now))
        liars = _named_liars(driver.world)
        while driver.now < votes.healed_s + self.recover_s:
            due = {node for node in driver.nodes if driver.alive(node) and node not in liars}
            if all(due <= each for each in answered):
                break
            await driver.sleep(POLL_S)
        return votes

    async def _ask(
        self, driver: Driver, node: int, instance: int, value: int, answered: set[int]
    ) -> None:
        """Ask one node again and again until it answers."""
        while True:
            try:
                async with driver.deadline(self.retry_s):
                    await driver.ask(node, BinaryNode.propose, instance, value)
                    answered.add(node)
                    return
            except DeadlineExceeded:
                continue
            except Refused:
                await driver.sleep(self.retry_s)

    # -- the checker

    def check(self, outcome: Outcome) -> list[Violation]:
        """Agreement, validity, integrity and termination of each instance."""
        votes = outcome.driven
        if not isinstance(votes, Votes):
            if outcome.violations:
                return []
            missing = Violation(kind="unfinished", message="the workload did not end")
            return as_violations([missing], outcome.seconds)
        correct = correct_nodes(outcome)
        running = [node for node in correct if outcome.alive[node]]
        told = decided_by(outcome)
        found = []
        for instance, inputs in enumerate(votes.inputs):
            decisions = {n: each for n, (each, _, _) in told.get(instance, {}).items()}
            proposals = dict(enumerate(inputs))
            found += [
                msgspec.structs.replace(each, message=f"instance {instance}: {each.message}")
                for each in (
                    *agreement(decisions, correct),
                    *validity(proposals, decisions, correct, "unanimous"),
                    *integrity(decisions, correct),
                    *termination(decisions, running),
                )
            ]
        return as_violations(found, outcome.seconds)

    # -- the metrics

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Rounds, latency, and the cost in messages."""
        votes = outcome.driven
        inputs = votes.inputs if isinstance(votes, Votes) else []
        correct = set(correct_nodes(outcome))
        first, last, waits, undecided = [], [], [], 0
        found = decided_by(outcome)
        for instance in range(len(inputs)):
            told = found.get(instance, {})
            mine = [told[node] for node in sorted(correct & told.keys())]
            if mine:
                first.append(min(number for _, number, _ in mine))
                last.append(max(number for _, number, _ in mine))
                waits.append(max(at_s for _, _, at_s in mine) - votes.begun_s[instance])
            undecided += any(outcome.alive[node] and node not in told for node in correct)
        return {
            "rounds_mean": sum(first) / max(len(first), 1),
            "rounds_max": float(max(last, default=0)),
            "latency_p50_s": quantile(waits, 0.5),
            "latency_p99_s": quantile(waits, 0.99),
            "undecided": float(undecided),
            "messages_per_instance": outcome.messages / max(len(inputs), 1),
        }

    def decisions(self, outcome: Outcome) -> list[int | None]:
        """What was decided in each instance, by the correct node with the smallest number."""
        correct = correct_nodes(outcome)
        found = decided_by(outcome)
        made: list[int | None] = []
        for instance in range(self.instances):
            told = found.get(instance, {})
            made.append(next((told[node][0][0] for node in correct if node in told), None))
        return made


def decided_by(outcome: Outcome) -> dict[int, dict[int, tuple[list[int], int, float]]]:
    """By instance and node: the values decided, without repeats, the first round and time."""
    found: dict[int, dict[int, tuple[list[int], int, float]]] = {}
    for record in outcome.records:
        if "decided" not in record.values:
            continue
        value, number = record.values["decided"], record.values.get("round", 0)
        nodes = found.setdefault(record.values["instance"], {})
        known = nodes.setdefault(record.node, ([], number, record.time_s))[0]
        if value not in known:
            known.append(value)
    return found


def _named_liars(world: World) -> set[int]:
    """Those that a fault makes lie and names; for one drawn by the seed, all are waited for."""
    return {
        node
        for fault in world.faults
        if isinstance(fault, Byzantine) and fault.node != "random"
        for node in world.targets(fault)
    }
