"""The pacemaker of HotStuff: when a view is given up, how all get into the next, what is resent."""

from __future__ import annotations

from typing import Any, ClassVar

from orrery.parts import Positive, rpc
from orrery.systems.protocols.baselines.hotstuff.adversary import StaleLeader, TwoChains
from orrery.systems.protocols.baselines.hotstuff.messages import (
    Certificate,
    Voted,
    certificate,
    is_vote,
    name_of,
    vote,
)
from orrery.systems.protocols.baselines.hotstuff.voting import Voting
from orrery.systems.protocols.problems.total_order import Request

GROWTH, MOST = 1.5, 8  # a view's patience grows so, and so often at most


class HotStuff(Voting):
    """Chained HotStuff of Yin, Malkhi, Reiter, Golan Gueta and Abraham (PODC 2019).

    Of n replicas, f = (n - 1) // 3 may lie. In each view a leader proposes one block, which holds
    the certificate (2 f + 1 signatures) of its parent; replicas send their votes to the leader of
    the next view alone, who makes the next certificate. So a view costs 2 (n - 1) messages. A
    replica votes once in a view, for a block that extends the block on which it is locked or that
    knows of a newer certificate. It locks the parent of a certified block, and applies a block when
    it and the next two, of three views in a row, are certified. The new leader needs no more than
    the newest certificate of 2 f + 1 replicas, so replacing a leader costs 2 (n - 1) messages too.

    The pacemaker: a replica that has waited too long sends its signed wish, with its newest
    certificate, to the next leader and, while nothing comes of it, to one more replica at a time.
    2 f + 1 wishes prove that the view may be entered. Nobody changes views without a proof, so
    correct replicas never drift apart. Votes are on disk before they are sent: a replica that
    restarts still knows what it promised.

    Knobs: `batch`, requests in one block; `tenure`, views in a row with one leader (a rotating
    leader needs at least 4 to apply a block of its own); `durable`, whether votes are synced to
    disk (if not, a replica that restarts counts among the f); `view_s`, how long a replica waits
    for progress before it wishes for the next leader (1.5 times as long for each failed view in a
    row); `resend_s`, the period in which lost messages are made good; `fetch_s`, the patience with
    a peer that is asked for blocks.

    **Differs from the paper**: a block extends exactly the block that it certifies, as in the later
    DiemBFT, where the paper pads skipped views with empty nodes; the paper leaves the pacemaker
    open and suggests back-off alone, here views are synchronised by relayed wishes (after Naor,
    Baudet, Malkhi and Spiegelman, "Cogsworth", 2019); signatures are tokens that stand for
    unforgeable ones, aggregated with a bitmap instead of a threshold scheme; requests are not
    signed, so a replica votes for those that the client sent to it, or for which f + 1 replicas
    vouch; blocks are never pruned: the state of the service is the chain itself.

    >>> HotStuff(tenure=4).tolerated(7)
    2
    """

    view_s: Positive = 0.5
    resend_s: Positive = 0.1

    tolerates: ClassVar[tuple[str, ...]] = (
        "drop", "duplicate", "reorder", "crash", "restart", "pause", "partition", "byzantine",
    )  # fmt: skip
    byzantine: ClassVar[dict[str, Any]] = {"equivocate": TwoChains, "stale": StaleLeader}

    def start(self) -> None:
        super().start()
        self.since_s = 0.0
        self.failed = 0  # views in a row without a certificate
        self.wished = 0  # how often the present wish was sent
        self.wishes: dict[int, tuple[int, bytes]] = {}  # the last wish of each replica
        self.vouched: dict[int, tuple[Request, ...]] = {}  # what waits elsewhere

    async def main(self) -> None:
        if self.incarnation:
            self.emit(began=True)
        if not self.ready:
            self.resume(await self.journal.load())
        if self.durable:
            self.spawn(self.journal.keep())
        self.since_s = self.clock()
        turn = self.id
        while True:
            before = self.view
            await self.sleep(self.resend_s)
            if not self.ready:
                continue
            if self.is_busy():
                if self.view == before:
                    self.say_again()
                self.look_at_the_clock()
            else:
                self.hope()
            if self.peers:
                turn += 1
                self.tell_status(self.peers[turn % len(self.peers)])

    def resume(self, records: list[Voted]) -> None:
        """Take up the promises of an earlier life."""
        self.ready = True
        for record in records:
            block = record.block
            self.chain.blocks[name_of(block)] = block
            if record.lock.view > self.lock.view:
                self.lock = record.lock
            if block.view > self.voted:
                self.voted = self.view = block.view
                self.proof = record.proof
        if records:
            newest = max((record.block.justify for record in records), key=lambda c: c.view)
            self.learn(newest, self.leader(self.view))

    def hope(self) -> None:
        self.since_s = self.clock()
        self.wished = 0

    # -- from view to view

    def enter(self, view: int, proof: Certificate | None) -> None:
        if view <= self.view:
            return
        if self.leader(view) != self.leader(self.view):
            self.emit(view=view)
        self.failed = self.failed + 1 if proof is not None else 0
        self.view, self.proof, self.held = view, proof, None
        self.hope()

    def obey(self, proof: Certificate | None) -> None:
        """Enter the view for which a quorum wished."""
        if proof is None or proof.block or proof.view <= self.view or not self.is_certified(proof):
            return
        self.enter(proof.view, proof)
        self.propose()

    def look_at_the_clock(self) -> None:
        """Wish for the next leader when this one brings no progress."""
        patience_s = self.view_s * GROWTH ** min(self.failed, MOST)
        if self.clock() - self.since_s <= patience_s:
            return
        view = (self.view // self.tenure + 1) * self.tenure
        token = vote(self.id, view, b"")
        # The next leader first; each time after that also another one, in case that it is dead.
        relays = {self.leader(view), self.leader(view + self.wished % self.size * self.tenure)}
        self.wished += 1
        for relay in sorted(relays):
            if relay == self.id:
                self.wish(view, token, self.high, self.proof, self.id)
            else:
                self.tell(relay, HotStuff.wish, view, token, self.high, self.proof)

    @rpc
    def wish(
        self, view: int, token: bytes, high: Certificate, proof: Certificate | None, sender: int
    ) -> None:
        """A replica wants to go on to a view; a quorum of wishes allows it."""
        if not self.ready:
            return
        self.learn(high, sender)
        self.obey(proof)
        if view <= self.view:
            self.tell_news(sender)
            return
        last = self.wishes.get(sender, (0, b""))[0]
        if view <= last or not is_vote(sender, view, b"", token):
            return
        self.wishes[sender] = (view, token)
        agreeing = {i: mine for i, (wanted, mine) in self.wishes.items() if wanted == view}
        if len(agreeing) < self.quorum:
            return
        self.obey(certificate(view, b"", agreeing))
        if self.proposed < view:  # the leader is another one, or knows of nothing to do
            self.say(HotStuff.news, self.high, self.proof, self.decided)

    # -- what is sent again

    def say_again(self) -> None:
        """The proposal or the vote of this view, which may have been lost."""
        if self.held is not None and self.proposed == self.view:
            heard = self.votes.get(self.view, {})
            for peer in self.peers:
                if peer not in heard:
                    self.tell(peer, Voting.proposal, self.held[1], self.proof)
        elif self.cast is not None and self.cast[0] == self.view:
            self.tell_vote()
        self.try_vote()

    def tell_status(self, peer: int) -> None:
        waiting = tuple(self.pending.values())[: self.batch] if self.wished else ()
        self.tell(peer, HotStuff.status, self.view, self.chain.height, self.high, self.proof,
                  waiting)  # fmt: skip

    @rpc
    def status(
        self, view: int, height: int, high: Certificate, proof: Certificate | None,
        waiting: tuple[Request, ...], sender: int,
    ) -> None:  # fmt: skip
        """How far a peer is, and what waits there in vain; it gets what it lacks."""
        if not self.ready:
            return
        self.learn(high, sender)
        self.obey(proof)
        if high.view < self.high.view or view < self.view or height < self.chain.height:
            self.tell_news(sender)
        self.vouched[sender] = waiting[: self.batch]
        for request in self.vouched[sender]:
            voices = sum(request in each for each in self.vouched.values())
            if voices > self.faulty and not self.knows(request):
                self.learn_of(request)

    def tell_news(self, peer: int) -> None:
        if peer != self.id:
            self.tell(peer, HotStuff.news, self.high, self.proof, self.decided)

    @rpc
    def news(
        self, high: Certificate, proof: Certificate | None, decided: Certificate, sender: int
    ) -> None:
        """The newest certificate of a peer, why it is in its view, and its last decision."""
        if self.ready:
            self.learn(high, sender)
            self.obey(proof)
            self.learn_decided(decided, sender)
