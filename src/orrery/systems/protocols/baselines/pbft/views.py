"""How PBFT replaces a primary: view changes, their witnesses, new views; and what is sent again."""

from __future__ import annotations

from typing import Any, ClassVar

from orrery.parts import Positive, rpc
from orrery.systems.protocols.baselines.pbft.deciding import Beginning, begin
from orrery.systems.protocols.baselines.pbft.messages import (
    Prepared,
    Seen,
    Slot,
    TwoStories,
    ViewChange,
    digest_of,
)
from orrery.systems.protocols.baselines.pbft.ordering import Ordering

Changes = tuple[tuple[int, ViewChange], ...]


class Pbft(Ordering):
    """Practical Byzantine fault tolerance of Castro and Liskov (OSDI 1999, ACM TOCS 2002).

    Of n replicas, f = (n - 1) // 3 may lie. The primary of a view proposes a batch for each number
    (pre-prepare); a quorum says that it got the same proposal (prepare), then that it knows of such
    a quorum (commit), then the batch is applied. When requests wait too long the replicas change to
    the next view, whose primary must propose again what may have been committed. Checkpoints that a
    quorum shares bound what is kept. A batch costs O(n^2) messages, a view change O(n^2) of O(span)
    entries each.

    Knobs: `batch`, requests for one number; `window`, numbers under way; `checkpoint_every`
    numbers; `span`, how far numbers may run ahead of the stable checkpoint; `resend_s`, the period
    of status messages, which have lost messages sent again; `view_s`, how long a request may wait
    before the view is changed (doubled each time in a row); `fetch_s`, the patience with a peer
    that is asked for batches.

    Messages carry no signatures: links are authenticated (`sender`), so this is the variant with
    message authentication codes, in which view changes are vouched for by acknowledgements.

    Differs from the paper: clients always send to all replicas; a request counts as authentic when
    it came from the client, or when f + 1 replicas speak for it; acknowledgements of view changes
    go to all; the state of the service is the log itself, and a replica that lags follows f + 1
    peers that stand at the same point, not only at checkpoints; read-only and tentative execution
    are left out. A replica that restarts has forgotten everything and counts among the f.

    >>> Pbft().tolerated(7)
    2
    """

    view_s: Positive = 0.5

    tolerates: ClassVar[tuple[str, ...]] = (
        "drop", "duplicate", "reorder", "crash", "restart", "pause", "partition", "byzantine",
    )  # fmt: skip
    byzantine: ClassVar[dict[str, Any]] = {"equivocate": TwoStories}

    def start(self) -> None:
        super().start()
        self.prepared: dict[int, Prepared] = {}
        self.seen: dict[int, dict[bytes, int]] = {}
        self.changes: dict[int, ViewChange] = {}  # the last view change of each replica
        self.acks: dict[int, dict[tuple[int, int], bytes]] = {}  # witness -> what it saw
        self.offer: tuple[int, Changes] | None = None  # a new view whose witnesses are missing
        self.opened: tuple[int, Changes] | None = None  # the new view that I gave as primary
        self.tries = 0
        self.since_s = 0.0

    async def main(self) -> None:
        if self.incarnation:
            self.emit(began=True)
        self.since_s = self.clock()
        while True:
            await self.sleep(self.resend_s)
            self.look_at_the_clock()
            self.say(Pbft.status, self.view, self.active, self.executed, self.chain, self.stable)
            if self.active:
                for number in range(self.executed + 1, self.executed + self.window + 1):
                    self.send_again(number, self.peers)

    def hope(self) -> None:
        self.since_s = self.clock()
        if self.active:
            self.tries = 0

    def spoke_for(self, slot: Slot) -> None:
        digests = self.seen.setdefault(slot.number, {})
        digests[slot.digest] = max(slot.view, digests.get(slot.digest, 0))

    def was_prepared(self, slot: Slot) -> None:
        self.prepared[slot.number] = Prepared(slot.number, slot.view, slot.batch)

    def settle(self, number: int) -> None:
        self.prepared = {n: entry for n, entry in self.prepared.items() if n > number}
        self.seen = {n: digests for n, digests in self.seen.items() if n > number}
        super().settle(number)

    # -- leaving a view

    def look_at_the_clock(self) -> None:
        """Change the view when a request, or the new view itself, is overdue."""
        late = self.clock() - self.since_s > self.view_s * 2 ** min(self.tries, 10)
        if self.active:
            if self.pending and late:
                self.leave_for(self.view + 1)
            return
        # Who is on the way to a later view has left this one, too.
        there = sum(change.view >= self.view for change in self.changes.values())
        if late and there >= self.quorum:
            self.leave_for(self.view + 1)
        else:
            if there < self.quorum:
                self.since_s = self.clock()  # the new primary can do nothing yet
            self.speak_of_changes(self.peers)

    def of_view(self) -> dict[int, ViewChange]:
        """The view changes for the view that I am in or on the way to."""
        return {i: change for i, change in self.changes.items() if change.view == self.view}

    def leave_for(self, view: int) -> None:
        """Stop taking part in this view, and tell all what may have been committed in it."""
        self.view, self.active = view, False
        self.tries += 1
        self.since_s = self.clock()
        seen = (
            Seen(number, last, digest)
            for number, digests in sorted(self.seen.items())
            for digest, last in sorted(digests.items())
        )
        entries = tuple(self.prepared[number] for number in sorted(self.prepared))
        marks = tuple(sorted(self.marks.items()))
        change = ViewChange(view, self.stable, marks, entries, tuple(seen))
        self.say(Pbft.change_view, change)
        self.witness(self.id, change)

    @rpc
    def change_view(self, change: ViewChange, sender: int) -> None:
        """A replica has left for a view."""
        known = self.changes.get(sender)
        if not change.is_sound(self.span) or (known is not None and known.view >= change.view):
            return
        self.witness(sender, change)
        ahead = sorted(each.view for each in self.changes.values() if each.view > self.view)
        if len(ahead) >= self.weak:  # one of them is correct: do not wait for my own clock
            self.leave_for(ahead[0])

    def witness(self, sender: int, change: ViewChange) -> None:
        self.changes[sender] = change
        digest = digest_of(change)
        self.say(Pbft.acknowledge, change.view, sender, digest)
        self.acknowledge(change.view, sender, digest, self.id)

    @rpc
    def acknowledge(self, view: int, of: int, digest: bytes, sender: int) -> None:
        """The sender got a view change with this digest from replica `of`."""
        if not 0 <= of < self.size:
            return
        seen = self.acks.setdefault(sender, {})
        if (view, of) not in seen:
            seen[view, of] = digest
            while len(seen) > 8 * self.size:
                del seen[next(iter(seen))]
        self.try_to_open()
        self.try_to_enter()

    def witnesses(self, of: int, change: ViewChange) -> int:
        """How many replicas, the sender included, are known to stand behind a view change."""
        digest = digest_of(change)
        found = {who for who, seen in self.acks.items() if seen.get((change.view, of)) == digest}
        if self.changes.get(of) == change:
            found.add(of)
        return len(found)

    # -- entering the next

    def try_to_open(self) -> None:
        """As primary of the next view, begin it when enough view changes can be vouched for."""
        if self.active or self.leader(self.view) != self.id:
            return
        changes = {
            i: change for i, change in sorted(self.of_view().items())
            if self.witnesses(i, change) >= self.quorum
        }  # fmt: skip
        if len(changes) < self.quorum:
            return
        found = begin(tuple(changes.values()), self.quorum, self.weak, self.span)
        if found is not None:
            self.opened = (self.view, tuple(changes.items()))
            self.say(Pbft.new_view, *self.opened)
            self.enter(self.view, found)

    @rpc
    def new_view(self, view: int, changes: Changes, sender: int) -> None:
        """The primary of a view begins it from these view changes."""
        stale = view < self.view or (view == self.view and self.active)
        if view < 1 or stale or sender != self.leader(view):
            return
        self.offer = (view, changes)
        self.try_to_enter()

    def try_to_enter(self) -> None:
        """Enter the offered view once each of its view changes has a correct witness."""
        if self.offer is None:
            return
        view, changes = self.offer
        if view < self.view or (view == self.view and self.active):
            self.offer = None
            return
        by_sender = dict(changes)
        if len(by_sender) < self.quorum or len(by_sender) != len(changes):
            return
        for i, change in by_sender.items():
            fits = change.view == view and change.is_sound(self.span)
            if not fits or self.witnesses(i, change) < self.weak:
                return
        found = begin(tuple(by_sender.values()), self.quorum, self.weak, self.span)
        if found is not None:
            self.offer = None
            self.enter(view, found)

    def enter(self, view: int, found: Beginning) -> None:
        """Take part in a view from its beginning on."""
        self.view, self.active = view, True
        self.since_s = self.clock()
        self.emit(view=view)
        if self.marks.get(found.stable) == found.digest:
            self.settle(found.stable)
        self.assigned = set()
        for number, batch in enumerate(found.batches, found.stable + 1):
            self.assigned.update((request.client, request.number) for request in batch)
            if number > self.stable:
                self.slot(number).propose(view, batch, vouched=True)
        self.next = max(self.executed, found.stable + len(found.batches)) + 1
        for number in sorted(self.slots):
            if number in self.slots:  # applying one may make a checkpoint that drops others
                self.try_prepare(self.slots[number])
        for number, (early, batch) in sorted(self.early.items()):
            if early == view:
                self.pre_prepare(view, number, batch, self.leader(view))
        self.early = {n: each for n, each in self.early.items() if each[0] > view}
        self.propose()

    # -- what is sent again

    @rpc
    def status(
        self, view: int, active: bool, executed: int, chain: bytes, stable: int, sender: int
    ) -> None:
        """How far a peer is; it gets what it seems to lack."""
        self.note_state(sender, executed, chain)
        if stable < self.stable:
            self.tell(sender, Ordering.checkpoint, self.stable, self.marks[self.stable])
        last = max(self.marks)
        if executed >= last > max(stable, self.stable):
            self.tell(sender, Ordering.checkpoint, last, self.marks[last])
        behind = view < self.view or (view == self.view and not active and self.active)
        if behind and self.view > 0:
            self.speak_of_changes((sender,))
        elif view == self.view and active and self.active:
            for number in range(max(executed, self.stable) + 1, self.executed + 1)[: self.window]:
                self.send_again(number, (sender,))

    def speak_of_changes(self, peers: Any) -> None:
        """My view change, what I witnessed, and the new view if I gave it."""
        mine = self.changes.get(self.id)
        seen = self.acks.get(self.id, {})
        for peer in peers:
            if mine is not None and mine.view == self.view:
                self.tell(peer, Pbft.change_view, mine)
            for (view, of), digest in seen.items():
                if view == self.view:
                    self.tell(peer, Pbft.acknowledge, view, of, digest)
            if self.opened is not None and self.opened[0] == self.view:
                self.tell(peer, Pbft.new_view, *self.opened)

    def send_again(self, number: int, peers: Any) -> None:
        """My votes of this view for a number."""
        slot = self.slots.get(number)
        if slot is None or slot.view != self.view:
            return
        for peer in peers:
            if self.leader(self.view) == self.id:
                self.tell(peer, Ordering.pre_prepare, slot.view, number, slot.batch)
            elif slot.sent_prepare:
                self.tell(peer, Ordering.prepare, slot.view, number, slot.digest)
            if slot.sent_commit:
                self.tell(peer, Ordering.commit, slot.view, number, slot.digest)
