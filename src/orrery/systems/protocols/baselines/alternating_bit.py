"""The alternating-bit protocol: a reliable line from one that loses and repeats."""

from __future__ import annotations

from typing import Any, ClassVar

from orrery.base.errors import DeadlineExceeded
from orrery.parts import Positive, rpc
from orrery.systems.protocols.problems.data_link import LinkEnd


class AlternatingBit(LinkEnd):
    """One bit tells a new item from a repeated one (Bartlett, Scantlebury and Wilkinson, 1969).

    The sender repeats an item with its bit until that bit is acknowledged, then turns the bit for
    the next one. The receiver acknowledges every frame and lets out only those whose bit is the
    expected one. With a loss p each way an item is sent 1 / (1 - p)^2 times on average.

    Knobs: `timeout_s`, after which an item is sent again; it should exceed a round trip.
    `alternate = False` takes the bit away: the receiver then lets out whatever comes.

    Differs from the paper: one direction only, so acknowledgements are frames of their own. As in
    the paper the line must keep the order of frames, and neither end may forget its bit, so
    reordering and restarts are not among what it tolerates.

    >>> AlternatingBit(timeout_s=0.1)
    AlternatingBit(timeout_s=0.1)
    """

    timeout_s: Positive = 0.01
    alternate: bool = True

    tolerates: ClassVar[tuple[str, ...]] = ("drop", "duplicate", "pause", "partition")

    def start(self) -> None:
        self.waiting: Any = self.queue()
        self.bit = False  # of the frame under way
        self.expected = False  # of the next new frame
        self.acknowledged: Any = self.event()
        self.count = 0

    async def main(self) -> None:
        number = 0
        while True:
            item = await self.waiting.get()
            self.acknowledged.clear()
            while True:
                self.emit(sent=number)
                self.tell(self.id + 1, AlternatingBit.frame, self.bit, item)
                try:
                    async with self.deadline(self.timeout_s):
                        await self.acknowledged.wait()
                    break
                except DeadlineExceeded:
                    continue
            self.bit = not self.bit
            number += 1

    @rpc
    async def offer(self, item: int) -> None:
        self.waiting.put(item)

    @rpc
    async def received(self) -> int:
        return self.count

    @rpc
    def frame(self, bit: bool, item: int, sender: int) -> None:
        """An item with its bit; the same bit again means the same item."""
        if sender != self.id - 1:
            return
        if bit == self.expected or not self.alternate:
            self.expected = not bit
            self.count += 1
            self.emit(delivered=item)
        self.tell(sender, AlternatingBit.got, bit)

    @rpc
    def got(self, bit: bool, sender: int) -> None:
        """The other end has the frame with this bit."""
        if sender == self.id + 1 and bit == self.bit:
            self.acknowledged.set()
