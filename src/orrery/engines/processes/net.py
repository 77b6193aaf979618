"""The sockets of one process: a listener, one outgoing connection for each peer process.

A connection carries frames one way, from the one who opened it. A peer that is gone costs nothing
but the messages sent to it: they are lost, as in virtual time, and the next one tries again after a
short back-off. Whoever cannot prove that it belongs to the run is closed and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable
from typing import Any, Protocol

from orrery.engines.processes import wire
from orrery.engines.processes.spec import Counters, RunSpec

HANDSHAKE_S = 5.0
# When a process hears again after long work, what has come meanwhile is read in this time.
GRACE_S = 0.5
# So often a peer may close a connection without a word before it counts as one of another run.
MOST_REFUSALS = 3
BACKOFF_S = (0.01, 0.5)
MOST_STRANGERS = 128
# What may wait for a peer that reads slowly or not at all before more is lost.
MOST_QUEUED_B = 256 << 20
# What the system may hold of a connection that carries arrays. Where processes share a core, each
# can so do megabytes of work at a stretch before it has to wait for another.
SEND_B, RECEIVE_B = 4 << 20, 4 << 20


class Net:
    """All connections of one process on the message lane."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        spec: RunSpec,
        group: int,
        counters: Counters,
        on_payload: Callable[[int, bytes], None],
    ) -> None:
        self.loop = loop
        self.spec = spec
        self.group = group
        self.counters = counters
        self.on_payload = on_payload
        self.strangers = 0
        self.accepted: set[asyncio.BaseTransport] = set()
        self._links: dict[int, Link] = {}
        self._server: Any = None

    async def listen(self) -> int:
        """Open the listener; gives its port."""
        self._server = await self.loop.create_server(lambda: Accepting(self), self.spec.host, 0)
        return int(self._server.sockets[0].getsockname()[1])

    def set_address(self, group: int, host: str, port: int) -> None:
        """A peer process lives here now (again after each restart)."""
        self.link(group).move((host, port))

    def link(self, group: int) -> Link:
        link = self._links.get(group)
        if link is None:
            link = self._links[group] = Link(self)
        return link

    def send(self, group: int, framed: bytes) -> None:
        self.link(group).send(framed)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in self._links.values():
            link.close()
        for transport in list(self.accepted):
            transport.abort()  # type: ignore[attr-defined]


class Link:
    """The way to one peer process: opened when first needed, and again after it broke."""

    def __init__(
        self, net: Net, lane: int = wire.LANE_MESSAGES, most_queued_B: int = MOST_QUEUED_B
    ) -> None:
        self._net = net
        self._lane = lane
        self._most_queued_B = most_queued_B
        self._address: tuple[str, int] | None = None
        self._queue: list[Any] = []
        self._queued_B = 0
        self._transport: Any = None
        self._opening: asyncio.Task[None] | None = None
        self._retry_at_s = 0.0
        self._backoff_s = BACKOFF_S[0]
        self._closed = False

    def move(self, address: tuple[str, int]) -> None:
        if address != self._address:
            self._address = address
            self._retry_at_s = 0.0
            self._backoff_s = BACKOFF_S[0]

    def send(self, item: Any) -> None:
        """Write something, or keep it while the connection opens; or lose it."""
        if self._transport is not None:
            if self.queued_B() > self._most_queued_B:
                self._net.counters.add("lost")
                return
            self.write(item)
            return
        size_B = self.size_of(item)
        if (
            self._address is None
            or self._closed
            or self._queued_B + size_B > self._most_queued_B
            or self._net.loop.time() < self._retry_at_s
        ):
            self._net.counters.add("lost")
            return
        self._queue.append(item)
        self._queued_B += size_B
        if self._opening is None:
            self._opening = self._net.loop.create_task(self._open())

    # -- what goes over it: frames here, arrays on the bulk lane

    def write(self, item: Any) -> None:
        """Write to the open connection."""
        self._transport.write(item)

    def size_of(self, item: Any) -> int:
        return len(item)

    def queued_B(self) -> int:
        """What an open connection has taken and not yet sent."""
        return int(self._transport.get_write_buffer_size())

    def opened(self, transport: Any) -> None:
        """The connection is there."""

    def broken(self) -> None:
        """The connection has gone, or is about to."""

    async def _open(self) -> None:
        """Open the connection; a peer that listens and does not answer is busy, not gone."""
        refusals = 0
        try:
            while True:
                try:
                    transport = await self._shake_hands()
                    break
                except TimeoutError:
                    continue
                except _Closed:
                    # Deaf for long, a peer may have given up this connection when it hears again.
                    refusals += 1
                    if refusals > MOST_REFUSALS:
                        raise
        except (OSError, wire.WireError):
            self._broke()
            return
        finally:
            self._opening = None
        self._backoff_s = BACKOFF_S[0]
        self._transport = transport
        self.opened(transport)
        queue, self._queue, self._queued_B = self._queue, [], 0
        for item in queue:
            self.write(item)

    async def _shake_hands(self) -> Any:
        assert self._address is not None
        net = self._net
        opener = Opening(net.loop, net.spec.secret, self._lane, net.group, self._broke)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await net.loop.create_connection(lambda: opener, *self._address)
                return await opener.welcomed
        except BaseException:
            opener.abort()
            raise

    def _broke(self) -> None:
        """The peer is gone: what waited for it is lost, and the next message tries again."""
        self.broken()
        self._transport = None
        self._net.counters.add("lost", len(self._queue))
        self._queue, self._queued_B = [], 0
        self._retry_at_s = self._net.loop.time() + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, BACKOFF_S[1])

    def close(self) -> None:
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
        self.broken()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


class _Closed(ConnectionError):
    """A peer took a connection and closed it without a word."""


class Opening(asyncio.Protocol):
    """The connecting side: answers the challenge, checks the welcome, then only writes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        secret: bytes,
        lane: int,
        group: int,
        on_broken: Callable[[], None],
    ) -> None:
        self.welcomed: asyncio.Future[Any] = loop.create_future()
        self._secret = secret
        self._lane = lane
        self._group = group
        self._on_broken = on_broken
        self._transport: Any = None
        self._buffer = bytearray()
        self._nonce = secrets.token_bytes(wire.NONCE_B)
        self._expected: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        no_delay(transport)
        if self._lane == wire.LANE_BULK:
            wide(transport)

    def data_received(self, data: bytes) -> None:
        if self.welcomed.done():
            return  # nothing is said on this way back after the welcome
        self._buffer += data
        try:
            if self._expected is None:
                if len(self._buffer) < wire.HELLO.size:
                    return
                theirs = wire.read_hello(bytes(self._buffer[: wire.HELLO.size]))
                del self._buffer[: wire.HELLO.size]
                secret, lane, group, ours = self._secret, self._lane, self._group, self._nonce
                self._transport.write(wire.opening(secret, lane, group, theirs, ours))
                self._expected = wire.welcome(secret, lane, group, theirs, ours)
            if len(self._buffer) >= wire.MAC_B:
                if bytes(self._buffer[: wire.MAC_B]) != self._expected:
                    raise wire.WireError("the listener does not know the secret of this run")
                self.welcomed.set_result(self._transport)
        except wire.WireError as error:
            self.welcomed.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(_Closed("closed before the welcome"))
        elif not self.welcomed.cancelled() and self.welcomed.exception() is None:
            self._on_broken()

    def abort(self) -> None:
        """Give this connection up; its end is then nobody's business any more."""
        self._on_broken = _nothing
        if self._transport is not None:
            self._transport.abort()
        if not self.welcomed.done():
            self.welcomed.cancel()


def _nothing() -> None:
    pass


class Door(Protocol):
    """What the accepting side of a lane needs of whoever listens."""

    loop: asyncio.AbstractEventLoop
    spec: RunSpec
    counters: Counters
    strangers: int
    accepted: set[asyncio.BaseTransport]

    @property
    def on_payload(self) -> Callable[[int, bytes], None]: ...


class Accepting(asyncio.Protocol):
    """The listening side: challenges, verifies, then cuts frames out of the stream."""

    lane = wire.LANE_MESSAGES

    def __init__(self, net: Door) -> None:
        self._net = net
        self._group = -1
        self._transport: Any = None
        self._buffer = bytearray()
        self._nonce = secrets.token_bytes(wire.NONCE_B)
        self._reader = wire.FrameReader(net.spec.max_frame_B)
        self._timer: asyncio.TimerHandle | None = None
        self._counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        net = self._net
        self._transport = transport
        net.accepted.add(transport)
        no_delay(transport)
        net.strangers += 1
        if net.strangers > MOST_STRANGERS:
            self._refuse()
            return
        self._transport.write(wire.hello(self._nonce))
        self._timer = net.loop.call_later(HANDSHAKE_S, self._last_chance)

    def _last_chance(self) -> None:
        """The time for a proof is up; but was it the other side that kept us waiting?"""
        self._timer = self._net.loop.call_later(GRACE_S, self._refuse)

    def data_received(self, data: bytes) -> None:
        if self._group < 0:
            self._buffer += data
            if len(self._buffer) < wire.OPEN.size:
                return
            data = self._verify()
            if not data:
                return
        counters = self._net.counters
        try:
            for payload in self._reader.feed(data):
                self._take(payload)
        except wire.WireError:
            counters.add("oversize")
            self._transport.abort()
        if self._reader.corrupt:
            counters.add("corrupt", self._reader.corrupt)
            self._reader.corrupt = 0

    def _take(self, payload: bytes) -> None:
        self._net.on_payload(self._group, payload)

    def _verify(self) -> bytes:
        net = self._net
        head = bytes(self._buffer[: wire.OPEN.size])
        try:
            lane, group, proof = wire.check_opening(net.spec.secret, head, self._nonce)
            if lane != self.lane or group > net.spec.driver_group:
                raise wire.WireError("the other side opened the wrong lane")
        except wire.WireError:
            self._refuse()
            return b""
        self._group = group
        net.strangers -= 1
        if self._timer is not None:
            self._timer.cancel()
        self._transport.write(proof)
        rest = bytes(self._buffer[wire.OPEN.size :])
        self._buffer.clear()
        return rest

    def _refuse(self) -> None:
        if not self._counted:
            self._counted = True
            self._net.counters.add("refused")
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._net.accepted.discard(self._transport)
        if self._timer is not None:
            self._timer.cancel()
        if self._group < 0:
            self._net.strangers -= 1
            if not self._counted:
                self._counted = True
                self._net.counters.add("refused")


def wide(transport: asyncio.BaseTransport) -> None:
    """Set how much of an array may be under way on a connection."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        for option, size_B in ((socket.SO_SNDBUF, SEND_B), (socket.SO_RCVBUF, RECEIVE_B)):
            with contextlib.suppress(OSError):  # a system may allow less
                sock.setsockopt(socket.SOL_SOCKET, option, size_B)


def no_delay(transport: asyncio.BaseTransport) -> None:
    """Small messages leave at once."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
