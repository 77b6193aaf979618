"""One-hop directory: everybody knows everybody by gossip, so every key is one step away."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import Any, ClassVar

from orrery.base.errors import DeadlineExceeded, Refused
from orrery.parts import Count, Positive, rpc
from orrery.systems.protocols.problems.capability_records import CapabilityRecord
from orrery.systems.protocols.problems.directory_node import DirectoryNode
from orrery.systems.protocols.problems.lookup import place_of

Update = tuple[int, int, bool]  # node, version, whether it is there


class OneHopGossip(DirectoryNode):
    """Full membership by SWIM's gossip (Das, Gupta, Motivala, DSN 2002); a lookup is one hop.

    How it works: every `period_s` a node pings one random member; who does not answer is declared
    gone. News of who came and went rides on pings and answers, each item about `spread` * log2 n
    times. A key belongs to the first member at or after it and to the next `replicas` - 1, which
    every node finds in its own list (as in Gupta, Liskov, Rodrigues, "One hop lookups", HotOS
    2003).

    Knobs: `period_s`; `spread`; `most`, items of news on one message; `timeout_s` and `tries` of a
    ping; those of every directory node.

    Differs from the papers: no indirect pings and no state of suspicion (a member that is wrongly
    declared gone says so itself with a newer version); no hierarchy of slices. All members are
    known when the run begins; one that restarts copies the list of a random member.

    >>> OneHopGossip(period_s=5.0).knobs()["spread"]
    3
    """

    period_s: Positive = 0.25
    spread: Count = 3
    most: Count = 8
    timeout_s: Positive = 0.1
    tries: Count = 2

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash", "restart", "pause")

    # -- life

    def start(self) -> None:
        super().start()
        self.joined = False
        self.version = 0
        self.seen: dict[int, tuple[int, bool]] = {}  # what differs from "there, version 0"
        self.ring: list[tuple[int, int]] = []  # (place, node) of the members
        self.news: dict[int, int] = {}  # node -> how often its news is still to be told

    async def main(self) -> None:
        size = len(self.peers) + 1
        self.ring = sorted((place_of(node, self.bits), node) for node in range(size))
        if self.incarnation:
            await self._enter([])
        self.joined = True
        self.spawn(super().main())
        await self.sleep(self.rng.uniform(0.0, self.period_s))
        while True:
            if self.joined and len(self.ring) > 1:
                await self._probe()
            await self.sleep(self.period_s)

    async def _enter(self, helpers: list[int]) -> None:
        """Copy a member's list, and tell of oneself with a version newer than any before."""
        while self.peers:
            helper = helpers.pop(0) if helpers else self.rng.choice(self.peers)
            theirs = await self._call(helper, OneHopGossip.everybody)
            if theirs is not None:
                for node, version, there in theirs:
                    self._hear(node, version, there)
                break
            await self.sleep(self.rng.uniform(0.5, 1.0) * self.period_s)
        self.joined = True
        self._renew()

    def _renew(self) -> None:
        self.version = max(self.version + 1, int(self.clock() * 1000))
        self.seen[self.id] = (self.version, True)
        self.news[self.id] = self._tellings()

    def _tellings(self) -> int:
        return self.spread * max(1, math.ceil(math.log2(len(self.ring) + 1)))

    async def _probe(self) -> None:
        node = self.ring[self.rng.below(len(self.ring))][1]
        if node == self.id:
            return
        theirs = await self._call(node, OneHopGossip.ping, self._tell_news())
        if theirs is None:
            self.emit(gone=node)
            self._hear(node, self.seen.get(node, (0, True))[0], False)
        else:
            self._hear_all(theirs)

    # -- news

    def _tell_news(self) -> tuple[Update, ...]:
        """The items told least often so far, and count them as told once more."""
        picked = sorted(self.news, key=lambda node: (-self.news[node], node))[: self.most]
        told = []
        for node in picked:
            version, there = self.seen[node]
            told.append((node, version, there))
            self.news[node] -= 1
            if not self.news[node]:
                del self.news[node]
        return tuple(told)

    def _hear_all(self, updates: tuple[Update, ...]) -> None:
        for node, version, there in updates:
            self._hear(node, version, there)

    def _hear(self, node: int, version: int, there: bool) -> None:
        """Take news in if it is newer; of one version, "gone" is newer than "there"."""
        if node == self.id:
            if not there and version >= self.version and self.joined:
                self._renew()  # not so: I am here
            return
        known, was_there = self.seen.get(node, (0, True))
        if version < known or (version == known and (there or not was_there)):
            return
        self.seen[node] = (version, there)
        self.news[node] = self._tellings()
        entry = (place_of(node, self.bits), node)
        at = bisect_left(self.ring, entry)
        inside = at < len(self.ring) and self.ring[at] == entry
        if there and not inside:
            insort(self.ring, entry)
        elif not there and inside:
            del self.ring[at]

    @rpc
    def ping(self, updates: tuple[tuple[int, int, bool], ...]) -> tuple[tuple[int, int, bool], ...]:
        """Take news and give news."""
        self._must_be_in()
        self._hear_all(updates)
        return self._tell_news()

    @rpc
    def everybody(self) -> tuple[tuple[int, int, bool], ...]:
        """All that I know of others, for one that has come back."""
        self._must_be_in()
        return tuple((node, *state) for node, state in self.seen.items())

    # -- records

    def _holders(self, key: int) -> list[int]:
        self._must_be_in()
        ring, at = self.ring, bisect_left(self.ring, (key, -1))
        count = min(self.replicas, len(ring))
        return [ring[(at + i) % len(ring)][1] for i in range(count)]

    async def _put(self, record: CapabilityRecord) -> int:
        holders = self._holders(record.key)
        for node in holders:
            if node == self.id:
                self._store(record)
            else:
                self.tell(node, OneHopGossip.keep, record)
        return len(holders)

    async def _get(self, key: int) -> list[CapabilityRecord]:
        for node in self._holders(key):
            if node == self.id:
                held: Any = self._on_shelf(key)
            else:
                held = await self._call(node, OneHopGossip.seek, key)
            good = self._good(held or (), key)
            if good:
                return good
        return []

    @rpc
    def keep(self, record: CapabilityRecord) -> None:
        """Hold a record."""
        self._store(record)

    @rpc
    def seek(self, key: int) -> tuple[CapabilityRecord, ...]:
        """What I hold under a key."""
        return self._on_shelf(key)

    # -- the rest of the port

    @rpc
    async def lookup(self, key: int) -> tuple[int, int]:
        return self._holders(key)[0], 0

    @rpc
    async def leave(self) -> None:
        """Tell a few members, then stop taking part."""
        self.joined = False
        news = ((self.id, self.version, False),)
        for _, node in self.rng.sample(self.ring, self.spread):
            if node != self.id:
                self.tell(node, OneHopGossip.ping, news)

    @rpc
    async def join(self, via: int) -> None:
        if not self.joined:
            self.spawn(self._enter([via]))

    async def _call(self, peer: int, method: Any, *args: Any) -> Any:
        for _ in range(self.tries):
            try:
                async with self.deadline(self.timeout_s):
                    return await self.ask(peer, method, *args)
            except DeadlineExceeded:
                continue
            except Refused:
                return None
        return None

    def _must_be_in(self) -> None:
        if not self.joined:
            raise Refused(f"node {self.id} is not a member yet")
