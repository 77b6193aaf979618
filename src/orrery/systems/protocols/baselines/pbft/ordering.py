"""The normal case of PBFT: propose, prepare, commit, apply, checkpoint, catch up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orrery.base.errors import DeadlineExceeded, KnobError, Refused
from orrery.parts import Count, Positive, rpc
from orrery.systems.protocols.baselines.pbft.messages import (
    GENESIS,
    NOTHING,
    Batch,
    Slot,
    digest_of,
)
from orrery.systems.protocols.problems.total_order import OrderNode, Request

REMEMBERED = 8  # states that are kept of each peer, to find some that agree


class Ordering(OrderNode):
    """A replica within a view; `Pbft` adds how it gets into the next one."""

    batch: Count = 8
    window: Count = 4
    checkpoint_every: Count = 8
    span: Count = 32
    resend_s: Positive = 0.1
    fetch_s: Positive = 0.2

    def tolerated(self, size: int) -> int:
        return (size - 1) // 3

    def start(self) -> None:
        if self.span < self.checkpoint_every:
            problem = f"{self.span} ends before the first checkpoint"
            fix = f"give at least checkpoint_every = {self.checkpoint_every}"
            raise KnobError(f"{type(self).__name__}.span", problem, fix)
        self.size = len(self.peers) + 1
        self.faulty = self.tolerated(self.size)
        self.weak = self.faulty + 1
        # Any two quorums share a correct replica; with n = 3f + 1 this is 2f + 1.
        self.quorum = (self.size + self.faulty) // 2 + 1
        self.view, self.active = 0, True
        self.executed, self.chain = 0, GENESIS
        self.stable = 0
        self.next = 1
        self.slots: dict[int, Slot] = {}
        self.early: dict[int, tuple[int, Batch]] = {}  # proposals of a view not entered yet
        self.history: list[Batch] = []  # all that was applied: the state of this service
        self.marks: dict[int, bytes] = {0: GENESIS}  # own checkpoints from the stable one on
        self.checked: dict[int, dict[int, bytes]] = {}  # checkpoints of each replica
        self.states: dict[int, dict[int, bytes]] = {}  # (executed, chain) as each peer told it
        self.fetching = False
        self.pending: dict[tuple[int, int], Request] = {}
        self.assigned: set[tuple[int, int]] = set()  # proposed in this view
        self.done: dict[int, tuple[int, int]] = {}  # client -> (its last request, number)
        self.waiters: dict[tuple[int, int], Any] = {}

    def leader(self, view: int) -> int:
        """The primary of a view."""
        return view % self.size

    def say(self, method: Callable[..., Any], *args: Any) -> None:
        """Tell all other replicas."""
        for peer in self.peers:
            self.tell(peer, method, *args)

    # -- clients

    @rpc
    async def submit(self, request: Request, sender: int) -> int:
        if sender < self.size:
            raise Refused(f"replica {sender} is no client")
        key = (request.client, request.number)
        last, number = self.done.get(request.client, (0, 0))
        if request.number < last:
            raise Refused(f"client {request.client} has gone on to request {last}")
        if request.number == last:
            return number
        if not self.pending:
            self.hope()
        self.pending.setdefault(key, request)
        for slot in list(self.slots.values()):
            self.try_prepare(slot)
        self.propose()
        last, number = self.done.get(request.client, (0, 0))
        if request.number == last:  # a lone replica applies at once
            return number
        waiter = self.waiters.get(key)
        if waiter is None:
            waiter = self.waiters[key] = self.event()
        answer: int = await waiter.wait()
        return answer

    def hope(self) -> None:
        """Progress was made, or is due from now on."""

    # -- the three phases

    def propose(self) -> None:
        """As primary, give the next numbers to requests that wait."""
        if not self.active or self.leader(self.view) != self.id:
            return
        self.next = max(self.next, self.executed + 1)
        while self.next <= min(self.executed + self.window, self.stable + self.span):
            waiting = [key for key in self.pending if key not in self.assigned]
            if not waiting:
                return
            chosen = waiting[: self.batch]
            self.assigned.update(chosen)
            batch = tuple(self.pending[key] for key in chosen)
            number, self.next = self.next, self.next + 1
            self.slot(number).propose(self.view, batch, vouched=True)
            self.say(Ordering.pre_prepare, self.view, number, batch)
            self.try_prepare(self.slots[number])

    def slot(self, number: int) -> Slot:
        found = self.slots.get(number)
        if found is None:
            found = self.slots[number] = Slot(number)
        return found

    def in_reach(self, number: int) -> bool:
        """Whether a number lies between the watermarks."""
        return self.stable < number <= self.stable + self.span

    @rpc
    def pre_prepare(self, view: int, number: int, batch: Batch, sender: int) -> None:
        """The primary of a view proposes a batch for a number."""
        if sender != self.leader(view) or not self.in_reach(number):
            return
        if view > self.view or (view == self.view and not self.active):
            if self.early.get(number, (0, NOTHING))[0] <= view:
                self.early[number] = (view, batch)
        elif view == self.view and self.slot(number).view < view:
            self.slots[number].propose(view, batch, vouched=False)
            self.try_prepare(self.slots[number])

    @rpc
    def prepare(self, view: int, number: int, digest: bytes, sender: int) -> None:
        """A backup has accepted the proposal with this digest."""
        if self.in_reach(number) and sender != self.leader(view):
            slot = self.slot(number)
            if slot.prepares.add(sender, view, digest):
                self.try_prepare(slot)

    @rpc
    def commit(self, view: int, number: int, digest: bytes, sender: int) -> None:
        """A replica has seen a quorum prepare the proposal with this digest."""
        if self.in_reach(number):
            slot = self.slot(number)
            if slot.commits.add(sender, view, digest):
                self.apply_ready()

    def try_prepare(self, slot: Slot) -> None:
        """Speak for a proposal whose requests are the clients' own, then go on to commit it."""
        if not self.active or slot.view != self.view:
            return
        if not slot.sent_prepare:
            # Links give no proof to others, so a request counts when it came from the client
            # itself, or when so many replicas speak for it that one of them is correct.
            vouched = slot.vouched or slot.agreeing(slot.prepares) >= self.weak
            if not vouched and not all(self.knows(request) for request in slot.batch):
                return
            slot.vouched = slot.sent_prepare = True
            self.spoke_for(slot)
            if self.leader(self.view) != self.id:
                slot.prepares.add(self.id, slot.view, slot.digest)
                self.say(Ordering.prepare, slot.view, slot.number, slot.digest)
        # The proposal itself is the primary's vote.
        if not slot.sent_commit and slot.agreeing(slot.prepares) >= self.quorum - 1:
            slot.sent_commit = True
            self.was_prepared(slot)
            slot.commits.add(self.id, slot.view, slot.digest)
            self.say(Ordering.commit, slot.view, slot.number, slot.digest)
            self.apply_ready()

    def knows(self, request: Request) -> bool:
        key = (request.client, request.number)
        return self.pending.get(key) == request or self.done.get(key[0], (0, 0))[0] >= key[1]

    def spoke_for(self, slot: Slot) -> None:
        """Remember that this replica spoke for a proposal."""

    def was_prepared(self, slot: Slot) -> None:
        """Remember that a proposal was prepared here."""

    # -- applying

    def apply_ready(self) -> None:
        """Apply all that is committed and next in turn."""
        while True:
            slot = self.slots.get(self.executed + 1)
            ready = slot is not None and self.active and slot.view == self.view
            if slot is None or not (ready and slot.sent_commit):
                break
            if slot.agreeing(slot.commits) < self.quorum:
                break
            self.apply(slot.batch)
        self.propose()

    def apply(self, batch: Batch) -> None:
        """Apply the next batch; a request that was applied before has no effect."""
        number = self.executed = self.executed + 1
        self.chain = digest_of((self.chain, batch))
        self.history.append(batch)
        effective = []
        for request in batch:
            key = (request.client, request.number)
            if request.number > self.done.get(request.client, (0, 0))[0]:
                self.done[request.client] = (request.number, number)
                effective.append(request)
            self.pending.pop(key, None)
            waiter = self.waiters.pop(key, None)
            if waiter is not None:
                waiter.set(number)
        self.emit(ordered=(number, tuple(effective)))
        self.hope()
        if number % self.checkpoint_every == 0:
            self.marks[number] = self.chain
            self.say(Ordering.checkpoint, number, self.chain)
            self.note_checkpoint(self.id, number, self.chain)

    # -- checkpoints

    @rpc
    def checkpoint(self, number: int, digest: bytes, sender: int) -> None:
        """A replica stands at a checkpoint with this state."""
        if number > self.stable and number % self.checkpoint_every == 0:
            self.note_checkpoint(sender, number, digest)
            self.note_state(sender, number, digest)

    def note_checkpoint(self, sender: int, number: int, digest: bytes) -> None:
        known = self.checked.setdefault(sender, {})
        known[number] = digest
        while len(known) > REMEMBERED:
            del known[next(iter(known))]
        votes = sum(each.get(number) == digest for each in self.checked.values())
        if votes >= self.quorum and self.marks.get(number) == digest:
            self.settle(number)

    def settle(self, number: int) -> None:
        """A quorum has this checkpoint: what came before it is no longer needed."""
        if number <= self.stable:
            return
        self.stable = number
        self.next = max(self.next, number + 1)
        self.marks = {n: mark for n, mark in self.marks.items() if n >= number}
        self.slots = {n: slot for n, slot in self.slots.items() if n > number}
        self.early = {n: early for n, early in self.early.items() if n > number}
        self.propose()

    # -- catching up

    def note_state(self, sender: int, number: int, chain: bytes) -> None:
        """A peer tells how far it is; when enough of them agree and are ahead, follow them."""
        known = self.states.setdefault(sender, {})
        known.pop(number, None)
        known[number] = chain
        while len(known) > REMEMBERED:
            del known[next(iter(known))]
        if number > self.executed and not self.fetching:
            ahead = [peer for peer, told in self.states.items() if told.get(number) == chain]
            if len(ahead) >= self.weak:
                self.fetching = True
                self.spawn(self.fetch(number, chain, ahead))

    async def fetch(self, number: int, chain: bytes, ahead: list[int]) -> None:
        """Get the missing batches from a peer and check them against the agreed digest."""
        try:
            for peer in ahead:
                first = self.executed + 1
                try:
                    async with self.deadline(self.fetch_s):
                        batches = await self.ask(peer, Ordering.applied, first, number)
                except (DeadlineExceeded, Refused):
                    continue
                batches = batches[self.executed + 1 - first :]
                end = self.chain
                for batch in batches:
                    end = digest_of((end, batch))
                if self.executed + len(batches) == number and end == chain:
                    for batch in batches:
                        self.apply(batch)
                    self.apply_ready()
                    return
        finally:
            self.fetching = False

    @rpc
    def applied(self, first: int, last: int) -> tuple[Batch, ...]:
        """The batches of these numbers, for a replica that lags."""
        if not 1 <= first <= last <= self.executed:
            raise Refused(f"replica {self.id} stands at {self.executed}")
        return tuple(self.history[first - 1 : last])
