"""Two copies of one node behind one identity, for the Byzantine strategy "twins".

The kernel knows one host for each node. Here that host is a desk with two clerks: it hands each
message to the copy that the sender's half of the peers talks to, and each copy reaches only its own
half. So peers see one identity that behaves like two honest nodes which cannot hear each other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orrery.parts.rpc import ASYNC, SENDER, Rpc, rpcs_of

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine


class Twin:
    """The state of one twinned node: its two copies, and whether the second one is on."""

    def __init__(self, engine: Engine, index: int, second_half: Callable[[int], bool]) -> None:
        self.engine = engine
        self.index = index
        self.second_half = second_half
        self.on = False
        self.copies: list[Any] = []
        self._tasks: list[Any] = []
        self._part = type(engine.kernel.hosts[index])
        desk_class = _desk_class(self._part, self)
        self.desk: Any = desk_class.__new__(desk_class)
        engine.kernel.bind(self.desk, index, index)

    def start(self) -> None:
        """Make both copies anew, with fresh state; called as the node's `start()`."""
        kernel = self.engine.kernel
        self.copies, self._tasks = [], []
        for side in (0, 1):
            made = _copy_class(self._part, self, side)
            clerk = made.__new__(made)
            kernel.bind(clerk, self.index, self.index)
            self.copies.append(clerk)
        # The last one bound is the one that the kernel delivers to. No task has started yet.
        kernel.bind(self.desk, self.index, self.index)
        self.copies[1].__dict__["_disk"] = self.engine.disks.twin_of(self.index)
        self.copies[0].start()
        if self.on:
            self.copies[1].start()

    async def main(self) -> None:
        if self.on:
            self._start_second()
        await self.copies[0].main()

    def begin(self) -> None:
        """The second copy comes to life."""
        if not self.on:
            self.on = True
            if self.copies and self.engine.kernel.state[self.index]:
                self.copies[1].start()
                self._start_second()

    def end(self) -> None:
        """The second copy goes; the first one serves all peers again."""
        self.on = False
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def _start_second(self) -> None:
        self.copies[1].spawn(self.copies[1].main())

    def spawn(self, side: int, task: Any) -> Any:
        """Tasks belong to the desk, so that a crash of the node ends them all."""
        spawned = self.desk.spawn(task)
        if side:
            self._tasks = [one for one in self._tasks if not one.done]
            self._tasks.append(spawned)
        return spawned

    def side_for(self, peer: int) -> int:
        """Which copy a peer talks to; the driver and the node itself talk to the first."""
        outside = peer == self.index or peer >= self.engine.size
        return int(self.on and not outside and self.second_half(peer))

    def reaches(self, side: int, peer: int) -> bool:
        if peer == self.index or peer >= self.engine.size:
            return True
        return self.side_for(peer) == side


def _copy_class(part: Any, twin: Twin, side: int) -> Any:
    """The part's class, with sends limited to one half of the peers."""

    def tell(self: Any, peer: int, method: Any, *args: Any, **kwargs: Any) -> None:
        if twin.reaches(side, peer):
            part.tell(self, peer, method, *args, **kwargs)

    async def ask(self: Any, peer: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        if not twin.reaches(side, peer):
            await self.event().wait()  # lost on the way, like any message between the halves
        return await part.ask(self, peer, method, *args, **kwargs)

    def spawn(self: Any, task: Any) -> Any:
        return twin.spawn(side, task)

    async def compute(self: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        tapped = twin.desk.__dict__.get("compute")  # where faults sit that bend what is computed
        if tapped is not None:
            return await tapped(fn, *args, **kwargs)
        return await part.compute(self, fn, *args, **kwargs)

    body = {"tell": tell, "ask": ask, "spawn": spawn, "compute": compute}
    return type(part.__name__, (part,), body)


def _desk_class(part: Any, twin: Twin) -> Any:
    """The part's class, with every rpc handed on to the copy that the sender talks to."""
    body: dict[str, Any] = {
        "start": lambda self: twin.start(),
        "main": lambda self: twin.main(),
    }
    for name, spec in rpcs_of(part).items():
        body[name] = _handed_on(name, spec, twin)
    return type(part.__name__, (part,), body)


def _handed_on(name: str, spec: Rpc, twin: Twin) -> Any:
    wants_sender = bool(spec.flags & SENDER)

    def target(args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        sender = args[-1]
        clerk = twin.copies[twin.side_for(sender)]
        return getattr(clerk, name), args if wants_sender else args[:-1]

    def hand_on(self: Any, *args: Any) -> Any:
        method, rest = target(args)
        return method(*rest)

    async def hand_on_async(self: Any, *args: Any) -> Any:
        method, rest = target(args)
        return await method(*rest)

    fn: Any = hand_on_async if spec.flags & ASYNC else hand_on
    handed = copy.copy(spec)
    handed.fn = fn
    handed.flags = spec.flags | SENDER
    fn.__rpc__ = handed
    return fn
