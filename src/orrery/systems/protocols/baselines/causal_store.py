"""A causally consistent store: a write waits at each replica for what it depends on."""

from __future__ import annotations

from orrery.base.errors import DeadlineExceeded
from orrery.parts import Positive, rpc
from orrery.systems.protocols.problems.replicated_views import Shown, ViewStore


class CausalStore(ViewStore):
    """A register for each key in which no write is shown before one on which it depends.

    Ahamad, Neiger, Burns, Kohli, Hutto: "Causal memory" (1995). A replica numbers its writes and
    sends each with a vector that counts the writes of every replica it had applied by then. A
    replica applies a write when it has applied all that the vector counts, and shows the last
    write of a key that it applied.

    Knobs: `retry_s` until a send is tried again; `drop_dependency` plants a fault: the vector is
    cut to its own replica's entry, so that writes of others no longer count.

    **Differs from the paper.** Values are whole numbers, nothing is stored on disk, and a write
    depends on all that its replica had applied, whether its session read it or not.

    >>> CausalStore(drop_dependency=True)
    CausalStore(drop_dependency=True)
    """

    tolerates = ("drop", "duplicate", "reorder", "partition")

    retry_s: Positive = 0.2
    drop_dependency: bool = False

    def start(self) -> None:
        self.shown: dict[str, int] = {}
        self.have: list[int] = [0] * (len(self.peers) + 1)
        self.waiting: dict[tuple[int, int], tuple[str, int, tuple[int, ...]]] = {}
        self.applied = 0

    def _apply(self, key: str, value: int, origin: int) -> None:
        self.have[origin] += 1
        self.applied += 1
        self.shown[key] = value
        self.emit(applied=(value, None))

    @rpc
    async def put(self, session: int, key: str, value: int) -> int:
        needs = tuple(self.have)
        self._apply(key, value, self.id)
        if self.drop_dependency:
            needs = tuple(n if at == self.id else 0 for at, n in enumerate(needs))
        for peer in self.peers:
            self.spawn(self._send(peer, key, value, needs))
        return self.applied

    @rpc
    async def get(self, session: int, key: str) -> Shown:
        return Shown(self.shown.get(key, 0), self.applied)

    @rpc
    async def learn(self, key: str, value: int, needs: tuple[int, ...], origin: int) -> None:
        """Take a write of another replica; apply it, and what waited for it, when due."""
        if needs[origin] < self.have[origin]:
            return
        self.waiting[origin, needs[origin]] = (key, value, needs)
        while due := [name for name, (_, _, wants) in sorted(self.waiting.items())
                      if all(a >= b for a, b in zip(self.have, wants, strict=True))]:  # fmt: skip
            name = due[0]
            key, value, _ = self.waiting.pop(name)
            self._apply(key, value, name[0])

    async def _send(self, peer: int, key: str, value: int, needs: tuple[int, ...]) -> None:
        while True:
            try:
                async with self.deadline(self.retry_s):
                    await self.ask(peer, CausalStore.learn, key, value, needs, self.id)
                return
            except DeadlineExceeded:
                await self.sleep(self.rng.random() * self.retry_s)
