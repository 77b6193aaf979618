"""A child process: its nodes, and the line to the parent over an inherited socket pair.

What a node emits is written to that line before `emit` returns, so a SIGKILL a moment later loses
nothing. When the line ends, the parent is gone, and so is the child.
"""

from __future__ import annotations

import asyncio
import functools
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any

from orrery.engines.processes import values, wire
from orrery.engines.processes.loops import new_loop
from orrery.engines.processes.place import Place
from orrery.engines.processes.spec import Counters, RunSpec
from orrery.engines.processes.store import StoreDoor
from orrery.engines.processes.tasks import Call

CONTROL_B = 1 << 30
_IDLE_EVERY_S = 0.02


class ChildPlace(Place):
    """The place of one or several nodes in a process of their own."""

    def __init__(
        self,
        spec: RunSpec,
        group: int,
        again: int,
        loop: asyncio.AbstractEventLoop,
        line: socket.socket,
    ) -> None:
        counters = Counters(spec.folder, len(spec.groups) + 1, group, len(spec.faults))
        super().__init__(spec, group, again, loop, counters)
        self._line = line
        self._reader = wire.FrameReader(CONTROL_B)
        self._requests: dict[int, Call] = {}
        self._malformed = 0
        self.store = StoreDoor(self.kernel, spec.world, spec.raw, self._request)
        self._mine = [self.add(spec.cast[node][1], node) for node in spec.groups[group]]

    # -- reports

    def say(self, *words: Any) -> None:
        """Write to the parent, at once and whole."""
        framed = wire.frame(values.pack(words), CONTROL_B, "what a node emits")
        left = memoryview(framed)
        while left:
            try:
                left = left[self._line.send(left) :]
            except BlockingIOError:
                # The event loop made the line non-blocking; a full one is waited for here, so that
                # what was emitted before a crash is never half written.
                select.select([], [self._line], [], 1.0)

    def emit(self, time_s: float, node: int, values: dict[str, Any]) -> None:
        self.say("emit", time_s, node, values)

    def tap(self, time_s: float, node: int, *what: Any) -> None:
        self.say("tap", time_s, node, *what)

    def log(self, time_s: float, node: int, words: str) -> None:
        self.say("log", time_s, node, words)

    def fail(self, host: Any, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        time_s = self.kernel.now_ns() / 1e9
        self.say("failed", host.id, time_s, f"{type(error).__name__}: {error}", trace[-8000:])

    def malformed(self, why: str) -> None:
        self._malformed += 1
        if self._malformed <= 3:  # a flood of bad messages must not become a flood of reports
            self.say("malformed", self.kernel.now_ns() / 1e9, why[:1000])

    def _request(self, call: Call, op: str, key: str, data: bytes, tag: str | None) -> None:
        call.number = self.post.next_number()
        self._requests[call.number] = call
        self.say("store", call.number, op, key, data, tag)

    # -- commands

    async def serve(self) -> None:
        """Open the listeners, say so, and do as the parent says."""
        loop = self.kernel.loop
        ports = await self.post.net.listen(), await self.bulk.listen()
        loop.add_reader(self._line.fileno(), self._read_line)
        loop.call_later(_IDLE_EVERY_S, self._show_idle)
        self.say("ready", self.again, *ports)
        await loop.create_future()

    def _read_line(self) -> None:
        try:
            data = self._line.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._orphaned()
        for payload in self._reader.feed(data):
            word, *rest = values.unpack(payload)
            getattr(self, "_on_" + word)(*rest)

    def _orphaned(self) -> None:
        """The parent is gone, and so is the run."""
        os._exit(0)

    def _on_peers(self, peers: dict[int, tuple[str, int, int]]) -> None:
        for group, (host, port, bulk_port) in peers.items():
            self.post.net.set_address(group, host, port)
            self.bulk.set_address(group, host, bulk_port)

    def _on_start(self, start_ns: int) -> None:
        self.kernel.start_ns = start_ns
        for host in self._mine:
            self.kernel.call_at(0, functools.partial(self.start, host))

    def _on_stored(self, number: int, value: Any) -> None:
        call = self._requests.pop(number, None)
        if call is not None:
            call.resolve(value)

    def _on_hang(self, node: int, hung: bool) -> None:
        host = self.post.hosts[node]
        if hung:
            self.kernel.hold(host)
        else:
            self.kernel.release(host)

    def _on_notice(self, node: int, left_s: float) -> None:
        host = self.post.hosts[node]
        host.emit(spot_notice_s=left_s)
        host.spawn(_tell_part(host, left_s))

    def _on_asks(self) -> None:
        self.say("asks", self.kernel.open_asks())

    def _on_stop(self) -> None:
        self.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _show_idle(self) -> None:
        """Show the parent whether anything can still happen here, for telling a quiet run."""
        self.counters.put("steps", self.kernel.steps)
        self.counters.put("idle", int(self.kernel.idle))
        self.kernel.loop.call_later(_IDLE_EVERY_S, self._show_idle)


async def _tell_part(host: Any, left_s: float) -> None:
    """Call the part's `on_notice(seconds left)`, plain or async, where it has one."""
    on_notice = getattr(type(host), "on_notice", None)
    if on_notice is not None:
        result = on_notice(host, left_s)
        if hasattr(result, "__await__"):
            await result


def run_node(spec: RunSpec, group: int, again: int, line: socket.socket) -> None:
    """The life of a child process; never returns."""
    code = 70
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        loop = new_loop()
        asyncio.set_event_loop(loop)
        place = ChildPlace(spec, group, again, loop, line)
        loop.run_until_complete(place.serve())
    except BrokenPipeError:
        code = 0  # the parent is gone
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(code)
