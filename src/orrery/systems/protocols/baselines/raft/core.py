"""Terms, roles and applying: what the other layers of a Raft node stand on."""

from __future__ import annotations

import enum

from orrery.parts import Count, Positive, Whole
from orrery.parts.node import Event
from orrery.systems.protocols.baselines.raft.log import Entry, Log, Snapshot
from orrery.systems.protocols.baselines.raft.machine import Machine, Result
from orrery.systems.protocols.baselines.raft.storage import NOBODY, Base, Storage
from orrery.systems.protocols.problems.replicated_store import StoreNode

FINGERPRINT_EVERY = 16
"""The state's fingerprint is emitted at indices that all nodes agree on: multiples of this."""


class Mode(enum.Enum):
    """What a node is at the moment; a hopeful asks whether an election could be won at all."""

    FOLLOWER = "follower"
    HOPEFUL = "hopeful"
    CANDIDATE = "candidate"
    LEADER = "leader"


class RaftCore(StoreNode):
    """The state of a node and the rules that hold in every role."""

    election_s: Positive = 0.15
    heartbeat_s: Positive = 0.05
    batch: Count = 64
    snapshot_entries: Count = 1000
    chunk_B: Count = 65536
    voters: Whole = 0

    def start(self) -> None:
        """Everything in memory; what the disk remembers is read first thing in `main`."""
        self.ready = False
        self.mode = Mode.FOLLOWER
        self.leader = NOBODY
        self.term = 0
        self.voted_for = NOBODY
        self.journal = Log(Snapshot())
        self.machine = Machine()
        self.commit = 0
        self.applied = 0
        self.heard_s = -self.election_s  # when a leader was last heard, by this node's own clock
        self.contact = self.event()
        self.storage = Storage(self.disk, self.lock())
        self.votes: set[int] = set()
        self.next: dict[int, int] = {}
        self.match: dict[int, int] = {}
        self.rounds: dict[int, int] = {}
        self.round = 0
        self.acks: set[int] = set()
        self.probing: set[int] = set()
        self.term_begins = 0
        self.waiting: dict[int, Event] = {}
        self.reads: list[tuple[int, int, Event]] = []
        self.incoming: tuple[int, int, bytearray] = (0, 0, bytearray())
        self.outgoing: dict[int, tuple[int, int]] = {}
        self.compacting = False

    async def recover(self) -> None:
        """Take up what the disk remembers; only then does the node speak."""
        kept = await self.storage.load()
        snapshot = kept.snapshot
        if not snapshot.index:
            everyone = sorted([self.id, *self.peers])
            snapshot = Snapshot(members=tuple(everyone[: self.voters or len(everyone)]))
        self.term, self.voted_for = kept.term, kept.voted_for
        self.journal = Log(snapshot, kept.entries)
        self.restore(snapshot)
        self.ready = True

    # -- persistent state: every change is noted for the disk in the moment it is made

    def remember_vote(self, term: int, voted_for: int) -> None:
        self.term, self.voted_for = term, voted_for
        self.storage.note_vote(term, voted_for)

    def remember_entries(self, index: int, entries: tuple[Entry, ...]) -> None:
        self.journal.put(index, entries)
        self.storage.note_put(index, entries)

    def everything(self) -> Base:
        log = self.journal
        return Base(self.term, self.voted_for, log.snapshot, tuple(log.entries))

    # -- terms

    def step_down(self, term: int) -> None:
        """Become a follower, in a newer term if `term` is one."""
        if term > self.term:
            self.remember_vote(term, NOBODY)
            self.leader = NOBODY
        if self.mode is Mode.LEADER:
            self.leader = NOBODY
            # Nobody knows yet whether these entries will last; the clients ask again elsewhere.
            for waiter in self.waiting.values():
                waiter.set(None)
            for _, _, waiter in self.reads:
                waiter.set(False)
            self.waiting, self.reads = {}, []
        self.mode = Mode.FOLLOWER

    def is_majority(self, nodes: set[int]) -> bool:
        members = self.journal.members
        return 2 * sum(member in nodes for member in members) > len(members)

    # -- the state machine

    def commit_to(self, index: int) -> None:
        """Entries up to `index` are chosen for ever: apply them in order."""
        if index <= self.commit:
            return
        self.commit = index
        while self.applied < self.commit:
            self.applied += 1
            entry = self.journal.at(self.applied)
            result: Result = None
            if entry.op is not None:
                result = self.machine.apply(entry.client, entry.number, entry.op)
            self.emit(applied=(self.applied, entry))
            if self.applied % FINGERPRINT_EVERY == 0:
                self.emit(state=(self.applied, self.machine.fingerprint()))
            waiter = self.waiting.pop(self.applied, None)
            if waiter is not None:
                waiter.set((result,))
        if len(self.journal.entries) > self.snapshot_entries and not self.compacting:
            self.compacting = True
            self.spawn(self.compact())

    def restore(self, snapshot: Snapshot) -> None:
        """Begin anew from a snapshot."""
        self.machine = Machine(snapshot.state)
        self.commit = self.applied = snapshot.index
        self.emit(restored=snapshot.index)
        self.emit(state=(snapshot.index, self.machine.fingerprint()))

    async def compact(self) -> None:
        """Replace the applied part of the log by a snapshot, in memory and on the disk."""
        log, index = self.journal, self.applied
        term = log.term_at(index)
        assert term is not None
        self.emit(state=(index, self.machine.fingerprint()))
        log.compact(Snapshot(index, term, log.members_at(index), self.machine.dump()))
        await self.storage.rewrite(self.everything)
        self.compacting = False
