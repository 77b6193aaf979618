"""Flooding: whoever hears a value for the first time passes it on to all neighbours, once."""

from __future__ import annotations

from typing import ClassVar

from orrery.parts import rpc
from orrery.systems.protocols.problems.broadcast import Broadcaster


class Flood(Broadcaster):
    """Reliable broadcast by flooding (Hadzilacos and Toueg, 1994): deliver after passing it on.

    Each node sends a value once to each neighbour, so a value costs one message for each cable and
    direction (n (n - 1) behind a switch) and takes as long as the longest of the shortest paths.
    The value is passed on before it is delivered, so behind a switch whatever a lasting node
    delivers, all lasting nodes deliver, however many others stop.

    Differs from the textbook: links are not made reliable below it, so a lost message is lost for
    good and a restarted node never hears old values. It therefore declares neither.
    """

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash", "pause")

    def start(self) -> None:
        self.seen: set[int] = set()

    @rpc
    async def broadcast(self, value: int) -> None:
        self.forward(value)

    @rpc
    async def hear(self, value: int) -> None:
        self.forward(value)

    def forward(self, value: int) -> None:
        """Pass a new value on, then deliver it; an old one is dropped."""
        if value in self.seen:
            return
        self.seen.add(value)
        for peer in self.neighbours:
            self.tell(peer, Flood.hear, value)
        self.emit(delivered=value)
