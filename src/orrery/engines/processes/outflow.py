"""The sending side of the bulk lane: arrays leave in bites, each summed right before it is sent.

An array is larger than the caches. Summed as a whole before it is sent, its bytes would be fetched
from memory twice; bite by bite the system copies what the sum has just read. So the checksum
follows the array, and the socket is written here rather than by the event loop's transport, which
would have to be given all bites at once.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any

from orrery.engines.processes import wire
from orrery.engines.processes.checksum import Checksum
from orrery.engines.processes.net import Link, Net

# A bite stays in a core's own cache.
BITE_B = 256 << 10
TRAILER = struct.Struct("<I")
# Whatever is sent together: the head of an array and its first bite, the last one and its checksum.
Burst = list[memoryview]


def bursts(head: bytes, raw: memoryview) -> Iterator[Burst]:
    """A head, the bytes of an array after it, and their checksum, cut up as they should leave."""
    if not raw.nbytes:
        yield [memoryview(head)]
        return
    total = Checksum(raw)
    burst = [memoryview(head)]
    for begin in range(0, raw.nbytes, BITE_B):
        end = min(begin + BITE_B, raw.nbytes)
        total.reach(end)
        burst.append(raw[begin:end])
        if end == raw.nbytes:
            burst.append(memoryview(TRAILER.pack(total.value())))
        yield burst
        burst = []


class Outflow(Link):
    """The connection to one peer process that carries arrays."""

    def __init__(self, net: Net, most_queued_B: int) -> None:
        super().__init__(net, wire.LANE_BULK, most_queued_B)
        self._waiting: deque[tuple[Iterator[Burst], int]] = deque()
        self._waiting_B = 0
        self._burst: Burst = []
        self._socket: socket.socket | None = None
        self._armed = False

    def send_array(self, head: bytes, raw: memoryview) -> None:
        """Send a head and the bytes that follow it, or keep or lose them together."""
        self.send((head, raw))

    def queued_B(self) -> int:
        return self._waiting_B

    def size_of(self, item: Any) -> int:
        head, raw = item
        return len(head) + int(raw.nbytes)

    def write(self, item: Any) -> None:
        self._waiting.append((bursts(*item), self.size_of(item)))
        self._waiting_B += self.size_of(item)
        if not self._armed:
            self._flow()

    def opened(self, transport: Any) -> None:
        # The transport keeps its own descriptor to see the end of the connection; two watchers of
        # one descriptor are refused by some event loops, so this one has a copy.
        own = os.dup(transport.get_extra_info("socket").fileno())
        self._socket = socket.socket(fileno=own)
        self._socket.setblocking(False)

    def broken(self) -> None:
        if self._socket is not None:
            self._arm(False)
            self._socket.close()
            self._socket = None
        self._waiting.clear()
        self._waiting_B = 0
        self._burst = []

    def _arm(self, wanted: bool) -> None:
        """Be called when the socket takes more, or no longer."""
        if wanted != self._armed:
            assert self._socket is not None
            self._armed = wanted
            if wanted:
                self._net.loop.add_writer(self._socket.fileno(), self._flow)
            else:
                self._net.loop.remove_writer(self._socket.fileno())

    def _flow(self) -> None:
        """Write until the socket is full or nothing is left."""
        while self._socket is not None:
            if not self._burst and not self._next_burst():
                self._arm(False)
                return
            try:
                sent_B = self._socket.sendmsg(self._burst)
            except (BlockingIOError, InterruptedError):
                self._arm(True)
                return
            except OSError:
                self._transport.abort()  # which tells `broken`
                self._arm(False)
                return
            self._drop(sent_B)
            if self._burst:
                self._arm(True)  # it is full: asking again would be a call in vain
                return

    def _next_burst(self) -> bool:
        while self._waiting:
            flow, size_B = self._waiting[0]
            burst = next(flow, None)
            if burst is not None:
                self._burst = burst
                return True
            self._waiting.popleft()
            self._waiting_B -= size_B
        return False

    def _drop(self, sent_B: int) -> None:
        """Forget what has been sent of the burst."""
        burst = self._burst
        while burst and sent_B >= burst[0].nbytes:
            sent_B -= burst.pop(0).nbytes
        if sent_B:
            burst[0] = burst[0][sent_B:]


__all__ = ["BITE_B", "TRAILER", "Outflow", "bursts"]
