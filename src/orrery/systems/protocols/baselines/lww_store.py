"""A last-writer-wins store: every replica takes writes at once, the latest time stamp is shown."""

from __future__ import annotations

from orrery.base.errors import DeadlineExceeded
from orrery.parts import Positive, rpc
from orrery.systems.protocols.problems.replicated_views import Shown, ViewStore


class LWWStore(ViewStore):
    """A register for each key that shows the write with the highest time stamp.

    Thomas (1979), "A majority consensus approach to concurrency control", has the rule; Dynamo
    (2007) and Cassandra made it the usual one. A replica stamps a write with its own clock and
    applies it at once; it then sends it to each other replica until that one acknowledges. Each
    write travels by itself, so writes arrive in any order, and no replica waits for any other.

    Knobs: `retry_s` until a send is tried again.

    **Differs from the papers.** Values are whole numbers, nothing is stored on disk.

    >>> LWWStore(retry_s=0.1)
    LWWStore(retry_s=0.1)
    """

    tolerates = ("drop", "duplicate", "reorder", "partition")

    retry_s: Positive = 0.2

    def start(self) -> None:
        self.best: dict[str, tuple[float, int, int]] = {}
        self.known: set[int] = set()

    def _apply(self, key: str, value: int, stamp_s: float, origin: int) -> None:
        if value in self.known:
            return
        self.known.add(value)
        self.emit(applied=(value, (stamp_s, origin)))
        if key not in self.best or (stamp_s, origin) > self.best[key][:2]:
            self.best[key] = (stamp_s, origin, value)

    @rpc
    async def put(self, session: int, key: str, value: int) -> int:
        stamp_s = self.clock()
        self._apply(key, value, stamp_s, self.id)
        for peer in self.peers:
            self.spawn(self._send(peer, key, value, stamp_s))
        return len(self.known)

    @rpc
    async def get(self, session: int, key: str) -> Shown:
        return Shown(self.best[key][2] if key in self.best else 0, len(self.known))

    @rpc
    async def learn(self, key: str, value: int, stamp_s: float, origin: int) -> None:
        """Take a write of another replica."""
        self._apply(key, value, stamp_s, origin)

    async def _send(self, peer: int, key: str, value: int, stamp_s: float) -> None:
        while True:
            try:
                async with self.deadline(self.retry_s):
                    await self.ask(peer, LWWStore.learn, key, value, stamp_s, self.id)
                return
            except DeadlineExceeded:
                # Writes that were held up do not go out again in the order of their making.
                await self.sleep(self.rng.random() * self.retry_s)
