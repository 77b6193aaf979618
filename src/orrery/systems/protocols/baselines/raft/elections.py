"""Leader election: randomised timeouts, a poll before each election, one vote a term."""

from __future__ import annotations

from orrery.base.errors import DeadlineExceeded
from orrery.parts import rpc
from orrery.systems.protocols.baselines.raft.core import Mode, RaftCore
from orrery.systems.protocols.baselines.raft.storage import NOBODY


class Elections(RaftCore):
    """How a leader is found; what it then does is `lead`."""

    async def main(self) -> None:
        """Recover, then call an election whenever no leader has been heard for a random while."""
        await self.recover()
        while True:
            try:
                async with self.deadline(self.rng.uniform(self.election_s, 2 * self.election_s)):
                    await self.contact.wait()
            except DeadlineExceeded:
                if self.mode is not Mode.LEADER and self.id in self.journal.members:
                    self.poll()
            self.contact.clear()

    def poll(self) -> None:
        """Ask whether an election in the next term could be won, before disturbing anybody.

        Pre-vote (Ongaro's dissertation, 9.6): a node that was cut off would otherwise come back
        with a high term and depose a healthy leader.
        """
        self.mode = Mode.HOPEFUL
        self.leader = NOBODY
        self.votes = {self.id}
        self.ask_for_votes(self.term + 1, True)

    async def campaign(self) -> None:
        """Enter the next term, vote for oneself, ask for the others' votes."""
        self.mode = Mode.CANDIDATE
        self.remember_vote(self.term + 1, self.id)
        term = self.term
        self.votes = set()
        await self.storage.sync()
        # A vote that a crash could undo must not be counted, not even one's own.
        if self.mode is Mode.CANDIDATE and self.term == term:
            self.votes.add(self.id)
            self.ask_for_votes(term, False)

    def ask_for_votes(self, term: int, poll: bool) -> None:
        log = self.journal
        for peer in log.members:
            if peer != self.id:
                self.tell(peer, Elections.request_vote, term, log.last_index, log.last_term, poll)
        self.count_votes()

    def count_votes(self) -> None:
        if not self.is_majority(self.votes):
            return
        if self.mode is Mode.HOPEFUL:
            self.spawn(self.campaign())
        elif self.mode is Mode.CANDIDATE:
            self.lead()

    def hears_leader(self) -> bool:
        """Whether a leader was heard within the shortest election timeout.

        Only the clock's rate matters. A clock that jumps costs an election at worst: no safety
        rests on it.
        """
        return self.mode is Mode.LEADER or 0 <= self.clock() - self.heard_s < self.election_s

    @rpc
    async def request_vote(
        self, term: int, last_index: int, last_term: int, poll: bool, sender: int
    ) -> None:
        """A candidate (or, in a poll, a hopeful) asks for this node's vote in `term`."""
        if not self.ready:
            return
        log = self.journal
        up_to_date = (last_term, last_index) >= (log.last_term, log.last_index)
        if poll or self.hears_leader():
            # A node that hears a leader keeps its term too: removed servers cannot disturb it.
            granted = poll and term > self.term and up_to_date and not self.hears_leader()
            self.tell(sender, Elections.vote, self.term, term, granted, True)
            return
        if term > self.term:
            self.step_down(term)
        granted = term == self.term and self.voted_for in (NOBODY, sender) and up_to_date
        if granted:
            self.remember_vote(term, sender)
            self.contact.set()
        await self.storage.sync()
        if self.term == term:
            self.tell(sender, Elections.vote, term, term, granted, False)

    @rpc
    def vote(self, term: int, asked: int, granted: bool, poll: bool, sender: int) -> None:
        """The answer: the voter's own term, and whether it votes for us in the term we asked."""
        if not self.ready:
            return
        if term > self.term:
            self.step_down(term)
        elif granted and (
            (poll and self.mode is Mode.HOPEFUL and asked == self.term + 1)
            or (not poll and self.mode is Mode.CANDIDATE and asked == self.term)
        ):
            self.votes.add(sender)
            self.count_votes()

    def lead(self) -> None:
        """Take up the leadership of this term; the next layer says how."""
        raise AssertionError("the layer of replication leads")
