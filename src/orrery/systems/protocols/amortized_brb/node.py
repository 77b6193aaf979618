"""`AmortizedBRB`: chained Byzantine reliable broadcast of a stream of large payloads."""

from __future__ import annotations

from typing import ClassVar

from orrery.parts import Positive, rpc
from orrery.parts.byzantine import Strategy
from orrery.systems.protocols.amortized_brb import adversary
from orrery.systems.protocols.amortized_brb.chain import (
    GENESIS,
    HASH_B,
    Book,
    Link,
    digest_of,
    sound,
)
from orrery.systems.protocols.problems.reliable_broadcast import (
    PAYLOAD,
    REQUEST,
    VOTE,
    ReliableBroadcaster,
)


class AmortizedBRB(ReliableBroadcaster):
    """Reliable broadcast of a stream at one payload and one round of votes for each shot.

    "Amortized Asynchronous Byzantine Reliable Broadcast with Optimal Resilience" (2026).

    The payload goes once from the broadcaster to all; votes hold hashes. Shot k has the chain hash
    H_k = hash(k, H_{k-1}, hash(m_k)), and a correct node votes for H_k only when it holds m_k and
    has voted for H_{k-1}, once for each index. Two quorums of votes, each of more than (n + f) / 2
    nodes, therefore never lie on different chains. A node is *ready* for the highest H_j with a
    quorum of votes or f + 1 readiness statements; a statement covers all earlier shots of its chain
    and rides on the next vote, or goes alone after `ready_s`. 2 f + 1 statements deliver a shot; so
    do votes of all n nodes, at once (the optimistic path: every correct node is then bound to see a
    quorum). A node that must deliver what it does not hold asks the known voters one after another,
    the next after `recover_s` or at once after garbage; a holder serves a requester once an index.

    A shot costs (n - 1) payloads and n (n - 1) votes of three hashes; a vote is handled in O(1).

    Knobs: `ready_s` and `recover_s`, both in seconds and both above the usual one-way delay (safety
    never rests on them); `piggyback`, off: statements go alone and at once, as in Bracha's
    protocol; `optimistic`, off: never deliver on votes alone; and those of `ReliableBroadcaster`.

    **Differs from the paper**: only its abstract was at hand, so votes, recovery and the optimistic
    path are our own design with the properties that it states. There is one stream, of one known
    broadcaster. Links must be authenticated and must not lose messages; nothing is sent again.
    Payloads are kept for ever, for those who may still ask. A payload is not asked for before
    `recover_s` has passed, as it may be under way.

    >>> AmortizedBRB(piggyback=False)
    AmortizedBRB(piggyback=False)
    """

    ready_s: Positive = 0.02
    recover_s: Positive = 0.02
    piggyback: bool = True
    optimistic: bool = True

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash", "pause", "byzantine")
    byzantine: ClassVar[dict[str, type[Strategy]]] = adversary.STRATEGIES

    def start(self) -> None:
        super().start()
        self.quorum = (self.n + self.f) // 2 + 1
        self.book = Book()
        self.shots: dict[int, bytes] = {}  # payloads to vote for, by index
        self.digests: dict[int, bytes] = {}
        self.voted = 0
        self.mine = GENESIS  # the chain that this node votes for
        self.ready_for = 0
        self.ready_head = GENESIS
        self.told = 0  # the newest readiness statement that has left
        self.telling = False  # whether a timer runs that will send it alone
        self.ripe: dict[bytes, None] = {}  # ready for, once the links down to `ready_head` are here
        self.certain: dict[int, bytes] = {}  # may be delivered
        self.head = GENESIS  # of what was delivered
        self.spare: dict[int, bytes] = {}  # payloads that others had to give
        self.hunted: dict[int, list[int]] = {}  # index -> who was asked for its payload
        self.idle: dict[int, None] = {}  # hunts that wait for another voter to show up
        self.served: dict[int, int] = {}  # index -> who got its payload from here

    # -- shots and votes

    @rpc
    def broadcast(self, payload: bytes) -> None:
        index = self.next_shot()
        self.say_all(PAYLOAD, AmortizedBRB.shot, index, payload)
        self.keep(index, payload)

    @rpc
    def shot(self, index: int, payload: bytes, sender: int) -> None:
        """The broadcaster's payload; only the first one for an index counts."""
        if len(payload) > self.most_B:
            self.refuse("oversized")
        elif sender != self.broadcaster:
            self.refuse("stranger")
        elif not 0 < index < 1 << 63 or index in self.shots or index <= self.voted:
            self.refuse("repeated")
        else:
            self.keep(index, payload)

    def keep(self, index: int, payload: bytes) -> None:
        """Hold a payload to vote for; then vote as far as the chain reaches."""
        self.shots[index] = payload
        self.digests[index] = digest_of(payload)
        while self.voted + 1 in self.shots:
            self.cast_vote(self.voted + 1)
        self.settle()

    def cast_vote(self, index: int) -> None:
        before, digest = self.mine, self.digests[index]
        self.voted = index
        # One's own vote is counted first: it may complete the quorum that the vote then tells of.
        head = self.book.vote(self.id, index, before, digest)
        assert head is not None
        self.mine = head
        self.note_link(head, Link(index, before, digest))
        self.weigh(head)
        news = (0, b"")
        if self.piggyback and self.told < self.ready_for:
            self.told = self.ready_for
            news = (self.ready_for, self.ready_head)
        self.say_all(VOTE, AmortizedBRB.vote, index, before, digest, *news)

    @rpc
    def vote(
        self, index: int, before: bytes, digest: bytes, ready: int, head: bytes, sender: int
    ) -> None:
        """A vote for the chain that ends in (index, before, digest), with news of readiness."""
        if not sound(index, before, digest):
            self.refuse("malformed")
            return
        voted_for = self.book.vote(sender, index, before, digest)
        if voted_for is None:
            self.refuse("repeated")
        else:
            self.note_link(voted_for, Link(index, before, digest))
            self.weigh(voted_for)
            if index in self.idle and self.certain.get(index) == voted_for:
                del self.idle[index]
                self.ask_next(index)
                self.spawn(self.hunt(index))
        if ready:
            self.ready(ready, head, sender)
        else:
            self.settle()

    # -- readiness

    @rpc
    def ready(self, index: int, head: bytes, sender: int) -> None:
        """A readiness statement; it covers every earlier shot of the chain."""
        if index < 1 or len(head) != HASH_B:
            self.refuse("malformed")
            return
        covered = self.book.state(sender, index, head)
        if covered is None:
            self.refuse("repeated")
        else:
            self.weigh_all(covered)
        self.settle()

    def note_link(self, head: bytes, link: Link) -> None:
        """A link may close a gap: below a statement, or below what one is ready for."""
        covered = self.book.learn(head, link)
        if covered is None:
            return
        self.weigh_all([head, *covered])
        for waiting in list(self.ripe):
            self.become_ready(waiting)

    def weigh_all(self, heads: list[bytes]) -> None:
        for head in heads:
            self.weigh(head)

    def weigh(self, head: bytes) -> None:
        """See what the votes for a hash and the statements about it now allow."""
        link = self.book.links.get(head)
        if link is None:
            return  # weighed again as soon as its link is known
        votes = self.book.votes.get(head, 0).bit_count()
        statements = self.book.cover.get(head, 0).bit_count()
        if link.index > self.ready_for and (votes >= self.quorum or statements > self.f):
            self.become_ready(head)
        fast = self.optimistic and votes == self.n
        if (statements > 2 * self.f or fast) and link.index not in self.certain:
            self.certain[link.index] = head
            if link.index > self.delivered and self.payload_of(link.index, link.digest) is None:
                self.hunted[link.index] = []
                self.spawn(self.hunt(link.index))

    def become_ready(self, head: bytes) -> None:
        """State readiness for a later hash of the same chain; another chain is never named."""
        index = self.book.links[head].index
        if index <= self.ready_for:
            self.ripe.pop(head, None)
            return
        below = self.book.ancestor(head, self.ready_for)
        if below is None:
            self.ripe[head] = None
            return
        self.ripe.pop(head, None)
        if below != self.ready_head:
            self.refuse("forked")
            return
        self.ready_for, self.ready_head = index, head
        covered = self.book.state(self.id, index, head)
        if not self.piggyback:
            self.told = index
            self.say_all(VOTE, AmortizedBRB.ready, index, head)
        elif not self.telling:
            self.telling = True
            self.spawn(self.tell_alone())
        self.weigh_all(covered or [])

    async def tell_alone(self) -> None:
        """Send a statement by itself when no vote has taken it along within `ready_s`.

        Without this the last shots would never be delivered everywhere.
        """
        while self.told < self.ready_for:
            due = self.ready_for
            await self.sleep(self.ready_s)
            if self.told < due:
                self.told = self.ready_for
                self.say_all(VOTE, AmortizedBRB.ready, self.ready_for, self.ready_head)
        self.telling = False

    # -- delivery

    def settle(self) -> None:
        """Deliver, in order, all that is certain and held."""
        while True:
            index = self.delivered + 1
            head = self.certain.get(index)
            if head is None:
                return
            link = self.book.links[head]
            payload = self.payload_of(index, link.digest)
            if payload is None or link.before != self.head:
                return
            self.head = head
            # Only the optimistic path delivers with fewer statements than these.
            early = self.book.cover.get(head, 0).bit_count() <= 2 * self.f
            self.deliver(index, payload, fast=early)

    def payload_of(self, index: int, digest: bytes) -> bytes | None:
        """The payload of that digest, if it is here."""
        if self.digests.get(index) == digest:
            return self.shots[index]
        return self.spare.get(index)

    # -- payloads that the broadcaster did not send here

    def lacks(self, index: int) -> bool:
        digest = self.book.links[self.certain[index]].digest
        return self.payload_of(index, digest) is None

    async def hunt(self, index: int) -> None:
        """Ask one voter after another; the first wait is for a payload that may be under way."""
        while self.lacks(index):
            asked = len(self.hunted[index])
            await self.sleep(self.recover_s)
            # Garbage may have moved the hunt on meanwhile; then this turn is over.
            if self.lacks(index) and len(self.hunted[index]) == asked and not self.ask_next(index):
                self.idle[index] = None
                return

    def ask_next(self, index: int) -> bool:
        """Ask the next known voter, beginning at another one for each node and index."""
        head = self.certain[index]
        voters = self.book.votes.get(head, 0)
        for step in range(self.n):
            peer = (self.id + index + step) % self.n
            if voters >> peer & 1 and peer != self.id and peer not in self.hunted[index]:
                self.hunted[index].append(peer)
                self.note_request(index)
                digest = self.book.links[head].digest
                self.say(REQUEST, peer, AmortizedBRB.want, index, digest)
                return True
        return False

    @rpc
    def want(self, index: int, digest: bytes, sender: int) -> None:
        """A request for a payload; each requester is served once for an index."""
        payload = self.payload_of(index, digest)
        if payload is None or digest_of(payload) != digest:
            self.refuse("unknown")
        elif self.served.get(index, 0) >> sender & 1:
            self.refuse("greedy")
        else:
            self.served[index] = self.served.get(index, 0) | 1 << sender
            self.say(PAYLOAD, sender, AmortizedBRB.give, index, payload)

    @rpc
    def give(self, index: int, payload: bytes, sender: int) -> None:
        """An answer to a request; what does not fit its hash is thrown away."""
        if index not in self.hunted or sender not in self.hunted[index]:
            self.refuse("unasked")
        elif not self.lacks(index):
            self.refuse("late")
        elif len(payload) > self.most_B:
            self.refuse("oversized")
        elif digest_of(payload) != self.book.links[self.certain[index]].digest:
            self.refuse("garbage")
            if self.hunted[index][-1] == sender:
                self.ask_next(index)
        else:
            self.spare[index] = payload
            if index > self.voted:
                self.keep(index, payload)  # holding it, one may vote for it
            else:
                self.settle()
