"""The parent's hold on its processes: starts the zygote, spawns nodes, reads their lines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from orrery.engines.processes import values, wire
from orrery.engines.processes.node import CONTROL_B
from orrery.engines.processes.spec import RunSpec
from orrery.engines.processes.zygote import (
    ENDED,
    ORDER,
    REPORT,
    SIGNAL,
    SPAWN,
    become_zygote,
)

_END_S = 5.0


def pick_start(start: str) -> str:
    """How children begin: "fork" where it is sound, else "spawn" (a fresh interpreter)."""
    if start != "auto":
        return start
    torch: Any = sys.modules.get("torch")
    if sys.platform != "linux" or (torch is not None and torch.cuda.is_initialized()):
        return "spawn"
    return "fork"


class Boss(Protocol):
    """What an engine asks of whoever starts, ends and hears its node processes."""

    pids: dict[int, int]  # group -> pid of its living process

    async def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to listen on this loop."""

    def spawn(self, group: int, again: int) -> None:
        """Start the process of a group, for the `again`-th time."""

    async def settle(self) -> None:
        """Wait for whatever else must be there before time begins."""

    def signal(self, group: int, signum: int) -> None:
        """Kill, stop or continue the process of a group."""

    def say(self, group: int, *words: Any) -> None:
        """Tell a node process something; one that is gone hears nothing."""

    def host_of(self, group: int) -> str:
        """The address at which the process of a group listens."""

    def log_tail(self, group: int, most_B: int = 2000) -> str:
        """The last that a process printed."""

    async def stop(self) -> None:
        """Ask every node process to end, and wait a little for it."""

    def close(self) -> None:
        """End whatever is left."""


class Supervisor:
    """Owns the zygote; tells of each node process that came and went."""

    def __init__(
        self,
        spec: RunSpec,
        start: str,
        on_word: Callable[[int, Any], None],
        on_end: Callable[[int, int], None],
    ) -> None:
        self._spec = spec
        self._on_word = on_word
        self._on_end = on_end
        self.pids: dict[int, int] = {}  # group -> pid of its living process
        self._lines: dict[int, _Line] = {}
        self._open: set[_Line] = set()  # also those of the dead that are not read to the end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        data = spec.to_bytes() if start == "spawn" else b""
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._pid = self._fork(theirs) if start == "fork" else self._start(theirs, data)

    def _fork(self, theirs: socket.socket) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            become_zygote(self._spec, theirs, parent)
        return pid

    def _start(self, theirs: socket.socket, data: bytes) -> int:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-m", "orrery.engines.processes.zygote", str(theirs.fileno())]
        self._popen = subprocess.Popen(
            command, env=env, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL
        )
        self._socket.sendall(struct.pack("<Q", len(data)) + data)
        return self._popen.pid

    # -- orders

    async def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to the zygote on this loop."""
        self._loop = loop
        self._socket.setblocking(False)
        loop.add_reader(self._socket.fileno(), self._read)

    def spawn(self, group: int, again: int) -> None:
        self._order(SPAWN, group, again)

    async def settle(self) -> None:
        """A zygote is all that it takes."""

    def signal(self, group: int, signum: int) -> None:
        self._order(SIGNAL, group, signum)

    def _order(self, order: int, group: int, number: int) -> None:
        if self._socket.fileno() < 0:
            return  # the run is over; a timer of it may still ring
        with contextlib.suppress(BrokenPipeError):  # a lost zygote is noticed where it is read
            select.select([], [self._socket], [])
            self._socket.send(ORDER.pack(order, group, number))

    def say(self, group: int, *words: Any) -> None:
        """Tell a node process something; one that is gone hears nothing."""
        line = self._lines.get(group)
        if line is not None and line.transport is not None:
            line.transport.write(wire.frame(values.pack(words), CONTROL_B))

    # -- reports

    def _read(self) -> None:
        assert self._loop is not None
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, REPORT.size, 1)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if len(data) < REPORT.size:
                self._loop.remove_reader(self._socket.fileno())
                self._on_end(-1, 0)
                return
            report, group, pid, code = REPORT.unpack(data)
            if report == ENDED:
                if self.pids.get(group) == pid:  # else its successor is here already
                    del self.pids[group], self._lines[group]
                self._on_end(group, code)
                continue
            self.pids[group] = pid
            line = self._lines[group] = _Line(group, self._on_word)
            self._open.add(line)
            line.on_closed = self._open.discard
            end = socket.socket(fileno=fds[0])
            end.setblocking(False)
            line.task = self._loop.create_task(_join(self._loop, line, end))

    def host_of(self, group: int) -> str:
        return self._spec.host

    def log_tail(self, group: int, most_B: int = 2000) -> str:
        return tail_of(self._spec.folder, f"log-{group}" if group >= 0 else "log-zygote", most_B)

    # -- the end

    async def stop(self) -> None:
        """Ask every node process to end, and wait a little for it."""
        assert self._loop is not None
        for group in list(self.pids):
            self.signal(group, signal.SIGCONT)
            self.say(group, "stop")
        give_up_s = self._loop.time() + 0.5
        while (self.pids or self._open) and self._loop.time() < give_up_s:
            await asyncio.sleep(0.005)

    def close(self) -> None:
        """Cut the line: the zygote ends whatever is left, and itself."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for _ in range(int(_END_S / 0.005)):
            if self._gone():
                return
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._gone(block=True)

    def _gone(self, block: bool = False) -> bool:
        if self._popen is not None:
            if block:
                self._popen.wait()
            return self._popen.poll() is not None
        try:
            pid, _ = os.waitpid(self._pid, 0 if block else os.WNOHANG)
        except ChildProcessError:
            return True
        return pid != 0


def tail_of(folder: str, name: str, most_B: int) -> str:
    """The end of a log file of the run."""
    try:
        data = (Path(folder) / name).read_bytes()
    except OSError:
        return ""
    return data[-most_B:].decode(errors="replace").strip()


class _Line(asyncio.Protocol):
    """The parent's end of the line to one node process."""

    def __init__(self, group: int, on_word: Callable[[int, Any], None]) -> None:
        self._group = group
        self._on_word = on_word
        self._reader = wire.FrameReader(CONTROL_B)
        self.transport: Any = None
        self.task: asyncio.Task[None] | None = None
        self.on_closed: Callable[[_Line], None] = lambda line: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for payload in self._reader.feed(data):
            self._on_word(self._group, values.unpack(payload))

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.on_closed(self)


async def _join(loop: asyncio.AbstractEventLoop, line: _Line, end: socket.socket) -> None:
    await loop.create_unix_connection(lambda: line, sock=end)
