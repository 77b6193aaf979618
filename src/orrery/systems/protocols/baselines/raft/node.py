"""`Raft`: the replicated store that clients call."""

from __future__ import annotations

from typing import ClassVar

from orrery.parts import rpc
from orrery.systems.protocols.baselines.raft.core import Mode
from orrery.systems.protocols.baselines.raft.log import Entry
from orrery.systems.protocols.baselines.raft.replication import Replication
from orrery.systems.protocols.problems.replicated_store import Op, Reply


class Raft(Replication):
    """Raft (Ongaro and Ousterhout, USENIX ATC 2014; Ongaro's dissertation, 2014).

    A leader, elected by a majority for one term, orders all commands in its log; an entry of its
    own term that a majority has on disk is committed, with all before it. Term, vote and log are
    synced before any answer that rests on them. Elections are preceded by a poll (pre-vote); a
    leader without a majority gives up. Reads go through no log: the leader notes its commit index,
    confirms by a round of heartbeats that it still leads, and answers (ReadIndex). Members change
    one at a time. Snapshots bound the log and bring up those who lag. Each client's numbered
    operations act once.

    Knobs: `election_s` is the shortest election timeout (the longest is twice that), `heartbeat_s`
    the time between heartbeats; `batch` the most entries in a message; `snapshot_entries` how many
    entries the log may keep; `chunk_B` the size of a snapshot's pieces; `voters` how many nodes
    are members at first (0: all).

    Differs from the paper: appends are pipelined; a conflict moves the leader back a term at a
    time; sessions are kept for ever and need no registration; an added server votes before it has
    caught up; leadership is not handed over. It reads no clock for safety, so there are no leases.

    >>> Raft(batch=1).batch
    1
    """

    tolerates: ClassVar[tuple[str, ...]] = (
        "drop", "duplicate", "reorder", "crash", "restart", "pause", "partition",
    )  # fmt: skip

    @rpc
    async def command(self, client: int, number: int, op: Op) -> Reply:
        """Carry out a client's operation, or say who might."""
        if not self.ready or self.mode is not Mode.LEADER:
            return self.elsewhere()
        if op.f == "read":
            return await self.read(op.key)
        session = self.machine.answered(client, number)
        if session is not None:
            return Reply(True, session.result)
        return await self.chosen(Entry(self.term, client, number, op))

    async def chosen(self, entry: Entry) -> Reply:
        """Append as leader; done when it is applied, not known when the leadership ends first."""
        applied = self.event()
        self.waiting[self.journal.last_index + 1] = applied
        self.add(entry)
        result = await applied.wait()
        return self.elsewhere() if result is None else Reply(True, result[0])

    async def read(self, key: str) -> Reply:
        """Read without writing to the log (dissertation, 6.4)."""
        # What earlier leaders committed lies before this term's first entry.
        index = max(self.commit, self.term_begins)
        confirmed = self.event()
        self.round += 1
        self.reads.append((self.round, index, confirmed))
        self.replicate()
        self.serve_reads()
        if not await confirmed.wait():
            return self.elsewhere()
        return Reply(True, self.machine.read(key))

    @rpc
    async def reconfigure(self, members: tuple[int, ...]) -> Reply:
        """Add or remove one member; the new membership counts from the moment it is appended."""
        if not self.ready or self.mode is not Mode.LEADER:
            return self.elsewhere()
        log = self.journal
        wanted = tuple(sorted(set(members)))
        settled = log.members_since <= self.commit and self.term_begins <= self.commit
        # Majorities of memberships that differ by one node overlap, provided that the old one is
        # committed and that this leader has committed an entry of its own term.
        if not settled or not wanted:
            return self.elsewhere()
        if wanted == log.members:
            return Reply(True)
        if len(set(wanted) ^ set(log.members)) != 1:
            return self.elsewhere()
        return await self.chosen(Entry(self.term, members=wanted))

    def elsewhere(self) -> Reply:
        return Reply(False, leader=self.leader)
