"""Chord: a ring of nodes in which any key is found in about half of log2 n hops.

The successor lists keep the ring together, the fingers make it fast. Every pointer may be wrong for
a while; stabilisation mends it. Nothing here trusts a node to be alive: each question has a
deadline, and who does not answer is forgotten until it speaks up again.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from orrery.base.errors import DeadlineExceeded, Refused
from orrery.parts import Positive, rpc
from orrery.systems.protocols.baselines.chord.pointers import RingPointers


class Chord(RingPointers):
    """The ring with fingers of Stoica, Morris, Karger, Kaashoek and Balakrishnan (SIGCOMM 2001).

    Stabilisation is the corrected one of Zave ("Reasoning about identifier spaces", IEEE TSE 2017):
    a node takes over the whole list of a successor that it has just heard from, checks a closer
    successor before it adopts it, and gives up its predecessor only for a closer one or when it
    does not answer (rectify).

    Knobs: `successors`, the length of the successor list; `stabilise_s` and `fix_s`, the periods of
    stabilisation and of mending one finger; `timeout_s` (at least) and `tries`, after which a node
    counts as gone; `find_s` (at least), after which a lookup is tried again; `style`, whether the
    nodes pass a question on (`recursive`) or the asking node walks (`iterative`); `warm`, to begin
    with a perfect ring, for experiments on a ring at rest; `bootstrap`, the node that begins a cold
    ring; `shortcuts`, to let questions also jump along the successor list (the journal version).
    A bootstrap node that comes back and finds nobody in the ring begins a new one.

    Differs from the paper: the owner itself answers, and hands a key back to a predecessor that the
    asking side did not know yet. As in the paper, a ring that a partition has cut in two does not
    find together again, so partitions are not among what it tolerates; nor is it tolerated that
    more neighbours than `successors` go at once.
    """

    stabilise_s: Positive = 0.25
    fix_s: Positive = 0.25
    style: Literal["recursive", "iterative"] = "recursive"

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash", "restart", "pause")

    # -- life

    async def main(self) -> None:
        await self._come_in()
        self.spawn(self._mend_fingers())
        while True:
            if self.joined:
                await self._stabilise()
            await self.sleep(self.stabilise_s)

    def _period_s(self) -> float:
        return self.stabilise_s

    async def _enter_through(self, helper: int) -> bool:
        try:
            async with self.deadline(2 * self._patience_s()):
                owner, _ = await self.ask(helper, Chord.locate, self.place, self.id)
            view = await self._call(owner, Chord.pointers) if owner != self.id else None
        except (DeadlineExceeded, Refused):
            view = None
        if view is not None and not self.joined:
            self.joined = True
            self._adopt(owner, view[1])
            self.tell(owner, Chord.notify)
        return view is not None

    # -- the port

    @rpc
    async def lookup(self, key: int) -> tuple[int, int]:
        return await self._find(key, -1)

    @rpc
    async def leave(self) -> None:
        """Tell both neighbours whom to hold on to, then stop taking part."""
        if not self.joined:
            return
        self.joined = False
        for peer in dict.fromkeys((self.pred, self.succs[0])):
            if peer is not None and peer != self.id:
                self.tell(peer, Chord.depart, self.pred, tuple(self.succs))
        self.succs, self.pred = [], None
        self.fingers = {}
        self._sort_fingers()

    # -- what nodes say to each other

    @rpc
    async def locate(self, key: int, without: int) -> tuple[int, int]:
        """Find the owner of a key as if the node `without` were not there: it wants to join."""
        return await self._find(key, without)

    @rpc
    def pointers(self) -> tuple[int | None, tuple[int, ...]]:
        """My predecessor and my successors."""
        self._must_be_in()
        return self.pred, tuple(self.succs)

    @rpc
    def notify(self, sender: int) -> None:
        """The sender believes that it comes right before me (Zave's rectify)."""
        if not self.joined or sender == self.pred:
            return
        if self.pred is None or self.pred == self.id or self._between(self.pred, sender, self.id):
            self._set_pred(sender)
        else:
            self.spawn(self._rectify(self.pred, sender))

    @rpc
    def depart(self, pred: int | None, succs: tuple[int, ...], sender: int) -> None:
        """The sender leaves: hold on to its neighbours instead."""
        if not self.joined:
            return
        if self.succs[0] == sender:
            self._set_succs([*succs, *self.succs[1:]], gone=sender)
        if self.pred == sender:
            self._set_pred(pred if pred != sender else None)
        self._forget(sender)

    @rpc
    def route(
        self, key: int, origin: int, ticket: int, hops: int, without: int, final: bool
    ) -> bool:
        """Take a question over; who sent it is free as soon as this returns."""
        self._must_be_in()
        self.spawn(self._pass_on(key, origin, ticket, hops, without, final))
        return True

    @rpc
    def step(self, key: int, skip: tuple[int, ...], final: bool) -> tuple[int, bool]:
        """Where to go next for a key, for a node that walks by itself."""
        self._must_be_in()
        return self._choose(key, skip, final)

    # -- finding

    async def _find(self, key: int, without: int) -> tuple[int, int]:
        self._must_be_in()
        if self.pred is not None and self.pred != without and self._owns(key):
            return self.id, 0
        return await super()._find(key, without)

    async def _seek(self, key: int, without: int) -> tuple[int, int]:
        if self.style == "iterative":
            return await self._walk(key, without)
        return await super()._seek(key, without, False)

    async def _pass_on(
        self, key: int, origin: int, ticket: int, hops: int, without: int, final: bool
    ) -> None:
        skip = [without]
        # A question that goes round and round is dropped; its origin asks anew.
        while self.joined and hops <= 4 * self.bits:
            node, last = self._choose(key, skip, final)
            if node == self.id:
                self._answer(origin, ticket, hops)
                return
            further = hops if last and not final else hops + 1
            if await self._call(node, Chord.route, key, origin, ticket, further, without, last):
                return
            self._forget(node)
            skip.append(node)

    async def _walk(self, key: int, without: int) -> tuple[int, int]:
        """Ask node after node where to go next; round a silent one, its giver is asked anew."""
        skip, trail, hops = [without], [self.id], 0
        node, final = self._choose(key, skip, False)
        while node != trail[-1]:
            answer = await self._call(node, Chord.step, key, tuple(skip), final)
            self._must_be_in()
            if answer is None:
                skip.append(node)
                self._forget(node)
                giver = trail[-1]
                answer = self._choose(key, skip, False) if giver == self.id else await self._call(
                    giver, Chord.step, key, tuple(skip), False)  # fmt: skip
                self._must_be_in()
                if answer is None:  # the giver is gone as well: begin again
                    trail, answer, hops = [self.id], self._choose(key, skip, False), 0
                node, final = answer
                continue
            hops += 0 if final else 1
            trail.append(node)
            node, final = answer
        return node, hops

    # -- upkeep

    async def _stabilise(self) -> None:
        """Hear from the successor; if somebody stands between, hold on to that one instead."""
        succ = self.succs[0]
        if succ == self.id:
            if self.pred is None or self.pred == self.id:
                return
            succ = self.pred  # a ring of one learns of its second node by being notified
        view = await self._call(succ, Chord.pointers)
        if not self.joined:
            return
        if view is None:
            self._forget(succ)
            return
        self._adopt(succ, view[1])
        for _ in range(self.successors):
            closer = view[0]
            if closer is None or not self._between(self.id, closer, self.succs[0]):
                break
            view = await self._call(closer, Chord.pointers)
            if not self.joined or view is None:
                break
            self._adopt(closer, view[1])
        if self.joined and self.succs[0] != self.id:
            self.tell(self.succs[0], Chord.notify)

    async def _rectify(self, pred: int, sender: int) -> None:
        if not await self._alive(pred) and self.pred == pred and self.joined:
            self._forget(pred)
            self._set_pred(sender)

    async def _mend_fingers(self) -> None:
        """Look one finger up each period, from the farthest to the nearest and again."""
        i = self.bits
        while True:
            await self.sleep(self.fix_s)
            if not self.joined or self.succs[0] == self.id:
                continue
            i -= 1
            start = (self.place + (1 << i)) % (1 << self.bits)
            if self._within(self.id, start, self.succs[0]):  # this and all nearer are the successor
                if any(self.fingers.pop(j, None) is not None for j in range(i + 1)):
                    self._sort_fingers()
                i = self.bits
                continue
            try:
                owner, _ = await self._find(start, -1)
            except Refused:
                continue
            if self.joined and self.fingers.get(i) != owner:
                self.fingers[i] = owner
                self._sort_fingers()

    def _lose_the_ring(self) -> None:
        was_in = self.joined
        super()._lose_the_ring()
        if was_in and not self.joined:
            self.spawn(self._enter([]))
