"""Inside an actor: the nodes of one group, on the actor's own event loop.

It is the child of the processes engine in another dress: the same kernel, post office and disk.
Where the actor shares no machine with the parent, it counts in a file of its own and tells the
parent the numbers, and reads the parent's clock through a difference that was measured.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from orrery.engines.processes import values, wire
from orrery.engines.processes.node import CONTROL_B, ChildPlace
from orrery.engines.processes.spec import RunSpec
from orrery.engines.processes.zygote import redirect
from orrery.engines.ray import code
from orrery.engines.ray.lines import clock_ahead_ns, machine_mark, open_line

_stage: Stage | None = None  # an actor hosts one group, as long as it lives
_spec: RunSpec | None = None


class Stage(ChildPlace):
    """The place of one or several nodes in an actor."""

    def __init__(
        self,
        spec: RunSpec,
        group: int,
        again: int,
        loop: asyncio.AbstractEventLoop,
        line: socket.socket,
        near: bool,
        ahead_ns: int,
    ) -> None:
        super().__init__(spec, group, again, loop, line)
        self._near = near
        self._ahead_ns = ahead_ns
        self._told: list[int] = []
        self._stopped = False

    def say(self, *words: Any) -> None:
        if self._stopped:
            return
        try:
            super().say(*words)
        except (BrokenPipeError, ConnectionResetError):
            self._orphaned()

    async def open(self) -> None:
        """Open the listeners and say so; the loop does the rest."""
        serving = asyncio.ensure_future(self.serve())
        await asyncio.sleep(0)
        self._serving = serving  # kept, or it would be collected

    def _on_start(self, start_ns: int) -> None:
        super()._on_start(start_ns - self._ahead_ns)

    def _show_idle(self) -> None:
        if self._stopped:
            return
        super()._show_idle()
        self._tell_counts()

    def _tell_counts(self) -> None:
        if not self._near and (row := self.counters.row()) != self._told:
            self._told = row
            self.say("counts", row)

    def _orphaned(self) -> None:
        self._remove_folders()
        os._exit(0)

    def _on_stop(self) -> None:
        """Say the last numbers and fall silent; Ray ends the process."""
        self.close()
        self._tell_counts()
        self._stopped = True
        self.kernel.loop.remove_reader(self._line.fileno())
        if not self._near:
            self._remove_folders()
        sys.stdout.flush()
        sys.stderr.flush()
        self._line.close()

    def _remove_folders(self) -> None:
        shutil.rmtree(self.spec.arenas, ignore_errors=True)
        shutil.rmtree(self.spec.folder, ignore_errors=True)


def prepare(spec_data: bytes, code_data: bytes) -> None:
    """Bring the code and read the run; what is left to do is quick."""
    global _spec
    code.bring(code_data)
    _spec = RunSpec.from_bytes(spec_data)


async def begin(orders: bytes) -> None:
    """Open the line to the parent, and host the nodes."""
    global _stage
    told, spec = values.unpack(orders), _spec
    assert spec is not None
    near = told["shared"] and told["mark"] == machine_mark() and Path(spec.folder).is_dir()
    if not near:
        spec.folder, spec.arenas = far_folders(told["token"])
    spec.host = told["bind"]
    log = os.open(
        os.path.join(spec.folder, f"log-{told['group']}"),
        os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600,
    )  # fmt: skip
    redirect(log)
    line = open_line(told["line"], spec.secret, told["group"])
    ahead_ns = 0 if near else clock_ahead_ns(line)
    here = ("here", told["again"], os.getpid(), spec.host, near)
    line.sendall(wire.frame(values.pack(here), CONTROL_B))
    loop = asyncio.get_running_loop()
    _stage = Stage(spec, told["group"], told["again"], loop, line, near, ahead_ns)
    await _stage.open()


def far_folders(token: str) -> tuple[str, str]:
    """The run's folders on a machine that the parent cannot see; made by whoever comes first."""
    made = []
    for name in ("run", "arena"):
        path = Path(tempfile.gettempdir()) / f"orrery-{name}-{token}"
        path.mkdir(mode=0o700, exist_ok=True)
        made.append(str(path))
    return made[0], made[1]


def clean(data: bytes) -> None:
    """A task on such a machine, after the run: nothing of it stays."""
    for name in ("run", "arena"):
        path = Path(tempfile.gettempdir()) / f"orrery-{name}-{data.decode()}"
        shutil.rmtree(path, ignore_errors=True)
