"""`ProcessHost`: what a node sees of the processes engine. The twin of the virtual host."""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orrery.base.errors import PartError
from orrery.base.rand import Stream
from orrery.engines.memory import check_memory
from orrery.engines.processes.tasks import Deadline, Event, Lock, Queue, Task
from orrery.parts.monitor import looks_at_arrays, note_array, told_by
from orrery.parts.node import Peers
from orrery.world.schedule import absences

if TYPE_CHECKING:
    from orrery.engines.processes.kernel import Kernel
    from orrery.engines.processes.place import Place
    from orrery.parts.groups import Group


class ProcessHost:
    """Put in front of the user's class; all that it knows is in its process's `Place`."""

    _kernel: Kernel
    _place: Place
    _index: int
    _tasks: dict[Task, None]
    _held: list[Callable[[], None]] | None

    # -- who and where

    @property
    def id(self) -> int:
        return self._index

    @property
    def incarnation(self) -> int:
        """How many times this node has started before (0 at first)."""
        return self._place.again

    @property
    def role(self) -> str:
        return self._place.spec.role_of(self.id)

    @property
    def world(self) -> Any:
        return self._place.spec.world

    @property
    def peers(self) -> Sequence[int]:
        return Peers(self._place.spec.size, self.id)

    @property
    def neighbours(self) -> Sequence[int]:
        return self._place.spec.world.wiring().neighbours(self.id)

    def members(self, role: str) -> Sequence[int]:
        return self._place.spec.world.members(role)

    @property
    def rng(self) -> Stream:
        """The same stream as in virtual time; a restarted node continues with fresh numbers."""
        rng: Stream | None = self.__dict__.get("_rng")
        if rng is None:
            again = self.incarnation
            purpose = f"node#{again}" if again else "node"
            rng = self.__dict__["_rng"] = Stream(self._place.spec.seed, self._index, purpose)
        return rng

    # -- time

    @property
    def now(self) -> float:
        """Seconds since the common start of the run."""
        return self._kernel.now_ns() / 1e9

    def clock(self) -> float:
        return self._place.clock_of(self._index).read(self.now)

    @types.coroutine
    def sleep(self, s: float) -> Generator[Any, Any, None]:
        if not s >= 0:
            raise PartError(f"sleep({s!r}): give a number of seconds >= 0")
        yield int(min(s, 9.2e9) * 1e9 + 0.5)

    def deadline(self, s: float) -> Deadline:
        if not s >= 0:
            raise PartError(f"deadline({s!r}): give a number of seconds >= 0")
        return Deadline(self._kernel, int(min(s, 9.2e9) * 1e9 + 0.5))

    # -- messages

    def tell(self, peer: int, method: Any, *args: Any, **kwargs: Any) -> None:
        self._place.post.tell(self._index, peer, method, args, kwargs)

    @types.coroutine
    def ask(self, peer: int, method: Any, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        post = self._place.post
        call = post.ask(self._index, peer, method, args, kwargs)
        try:
            return (yield from call.wait())
        except BaseException:
            post.forget(call)
            raise

    # -- tasks

    def spawn(self, task: Any) -> Task:
        return self._kernel.spawn(self, task)

    def event(self) -> Event:
        return Event(self._kernel)

    def queue(self) -> Queue:
        return Queue(self._kernel)

    def lock(self) -> Lock:
        return Lock(self._kernel)

    # -- reporting

    def emit(self, **values: Any) -> None:
        self._place.emit(self._kernel.now_ns() / 1e9, self.id, values)

    def log(self, *words: object) -> None:
        self._place.log(self.now, self.id, " ".join(str(word) for word in words))

    # -- ranks

    def fellows(self) -> Sequence[int]:
        """All nodes that run the same part."""
        return self._place.spec.fellows(self.id)

    def tap(self, phase: str, kind: str, tag: str, data: Any, group: Group | None = None) -> None:
        """Show every monitor what enters ("before") or leaves ("after") a collective."""
        monitors = self._place.spec.monitors
        for place, told in told_by(self, monitors, group, phase, kind, tag, data):
            self._place.tap(self.now, self.id, place, phase, kind, tag, told)

    def taps_arrays(self) -> bool:
        """Whether a monitor wants to know of single arrays."""
        return looks_at_arrays(self._place.spec.monitors)

    def tap_array(self, peer: int, nbytes: int, took_s: float, among: int) -> None:
        """Show monitors an array that has arrived."""
        note_array(self, self._place.spec.monitors, peer, nbytes, took_s, among)

    # -- bulk data

    async def transfer(
        self, peer: int, array: Any, tag: str = "", scale: float = 1.0, *, owned: bool = False
    ) -> None:
        """Send an array on the bulk lane; returns when it has arrived.

        Real bytes take the time that they take: `scale` is for modelled worlds alone. `owned`
        promises that nobody changes the array until it has arrived, which saves a copy.
        """
        spec = self._place.spec
        if not isinstance(peer, int) or not 0 <= peer <= spec.size:
            raise PartError(f"transfer: there is no node {peer!r}; ids are 0..{spec.size - 1}")
        # What is on the wire no longer changes; nodes of one process would share what they send.
        near = spec.group_of[peer] == self._place.group
        data = np.array(array, copy=None if owned and not near else True, order="C")
        if data.dtype.hasobject:
            raise PartError(f"transfer: an array of {data.dtype} holds objects; use a number type")
        await self._place.bulk.send(self._index, peer, data, tag)

    async def receive(self, peer: int, tag: str = "", into: Any = None, *, fold: Any = None) -> Any:
        """The next array that `peer` transferred under `tag`.

        Given memory of its shape and type (`into`), the socket fills that, which saves a copy; it
        holds anything until the array is there. Given `fold=(combine, own)` too, that memory gets
        `combine(coming, own)`, reckoned as the bytes come in, while they are in the cache.
        """
        check_memory(into, fold)
        return await self._place.bulk.receive(self._index, peer, tag, into, fold)

    # -- compute

    async def compute(
        self, fn: Callable[..., Any], *args: Any, device: str = "", share: float = 1.0, **kw: Any
    ) -> Any:
        """Call `fn(*args)` here and now: it takes the time that it takes.

        The node's other tasks wait meanwhile, because a thread beside them would see their state
        half changed. Faults that slow a machine add the difference as a wait.
        """
        return await self._place.compute(self, fn, args, kw, device)

    # -- storage

    @property
    def disk(self) -> Any:
        return self._place.disk_of(self)

    @property
    def store(self) -> Any:
        return self._place.store

    def arena(self, name: str, size: int) -> Any:
        """Memory shared by the nodes of this machine; `with arena.locked():` excludes others."""
        return self._place.arena(name, size)

    # -- the driver has these too

    @property
    def nodes(self) -> range:
        return range(self._place.spec.size)

    @property
    def part(self) -> Any:
        return self._place.part

    def alive(self, node: int) -> bool:
        return self._place.is_alive(node)

    def absences(self, node: int) -> list[tuple[float, float]]:
        return absences(self._place.spec.faults, node)
