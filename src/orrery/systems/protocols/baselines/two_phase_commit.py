"""Two-phase commit with presumed abort: votes first, then one decision for all.

Both sides write ahead: a participant has its yes on disk before it says it, a coordinator has the
commit on disk before it tells anybody. What is not on disk never happened, so a coordinator that
knows nothing of a transaction answers "abort", and aborts need neither a record nor an answer.
"""

from __future__ import annotations

import zlib
from typing import Any, ClassVar

from orrery.base.errors import DeadlineExceeded, Refused
from orrery.check.atomic_commit import ABORT, COMMIT
from orrery.parts import Node, Positive, rpc
from orrery.systems.protocols.problems.atomic_commit import (
    COORDINATOR,
    PARTICIPANT,
    CommitProtocol,
    Coordinator,
    Participant,
)

PREPARED, END, UNKNOWN = "prepared", "end", "unknown"
LOG = "log"
TOLERATES = ("drop", "duplicate", "reorder", "crash", "restart", "pause", "partition")


class _Logged(Node):
    """What both sides share: a log that survives crashes, and questions with a deadline."""

    retry_s: Positive = 0.2

    def start(self) -> None:
        self.ready = False  # until the log has been read, nobody gets an answer

    async def write(self, what: str, tx: int, nodes: tuple[int, ...] = ()) -> None:
        """Add a record; it is safe only after `force`.

        A record is a line of its own with a checksum, and begins with a line end, so that the torn
        half of an earlier one can never swallow it.
        """
        text = " ".join([what, str(tx), *map(str, nodes)])
        await self.disk.append(LOG, f"\n{zlib.crc32(text.encode()):08x} {text}\n".encode())

    async def force(self, what: str, tx: int, nodes: tuple[int, ...] = ()) -> None:
        """Add a record and wait until it is safe."""
        await self.write(what, tx, nodes)
        await self.disk.fsync(LOG)

    async def read_log(self) -> list[tuple[str, int, tuple[int, ...]]]:
        """Every whole record, in order; a torn one was never promised to anybody."""
        if not self.disk.exists(LOG):
            return []
        records = []
        for line in (await self.disk.read(LOG)).decode(errors="replace").split("\n"):
            mark, _, text = line.partition(" ")
            if text and mark == f"{zlib.crc32(text.encode()):08x}":
                what, tx, *nodes = text.split(" ")
                records.append((what, int(tx), tuple(map(int, nodes))))
        return records

    async def question(self, peer: int, method: Any, *args: Any) -> Any:
        """Ask once, with a deadline; None when there is no answer."""
        try:
            async with self.deadline(self.retry_s):
                return await self.ask(peer, method, *args)
        except (DeadlineExceeded, Refused):
            return None

    def must_be_ready(self) -> None:
        if not self.ready:
            raise Refused(f"node {self.id} is still reading its log")


class TwoPhaseCoordinator(_Logged, Coordinator):
    """The coordinator: gathers votes, makes the commit safe, then tells all until all have it.

    Knobs: `vote_s`, how long it waits for votes; `retry_s`, after which it asks again.
    """

    vote_s: Positive = 1.0

    tolerates: ClassVar[tuple[str, ...]] = TOLERATES

    def start(self) -> None:
        super().start()
        self.active: dict[int, None] = {}  # votes are being gathered
        self.committed: dict[int, None] = {}  # safe, but not yet known to all
        self.finished: dict[int, None] = {}

    async def main(self) -> None:
        unfinished: dict[int, tuple[int, ...]] = {}
        for what, tx, nodes in await self.read_log():
            if what == COMMIT:
                unfinished[tx] = nodes
            else:
                unfinished.pop(tx, None)
                self.finished[tx] = None
        self.committed = dict.fromkeys(unfinished)
        self.ready = True
        for tx, nodes in unfinished.items():
            self.emit(tx=tx, decided=COMMIT)
            self.spawn(self.complete(tx, nodes))

    @rpc
    async def begin(self, tx: int, participants: tuple[int, ...]) -> None:
        known = tx in self.active or tx in self.committed or tx in self.finished
        if not self.ready or known:  # a client's request may come twice, or too early
            return
        self.active[tx] = None
        votes = await self.all(*(self.vote_of(node, tx, participants) for node in participants))
        if self.all_said_yes(votes):
            await self.make_safe(tx, participants)
            self.committed[tx] = None
            del self.active[tx]
            self.emit(tx=tx, decided=COMMIT)
            self.spawn(self.complete(tx, participants))
            return
        # Presumed abort: no record, no answers, and who voted no knows already.
        del self.active[tx]
        self.finished[tx] = None
        self.emit(tx=tx, decided=ABORT)
        for node, vote in zip(participants, votes, strict=True):
            if vote is not False:
                self.tell(node, TwoPhaseParticipant.decide, tx, ABORT)

    def all_said_yes(self, votes: list[bool | None]) -> bool:
        return all(vote is True for vote in votes)

    async def make_safe(self, tx: int, participants: tuple[int, ...]) -> None:
        """The moment of commitment: once this record is on disk, the transaction has committed."""
        await self.force(COMMIT, tx, participants)

    async def vote_of(self, node: int, tx: int, participants: tuple[int, ...]) -> bool | None:
        """The vote of a participant; None when none came in time."""
        until_s = self.now + self.vote_s
        while self.now < until_s:
            vote = await self.question(node, TwoPhaseParticipant.prepare, tx, participants)
            if vote is not None:
                return bool(vote)
        return None

    async def complete(self, tx: int, participants: tuple[int, ...]) -> None:
        """Tell the commit until every participant has it on disk; then forget it."""
        await self.all(*(self.convince(node, tx) for node in participants))
        await self.write(END, tx)
        del self.committed[tx]
        self.finished[tx] = None

    async def convince(self, node: int, tx: int) -> None:
        while True:
            sent_s = self.now
            if await self.question(node, TwoPhaseParticipant.decide, tx, COMMIT):
                return
            # A refusal comes back at once; a dead line must not be hammered.
            await self.sleep(max(0.0, sent_s + self.retry_s - self.now))

    @rpc
    async def inquire(self, tx: int) -> str:
        """What became of a transaction; nothing known means that it was aborted."""
        self.must_be_ready()
        if tx in self.active:
            return UNKNOWN
        return COMMIT if tx in self.committed else ABORT


class TwoPhaseParticipant(_Logged, Participant):
    """A participant: votes once, and having voted yes can only wait, or ask the others.

    Knobs: `work_s`, after which work that nobody wants to commit is aborted; `decision_s`, after
    which a node that voted yes begins to ask; `retry_s`, how often it asks again.
    """

    work_s: Positive = 2.0
    decision_s: Positive = 0.5

    tolerates: ClassVar[tuple[str, ...]] = TOLERATES

    def start(self) -> None:
        super().start()
        self.shares: dict[int, bool] = {}  # work done and not yet voted on: volatile
        self.in_doubt: dict[int, None] = {}  # voting yes, or voted yes
        self.decided: dict[int, str] = {}

    async def main(self) -> None:
        waiting: dict[int, tuple[int, ...]] = {}
        for what, tx, nodes in await self.read_log():
            if what == PREPARED:
                waiting[tx] = nodes
            else:
                waiting.pop(tx, None)
                self.decided[tx] = what
        self.in_doubt = dict.fromkeys(waiting)
        self.ready = True
        for tx, what in self.decided.items():
            self.emit(tx=tx, decided=what)
        for tx, (coordinator, *others) in waiting.items():
            self.spawn(self.resolve(tx, coordinator, tuple(others), 0.0))

    # -- before the vote

    @rpc
    async def work(self, tx: int, can_commit: bool) -> bool:
        if tx in self.decided or tx in self.in_doubt:
            return True
        self.shares[tx] = can_commit
        self.spawn(self.give_up(tx))
        return True

    async def give_up(self, tx: int) -> None:
        """Nobody asked for a vote: until then every participant is free to abort."""
        await self.sleep(self.work_s)
        if self.shares.pop(tx, None) is not None:
            self.settle(tx, ABORT)

    @rpc
    async def prepare(self, tx: int, participants: tuple[int, ...], sender: int) -> bool:
        """Vote: yes only for work that is still here, and only once the yes is safe."""
        self.must_be_ready()
        if tx in self.decided:
            return self.decided[tx] == COMMIT
        if tx in self.in_doubt:
            # Asked again: the first yes may still be on its way to the disk, or a crash may have
            # come between writing it and saying it.
            await self.disk.fsync(LOG)
            if self.decided.get(tx) == ABORT:
                return False
            self.emit(tx=tx, voted=True)
            return True
        if not self.shares.pop(tx, False):
            self.emit(tx=tx, voted=False)
            self.settle(tx, ABORT)
            return False
        self.in_doubt[tx] = None
        await self.promise(tx, (sender, *participants))
        self.emit(tx=tx, voted=True)
        self.spawn(self.resolve(tx, sender, participants, self.decision_s))
        return True

    async def promise(self, tx: int, nodes: tuple[int, ...]) -> None:
        """Make the yes safe; whom to ask in doubt stands in the same record."""
        await self.force(PREPARED, tx, nodes)

    # -- after the vote

    @rpc
    async def decide(self, tx: int, decision: str) -> bool:
        """The coordinator's word; the answer says whether it is safe here."""
        if not self.ready:  # aborts come by `tell`, which cannot be refused
            return False
        await self.learn(tx, decision)
        return True

    async def learn(self, tx: int, decision: str) -> None:
        if tx in self.decided:
            return
        if decision == COMMIT and tx in self.in_doubt:
            await self.force(COMMIT, tx)
            if tx not in self.decided:
                self.settle(tx, COMMIT)
        elif decision == ABORT:
            self.shares.pop(tx, None)
            self.settle(tx, ABORT)
            # Not forced: if it is lost, the coordinator will say "abort" once more.
            await self.write(ABORT, tx)

    def settle(self, tx: int, decision: str) -> None:
        self.decided[tx] = decision
        self.in_doubt.pop(tx, None)
        self.emit(tx=tx, decided=decision)

    async def resolve(
        self, tx: int, coordinator: int, participants: tuple[int, ...], wait_s: float
    ) -> None:
        """The termination protocol: ask the coordinator, then the others, until one knows."""
        await self.sleep(wait_s)
        if tx in self.decided:
            return
        self.emit(tx=tx, in_doubt=True)
        others = [node for node in participants if node != self.id]
        while tx not in self.decided:
            answer = await self.question(coordinator, TwoPhaseCoordinator.inquire, tx)
            if answer is None and others:
                said = await self.all(
                    *(self.question(n, TwoPhaseParticipant.know, tx) for n in others)
                )
                answer = next((word for word in said if word in (COMMIT, ABORT)), None)
            if answer in (COMMIT, ABORT):
                await self.learn(tx, answer)
            else:
                await self.sleep(self.retry_s)

    @rpc
    async def know(self, tx: int) -> str:
        """What this node knows of a transaction; if it has not voted yet, it aborts now."""
        self.must_be_ready()
        if tx in self.decided:
            return self.decided[tx]
        if tx in self.in_doubt:
            return UNKNOWN
        self.shares.pop(tx, None)
        self.settle(tx, ABORT)
        return ABORT


class TwoPhaseCommit(CommitProtocol):
    """Two-phase commit (Gray, 1978) with presumed abort (Mohan and Lindsay, 1983).

    A commit with n participants costs 4 n messages, n + 1 forced writes before the decision and n
    after it. A participant that voted yes is blocked while neither the coordinator nor anybody who
    knows can be reached: no protocol of this kind avoids that.

    Knobs: those of both sides; see `TwoPhaseCoordinator` and `TwoPhaseParticipant`.
    Differs from the papers: one level and no tree of coordinators; locks are not modelled; records
    of old transactions are never thrown away.

    >>> sorted(TwoPhaseCommit().roles())
    ['coordinator', 'participant']
    """

    vote_s: Positive = 1.0
    work_s: Positive = 2.0
    decision_s: Positive = 0.5
    retry_s: Positive = 0.2

    tolerates: ClassVar[tuple[str, ...]] = TOLERATES

    def roles(self) -> dict[str, Node]:
        return {
            COORDINATOR: TwoPhaseCoordinator(vote_s=self.vote_s, retry_s=self.retry_s),
            PARTICIPANT: TwoPhaseParticipant(
                work_s=self.work_s, decision_s=self.decision_s, retry_s=self.retry_s
            ),
        }
