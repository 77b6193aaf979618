"""`VirtualHost`: what a node sees of the virtual engine beyond the kernel's own methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from orrery.base.errors import PartError
from orrery.engines.memory import check_memory, poured
from orrery.parts.groups import compact
from orrery.parts.monitor import looks_at_arrays, note_array, told_by
from orrery.parts.node import Peers
from orrery.parts.shapes import work_of
from orrery.world.schedule import absences

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine
    from orrery.parts.groups import Group

_classes: dict[tuple[str, bool], type] = {}


def host_class(kernel: ModuleType, driver: bool = False) -> type:
    """The host class of nodes (or of the driver) on top of this kernel's `Host`."""
    key = (kernel.NAME, driver)
    made = _classes.get(key)
    if made is None:
        body: dict[str, Any] = {"__slots__": ()}  # the user's class brings the dictionary
        for methods in (HostMethods, DriverMethods) if driver else (HostMethods,):
            body.update({k: v for k, v in vars(methods).items() if not k.startswith("__")})
        made = _classes[key] = type("VirtualHost", (kernel.Host,), body)
    return made


def _stands_for_size(array: Any) -> bool:
    """Whether an array is one value repeated, which nobody can change."""
    return (
        isinstance(array, np.ndarray) and not array.flags.writeable and array.size > 1
        and not any(array.strides)
    )  # fmt: skip


class HostMethods:
    """Copied onto each kernel's `Host`: one definition, two kernels."""

    if TYPE_CHECKING:
        id: int
        now: float
        _index: int
        event: Any
        sleep: Any
        spawn: Any

    _engine: Engine  # set once on the bound class, not on each of 100,000 nodes

    @property
    def role(self) -> str:
        return self._engine.role_of(self.id)

    @property
    def world(self) -> Any:
        return self._engine.world

    @property
    def incarnation(self) -> int:
        """How many times this node has started before (0 at first)."""
        return self._engine.incarnations.get(self._index, 0)

    @property
    def peers(self) -> Sequence[int]:
        return Peers(self._engine.size, self.id)

    @property
    def neighbours(self) -> Sequence[int]:
        return self._engine.wiring.neighbours(self.id)

    def members(self, role: str) -> Sequence[int]:
        return self._engine.world.members(role)

    def clock(self) -> float:
        return self._engine.clocks.read(self._index, self._engine.kernel.now)

    def log(self, *words: object) -> None:
        self._engine.log(self.id, " ".join(str(word) for word in words))

    # -- bulk data

    async def transfer(
        self, peer: int, array: Any, tag: str = "", scale: float = 1.0, *, owned: bool = False
    ) -> None:
        """Send an array as a bulk flow; returns when it has arrived (or died on the way).

        Each of its bytes counts as `scale` bytes, for a small array that stands for a large one.
        `owned` promises that nobody changes the array meanwhile, which saves a copy on a real
        engine; here one is made anyway, as both ends live in one memory.

        A read-only array of one repeated value (`np.broadcast_to`) stands for its size: it takes
        the time of its bytes and no memory.
        """
        engine = self._engine
        if not 0 <= peer < len(engine.kernel.hosts):
            raise PartError(f"transfer: there is no node {peer!r}; ids are 0..{engine.size - 1}")
        if not 0.0 < scale < math.inf:
            raise PartError(f"transfer(scale={scale!r}): give a finite number above 0")
        # What is on the wire no longer changes.
        data = array if _stands_for_size(array) else np.array(array, copy=True)
        await engine.flows.send(self._index, peer, data, tag, scale)

    async def receive(self, peer: int, tag: str = "", into: Any = None, *, fold: Any = None) -> Any:
        """The next array that `peer` transferred under `tag`.

        Given memory of its shape and type (`into`), it is put there: a real engine saves a copy.
        Given `fold=(combine, own)` too, that memory gets `combine(coming, own)`.
        """
        check_memory(into, fold)
        coming = await self._engine.flows.inbox(self._index, peer, tag).get()
        return poured(coming, into, fold)

    # -- collectives

    def fellows(self) -> Sequence[int]:
        """The nodes that run the same part as this one."""
        bound = type(self)  # one for each part, so that its nodes share the answer
        found: Sequence[int] | None = bound.__dict__.get("_fellows")
        if found is None:
            cast = self._engine.cast
            part = cast[self._index][1]
            found = compact([node for node, (_, other) in enumerate(cast) if other is part])
            bound._fellows = found  # type: ignore[attr-defined]
        return found

    def tap(self, phase: str, kind: str, tag: str, data: Any, group: Group | None = None) -> None:
        """Show every monitor what enters ("before") or leaves ("after") a collective."""
        monitors = self._engine.monitors
        for place, told in told_by(self, monitors, group, phase, kind, tag, data):
            monitor = monitors[place]
            see = monitor.before_collective if phase == "before" else monitor.after_collective
            see(self.now, self.id, kind, tag, told)

    def taps_arrays(self) -> bool:
        """Whether a monitor wants to know of single arrays."""
        return looks_at_arrays(self._engine.monitors)

    def tap_array(self, peer: int, nbytes: int, took_s: float, among: int) -> None:
        """Show monitors an array that has arrived."""
        note_array(self, self._engine.monitors, peer, nbytes, took_s, among)

    # -- compute

    async def compute(
        self, fn: Callable[..., Any], *args: Any, device: str = "", share: float = 1.0, **kw: Any
    ) -> Any:
        """Call `fn(*args)` for its value, and take the time the modelled device would."""
        work = work_of(fn, args)
        if work is None:
            return fn(*args, **kw)
        # Nobody sees the value before the time is over, so calls that wait together may be
        # made together.
        later = self._engine.together.add(fn, args, kw)
        value = None if later is not None else fn(*args, **kw)
        await self._engine.devices.work(self._index, work, device, share)
        return value if later is None else later()

    # -- storage

    @property
    def disk(self) -> Any:
        disk = self.__dict__.get("_disk")
        if disk is None:
            disk = self.__dict__["_disk"] = self._engine.disks.of(self)
        return disk

    @property
    def store(self) -> Any:
        return self._engine.store.of(self)

    def arena(self, name: str, size: int) -> Any:
        """Memory that the nodes share; `with arena.locked():` keeps the others out."""
        return self._engine.arena(name, size)


class DriverMethods(HostMethods):
    """What the driver has besides; kept off nodes, whose authors may use these names."""

    @property
    def nodes(self) -> range:
        return range(self._engine.size)

    @property
    def part(self) -> Any:
        return self._engine.part

    def alive(self, node: int) -> bool:
        return bool(self._engine.kernel.state[node])

    def absences(self, node: int) -> list[tuple[float, float]]:
        return absences([effect.fault for effect in self._engine.faults.effects], node)
