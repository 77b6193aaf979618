"""The bulk lane: arrays on connections of their own, received straight into their final memory.

A header says what comes (which transfer, from and to whom, type, shape); the receiver makes the
array and lets the socket fill it; a checksum follows. Small messages never wait behind an array,
because they travel on other connections. When all is there and fits, the sender is told.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import sys
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from orrery.base import codec
from orrery.base.errors import CodecError
from orrery.engines.memory import poured
from orrery.engines.processes import wire
from orrery.engines.processes.checksum import Checksum
from orrery.engines.processes.net import GRACE_S, HANDSHAKE_S, MOST_STRANGERS, no_delay, wide
from orrery.engines.processes.outflow import TRAILER, Outflow
from orrery.engines.processes.tasks import Call, Queue

if TYPE_CHECKING:
    from orrery.engines.processes.post import Post

MOST_ARRAY_B = 1 << 34
MOST_HEADER_B = 64 << 10
# How many connections two processes may share out their arrays over.
MOST_WAYS = 64
# Memory of large arrays is used again while it is warm: fresh pages cost as much as the transfer.
_LEAST_POOLED_B = 128 << 10
_MOST_POOLED_B = 64 << 20
# (transfer, source, destination, tag, dtype, shape)
_Header = tuple[int, int, int, str, str, tuple[int, ...]]


class Pool:
    """Memory for arrays that come in, used again when nobody holds an array in it any more."""

    def __init__(self) -> None:
        self._blocks: list[Any] = [np.empty(0, np.uint8)]
        self._held_B = 0
        # How many references are counted here for a block that nobody uses; views count as well.
        self._free = self._references(0)
        self._blocks.clear()

    def _references(self, place: int) -> int:
        return sys.getrefcount(self._blocks[place])

    def array(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array that is not filled yet."""
        size_B = math.prod(shape) * dtype.itemsize
        if not _LEAST_POOLED_B <= size_B <= _MOST_POOLED_B:
            return np.empty(shape, dtype)
        return self._block(size_B)[:size_B].view(dtype).reshape(shape)

    def _block(self, size_B: int) -> Any:
        for place in range(len(self._blocks)):
            fits = size_B <= self._blocks[place].size <= 2 * size_B
            if fits and self._references(place) == self._free:
                return self._blocks[place]
        block = np.empty(size_B, np.uint8)
        self._blocks.append(block)
        self._held_B += size_B
        while self._held_B > _MOST_POOLED_B:
            self._held_B -= self._blocks.pop(0).size
        return block


class Offer:
    """Memory of a task that waits for an array, to be filled by the socket itself.

    With a fold the socket fills other memory, and what comes is folded into this one on the way.
    When the array is there, the offer goes through the inbox in its place.
    """

    __slots__ = ("array", "fold", "full", "raw", "receiving")

    def __init__(self, array: Any, fold: Any = None) -> None:
        self.array = array
        self.fold = fold
        self.raw: Any = None
        self.full = False
        self.receiving: _Receiving | None = None

    def withdraw(self) -> None:
        """The task has gone: the array that is coming, or has come, gets memory of its own."""
        if self.full:
            self.array = self.array.copy() if self.fold is None else self.raw
        elif self.receiving is not None:
            self.receiving.turn_aside()


class Bulk:
    """The transfers of one process, in both directions."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self._inboxes: dict[tuple[int, int, str], Queue] = {}
        self._offers: dict[tuple[int, int, str], Offer] = {}
        self._links: dict[tuple[int, int], Outflow] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._server: Any = None
        self.accepted: set[asyncio.BaseTransport] = set()
        self.strangers = 0
        self.pool = Pool()

    async def listen(self) -> int:
        loop = self.post.kernel.loop
        self._server = await loop.create_server(lambda: _Receiving(self), self.post.spec.host, 0)
        return int(self._server.sockets[0].getsockname()[1])

    def set_address(self, group: int, host: str, port: int) -> None:
        self._addresses[group] = (host, port)
        for (other, _), link in self._links.items():
            if other == group:
                link.move((host, port))

    def _link(self, group: int, tag: str) -> Outflow:
        """The connection for a tag: one ending in `#k` goes over connection k of the two processes.

        Arrays of one tag stay in order, as they share a connection.
        """
        _, mark, number = tag.rpartition("#")
        way = int(number) % MOST_WAYS if mark and number.isdecimal() else 0
        link = self._links.get((group, way))
        if link is None:
            link = self._links[group, way] = Outflow(self.post.net, 2 * MOST_ARRAY_B)
            if group in self._addresses:
                link.move(self._addresses[group])
        return link

    def inbox(self, node: int, peer: int, tag: str) -> Queue:
        key = (node, peer, tag)
        queue = self._inboxes.get(key)
        if queue is None:
            queue = self._inboxes[key] = Queue(self.post.kernel)
        return queue

    def _deliver(self, node: int, peer: int, tag: str, item: Any) -> None:
        # Whoever offered memory waits first in line, so this item is his, whatever memory it is in.
        self._offers.pop((node, peer, tag), None)
        self.inbox(node, peer, tag).put(item)

    async def receive(
        self, node: int, peer: int, tag: str, into: Any = None, fold: Any = None
    ) -> Any:
        """The next array of a tag; in the memory of `into` and folded, where those are given."""
        inbox, key = self.inbox(node, peer, tag), (node, peer, tag)
        if into is None or len(inbox) or inbox.waiting():
            return poured(_unpacked(await inbox.get()), into, fold)
        offer = self._offers[key] = Offer(into, fold)
        got = None
        try:
            got = await inbox.get()
        finally:
            if self._offers.get(key) is offer:
                del self._offers[key]
            if got is not offer:
                offer.withdraw()
        return into if got is offer else poured(_unpacked(got), into, fold)

    def offered(self, header: _Header, dtype: Any) -> Offer | None:
        """Memory that waits for just this array."""
        _, src, dst, tag, _, shape = header
        offer = self._offers.get((dst, src, tag))
        if offer is None or offer.receiving is not None:
            return None
        fits = offer.array.shape == shape and offer.array.dtype == dtype
        return offer if fits else None

    async def send(self, src: int, dst: int, data: Any, tag: str) -> None:
        """Returns when the last byte arrived; a transfer to or from a dead node never does."""
        post, kernel = self.post, self.post.kernel
        if data.nbytes > MOST_ARRAY_B:
            raise CodecError(
                f"transfer: {data.nbytes} bytes are over the cap of {MOST_ARRAY_B}; "
                "send it in parts"
            )
        post.counters.add("transfers")
        post.counters.add("transfer_bytes", int(data.nbytes))
        arrived = Call(kernel)
        now_ns = kernel.now_ns()
        due_ns = post.shim.bulk_due(src, dst, int(data.nbytes), now_ns)
        if due_ns <= now_ns:
            self._leave(src, dst, data, tag, arrived)
        elif due_ns < 1 << 62:
            kernel.call_at(due_ns, lambda: self._leave(src, dst, data, tag, arrived))
        await arrived.wait()

    def _leave(self, src: int, dst: int, data: Any, tag: str, arrived: Call) -> None:
        post = self.post
        group = post.spec.group_of[dst]
        if group == post.group:
            self._deliver(dst, src, tag, data)
            arrived.resolve(None)
            return
        raw = memoryview(data.reshape(-1).view("u1")) if data.nbytes else memoryview(b"")
        number = post.next_number()
        post.arrivals[number] = arrived
        header: _Header = (number, src, dst, tag, data.dtype.str, data.shape)
        head = wire.frame(codec.encode(header), MOST_HEADER_B, f"the tag {tag[:20]!r}")
        self._link(group, tag).send_array(head, raw)

    def take(self, group: int, header: _Header, item: Any) -> None:
        """An array, or the offer that holds it, is complete: hand it over and tell the sender."""
        number, src, dst, tag = header[:4]
        post = self.post
        self._deliver(dst, src, tag, item)
        note = wire.Message(wire.ARRIVED, dst, src, number, "", b"")
        post.net.send(group, wire.frame(wire.pack_message(note)))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in self._links.values():
            link.close()
        for transport in list(self.accepted):
            transport.abort()  # type: ignore[attr-defined]


def _unpacked(item: Any) -> Any:
    return item.array if type(item) is Offer else item


class _Receiving(asyncio.BufferedProtocol):
    """The listening side of the lane: always knows how many bytes must come next, and where to."""

    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk
        self._group = -1
        self._transport: Any = None
        self._nonce = secrets.token_bytes(wire.NONCE_B)
        self._timer: asyncio.TimerHandle | None = None
        self._header: _Header | None = None
        self._array: Any = None
        self._offer: Offer | None = None
        self._sum: Checksum | None = None
        self._crc = 0
        self._found = 0
        self._folded = 0
        self._counted = False
        self._expect(bytearray(wire.OPEN.size), self._verify)

    def _expect(self, target: Any, then: Any) -> None:
        self._target = memoryview(target).cast("B")
        self._filled = 0
        self._then = then

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._bulk.accepted.add(transport)
        self._bulk.strangers += 1
        no_delay(transport)
        wide(transport)
        if self._bulk.strangers > MOST_STRANGERS:
            self._refuse()
            return
        self._transport.write(wire.hello(self._nonce))
        self._timer = self._bulk.post.kernel.loop.call_later(HANDSHAKE_S, self._last_chance)

    def _last_chance(self) -> None:
        """The time for a proof is up; but this process may have been deaf for most of it."""
        self._timer = self._bulk.post.kernel.loop.call_later(GRACE_S, self._refuse)

    def get_buffer(self, sizehint: int) -> Any:
        return self._target[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._sum is not None:
            self._sum.reach(self._filled)
            if self._offer is not None and self._offer.fold is not None:
                self._fold(self._offer, self._filled // self._array.itemsize)
        if self._filled < len(self._target):
            return
        try:
            self._then()
        except (wire.WireError, CodecError, MemoryError):
            self._refuse("malformed")

    def _verify(self) -> None:
        post = self._bulk.post
        try:
            lane, group, proof = wire.check_opening(
                post.spec.secret, self._target.tobytes(), self._nonce
            )
            if lane != wire.LANE_BULK or group > post.spec.driver_group:
                raise wire.WireError("the other side opened the wrong lane")
        except wire.WireError:
            self._refuse()
            return
        self._group = group
        self._bulk.strangers -= 1
        if self._timer is not None:
            self._timer.cancel()
        self._transport.write(proof)
        self._next()

    def _next(self) -> None:
        self._array = self._header = self._sum = None
        self._let_go()
        self._expect(bytearray(wire.FRAME.size), self._on_frame)

    def _on_frame(self) -> None:
        length, self._crc = wire.FRAME.unpack(self._target)
        if not 0 < length <= MOST_HEADER_B:
            raise wire.WireError(f"a header of {length} bytes is refused")
        self._expect(bytearray(length), self._on_header)

    def _on_header(self) -> None:
        data = self._target.tobytes()
        if zlib.crc32(data) != self._crc:
            raise wire.WireError("the checksum of a header fails")
        header: _Header = codec.decode(data, _Header)
        _, src, dst, _, dtype_text, shape = header
        post = self._bulk.post
        places = post.spec.group_of
        if dst not in post.hosts or not 0 <= src < len(places) or places[src] != self._group:
            raise wire.WireError(f"an array from node {src} to node {dst} came the wrong way")
        try:
            dtype = np.dtype(dtype_text)
        except (TypeError, ValueError, SyntaxError):
            raise wire.WireError("an array has an unknown dtype") from None
        size_B = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or len(shape) > codec.MAX_DIMS or min(shape, default=0) < 0:
            raise wire.WireError("an array has an unusable dtype or shape")
        if size_B > MOST_ARRAY_B:
            raise wire.WireError(f"an array of {size_B} bytes is over the cap of {MOST_ARRAY_B}")
        self._header = header
        self._offer = self._bulk.offered(header, dtype)
        self._folded = 0
        if self._offer is not None:
            self._offer.receiving = self
        if self._offer is None or self._offer.fold is not None:
            self._array = self._bulk.pool.array(shape, dtype)
        else:
            self._array = self._offer.array
        if not size_B:
            self._hand_over()
            return
        self._expect(self._array.reshape(-1).view("u1"), self._on_bytes)
        self._sum = Checksum(self._target)

    def _fold(self, offer: Offer, items: int) -> None:
        """Fold what has come since the last time, as long as it is in the cache."""
        combine, own = offer.fold
        stretch = slice(self._folded, items)
        combine(
            self._array.reshape(-1)[stretch], own.reshape(-1)[stretch],
            out=offer.array.reshape(-1)[stretch],
        )  # fmt: skip
        self._folded = items

    def turn_aside(self) -> None:
        """What has come so far, and the rest, go to other memory."""
        assert self._header is not None and self._offer is not None
        if self._offer.fold is not None:  # it is in memory of its own already
            self._offer = None
            return
        array = self._bulk.pool.array(self._header[5], self._array.dtype)
        if self._sum is None:  # all of it is there, but for the checksum
            array[...] = self._array
        else:
            fresh = memoryview(array.reshape(-1).view("u1")).cast("B")
            fresh[: self._filled] = self._target[: self._filled]
            self._target = fresh
            self._sum.move(fresh)
        self._offer, self._array = None, array

    def _let_go(self) -> None:
        if self._offer is not None:
            self._offer.receiving = None
            self._offer = None

    def _on_bytes(self) -> None:
        """The array is there; whether it is what was sent, its checksum will tell."""
        assert self._sum is not None
        self._found = self._sum.value()
        self._sum = None
        self._expect(bytearray(TRAILER.size), self._on_checksum)

    def _on_checksum(self) -> None:
        if TRAILER.unpack(self._target)[0] == self._found:
            self._hand_over()
        else:
            self._bulk.post.counters.add("corrupt")
            self._next()

    def _hand_over(self) -> None:
        assert self._header is not None
        if self._offer is not None:
            self._offer.full = True
            self._offer.raw = self._array
            self._bulk.take(self._group, self._header, self._offer)
        else:
            self._bulk.take(self._group, self._header, self._array)
        self._next()

    def _refuse(self, counter: str = "refused") -> None:
        if not self._counted:
            self._counted = True
            self._bulk.post.counters.add(counter)
        self._transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._bulk.accepted.discard(self._transport)
        self._let_go()
        if self._timer is not None:
            self._timer.cancel()
        if self._group < 0:
            self._bulk.strangers -= 1
            if not self._counted:
                self._counted = True
                self._bulk.post.counters.add("refused")
