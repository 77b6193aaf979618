"""The problem `atomic_commit`: all participants of a transaction commit it, or all abort it.

Clients do a little work of each transaction at its participants, which settles how each of them
will vote, and then ask a coordinator to commit. The checker is the five properties of Bernstein,
Hadzilacos and Goodman (1987): one decision, never reversed, commit only if all voted yes, commit if
all did and nothing failed, and everybody decides once all failures are repaired.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from orrery.base.errors import DeadlineExceeded, KnobError, PartError
from orrery.base.violation import Violation
from orrery.check.atomic_commit import ABORT, COMMIT, Transaction, atomic_commits
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
    as_violations,
    downtimes,
    last_fault_end_s,
    quantile,
)
from orrery.world import Group, World

COORDINATOR, PARTICIPANT = "coordinator", "participant"


class Coordinator(Node):
    """The port of the coordinator: `begin` starts a commit; decide by `emit(tx=…, decided=…)`."""

    @rpc
    async def begin(self, tx: int, participants: tuple[int, ...]) -> None:
        """Bring this transaction to a decision at all of its participants."""
        raise PartError(f"{type(self).__name__} has no begin(tx, participants); write the commit")


class Participant(Node):
    """The port of a participant: `work` settles its vote.

    It reports each vote by `emit(tx=…, voted=True or False)`, each decision by
    `emit(tx=…, decided="commit" or "abort")`, and by `emit(tx=…, in_doubt=True)` that it waits for
    somebody else to decide.
    """

    @rpc
    async def work(self, tx: int, can_commit: bool) -> bool:
        """Do this node's share of a transaction; whether it can commit is then settled."""
        raise PartError(f"{type(self).__name__} has no work(tx, can_commit); write what it keeps")


class CommitProtocol(Node):
    """The port of a whole protocol: `roles()` gives the two parts, so that one name runs both."""

    def roles(self) -> dict[str, Node]:
        """The parts that play `coordinator` and `participant`."""
        raise PartError(f"{type(self).__name__} has no roles(); give coordinator and participant")


class AtomicCommit(Problem):
    """Run `transactions` transactions, some of whose participants vote no.

    Knobs: `transactions`, begun over `spread_s`; `participants` of each, drawn at random (0: all);
    `vote_no`, the chance that a participant must vote no; `settle_s`, how long the run goes on
    after the last transaction and the last fault. The world has a group `coordinator` and a group
    `participant`.

    >>> AtomicCommit(vote_no=0.0).world().roles
    ('coordinator', 'participant')
    """

    transactions: Count = 40
    participants: Whole = 0
    vote_no: Fraction = 0.1
    spread_s: NonNegative = 1.0
    settle_s: Positive = 4.0

    port: ClassVar[type] = CommitProtocol
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "commit_rate": Metric("", "higher", "share of the transactions that committed"),
        "commit_latency_s": Metric("s", "lower", "mean, from the request to the decision"),
        "p99_commit_latency_s": Metric("s", "lower", "of the committed transactions"),
        "blocked_s": Metric("s", "lower", "total time that live participants were in doubt"),
        "messages_per_transaction": Metric("", "lower", "without those of the clients"),
    }

    def world(self) -> World:
        return World(groups=(Group(name=COORDINATOR, count=1), Group(name=PARTICIPANT, count=5)))

    def accept(self, part: Any) -> None:
        roles = part.roles() if isinstance(part, CommitProtocol) else part
        if not isinstance(roles, Mapping):
            super().accept(part)
            return
        for role, port in ((COORDINATOR, Coordinator), (PARTICIPANT, Participant)):
            if not isinstance(roles.get(role), port):
                got = type(roles[role]).__name__ if role in roles else "nothing"
                raise PartError(
                    f"role {role!r} has {got}; AtomicCommit needs a {port.__name__} there: "
                    f"inherit from {port.__name__}"
                )

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        crowd = len(world.members(PARTICIPANT))
        if self.participants > crowd:
            problem = f"{self.participants} of {crowd} participants cannot be picked"
            raise KnobError("AtomicCommit.participants", problem, f"give at most {crowd}, or 0")
        return part.roles() if isinstance(part, CommitProtocol) else super().host(part, world)

    # -- the workload

    async def drive(self, driver: Driver) -> None:
        rng = driver.rng
        coordinators, crowd = driver.members(COORDINATOR), driver.members(PARTICIPANT)
        stories = []
        # All draws come before the first wait, so that engines get the same transactions.
        for tx in range(self.transactions):
            at_s = rng.uniform(0.0, self.spread_s)
            lead = rng.choice(coordinators)
            chosen = tuple(sorted(rng.sample(crowd, self.participants or len(crowd))))
            votes = tuple(rng.random() >= self.vote_no for _ in chosen)
            stories.append(self._one(driver, tx, at_s, lead, chosen, votes))
        await driver.all(*stories)
        calm_s = max(driver.now, last_fault_end_s(driver.world))
        await driver.sleep(calm_s - driver.now + self.settle_s)

    async def _one(
        self, driver: Driver, tx: int, at_s: float, lead: int, chosen: tuple[int, ...],
        votes: tuple[bool, ...],
    ) -> None:  # fmt: skip
        await driver.sleep(max(0.0, at_s - driver.now))
        driver.emit(tx=tx, participants=chosen)
        shares = zip(chosen, votes, strict=True)
        said = await driver.all(*(self._hand_out(driver, node, tx, can) for node, can in shares))
        # Each share is a message, and another when it is answered; the request is one more.
        driver.emit(tx=tx, begun=True, client_messages=len(chosen) + sum(said) + 1)
        driver.tell(lead, Coordinator.begin, tx, chosen)

    async def _hand_out(self, driver: Driver, node: int, tx: int, can_commit: bool) -> bool:
        try:
            async with driver.deadline(1.0):
                return bool(await driver.ask(node, Participant.work, tx, can_commit))
        except DeadlineExceeded:
            return False

    # -- the verdict

    def check(self, outcome: Outcome) -> list[Violation]:
        faults = outcome.world.schedule(outcome.seed)
        lossy = outcome.world.network.drop > 0
        repaired = outcome.ended == "driven" and all(f.until_s is not None for f in faults)
        down = downtimes(outcome)
        found: dict[Any, Transaction] = {}
        for tx, story in _stories(outcome).items():
            decisions: dict[Any, list[str]] = dict(story.decisions)
            for node in story.participants:
                # What a crash took before the vote is gone, which is as good as aborted.
                fell = any(e is None or e >= story.began_s for _, e in down.get(node, ()))
                if fell and node not in story.votes and node not in decisions:
                    decisions[node] = [ABORT]
            hit = any(f.at_s <= story.ended_s and (f.until_s is None or f.until_s >= story.began_s)
                      for f in faults)  # fmt: skip
            found[f"transaction {tx}"] = Transaction(
                votes={node: story.votes.get(node) for node in story.participants},
                decisions=decisions, failed=lossy or hit, healed=repaired,
            )  # fmt: skip
        return as_violations(atomic_commits(found), outcome.seconds)

    def measure(self, outcome: Outcome) -> dict[str, float]:
        coordinators = set(outcome.world.members(COORDINATOR))
        taken = []
        begun_s: dict[int, float] = {}
        clients = 0
        for record in outcome.records:
            values = record.values
            if "begun" in values:
                begun_s[values["tx"]] = record.time_s
                clients += values["client_messages"]
            elif values.get("decided") == COMMIT and record.node in coordinators:
                began = begun_s.pop(values["tx"], None)
                if began is not None:
                    taken.append(record.time_s - began)
        return {
            "commit_rate": len(taken) / self.transactions,
            "commit_latency_s": sum(taken) / len(taken) if taken else 0.0,
            "p99_commit_latency_s": quantile(taken, 0.99),
            "blocked_s": _blocked_s(outcome),
            "messages_per_transaction": (outcome.messages - clients) / self.transactions,
        }

    def decisions(self, outcome: Outcome) -> dict[int, dict[int, list[str]]]:
        """What each participant decided of each transaction, each word once."""
        return {
            tx: {node: sorted(set(story.decisions.get(node, ()))) for node in story.participants}
            for tx, story in sorted(_stories(outcome).items())
        }


class _Story:
    """All that was said about one transaction."""

    def __init__(self) -> None:
        self.participants: tuple[int, ...] = ()
        self.votes: dict[int, bool] = {}
        self.decisions: dict[int, list[str]] = {}
        self.began_s = 0.0
        self.ended_s = 0.0


def _stories(outcome: Outcome) -> dict[int, _Story]:
    stories: dict[int, _Story] = {}
    for record in outcome.records:
        values = record.values
        if "tx" not in values:
            continue
        story = stories.setdefault(values["tx"], _Story())
        story.ended_s = record.time_s
        if "participants" in values:
            story.participants = tuple(values["participants"])
            story.began_s = record.time_s
        elif "voted" in values:
            # A node that once said no may not say yes later; the no is what counts.
            story.votes[record.node] = values["voted"] and story.votes.get(record.node, True)
        elif "decided" in values:
            story.decisions.setdefault(record.node, []).append(values["decided"])
    return {tx: story for tx, story in stories.items() if story.participants}


def _blocked_s(outcome: Outcome) -> float:
    """The time from a participant's doubt to its decision, or to the end, its downtime left out."""
    down = downtimes(outcome)
    since: dict[tuple[int, int], float] = {}
    spans: list[tuple[int, float, float]] = []
    for record in outcome.records:
        key = (record.node, record.values.get("tx", -1))
        if "in_doubt" in record.values:
            since.setdefault(key, record.time_s)
        elif "decided" in record.values and key in since:
            spans.append((record.node, since.pop(key), record.time_s))
    spans += [(node, begin, outcome.seconds) for (node, _), begin in since.items()]
    total = 0.0
    for node, begin, end in spans:
        total += end - begin
        for first, last in down.get(node, ()):
            last = outcome.seconds if last is None else last
            total -= max(0.0, min(end, last) - max(begin, first))
    return total
