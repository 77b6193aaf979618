"""Unstructured search: ask the neighbours, who ask theirs; or send a few walkers about."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from orrery.base.errors import DeadlineExceeded, Refused
from orrery.parts import Count, Positive, rpc
from orrery.systems.protocols.problems.capability_records import CapabilityRecord
from orrery.systems.protocols.problems.directory_node import DirectoryNode


class FloodSearch(DirectoryNode):
    """A directory without an index: flooding as in Gnutella, or random walks (Lv et al., ICS 2002).

    How it works: every node has about `degree` neighbours picked at random. An agent's record
    stands with itself and with `replicas` - 1 random nodes. A question spreads to all neighbours of
    all neighbours (`style = "flood"`), `reach` steps far, or is carried by `walkers` that go
    from neighbour to neighbour (`"walk"`), at most `steps` each. Who holds a good record answers
    the asking node at once.

    Knobs: `style`, `degree`, `reach`, `walkers`, `steps`; `wait_s`, how long answers are waited
    for; `period_s`, how often a neighbour is pinged and a lost one replaced; those of every
    directory node.

    Differs from the papers: walkers do not check back with the asking node; they end by their count
    of steps or at the first answer they meet. New neighbours are picked from all nodes, not from
    a cache of hosts.

    >>> FloodSearch(style="walk").knobs()["walkers"]
    4
    """

    style: Literal["flood", "walk"] = "flood"
    degree: Count = 6
    reach: Count = 7
    walkers: Count = 4
    steps: Count = 256
    wait_s: Positive = 1.0
    period_s: Positive = 0.5

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash", "restart", "pause")

    def start(self) -> None:
        super().start()
        self.links: dict[int, None] = {}
        self.tickets = 0
        self.open: dict[int, Any] = {}
        self.heard: dict[tuple[int, int], None] = {}  # questions that went through here of late
        self.joined = True

    async def main(self) -> None:
        for peer in self.rng.sample(self.peers, max(1, self.degree // 2)):
            self._link(peer)
        self.spawn(super().main())
        await self.sleep(self.rng.uniform(0.0, self.period_s))
        turn = 0
        while True:
            if self.joined and self.peers:
                turn += 1
                await self._tend(turn)
            await self.sleep(self.period_s)

    def _link(self, peer: int) -> None:
        self.links[peer] = None
        self.tell(peer, FloodSearch.link)

    async def _tend(self, turn: int) -> None:
        """Ping one neighbour; replace it when it is silent, and fill up when there are too few."""
        if self.links:
            peer = list(self.links)[turn % len(self.links)]
            try:
                async with self.deadline(self.wait_s / 4):
                    there = await self.ask(peer, FloodSearch.alive)
            except (DeadlineExceeded, Refused):
                there = False
            if not there:
                self.links.pop(peer, None)
        if len(self.links) < max(1, self.degree // 2):
            self._link(self.rng.choice(self.peers))

    @rpc
    def link(self, sender: int) -> None:
        """The sender takes me for a neighbour, so I take it for one."""
        if self.joined:
            self.links[sender] = None

    @rpc
    def alive(self) -> bool:
        return self.joined

    # -- records

    async def _put(self, record: CapabilityRecord) -> int:
        self._store(record)
        peers = self.rng.sample(self.peers, self.replicas - 1)
        for peer in peers:
            self.tell(peer, FloodSearch.keep, record)
        return 1 + len(peers)

    async def _get(self, key: int) -> list[CapabilityRecord]:
        good = self._good(self._on_shelf(key), key)
        if good or not self.links:
            return good
        self.tickets += 1
        ticket, found = self.tickets, self.event()
        self.open[ticket] = (key, found)
        self.heard[(self.id, ticket)] = None
        if self.style == "flood":
            for peer in self.links:
                self.tell(peer, FloodSearch.spread, key, self.id, ticket, self.reach - 1)
        else:
            for _ in range(self.walkers):
                peer = self.rng.choice(list(self.links))
                self.tell(peer, FloodSearch.walk, key, self.id, ticket, self.steps - 1)
        try:
            async with self.deadline(self.wait_s):
                return list(await found.wait())
        except DeadlineExceeded:
            return []
        finally:
            del self.open[ticket]

    @rpc
    def keep(self, record: CapabilityRecord) -> None:
        """Hold a record."""
        self._store(record)

    @rpc
    def spread(self, key: int, origin: int, ticket: int, reach: int, sender: int) -> None:
        """A question on its way to everybody; each node passes it on once."""
        if (origin, ticket) in self.heard or not self.joined:
            return
        self.heard[(origin, ticket)] = None
        if len(self.heard) > 4096:
            for old in list(self.heard)[:2048]:
                del self.heard[old]
        held = self._on_shelf(key)
        if held:
            self.tell(origin, FloodSearch.answer, ticket, held)
        if reach > 0:
            for peer in self.links:
                if peer != sender:
                    self.tell(peer, FloodSearch.spread, key, origin, ticket, reach - 1)

    @rpc
    def walk(self, key: int, origin: int, ticket: int, steps: int) -> None:
        """A question carried by one walker."""
        held = self._on_shelf(key) if self.joined else ()
        if held:
            self.tell(origin, FloodSearch.answer, ticket, held)
        elif steps > 0 and self.joined and self.links:
            peer = self.rng.choice(list(self.links))
            self.tell(peer, FloodSearch.walk, key, origin, ticket, steps - 1)

    @rpc
    def answer(self, ticket: int, records: tuple[CapabilityRecord, ...]) -> None:
        """Records for a question of mine; the first good ones end it."""
        waiting = self.open.get(ticket)
        if waiting is not None:
            good = self._good(records, waiting[0])
            if good:
                waiting[1].set(good)

    # -- the rest of the port

    @rpc
    async def lookup(self, key: int) -> tuple[int, int]:
        raise Refused("an unstructured network has no owner of a key; ask discover(key)")

    @rpc
    async def leave(self) -> None:
        self.joined = False
        self.links = {}

    @rpc
    async def join(self, via: int) -> None:
        self.joined = True
        self._link(via)
