"""Push-pull gossip: each round a node calls one peer, and both learn what the other knows."""

from __future__ import annotations

from typing import ClassVar

from orrery.parts import Count, Positive, rpc
from orrery.systems.protocols import Broadcaster


class PushPull(Broadcaster):
    """Push-pull gossip of a growing set (Karp et al., "Randomized rumor spreading", FOCS 2000).

    Pushing is quick while few know a value, pulling when few do not; together they save the long
    tail in which pushed messages reach only those who know already.

    Knobs: `fanout`, how many peers are called each round; `period_s`, the length of a round;
    `pull`, whether the one called answers (off, it is push gossip).
    Differs from the paper: all values ever seen are exchanged, and nobody stops calling.

    >>> PushPull(pull=False)
    PushPull(pull=False)
    """

    fanout: Count = 1
    period_s: Positive = 0.05
    pull: bool = True

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

    @rpc
    async def called(self, by: int, values: frozenset[int]) -> None:
        await self.learn(values)
        if self.pull and self.seen - values:
            self.tell(by, PushPull.learn, frozenset(self.seen - values))

    async def main(self) -> None:
        while True:
            await self.sleep(self.period_s)
            for peer in self.rng.sample(self.peers, min(self.fanout, len(self.peers))):
                self.tell(peer, PushPull.called, self.id, frozenset(self.seen))
