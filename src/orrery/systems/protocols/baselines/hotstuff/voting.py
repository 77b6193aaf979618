"""How HotStuff replicas vote, certify, lock and apply; and how they fetch what they lack."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from orrery.base.errors import DeadlineExceeded, Refused
from orrery.parts import Count, Positive, rpc
from orrery.systems.protocols.baselines.hotstuff.messages import (
    FIRST,
    Block,
    Certificate,
    Chain,
    Voted,
    certificate,
    is_certified,
    is_vote,
    name_of,
    signers_of,
    vote,
)
from orrery.systems.protocols.baselines.journal import Journal
from orrery.systems.protocols.problems.total_order import OrderNode, Request

FETCHED = 32  # blocks in one answer


class Voting(OrderNode):
    """A replica within a view; `HotStuff` adds how it gets into the next one."""

    batch: Count = 8
    tenure: Count = 16
    durable: bool = True
    fetch_s: Positive = 0.2

    def tolerated(self, size: int) -> int:
        return (size - 1) // 3

    def start(self) -> None:
        self.size = len(self.peers) + 1
        self.faulty = self.tolerated(self.size)
        # Any two quorums share a correct replica; with n = 3f + 1 this is 2f + 1.
        self.quorum = (self.size + self.faulty) // 2 + 1
        self.journal = Journal(self, "hotstuff", Voted)
        self.ready = not self.durable or self.journal.is_new()
        self.chain = Chain()
        self.high = FIRST  # the newest certificate of a block that is held with its ancestors
        self.lock = FIRST
        self.decided = FIRST  # the certificate that led to the last decision
        self.view = 1
        self.proof: Certificate | None = None  # the wishes that led to this view, if they did
        self.voted = self.proposed = 0  # the last views in which it did
        self.held: tuple[bytes, Block] | None = None  # the proposal of this view
        self.cast: tuple[int, bytes, bytes] | None = None  # the last vote that is safe on disk
        # The votes that come to me as the next leader: view -> voter -> (block, signature).
        self.votes: dict[int, dict[int, tuple[bytes, bytes]]] = {}
        self.counts: dict[tuple[int, bytes], int] = {}
        self.sought: Certificate | None = None
        self.seeking = False
        self.pending: dict[tuple[int, int], Request] = {}
        self.done: dict[int, tuple[int, int]] = {}  # client -> (its last request, number)
        self.waiters: dict[tuple[int, int], Any] = {}

    def leader(self, view: int) -> int:
        """Who proposes in a view, and counts the votes of the view before it."""
        return view // self.tenure % self.size

    def say(self, method: Callable[..., Any], *args: Any) -> None:
        """Tell all other replicas."""
        for peer in self.peers:
            self.tell(peer, method, *args)

    def is_certified(self, given: Certificate) -> bool:
        """Whether a quorum stands behind a certificate."""
        return is_certified(given, self.size, self.quorum)

    # -- clients

    @rpc
    async def submit(self, request: Request, sender: int) -> int:
        if sender < self.size:
            raise Refused(f"replica {sender} is no client")
        if not self.ready:
            raise Refused(f"replica {self.id} is reading its disk")
        last, number = self.done.get(request.client, (0, 0))
        if request.number < last:
            raise Refused(f"client {request.client} has gone on to request {last}")
        if request.number == last:
            return number
        key = (request.client, request.number)
        if key not in self.pending:
            self.learn_of(request)
        last, number = self.done.get(request.client, (0, 0))
        if request.number == last:  # a lone replica applies at once
            return number
        waiter = self.waiters.get(key)
        if waiter is None:
            waiter = self.waiters[key] = self.event()
        answer: int = await waiter.wait()
        return answer

    def learn_of(self, request: Request) -> None:
        """A request is the client's own: it may be proposed here, and voted for."""
        if not self.is_busy():
            self.hope()
        self.pending[request.client, request.number] = request
        self.propose()
        self.try_vote()

    def knows(self, request: Request) -> bool:
        """Whether a request is the client's own, or too old to have an effect."""
        if request.number <= self.done.get(request.client, (0, 0))[0]:
            return True
        return self.pending.get((request.client, request.number)) == request

    # -- what the pacemaker adds

    def hope(self) -> None:
        """Progress was made, or is due from now on."""

    def enter(self, view: int, proof: Certificate | None) -> None:
        """Go on to a later view, as a certificate allows."""
        raise AssertionError("the pacemaker says how")

    # -- the leader

    def is_busy(self) -> bool:
        """Whether something waits: a request, a proposal, or a batch that is not applied yet."""
        if self.pending:
            return True
        if self.held is not None and self.held[1].batch and self.voted < self.view:
            return True
        # A batch is applied when three more blocks stand on it, so empty ones follow the last.
        path = self.chain.path(self.high.block)
        return path is not None and any(block.batch for _, block in path)

    def propose(self, is_due: bool = False) -> None:
        """As leader, extend the block of the newest certificate, once in a view, if need be."""
        view = self.view
        if self.leader(view) != self.id or view <= max(self.proposed, self.voted):
            return
        if not self.ready or not (self.high.view == view - 1 or self.proof):
            return
        if not is_due and not self.is_busy():
            return
        path = self.chain.path(self.high.block)
        if path is None:
            return
        taken = {(each.client, each.number) for _, block in path for each in block.batch}
        waiting = (request for key, request in self.pending.items() if key not in taken)
        height = self.chain.blocks[self.high.block].height + 1
        block = Block(view, height, self.high, tuple(islice(waiting, self.batch)))
        self.proposed = view
        self.say(Voting.proposal, block, self.proof)
        self.consider(block)

    @rpc
    def proposal(self, block: Block, proof: Certificate | None, sender: int) -> None:
        """The leader of a view proposes a block; `proof` is there when the view before failed."""
        view, justify = block.view, block.justify
        if not self.ready or view < self.view or sender != self.leader(view):
            return
        if self.held is not None and view == self.view:
            return  # only the first proposal of a view counts
        if block.height < 1 or not 0 <= justify.view < view or len(block.batch) > self.batch:
            return
        if justify.view != view - 1:
            if proof is None or proof.view != view or proof.block or not self.is_certified(proof):
                return
            self.enter(view, proof)
        if self.is_certified(justify) and justify.block:
            self.enter(view, None)
            self.consider(block)

    # -- the replica

    def consider(self, block: Block) -> None:
        """Follow the certificate in a proposal, then vote for the block if that is safe."""
        name = name_of(block)
        self.chain.blocks[name] = block
        self.held = (name, block)
        self.learn(block.justify, self.leader(block.view))
        self.try_vote()

    def is_safe(self, name: bytes, block: Block) -> bool:
        """The rule of the paper: it extends my lock, or knows of a newer certificate."""
        return block.justify.view > self.lock.view or self.chain.extends(name, self.lock.block)

    def try_vote(self) -> None:
        """Vote for the proposal of this view, once, when all that it rests on is here."""
        if self.held is None or not self.ready:
            return
        name, block = self.held
        if block.view != self.view or block.view <= self.voted:
            return
        if self.chain.gap(block.parent) is not None:
            self.seek(block.justify, self.leader(block.view))
            return
        if block.height != self.chain.blocks[block.parent].height + 1:
            return
        # Requests are not signed, so they count only when they came from the client itself.
        if not self.is_safe(name, block) or not all(map(self.knows, block.batch)):
            return
        self.voted = block.view
        if self.durable:
            record = Voted(block, self.lock, self.proof)
            self.journal.note(record, lambda: self.send_vote(block.view, name))
        else:
            self.send_vote(block.view, name)

    def send_vote(self, view: int, name: bytes) -> None:
        """To the leader of the next view, who makes the certificate."""
        self.cast = (view, name, vote(self.id, view, name))
        self.tell_vote()

    def tell_vote(self) -> None:
        if self.cast is None:
            return
        collector = self.leader(self.cast[0] + 1)
        if collector == self.id:
            self.vote(*self.cast, self.id)
        else:
            self.tell(collector, Voting.vote, *self.cast)

    @rpc
    def vote(self, view: int, block: bytes, token: bytes, sender: int) -> None:
        """A replica votes for the block of a view; a quorum of votes makes its certificate."""
        if not self.high.view < view <= self.view + self.tenure or not self.ready:
            return
        if self.leader(view + 1) != self.id or not block:
            return
        votes = self.votes.setdefault(view, {})
        if sender in votes or not is_vote(sender, view, block, token):
            return
        votes[sender] = (block, token)
        count = self.counts[view, block] = self.counts.get((view, block), 0) + 1
        if count >= self.quorum:
            agreeing = {i: mine for i, (other, mine) in votes.items() if other == block}
            self.learn(certificate(view, block, agreeing), sender)

    # -- certificates: the newest one, the lock, the decision

    def learn(self, given: Certificate, source: int) -> None:
        """Follow a certificate that is newer than mine; fetch its block first if need be."""
        if given.view <= self.high.view or not given.block or not self.is_certified(given):
            return
        if self.chain.gap(given.block) is not None:
            self.seek(given, source)
            return
        self.high = given
        self.votes = {view: votes for view, votes in self.votes.items() if view > given.view}
        self.counts = {key: count for key, count in self.counts.items() if key[0] > given.view}
        # What was in doubt until now is still so for all others, whom only a proposal will tell.
        is_due = self.is_busy()
        self.hope()
        self.enter(given.view + 1, None)
        self.follow(given)
        self.propose(is_due)

    def follow(self, given: Certificate) -> None:
        """Lock the parent of a certified block; apply what three views in a row stand on."""
        parent = self.chain.blocks[given.block].justify
        if parent.view > self.lock.view:
            self.lock = parent
        path = self.chain.path(given.block)
        if path is None:
            self.stop(given)
            return
        for _, block in path[: self.decided_of(path)]:
            self.decided = given
            self.apply(block)

    def learn_decided(self, given: Certificate, source: int) -> None:
        """Follow the certificate of a decision, which may stand on a branch that was left since."""
        if given.view <= self.decided.view or not given.block or not self.is_certified(given):
            return
        if self.chain.gap(given.block) is not None:
            self.seek(given, source)
        elif self.chain.blocks[given.block].height > self.chain.height:
            self.follow(given)

    def decided_of(self, path: list[tuple[bytes, Block]]) -> int:
        """How many blocks of a certified path are decided: up to the last head of a three-chain.

        Each block of the path is certified, by its child or as the last one.
        """
        for at in range(len(path) - 3, -1, -1):
            view = path[at][1].view
            if path[at + 1][1].view == view + 1 and path[at + 2][1].view == view + 2:
                return at + 1
        return 0

    def stop(self, given: Certificate) -> None:
        """A quorum contradicts what was applied here: more than f lie, so take no further part."""
        self.ready = False
        self.log("a certificate of view", given.view, "contradicts what was applied")

    def apply(self, block: Block) -> None:
        """Apply the next block; a request that was applied before has no effect."""
        number = block.height
        self.chain.applied.append(name_of(block))
        effective = []
        for request in block.batch:
            if request.number > self.done.get(request.client, (0, 0))[0]:
                self.done[request.client] = (request.number, number)
                effective.append(request)
                self.answer(request, number)
        self.emit(ordered=(number, tuple(effective)))

    def answer(self, request: Request, number: int) -> None:
        """Tell the client; requests that it gave up before this one can have no effect now."""
        waiter = self.waiters.pop((request.client, request.number), None)
        if waiter is not None:
            waiter.set(number)
        old = [k for k in self.pending if k[0] == request.client and k[1] <= request.number]
        for key in old:
            del self.pending[key]

    # -- catching up

    def seek(self, given: Certificate, source: int) -> None:
        """Get the block of a certificate and its ancestors; the newest certificate counts."""
        if self.sought is None or given.view > self.sought.view:
            self.sought = given
        if not self.seeking:
            self.seeking = True
            self.spawn(self.fetch(source))

    async def fetch(self, source: int) -> None:
        """Walk back from the sought block; names are hashes, so nobody need be trusted."""
        peer, failures = source, 0
        try:
            while self.sought is not None and failures < 2 * self.size:
                given = self.sought
                name = self.chain.gap(given.block)
                if name is None:
                    self.sought = None
                    self.learn(given, peer)
                    self.learn_decided(given, peer)
                    self.try_vote()
                    return
                if peer == self.id or not await self.fetch_from(peer, name):
                    failures += 1
                    # A quorum voted, and more than f of them are correct and hold the block.
                    who = signers_of(given) or list(self.peers)
                    peer = who[(self.id + failures) % len(who)]
            self.sought = None
        finally:
            self.seeking = False

    async def fetch_from(self, peer: int, name: bytes) -> bool:
        """Whether a peer gave at least the block that was asked for."""
        try:
            async with self.deadline(self.fetch_s):
                given = await self.ask(peer, Voting.blocks, name, self.chain.height)
        except (DeadlineExceeded, Refused):
            return False
        found = False
        for block in given:
            if name_of(block) != name:
                break
            self.chain.blocks[name] = block
            name, found = block.parent, True
        return found

    @rpc
    def blocks(self, name: bytes, above: int) -> tuple[Block, ...]:
        """A block and its ancestors above a height, the newest first."""
        found: list[Block] = []
        while (block := self.chain.blocks.get(name)) and len(found) < FETCHED:
            if block.height <= max(above, 0):
                break
            found.append(block)
            name = block.parent
        if not found:
            raise Refused(f"replica {self.id} has no such block")
        return tuple(found)
