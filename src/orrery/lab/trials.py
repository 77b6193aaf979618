"""Small parts that use everything an engine offers: workloads for the check of determinism."""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.base.errors import DeadlineExceeded, DiskError, Refused
from orrery.parts import Mail, Node, Swarm, cost, rpc


class Chatter(Node):
    """Asks with deadlines, races, waits for all, locks, queues and refusals, all at once."""

    rounds: int = 12

    def start(self) -> None:
        self.turn = self.lock()
        self.heard = self.queue()
        self.count = 0

    @rpc
    async def work(self, number: int, words: tuple[str, ...]) -> int:
        async with self.turn:
            await self.sleep(0.001 * (number % 4))
            self.count += 1
        if number % 7 == 3:
            raise Refused("not this one")
        self.heard.put((number, words))
        return self.count

    async def once(self, number: int) -> int:
        peer = self.rng.choice(self.peers)
        words = tuple(f"w{self.rng.below(100)}" for _ in range(number % 3))
        try:
            async with self.deadline(0.004):
                return int(await self.ask(peer, Chatter.work, number, words))
        except (DeadlineExceeded, Refused):
            return -1

    async def listen(self) -> None:
        while True:
            number, words = await self.heard.get()
            self.emit(heard=number, words=list(words))

    async def main(self) -> None:
        self.spawn(self.listen())
        for number in range(self.rounds):
            await self.all(self.once(3 * number), self.once(3 * number + 1))
            won = await self.first(self.once(3 * number + 2), self.sleep(0.003))
            self.emit(round=number, first=repr(won), count=self.count)


@cost(flops=2.0e9, bytes=1.0e7)
def _square(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    squared: np.ndarray[Any, Any] = values * values
    return squared


class Hauler(Node):
    """Moves arrays as flows, computes, writes to its disk and shares an object store."""

    rounds: int = 4

    async def main(self) -> None:
        await self.recover()
        for number in range(self.rounds):
            values = np.arange(2000 + 100 * self.id, dtype=np.float64) + number
            values = await self.compute(_square, values)
            peer = (self.id + 1 + number) % (len(self.peers) + 1)
            if peer != self.id:
                self.spawn(self.transfer(peer, values, tag=f"r{number}"))
            await self.keep(number)
            tag = await self.store.put_if("counter", str(self.id).encode(), None)
            self.emit(won=tag is not None, total=float(values.sum()))

    async def recover(self) -> None:
        """After a crash: what the disk still holds."""
        if self.disk.exists("log"):
            self.emit(found=len(await self.disk.read("log")))

    async def keep(self, number: int) -> None:
        try:
            await self.disk.append("log", bytes([number]) * 64)
            if number % 2:
                await self.disk.fsync("log")
        except DiskError as error:
            self.emit(disk=str(error))


class Rumour(Swarm):
    """A rumour among agents that are rows of arrays: the vectorised tier."""

    def start(self) -> None:
        self.knows = np.zeros(self.n, dtype=bool)
        self.knows[0] = True

    def step(self, mail: Mail) -> Mail | None:
        if len(mail):
            self.knows[mail.dst] = True
        self.emit(know=int(self.knows.sum()))
        tellers = np.flatnonzero(self.knows & self.alive)
        if self.idle():
            return None
        return Mail(tellers, self.rng.integers(0, self.n, len(tellers)), word=np.int8(1))

    def revived(self, agents: np.ndarray[Any, Any]) -> None:
        self.knows[agents] = False

    def idle(self) -> bool:
        return bool(self.knows[self.alive].all())
