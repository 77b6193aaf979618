"""The line between the parent and an actor: one connection, opened by the actor with a proof.

Reports go up and orders go down in frames, as over the socket pair of a process. What a node emits
is in the hands of the system before `emit` returns, so a kill a moment later loses nothing. An
actor on another machine first asks the parent a few times for its clock.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orrery.engines.processes import values, wire
from orrery.engines.processes.net import HANDSHAKE_S, Accepting
from orrery.engines.processes.node import CONTROL_B
from orrery.engines.processes.spec import Counters, RunSpec

CLOCK_QUESTIONS = 8


class Lines:
    """The parent's listener for lines; gives each line that proved itself to `on_open`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        spec: RunSpec,
        counters: Counters,
        on_word: Callable[[Line, Any], None],
        on_lost: Callable[[Line], None],
    ) -> None:
        self.loop = loop
        self.spec = spec
        self.counters = counters
        self.strangers = 0
        self.accepted: set[asyncio.BaseTransport] = set()
        self.on_word = on_word
        self.on_lost = on_lost
        self._server: Any = None

    def on_payload(self, group: int, payload: bytes) -> None:
        """Lines take their payloads themselves."""

    async def listen(self) -> int:
        self._server = await self.loop.create_server(lambda: Line(self), self.spec.host, 0)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for transport in list(self.accepted):
            transport.abort()  # type: ignore[attr-defined]


class Line(Accepting):
    """The parent's end of the line to one actor."""

    lane = wire.LANE_CONTROL

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self._lines = lines
        self._reader = wire.FrameReader(CONTROL_B)
        self.actor: Any = None  # known from its first word on
        self.closed = False

    @property
    def group(self) -> int:
        return self._group

    def _take(self, payload: bytes) -> None:
        words = values.unpack(payload)
        if words[0] == "clock":
            self.say("clock", time.monotonic_ns())
        else:
            self._lines.on_word(self, words)

    def say(self, *words: Any) -> None:
        """Tell the actor something; one that is gone hears nothing."""
        if not self.closed:
            self._transport.write(wire.frame(values.pack(words), CONTROL_B))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.closed = True
        if self._group >= 0:
            self._lines.on_lost(self)


# -- the actor's side


def open_line(address: tuple[str, int], secret: bytes, group: int) -> socket.socket:
    """Connect to the parent and prove that we belong to its run."""
    line = socket.create_connection(address, timeout=HANDSHAKE_S)
    try:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        theirs = wire.read_hello(_read(line, wire.HELLO.size))
        ours = secrets.token_bytes(wire.NONCE_B)
        line.sendall(wire.opening(secret, wire.LANE_CONTROL, group, theirs, ours))
        if _read(line, wire.MAC_B) != wire.welcome(secret, wire.LANE_CONTROL, group, theirs, ours):
            raise wire.WireError("the parent does not know the secret of this run")
    except BaseException:
        line.close()
        raise
    line.settimeout(None)
    return line


def clock_ahead_ns(line: socket.socket) -> int:
    """By how much the parent's monotonic clock is ahead of ours: the answer of the quickest ask."""
    best: tuple[int, int] | None = None
    for _ in range(CLOCK_QUESTIONS):
        asked_ns = time.monotonic_ns()
        line.sendall(wire.frame(values.pack(("clock",)), CONTROL_B))
        length, _ = wire.FRAME.unpack(_read(line, wire.FRAME.size))
        word, theirs_ns = values.unpack(_read(line, length))
        heard_ns = time.monotonic_ns()
        assert word == "clock"
        found = (heard_ns - asked_ns, theirs_ns - (asked_ns + heard_ns) // 2)
        best = found if best is None else min(best, found)
    assert best is not None
    return best[1]


def _read(line: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        data = line.recv(length - len(found))
        if not data:
            raise ConnectionError("the parent closed the line")
        found += data
    return bytes(found)


def machine_mark() -> str:
    """Equal for processes that see each other's numbers, clock and files; different elsewhere."""
    parts = [socket.gethostname()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid", "/proc/self/ns/mnt"):
        try:
            there = Path(path)
            parts.append(there.read_text().strip() if "boot" in path else str(there.readlink()))
        except OSError:
            parts.append("")
    return "|".join(parts)


__all__ = ["Line", "Lines", "clock_ahead_ns", "machine_mark", "open_line"]
