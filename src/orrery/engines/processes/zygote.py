"""The zygote: a small process between the parent and the nodes that makes, kills and buries them.

It is forked from the parent before the run (so that parts of any origin are there already) or
started as a fresh interpreter. It has no threads and no event loop, so forking from it is safe and
quick, also in the middle of a run. When the parent dies, however it dies, the zygote ends all nodes
and removes the run's folders; when the zygote dies, the system ends the nodes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import shutil
import signal
import socket
import struct
import sys
import traceback
from typing import Any

from orrery.engines.processes.node import run_node
from orrery.engines.processes.spec import RunSpec

ORDER = struct.Struct("<BII")
REPORT = struct.Struct("<BIIi")
SPAWN, SIGNAL = 1, 2
STARTED, ENDED = 1, 2
_PR_SET_PDEATHSIG = 1


def die_with(parent: int, signum: int) -> None:
    """Ask the system to signal this process when its parent dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:  # it died before we could ask
        os._exit(0)


def forget_descriptors(keep: set[int]) -> None:
    """Cut the ties to files and sockets of the process that we were forked from.

    They are pointed at nothing rather than closed: objects of the old process may still close
    their numbers later, which must not hit a descriptor of ours.
    """
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir(folder):
        number = int(name)
        if number not in keep and number != nothing:
            with contextlib.suppress(OSError):
                os.fstat(number)
                os.dup2(nothing, number, inheritable=False)


class Zygote:
    """Obeys the parent over a socket: spawn a group of nodes, signal one."""

    def __init__(self, spec: RunSpec, line: socket.socket) -> None:
        self._spec = spec
        self._line = line
        self._pids: dict[int, int] = {}  # pid -> group
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)

    def serve(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        try:
            self._serve()
        except Exception:
            traceback.print_exc()
        finally:
            self._end()

    def _serve(self) -> None:
        while True:
            line = self._line.fileno()
            readable, _, _ = select.select([line, self._wake_r], [], [])
            if self._wake_r in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_r, 4096)
                self._bury()
            if line in readable and not self._obey():
                return

    def _obey(self) -> bool:
        try:
            data = self._line.recv(ORDER.size, socket.MSG_WAITALL)
        except OSError:
            data = b""  # the parent died with a report of ours unread
        if len(data) < ORDER.size:
            return False
        order, group, number = ORDER.unpack(data)
        if order == SPAWN:
            self._spawn(group, number)
        else:
            for pid, owner in self._pids.items():
                if owner == group:
                    os.kill(pid, number)  # not reaped yet, so the number is still its own
        return True

    def _spawn(self, group: int, again: int) -> None:
        ours, theirs = socket.socketpair()
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_node(me, group, again, ours, theirs)
        theirs.close()
        self._pids[pid] = group
        socket.send_fds(self._line, [REPORT.pack(STARTED, group, pid, 0)], [ours.fileno()])
        ours.close()

    def _become_node(
        self, parent: int, group: int, again: int, ours: socket.socket, theirs: socket.socket
    ) -> None:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with(parent, signal.SIGKILL)
            ours.close()
            self._line.close()
            os.close(self._wake_r)
            os.close(self._wake_w)
            log = os.open(
                os.path.join(self._spec.folder, f"log-{group}"),
                os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600,
            )  # fmt: skip
            redirect(log)
            run_node(self._spec, group, again, theirs)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)

    def _bury(self) -> None:
        """Collect the dead and report how they ended."""
        while self._pids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            group = self._pids.pop(pid, None)
            if group is not None:
                code = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(OSError):
                    self._line.sendall(REPORT.pack(ENDED, group, pid, code))

    def _end(self) -> None:
        """The run is over: no node and no folder of it is left."""
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        shutil.rmtree(self._spec.arenas, ignore_errors=True)
        shutil.rmtree(self._spec.folder, ignore_errors=True)
        os._exit(0)


def redirect(log: int) -> None:
    """Let print and tracebacks of this process go to its log file."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False, encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8")  # noqa: SIM115


def become_zygote(spec: RunSpec, line: socket.socket, parent: int) -> None:
    """The forked half of the parent; never returns to the code that it was forked from."""
    try:
        gc.freeze()  # finalisers of the parent's objects are not ours to run
        os.setsid()
        die_with(parent, signal.SIGTERM)
        forget_descriptors({0, 1, 2, line.fileno()})
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        log = os.open(os.path.join(spec.folder, "log-zygote"), os.O_WRONLY | os.O_CREAT, 0o600)
        redirect(log)
        Zygote(spec, line).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


def main() -> None:
    """A fresh interpreter as zygote: the spec comes over the socket whose number is given."""
    line = socket.socket(fileno=int(sys.argv[1]))
    (length,) = struct.unpack("<Q", _read(line, 8))
    data: Any = _read(line, length)
    become_zygote(RunSpec.from_bytes(data), line, os.getppid())


def _read(line: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        data = line.recv(min(length - len(found), 1 << 20))
        if not data:
            os._exit(0)
        found += data
    return bytes(found)


if __name__ == "__main__":
    main()
