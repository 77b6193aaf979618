"""Push gossip: every period each node sends all that it knows to a few random peers."""

from __future__ import annotations

from typing import ClassVar

from orrery.parts import Count, Positive, rpc
from orrery.systems.protocols.problems.broadcast import Broadcaster


class PushGossip(Broadcaster):
    """Push gossip of a growing set (Demers et al., "Epidemic algorithms", PODC 1987).

    A value reaches all n nodes in about log2 n + ln n rounds with `fanout` 1 (Pittel, 1987), and a
    lost message only costs a round, since everything is sent again in the next one.

    Knobs: `fanout`, how many peers hear of it each round; `period_s`, the length of a round.
    Differs from the paper: values only come and never change, so there are no timestamps and no
    death certificates; nodes never lose interest in a value.

    >>> PushGossip(fanout=2)
    PushGossip(fanout=2)
    """

    fanout: Count = 3
    period_s: Positive = 0.05

    tolerates: ClassVar[tuple[str, ...]] = (
        "drop", "duplicate", "reorder", "crash", "restart", "pause", "partition",
    )  # fmt: skip

    def start(self) -> None:
        self.seen: set[int] = set()

    @rpc
    async def broadcast(self, value: int) -> None:
        await self.learn(frozenset({value}))

    @rpc
    async def learn(self, values: frozenset[int]) -> None:
        for value in sorted(values - self.seen):
            self.emit(delivered=value)
        self.seen |= values

    async def main(self) -> None:
        while True:
            await self.sleep(self.period_s)
            for peer in self.rng.sample(self.peers, self.fanout):
                self.tell(peer, PushGossip.learn, frozenset(self.seen))
