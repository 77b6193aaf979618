"""The directory on three indexes: Chord, Pastry, Kademlia. Only where records stand differs.

On Chord a record stands on the owner of its key and on the owner's successors, on Pastry on the
nodes of the leaf set nearest to the key, on Kademlia on the nearest by XOR.
"""

from __future__ import annotations

from typing import Any, ClassVar

from orrery.base.errors import DeadlineExceeded, Refused
from orrery.parts import Positive, rpc
from orrery.systems.protocols.baselines.chord import Chord
from orrery.systems.protocols.baselines.kademlia import Kademlia
from orrery.systems.protocols.baselines.kademlia.buckets import Search
from orrery.systems.protocols.baselines.pastry import Pastry
from orrery.systems.protocols.problems.capability_records import CapabilityRecord
from orrery.systems.protocols.problems.directory_node import DirectoryNode

TOLERATES = ("duplicate", "reorder", "crash", "restart", "pause")


class _Meeting(DirectoryNode):
    """A directory node that now and then compares notes with any peer it has ever heard of."""

    meet_s: Positive = 2.0

    async def main(self) -> None:
        if self.peers:
            self.spawn(self._meet_others())
        await super().main()

    async def _meet_others(self) -> None:
        while True:
            await self.sleep(self.meet_s * self.rng.uniform(0.9, 1.1))
            if self.joined:
                await self._meet(self.rng.choice(self.peers))


class _OnOwner(_Meeting):
    """Records stand on the owner of their key and on the nodes that it names as replicas."""

    async def _owner(self, key: int) -> int:
        """The node that owns a key, as the index finds it."""
        owner, _ = await self.lookup(key)
        return int(owner)

    async def _put(self, record: CapabilityRecord) -> int:
        owner = await self._owner(record.key)
        if owner == self.id:
            others = self.keep(record)
        else:
            others = await self._call(owner, DIRECTORY_KEEP, record)
            if others is None:
                return 0
        for peer in others:
            if peer == self.id:
                self._store(record)
            else:
                self.tell(peer, DIRECTORY_KEEP, record)
        return 1 + len(others)

    async def _get(self, key: int) -> list[CapabilityRecord]:
        """Ask the owner, then the replicas that it names, until one has a good record."""
        queue, asked = [await self._owner(key)], 0
        while asked < len(queue) and asked < self.replicas + 1:
            node = queue[asked]
            asked += 1
            if node == self.id:
                answer = self.seek(key)
            else:
                answer = await self._call(node, DIRECTORY_SEEK, key)
            if answer is None:
                if asked == 1:  # the owner is gone, and with it the list of its replicas
                    queue += [n for n in self._replica_set(key) if n not in queue]
                continue
            good = self._good(answer[0], key)
            if good:
                return good
            queue += [other for other in answer[1] if other not in queue]
        return []

    def _replica_set(self, key: int) -> tuple[int, ...]:
        """Who, by my pointers, holds the copies of a record that I own."""
        return ()

    @rpc
    def keep(self, record: CapabilityRecord) -> tuple[int, ...]:
        """Hold a record; gives who else should."""
        self._store(record)
        return self._replica_set(record.key)

    @rpc
    def seek(self, key: int) -> tuple[tuple[CapabilityRecord, ...], tuple[int, ...]]:
        """What I hold under a key; where that is nothing, also who else should hold it."""
        held = self._on_shelf(key)
        return held, () if held else self._replica_set(key)


DIRECTORY_KEEP, DIRECTORY_SEEK = _OnOwner.keep, _OnOwner.seek


class ChordDirectory(_OnOwner, Chord):
    """The directory on Chord: a record stands on the owner of its key and on its successors.

    >>> ChordDirectory(replicas=3).knobs()["replicas"]
    3
    """

    tolerates: ClassVar[tuple[str, ...]] = TOLERATES

    def _replica_set(self, key: int) -> tuple[int, ...]:
        return tuple(node for node in self.succs if node != self.id)[: self.replicas - 1]

    async def _meet(self, peer: int) -> None:
        """Ask a peer for my place: a closer successor there means that the ring was cut in two.

        After Shafaat, Ghodsi and Haridi, "Dealing with network partitions in structured overlay
        networks" (2009), in its simplest form.
        """
        try:
            async with self.deadline(2 * max(self.find_s, 30 * self.slow_s)):
                owner, _ = await self.ask(peer, Chord.locate, self.place, self.id)
        except (DeadlineExceeded, Refused):
            return
        if not self.joined or not self._between(self.id, owner, self.succs[0]):
            return
        view = await self._call(owner, Chord.pointers)
        if view is not None and self.joined and self._between(self.id, owner, self.succs[0]):
            self._adopt(owner, view[1])
            self.tell(owner, Chord.notify)


class PastryDirectory(_OnOwner, Pastry):
    """The directory on Pastry: a record stands on the nodes of a leaf set nearest to its key.

    >>> PastryDirectory(leaves=8).knobs()["leaves"]
    8
    """

    tolerates: ClassVar[tuple[str, ...]] = TOLERATES

    def _replica_set(self, key: int) -> tuple[int, ...]:
        return tuple(node for node in self._replicas(key, self.replicas) if node != self.id)

    @rpc
    async def locate(self, key: int) -> int:
        """The owner of a key in my network."""
        owner, _ = await self._find(key)
        return owner

    async def _meet(self, peer: int) -> None:
        """Ask a peer who is nearest to my place; exchange leaf sets with it if it is not me."""
        try:
            async with self.deadline(2 * max(self.find_s, 30 * self.slow_s)):
                owner = await self.ask(peer, PastryDirectory.locate, self.place)
        except (DeadlineExceeded, Refused):
            return
        if self.joined and owner != self.id:
            await self._exchange(owner)


class KademliaDirectory(_Meeting, Kademlia):
    """The directory on Kademlia: a record stands on the nodes nearest to its key by XOR.

    A search for a record ends at the first node that holds a good one.

    >>> KademliaDirectory(k=8).knobs()["k"]
    8
    """

    tolerates: ClassVar[tuple[str, ...]] = ("drop", *TOLERATES)

    async def _put(self, record: CapabilityRecord) -> int:
        self._must_be_in()
        search = await self._search(record.key)
        nodes = self._first_nodes(search, self.replicas)
        for node in nodes:
            if node == self.id:
                self._store(record)
            else:
                self.tell(node, KademliaDirectory.keep, record)
        return len(nodes)

    async def _get(self, key: int) -> list[CapabilityRecord]:
        self._must_be_in()
        good = self._good(self._on_shelf(key), key)
        return good or (await self._search(key, want=True)).found

    @rpc
    def keep(self, record: CapabilityRecord, sender: int) -> None:
        """Hold a record."""
        if not self.silent:
            self._greet(sender)
            self._store(record)

    @rpc
    def find(self, ticket: int, key: int, want: bool, sender: int) -> None:
        held = self._on_shelf(key) if want and not self.silent else ()
        if held:
            self._greet(sender)
            self.tell(sender, KademliaDirectory.value, ticket, held)
        else:
            super().find(ticket, key, want, sender)

    @rpc
    def value(self, ticket: int, records: tuple[CapabilityRecord, ...], sender: int) -> None:
        """The answer of a node that holds records under the key of a search."""
        search: Search | None = self._answered(ticket, sender)
        if search is None:
            return
        good: list[Any] = self._good(records, search.key)
        if good:
            search.found = good
            search.over = True
            search.done.set()
        else:
            self._push_on(search)

    async def _meet(self, peer: int) -> None:
        if await self._alive(peer):
            self._greet(peer)
