"""Log replication: what a leader sends, what a follower takes, and what counts as committed."""

from __future__ import annotations

import math

from orrery.base.codec import decode, encode
from orrery.parts import rpc
from orrery.systems.protocols.baselines.raft.core import Mode
from orrery.systems.protocols.baselines.raft.elections import Elections
from orrery.systems.protocols.baselines.raft.log import Entry, Snapshot
from orrery.systems.protocols.baselines.raft.storage import NOBODY


class Replication(Elections):
    """The leader's side and the follower's side of AppendEntries and InstallSnapshot."""

    # -- the leader

    def lead(self) -> None:
        """Begin to lead: every peer is assumed to have the whole log until it says otherwise."""
        self.mode, self.leader = Mode.LEADER, self.id
        self.emit(leads=self.term)
        self.next, self.match, self.outgoing = {}, {}, {}
        self.rounds, self.acks, self.probing = {}, set(), set(self.peers)
        # Only an entry of its own term tells a leader what is committed, and makes a change of
        # members safe; so each term begins with one.
        self.term_begins = self.add(Entry(self.term))
        self.spawn(self.heartbeats(self.term))

    async def heartbeats(self, term: int) -> None:
        """Keep the followers quiet; give up when a majority has not answered for too long."""
        patience = math.ceil(self.election_s / self.heartbeat_s)
        beats = 0
        while self.mode is Mode.LEADER and self.term == term:
            self.replicate()
            await self.sleep(self.heartbeat_s)
            beats += 1
            if beats % patience == 0 and self.mode is Mode.LEADER and self.term == term:
                if not self.is_majority(self.acks | {self.id}):
                    self.step_down(term)
                self.acks = set()

    def add(self, entry: Entry) -> int:
        """Append an entry as leader, send it out, and count it here once it is on the disk."""
        index = self.journal.last_index + 1
        self.remember_entries(index, (entry,))
        self.replicate()
        self.spawn(self.count_own(index, self.term))
        return index

    async def count_own(self, index: int, term: int) -> None:
        await self.storage.sync()
        if self.mode is Mode.LEADER and self.term == term:
            self.match[self.id] = max(self.match.get(self.id, 0), index)
            self.advance()

    def replicate(self) -> None:
        for peer in self.journal.members:
            if peer != self.id:
                self.send_to(peer)

    def send_to(self, peer: int) -> None:
        """Send what the peer is thought to lack; without any news this is a heartbeat."""
        log = self.journal
        first = self.next.setdefault(peer, log.last_index)
        before = log.term_at(first - 1)
        if before is None:
            self.send_snapshot(peer)
            return
        entries = log.part(first, self.batch)
        if peer not in self.probing:
            # The next message need not wait for the answer: a gap is noticed and filled.
            self.next[peer] = first + len(entries)
        self.tell(
            peer, Replication.append_entries, self.term, first - 1, before, entries, self.commit,
            self.round,
        )  # fmt: skip

    @rpc
    def appended(
        self, term: int, ok: bool, before: int, index: int, hint_term: int, round_: int,
        sender: int,
    ) -> None:  # fmt: skip
        """A follower's answer: it has the log up to `index`, or lacks `before`: go to `index`."""
        if not self.ready:
            return
        if term > self.term:
            self.step_down(term)
        if self.mode is not Mode.LEADER or term != self.term:
            return
        self.acks.add(sender)
        self.rounds[sender] = max(self.rounds.get(sender, 0), round_)
        if ok:
            self.probing.discard(sender)
            known = max(self.match.get(sender, 0), index)
            self.match[sender] = known
            self.next[sender] = max(self.next.get(sender, 0), known + 1)
            self.advance()
            if self.mode is Mode.LEADER and self.next[sender] <= self.journal.last_index:
                self.send_to(sender)
        else:
            self.go_back(sender, before, index, hint_term)
        self.serve_reads()

    def go_back(self, peer: int, before: int, index: int, hint_term: int) -> None:
        """The peer lacks `before`; try again further back, one message at a time."""
        known = self.match.get(peer, 0)
        if before <= known or (peer in self.probing and before != self.next[peer] - 1):
            return  # the answer to an old message; to act on each would breed ever more of them
        self.probing.add(peer)
        # A whole term is passed over at once: to its end here, or past it where it is unknown.
        back = self.journal.after_term(hint_term, before)
        self.next[peer] = max(known + 1, index if back is None else back)
        self.send_to(peer)

    def advance(self) -> None:
        """Commit what a majority has, if it is of this term (figure 8 of the paper says why)."""
        members = self.journal.members
        have = sorted(self.match.get(member, 0) for member in members)
        index = have[(len(have) - 1) // 2]
        if index > self.commit and self.journal.term_at(index) == self.term:
            self.commit_to(index)
            self.serve_reads()
            if self.id not in members and self.journal.members_since <= self.commit:
                self.step_down(self.term)  # removed, and the others know it for good

    def serve_reads(self) -> None:
        """Wake the reads whose round a majority has answered and whose index is applied."""
        if not self.reads:
            return
        still = []
        for round_, index, waiter in self.reads:
            agreed = {peer for peer, heard in self.rounds.items() if heard >= round_}
            if index <= self.applied and self.is_majority(agreed | {self.id}):
                waiter.set(True)
            else:
                still.append((round_, index, waiter))
        self.reads = still

    # -- the follower

    def follow(self, term: int, leader: int) -> None:
        """A message of the leader of `term`, which is not older than ours."""
        if term > self.term or self.mode is not Mode.FOLLOWER:
            self.step_down(term)
        self.leader = leader
        self.heard_s = self.clock()
        self.contact.set()

    @rpc
    async def append_entries(
        self, term: int, before: int, before_term: int, entries: tuple[Entry, ...], commit: int,
        round_: int, sender: int,
    ) -> None:  # fmt: skip
        """The leader of `term` offers entries that follow (`before`, `before_term`)."""
        if not self.ready:
            return
        if term < self.term:
            self.tell(sender, Replication.appended, self.term, False, before, 0, NOBODY, round_)
            return
        self.follow(term, sender)
        conflict = self.journal.conflict(before, before_term)
        if conflict is not None:
            back, hint_term = conflict
            self.tell(sender, Replication.appended, term, False, before, back, hint_term, round_)
            return
        index, news = self.journal.news(before + 1, entries)
        if news:
            self.remember_entries(index, tuple(news))
        last = before + len(entries)
        self.commit_to(min(commit, last))
        await self.storage.sync()
        # While the disk wrote, this node may have joined a newer term, whose leader need not have
        # these entries; then the old leader must not count them.
        if self.term == term:
            self.tell(sender, Replication.appended, term, True, before, last, NOBODY, round_)

    # -- snapshots for those who lag too far behind

    def send_snapshot(self, peer: int) -> None:
        """Send the next piece of the snapshot; the answers and the heartbeats drive it on."""
        snapshot = self.journal.snapshot
        index, offset = self.outgoing.get(peer, (0, 0))
        if index != snapshot.index:
            offset = 0
        self.outgoing[peer] = (snapshot.index, offset)
        data = encode(snapshot)
        piece = data[offset : offset + self.chunk_B]
        done = offset + len(piece) == len(data)
        self.tell(
            peer, Replication.install_snapshot, self.term, snapshot.index, offset, piece, done,
            self.round,
        )  # fmt: skip

    @rpc
    async def install_snapshot(
        self, term: int, index: int, offset: int, piece: bytes, done: bool, round_: int,
        sender: int,
    ) -> None:  # fmt: skip
        """The leader of `term` sends a piece of its snapshot up to `index`."""
        if not self.ready:
            return
        if term < self.term:
            self.tell(sender, Replication.appended, self.term, False, index, 0, NOBODY, round_)
            return
        self.follow(term, sender)
        if (term, index) < self.incoming[:2]:
            return  # a late piece of an older snapshot must not spoil the newer one
        if (term, index) > self.incoming[:2]:
            self.incoming = (term, index, bytearray())
        data = self.incoming[2]
        if offset == len(data):
            data += piece
        if not (done and offset + len(piece) == len(data)):
            self.tell(sender, Replication.received, term, index, len(data), round_)
            return
        self.incoming = (0, 0, bytearray())
        if index > self.commit:
            snapshot = decode(bytes(data), Snapshot)
            self.journal.compact(snapshot)
            self.restore(snapshot)
            # A record like any other, so that it keeps its place before the entries to come.
            self.storage.note_base(self.everything())
        await self.storage.sync()
        if self.term == term:
            self.tell(sender, Replication.appended, term, True, index, index, NOBODY, round_)

    @rpc
    def received(self, term: int, index: int, offset: int, round_: int, sender: int) -> None:
        """A follower has the snapshot up to `index` as far as `offset`."""
        if not self.ready or self.mode is not Mode.LEADER or term != self.term:
            return
        self.acks.add(sender)
        self.rounds[sender] = max(self.rounds.get(sender, 0), round_)
        sent_index, sent = self.outgoing.get(sender, (0, 0))
        if index == sent_index and offset != sent:
            # Forwards as a rule; backwards when the follower has lost what it had.
            self.outgoing[sender] = (index, offset)
            self.send_to(sender)
        self.serve_reads()
