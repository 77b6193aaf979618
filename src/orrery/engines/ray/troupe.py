"""The parent's hold on its actors: makes, ends and watches them through Ray, hears their lines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from orrery.engines.processes import values
from orrery.engines.processes.faults import nodes_of
from orrery.engines.processes.spec import Counters, RunSpec
from orrery.engines.processes.supervise import tail_of
from orrery.engines.ray import boot, code
from orrery.engines.ray.cluster import Cluster, environment, note_folder, pinned, quiet_errors
from orrery.engines.ray.lines import Line, Lines, machine_mark
from orrery.world import Crash, SpotReclaim

_END_S = 5.0
_SETTLE_S = 60.0
_STOP_S = 1.0


class _Actor:
    """One incarnation of a group."""

    def __init__(self, group: int, again: int, node: str) -> None:
        self.group = group
        self.again = again
        self.node = node
        self.handle: Any = None
        self.line: Line | None = None
        self.pid = 0
        self.host = ""
        self.near = False
        self.killed = False


class Troupe:
    """Owns the actors of one run; tells of each that went without being asked to."""

    def __init__(
        self,
        spec: RunSpec,
        cluster: Cluster,
        counters: Counters,
        shared: bool,
        on_word: Callable[[int, Any], None],
        on_end: Callable[[int, str], None],
        on_far: Callable[[int], None],
    ) -> None:
        self.pids: dict[int, int] = {}
        self._spec = spec
        self._cluster = cluster
        self._counters = counters
        self._on_word = on_word
        self._on_end = on_end
        self._on_far = on_far
        self._token = secrets.token_hex(8)
        self._actors: dict[int, _Actor] = {}
        # Understudies: a new actor takes a second to start, which a restart need not wait for.
        self._restarts = restarts_of(spec)
        self._spares: dict[int, tuple[Any, Any]] = {}  # group -> (actor, that it is prepared)
        self._spare_pids: list[int] = []
        self._all: list[_Actor] = []
        self._closing = False
        self._orders = {"shared": shared, "mark": machine_mark(), "token": self._token}
        for folder in (spec.folder, spec.arenas):
            note_folder(folder)
        classes = code.classes_of([*(part for _, part in spec.cast), spec.driver])
        self._paths = code.search_path()
        self._environment = environment(cluster, classes)
        ray = cluster.ray
        # Both are the same for all actors, so they lie once in Ray's object store.
        self._code = ray.put(code.pack(classes, far=not cluster.here))
        self._data = ray.put(spec.to_bytes())
        self._class = ray.remote(boot.Stagehand)
        # Calls of Ray may take milliseconds, so they are made beside the loop; one after another,
        # so that a kill finds the actor that it means.
        self._hands = ThreadPoolExecutor(1, thread_name_prefix="orrery-ray")

    # -- orders

    async def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines = Lines(loop, self._spec, self._counters, self._hear, self._lost)
        port = await self._lines.listen()
        self._orders |= {"line": (self._spec.host, port)}
        for group in self._restarts:
            self._hands.submit(self._understudy, group)

    def spawn(self, group: int, again: int) -> None:
        node, strategy = pinned(self._cluster, group)
        actor = self._actors[group] = _Actor(group, again, node)
        self._all.append(actor)
        self._hands.submit(self._create, actor, strategy)

    def _create(self, actor: _Actor, strategy: Any) -> None:
        if actor.killed or self._closing:
            return
        try:
            spare = self._spares.pop(actor.group, None) if actor.again else None
            actor.handle, prepared = spare or self._hire(strategy)
            orders = {**self._orders, "group": actor.group, "again": actor.again,
                      "bind": self._bind(actor)}  # fmt: skip
            begun = actor.handle.begin.remote(prepared, values.pack(orders))
            begun.future().add_done_callback(lambda done: self._begun(actor, done))
            if actor.again:
                self._understudy(actor.group)
        except Exception as error:
            self._later(self._broke, actor, error)

    def _hire(self, strategy: Any) -> tuple[Any, Any]:
        """(a new actor, the promise that it knows the run)."""
        options = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": strategy}
        if self._environment is not None:
            options["runtime_env"] = self._environment
        handle = self._class.options(**options).remote(self._paths)
        return handle, handle.prepare.remote(self._data, self._code)

    def _understudy(self, group: int) -> None:
        if self._restarts.get(group, 0) > 0 and not self._closing:
            self._restarts[group] -= 1
            self._spares[group] = self._hire(pinned(self._cluster, group)[1])

    async def settle(self) -> None:
        """Wait for the understudies, so that their start does not fall into the run."""
        await self._loop.run_in_executor(self._hands, self._await_spares)

    def _await_spares(self) -> None:
        promises = [prepared for _, prepared in self._spares.values()]
        if promises:
            with quiet_errors():
                self._spare_pids += self._cluster.ray.get(promises, timeout=_SETTLE_S)

    def _bind(self, actor: _Actor) -> str:
        """Where an actor listens: on the loopback, unless the cluster has other machines."""
        if self._cluster.here:
            return "127.0.0.1"
        for node in self._cluster.ray.nodes():
            if node["NodeID"] == actor.node:
                return str(node["NodeManagerAddress"])
        return self._spec.host

    def _begun(self, actor: _Actor, done: Any) -> None:
        error = done.exception()
        if error is not None:
            self._later(self._broke, actor, error)

    def _later(self, call: Callable[..., None], *words: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the run with it
            self._loop.call_soon_threadsafe(call, *words)

    def _broke(self, actor: _Actor, error: BaseException) -> None:
        """An actor did not come into being."""
        if actor.killed or self._closing or actor.line is not None:
            return
        cause = getattr(error, "cause", None) or error
        why = str(cause).strip() or type(cause).__name__
        self._on_end(actor.group, f"could not start: {why[-2000:]}")

    def signal(self, group: int, signum: int) -> None:
        actor = self._actors.get(group)
        if actor is None or actor.killed:
            return
        if signum == signal.SIGKILL:
            actor.killed = True
            self.pids.pop(group, None)
        if actor.near and actor.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(actor.pid, signum)
        if signum == signal.SIGKILL:
            self._hands.submit(self._kill, actor)

    def _kill(self, actor: _Actor) -> None:
        if actor.handle is not None:
            with quiet_errors():
                self._cluster.ray.kill(actor.handle, no_restart=True)
            actor.handle = None

    def say(self, group: int, *words: Any) -> None:
        actor = self._actors.get(group)
        if actor is not None and actor.line is not None:
            actor.line.say(*words)

    def host_of(self, group: int) -> str:
        return self._actors[group].host

    def log_tail(self, group: int, most_B: int = 2000) -> str:
        return tail_of(self._spec.folder, f"log-{group}", most_B)

    # -- reports

    def _hear(self, line: Line, words: Any) -> None:
        if words[0] == "here":
            self._join(line, *words[1:])
        elif line.actor is not None:
            # Also from one that was just killed: what it said before counts.
            self._on_word(line.group, words)

    def _join(self, line: Line, again: int, pid: int, host: str, near: bool) -> None:
        actor = self._actors.get(line.group)
        if actor is None or actor.again != again or actor.killed:
            return  # killed before it could say so
        actor.line, actor.pid, actor.host, actor.near = line, pid, host, near
        line.actor = actor
        self.pids[actor.group] = pid
        if not near:
            self._on_far(actor.group)

    def _lost(self, line: Line) -> None:
        actor: _Actor | None = line.actor
        if actor is None:
            return
        if self.pids.get(actor.group) == actor.pid and self._actors.get(actor.group) is actor:
            del self.pids[actor.group]
        if not (actor.killed or self._closing):
            actor.killed = True
            self._hands.submit(self._kill, actor)
            self._on_end(actor.group, "ended by itself")

    # -- the end

    async def stop(self) -> None:
        """Ask every actor to fall silent, and wait a little for its last words."""
        self._closing = True
        for group in list(self.pids):
            self.signal(group, signal.SIGCONT)
            self.say(group, "stop")
        give_up_s = self._loop.time() + _STOP_S
        while self.pids and self._loop.time() < give_up_s:
            await asyncio.sleep(0.005)

    def close(self) -> None:
        """End all actors, and see them gone."""
        self._closing = True
        for folder in (self._spec.folder, self._spec.arenas):
            note_folder(folder, gone=True)  # the engine removes them next
        if hasattr(self, "_lines"):
            self._lines.close()
        for actor in self._all:
            if actor.near and actor.pid and not actor.killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(actor.pid, signal.SIGCONT)
            self._hands.submit(self._kill, actor)
        self._hands.submit(self._dismiss)
        far = {actor.node for actor in self._all if actor.pid and not actor.near}
        if far:
            self._hands.submit(self._clean, far)
        self._hands.shutdown(wait=True)
        near = [actor.pid for actor in self._all if actor.near and actor.pid]
        near += self._spare_pids if near else []
        give_up_s = time.monotonic() + _END_S
        while near and time.monotonic() < give_up_s:
            near = [pid for pid in near if os.path.exists(f"/proc/{pid}")]
            time.sleep(0.002 if near else 0)
        for pid in near:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _dismiss(self) -> None:
        for handle, _ in self._spares.values():
            with quiet_errors():
                self._cluster.ray.kill(handle, no_restart=True)
        self._spares.clear()

    def _clean(self, nodes: set[str]) -> None:
        """Remove the run's folders on machines whose actors may have been killed before."""
        ray, task = self._cluster.ray, self._cluster.ray.remote(boot.call)
        with quiet_errors():
            asked = []
            for place, node in enumerate(self._cluster.nodes):
                if node in nodes:
                    strategy = pinned(self._cluster, place)[1]
                    options = {"num_cpus": 0, "scheduling_strategy": strategy}
                    if self._environment is not None:
                        options["runtime_env"] = self._environment
                    name = "orrery.engines.ray.stage:clean"
                    data = self._token.encode()
                    asked.append(
                        task.options(**options).remote(self._paths, self._code, name, data)
                    )
            ray.wait(asked, num_returns=len(asked), timeout=_END_S)


def restarts_of(spec: RunSpec) -> dict[int, int]:
    """How often each group will be started again, by the schedule."""
    found: dict[int, int] = {}
    for fault in spec.faults:
        if isinstance(fault, (Crash, SpotReclaim)) and fault.until_s is not None:
            for group in {spec.group_of[node] for node in nodes_of(fault)}:
                found[group] = found.get(group, 0) + 1
    return found
