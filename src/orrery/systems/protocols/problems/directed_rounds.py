"""`RoundNode`: parts of `directed_consensus` that compute in synchronous rounds on their clocks."""

from __future__ import annotations

from typing import Any

from orrery.parts import Positive
from orrery.systems.protocols.problems.directed_node import DirectedNode

MOST_HEARD = 8  # messages of one sender in one round


class RoundNode(DirectedNode):
    """A part in rounds: it says what it tells, what it makes of what it hears, and how it ends.

    A subclass writes `total`, `news`, `take`, `close`, `result`, and an rpc `hear(number, news,
    sender)` with the type of its news, which hands on to `keep`. Knob: `round_s`, the seconds of a
    round, above the longest delay plus what clocks differ.
    """

    round_s: Positive = 0.05

    def start(self) -> None:
        super().start()
        self.round = -1
        self.last = 0
        self.inbox: dict[int, dict[int, list[Any]]] = {}

    def total(self) -> int:
        """How many rounds there are, once the graph is known; the state is made here."""
        raise AssertionError("a part in rounds says how many")

    def news(self, number: int) -> Any:
        """What this node tells everybody in a round; None is nothing."""

    def take(self, number: int, sender: int, news: Any) -> None:
        """Hear what one neighbour told in a round."""

    def close(self, number: int) -> None:
        """End a round."""

    def result(self) -> float:
        """The decision, after the last round."""
        return float(self.value)

    async def main(self) -> None:
        await self.begun()
        self.last = self.total()
        hear: Any = type(self).hear  # type: ignore[attr-defined]
        for number in range(self.last + 1):
            await self.until(self.begin_s + number * self.round_s)
            if number:
                self._end(number - 1)
            self.round = number
            if number < self.last and (news := self.news(number)) is not None:
                self.shout(hear, number, news)
        self.decide(self.result(), self.last)

    def _end(self, number: int) -> None:
        heard = self.inbox.pop(number, {})
        for sender in sorted(heard):
            for news in heard[sender]:
                self.take(number, sender, news)
        self.close(number)

    def keep(self, number: int, news: Any, sender: int) -> None:
        """Put what came over a link aside until its round ends."""
        if not self.linked(sender):
            return
        if not self.round <= number < self.last:
            self.refuse("too late" if number < self.round else "oversized")
            return
        heard = self.inbox.setdefault(number, {}).setdefault(sender, [])
        if len(heard) < MOST_HEARD and news not in heard:
            heard.append(news)
