"""The port of `agent_discovery`: one node of a directory of agents, whatever its index is.

The base does all that must be the same for every index: signing, the manifest on disk, the timer of
refreshes, the shelf of records with their ends, and the check of every record before it is handed
out. An index writes only where records go (`_put`) and whence they come (`_get`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from orrery.base.codec import decode, encode
from orrery.base.errors import PartError, Refused
from orrery.parts import Count, Positive, rpc
from orrery.parts.byzantine import Message, Strategy
from orrery.systems.protocols.problems.capability_records import (
    CapabilityRecord,
    Scheme,
    genuine,
    sign,
)
from orrery.systems.protocols.problems.lookup import Overlay

MANIFEST = "manifest"
MOST_KEY = 1 << 63
MOST_TTL_S = 1e7


class Forge(Strategy):
    """A directory node that lies about records: four lies by turns, in all that it hands out.

    It changes the body, puts its own name on the offer, prolongs the offer's life, or files a
    genuine offer under another key. Records are found wherever they stand in a message.
    """

    def __init__(self, liar: Any) -> None:
        super().__init__(liar)
        self.turn = 0

    def on_send(self, message: Message) -> list[Message]:
        """The message with every record in it bent."""
        return [message._replace(args=self._bend(message.args))]

    def _bend(self, value: Any) -> Any:
        if isinstance(value, CapabilityRecord):
            self.turn += 1
            lies = (
                {"body": value.body + b"!"},
                {"agent": self.liar.me},
                {"expires_ms": value.expires_ms + 3_600_000},
                {"key": value.key ^ 1},
            )
            return value._replace(**lies[self.turn % len(lies)])
        if type(value) is tuple:
            return tuple(self._bend(item) for item in value)
        return value


class DirectoryNode(Overlay):
    """The port: `publish`, `refresh`, `discover`, and `join` and `leave` of the index below.

    Knobs: `refresh_s`, how often an agent's offers are published anew; `replicas`, on how many
    nodes a record stands; `signature`, the scheme of tokens; `verify`, whether records are checked
    before they are kept or handed out.
    """

    refresh_s: Positive = 2.0
    replicas: Count = 4
    signature: Scheme = "keyed"
    verify: bool = True

    byzantine: ClassVar[dict[str, type[Any]]] = {"forge": Forge}

    # -- what an index writes

    async def _put(self, record: CapabilityRecord) -> int:
        """File a record; gives on how many nodes."""
        raise PartError(f"{type(self).__name__} has no _put(record); write where records go")

    async def _get(self, key: int) -> list[CapabilityRecord]:
        """The good records under a key."""
        raise PartError(f"{type(self).__name__} has no _get(key); write whence records come")

    async def _meet(self, peer: int) -> None:
        """Compare notes with any peer, so that a network cut in two finds together again."""

    # -- life

    def start(self) -> None:
        super().start()
        self.offers: dict[int, float] = {}  # key -> how long each record lives
        self.shelf: dict[int, dict[int, CapabilityRecord]] = {}  # key -> agent -> record

    async def main(self) -> None:
        self.spawn(self._keep_offers())
        await super().main()

    async def _keep_offers(self) -> None:
        """Publish the offers again and again; after a crash they are read from the disk."""
        if self.incarnation and self.disk.exists(MANIFEST):
            self.offers = dict(decode(await self.disk.read(MANIFEST), list[tuple[int, float]]))
        while True:
            done = await self._announce_all()
            wait_s = self.refresh_s if done else self.refresh_s / 8
            await self.sleep(wait_s * self.rng.uniform(0.9, 1.1))
            self._clear_shelf()

    async def _announce_all(self) -> bool:
        """Whether every offer now stands somewhere."""
        done = True
        for key, ttl_s in list(self.offers.items()):
            try:
                done = await self._announce(key, ttl_s) > 0 and done
            except Refused:
                done = False  # not in the network yet
        return done

    async def _announce(self, key: int, ttl_s: float) -> int:
        expires_ms = int((self.clock() + ttl_s) * 1000)
        return await self._put(sign(self.signature, key, self.id, expires_ms, b"agent %d" % key))

    # -- the port

    @rpc
    async def publish(self, key: int, ttl_s: float) -> int:
        """Offer a capability from now on; gives on how many nodes the record stands."""
        if not 0 <= key < MOST_KEY:
            raise Refused(f"publish: key {key} is no place; give 0 to 2^63 - 1")
        if not 0 < ttl_s <= MOST_TTL_S:
            raise Refused(f"publish: ttl_s {ttl_s} is refused; give more than 0, at most 1e7")
        self.offers[key] = ttl_s
        await self.disk.write(MANIFEST, encode(list(self.offers.items())))
        await self.disk.fsync(MANIFEST)
        return await self._announce(key, ttl_s)

    @rpc
    async def refresh(self) -> bool:
        """Publish every offer again now; gives whether all of them stand somewhere."""
        return await self._announce_all()

    @rpc
    async def discover(self, key: int) -> tuple[CapabilityRecord, ...]:
        """The records of the agents that offer a capability."""
        return tuple(await self._get(key))

    # -- the shelf

    def _store(self, record: CapabilityRecord) -> bool:
        """Keep a record that is genuine and alive, unless a later one is there."""
        if self.verify and not genuine(self.signature, record, record.key):
            return False
        if record.expires_ms <= self.clock() * 1000:
            return False
        agents = self.shelf.setdefault(record.key, {})
        held = agents.get(record.agent)
        if held is None or held.expires_ms < record.expires_ms:
            agents[record.agent] = record
        return True

    def _on_shelf(self, key: int) -> tuple[CapabilityRecord, ...]:
        """What I hold under a key that is still alive."""
        agents = self.shelf.get(key)
        if not agents:
            return ()
        now_ms = self.clock() * 1000
        return tuple(record for record in agents.values() if record.expires_ms > now_ms)

    def _clear_shelf(self) -> None:
        now_ms = self.clock() * 1000
        for key in list(self.shelf):
            agents = {a: r for a, r in self.shelf[key].items() if r.expires_ms > now_ms}
            if agents:
                self.shelf[key] = agents
            else:
                del self.shelf[key]

    def _good(self, records: Iterable[CapabilityRecord], key: int) -> list[CapabilityRecord]:
        """Those of the records that are genuine, under this key and alive."""
        if not self.verify:
            return list(records)
        now_ms = self.clock() * 1000
        return [
            record for record in records
            if record.expires_ms > now_ms and genuine(self.signature, record, key)
        ]  # fmt: skip
