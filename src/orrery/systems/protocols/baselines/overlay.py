"""What the overlays of this folder share: coming in, asking with patience, finding by tickets.

`OverlayNode` is the life of any of them. `RoutedOverlay` adds what Chord and Pastry have in common:
nodes pass a question on from one to the next, and the owner answers straight to who asked. Each
question between nodes has a deadline, and who does not answer is forgotten until it speaks up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from orrery.base.errors import DeadlineExceeded, PartError, Refused
from orrery.parts import Count, Positive, Whole, rpc
from orrery.systems.protocols.problems.lookup import Overlay, place_of, ring_of


@functools.lru_cache(maxsize=16)
def _all_differ(size: int, bits: int) -> bool:
    """Whether no two of so many nodes have the same identifier."""
    return len(set(ring_of(size, bits)[0])) == size


class OverlayNode(Overlay):
    """A node that begins in place, begins alone, or enters through another; then it keeps up.

    Knobs: `timeout_s` (at least) and `tries`, after which a node counts as gone; `warm`, to begin
    with the pointers of a network at rest, which every node cuts for itself from the sorted list of
    all places; `bootstrap`, the node through which a cold network forms.
    """

    timeout_s: Positive = 0.03
    tries: Count = 3
    warm: bool = True
    bootstrap: Whole = 0

    whole: ClassVar[str] = "network"  # what this overlay calls itself

    def start(self) -> None:
        size = len(self.peers) + 1
        if not _all_differ(size, self.bits):
            name = type(self).__name__
            problem = f"gives two of {size} nodes the same identifier"
            raise PartError(f"{name}.bits = {self.bits} {problem}; give more bits, 48 for most")
        self.place = place_of(self.id, self.bits)
        self.joined = False
        self.slow_s = 0.0  # a slow round trip of late
        self.tickets = 0
        self.open: dict[int, Any] = {}  # what waits for its answer, by ticket

    async def _come_in(self) -> None:
        """Take part, each in the way that its place in the beginning asks for."""
        if not self.peers or (self.warm and self.incarnation == 0):
            self._begin_in_place()
        elif self.incarnation == 0 and self.id == self._first():
            self._begin_alone()
        else:
            await self._enter([self._first()] if self.incarnation == 0 else [])
        # Nodes that start together must not all ask at the same moment for ever.
        await self.sleep(self.rng.uniform(0.0, self._period_s()))

    def _begin_in_place(self) -> None:
        """Take the pointers that a network of all nodes at rest has."""
        raise PartError(f"{type(self).__name__} has no _begin_in_place(); give warm=False")

    def _begin_alone(self) -> None:
        self.joined = True

    def _period_s(self) -> float:
        """The period of upkeep."""
        raise PartError(f"{type(self).__name__} has no _period_s(); write how often it keeps up")

    async def _enter(self, helpers: list[int]) -> None:
        """Join through a helper, or through any peer that is in."""
        raise PartError(f"{type(self).__name__} has no _enter(helpers); write how a node joins")

    def _first(self) -> int:
        """The bootstrap node; in a smaller world, the last node."""
        return min(self.bootstrap, len(self.peers))

    async def _all_are_out(self) -> bool:
        """Whether the bootstrap node finds nobody in, so that it has to begin anew."""
        if self.id != self._first():
            return False
        inside = await self.all(*(self._alive(peer) for peer in self.peers))
        return not self.joined and not any(inside)

    async def _alive(self, peer: int) -> bool:
        """Whether a peer answers and is in."""
        raise PartError(f"{type(self).__name__} has no _alive(peer); write how a peer is asked")

    def _must_be_in(self) -> None:
        if not self.joined:
            raise Refused(f"node {self.id} is not in the {self.whole}")

    @rpc
    async def join(self, via: int) -> None:
        if not self.joined:
            self.spawn(self._enter([via]))

    @rpc
    def alive(self) -> bool:
        """Whether I take part."""
        return self.joined


class RoutedOverlay(OverlayNode):
    """An overlay whose nodes pass a question on; the owner answers straight to who asked.

    Knobs: also `find_s` (at least), after which a lookup is tried again.
    """

    find_s: Positive = 0.5

    def start(self) -> None:
        super().start()
        self.rtt_s: dict[int, float] = {}  # the usual round trip to a peer

    async def _enter(self, helpers: list[int]) -> None:
        wanted, failures = list(helpers), 0
        while not self.joined:
            if failures and failures % 3 == 0 and await self._all_are_out():
                self._begin_alone()
                return
            helper = wanted.pop(0) if wanted else self.rng.choice(self.peers)
            if not await self._enter_through(helper):
                failures += 1
                await self.sleep(self.rng.uniform(0.5, 1.0) * self._period_s())

    async def _enter_through(self, helper: int) -> bool:
        """Try to join with the help of one node; gives whether this node is in now."""
        raise PartError(f"{type(self).__name__} has no _enter_through(helper); write it")

    # -- finding

    async def _find(self, key: int, *more: Any) -> tuple[int, int]:
        """The owner of a key and the hops to it, in a few tries; `more` is for `_seek`."""
        for _ in range(self.tries):
            try:
                async with self.deadline(self._patience_s()):
                    return await self._seek(key, *more)
            except DeadlineExceeded:
                self._must_be_in()
        raise Refused(f"node {self.id}: no owner of {key} was found in {self.tries} tries")

    def _patience_s(self) -> float:
        """How long a whole lookup may take here."""
        return max(self.find_s, 30 * self.slow_s)

    async def _seek(self, key: int, *more: Any) -> tuple[int, int]:
        """Let the nodes pass the question on; the owner answers straight to us."""
        self.tickets += 1
        ticket, answer = self.tickets, self.event()
        self.open[ticket] = answer
        try:
            await self._pass_on(key, self.id, ticket, 0, *more)
            owner, hops = await answer.wait()
            return owner, hops
        finally:
            del self.open[ticket]

    async def _pass_on(self, key: int, origin: int, ticket: int, hops: int, *more: Any) -> None:
        """Hand a question to the next node, or answer it."""
        raise PartError(f"{type(self).__name__} has no _pass_on(…); write where a question goes")

    def _answer(self, origin: int, ticket: int, hops: int) -> None:
        """Tell who asked that the key is mine."""
        if origin == self.id:
            self.found(ticket, self.id, hops)
        else:
            self.tell(origin, RoutedOverlay.found, ticket, self.id, hops)

    @rpc
    def found(self, ticket: int, owner: int, hops: int) -> None:
        """The answer to a question that was passed on."""
        waiting = self.open.get(ticket)
        if waiting is not None:
            waiting.set((owner, hops))

    # -- asking

    async def _call(self, peer: int, method: Callable[..., Any], *args: Any) -> Any:
        """Ask a few times; None when the peer says no or nothing.

        An answer is waited for three of the peer's usual round trips; of a peer that has never
        answered nothing is known, so each try waits four times as long as the last.
        """
        usual_s = self.rtt_s.get(peer)
        wait_s = self.timeout_s
        if usual_s is not None and 3 * usual_s > wait_s:
            wait_s = 3 * usual_s
        for _ in range(self.tries):
            sent_s = self.now
            try:
                async with self.deadline(wait_s):
                    answer = await self.ask(peer, method, *args)
            except DeadlineExceeded:
                if usual_s is None:
                    wait_s *= 4
                continue
            except Refused:
                return None
            took_s = self.now - sent_s
            # A slow answer counts at once and is forgotten slowly.
            smooth_s = 0.9 * (usual_s or 0.0) + 0.1 * took_s
            self.rtt_s[peer] = took_s if took_s > smooth_s else smooth_s
            slow_s = 0.99 * self.slow_s
            self.slow_s = took_s if took_s > slow_s else slow_s
            return answer
        return None

    async def _alive(self, peer: int) -> bool:
        return bool(await self._call(peer, OverlayNode.alive))
