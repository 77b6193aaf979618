"""`Node`: one machine of a protocol, written as ordinary `async` Python.

A node sees only `self.…`: time, messages, tasks, disk, randomness all come from the engine that
runs it. An engine binds a node by putting its own host class in front of the user's class, so the
same code runs in virtual time and on real sockets with no line changed.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, TypeVar

from orrery.base.errors import Cancelled, PartError
from orrery.parts.knobs import Part

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from orrery.base.rand import Stream
    from orrery.world import World

T = TypeVar("T")

# What a node may declare in `tolerates`; the law test injects exactly these.
TOLERABLE = ("drop", "duplicate", "reorder", "crash", "restart", "pause", "partition", "byzantine")


class Event(Protocol):
    """A flag that tasks can wait for; `set` may carry a value."""

    def set(self, value: Any = None) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self) -> Awaitable[Any]: ...


class Queue(Protocol):
    """An unbounded first-in first-out queue between the tasks of one node."""

    def put(self, item: Any) -> None: ...
    def get(self) -> Awaitable[Any]: ...
    def __len__(self) -> int: ...


class Lock(Protocol):
    """Mutual exclusion between the tasks of one node: `async with lock:`."""

    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, *exc: object) -> Any: ...


class Deadline(Protocol):
    """`async with self.deadline(s):` raises `DeadlineExceeded` when the time is up."""

    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, *exc: object) -> Any: ...


class Task(Protocol):
    """A running coroutine of a node: awaitable, can be cancelled, ends with its node."""

    @property
    def done(self) -> bool: ...
    def cancel(self) -> None: ...
    def __await__(self) -> Any: ...


class Disk(Protocol):
    """A node's own disk. What was not followed by `fsync` may be lost in a crash."""

    def read(self, name: str) -> Awaitable[bytes]: ...
    def write(self, name: str, data: bytes) -> Awaitable[None]: ...
    def append(self, name: str, data: bytes) -> Awaitable[None]: ...
    def fsync(self, name: str) -> Awaitable[None]: ...
    def delete(self, name: str) -> Awaitable[None]: ...
    def exists(self, name: str) -> bool: ...
    def names(self) -> list[str]: ...


class Store(Protocol):
    """The world's object store: atomic puts, versions as tags, conditional puts."""

    def get(self, key: str) -> Awaitable[tuple[bytes, str] | None]: ...
    def put(self, key: str, data: bytes) -> Awaitable[str]: ...
    def put_if(self, key: str, data: bytes, tag: str | None) -> Awaitable[str | None]: ...
    def list(self, prefix: str = "") -> Awaitable[list[str]]: ...


class Node(Part):
    """One machine of a protocol: knobs, `start()` for state, `main()` for behaviour, rpcs.

    `start()` makes the state and runs again after a crash; `main()` then runs as a task. Methods
    marked `@rpc` are called by `tell` (no answer, may be lost) and `ask` (waits for the answer).
    `tolerates` names what the node survives; the laws test exactly that.
    """

    tolerates: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if inspect.iscoroutinefunction(cls.__dict__.get("start")):
            raise PartError(
                f"{cls.__name__}.start is async, but nothing waits for it; write `def start`, and "
                "do what has to wait in `main`"
            )

    # -- what a subclass writes

    def start(self) -> None:
        """Make the state; called once at the beginning and again after each crash."""

    async def main(self) -> None:
        """What the node does of its own accord; returning leaves it serving its rpcs."""

    # -- what an engine provides; the host class of the engine replaces all of these

    if TYPE_CHECKING:
        # Properties, not annotations: an annotation would read as a knob.
        @property
        def id(self) -> int: ...
        @property
        def role(self) -> str: ...
        @property
        def peers(self) -> Sequence[int]: ...
        @property
        def rng(self) -> Stream: ...
        @property
        def now(self) -> float: ...
        @property
        def disk(self) -> Disk: ...
        @property
        def store(self) -> Store: ...
        @property
        def world(self) -> World: ...
        @property
        def incarnation(self) -> int: ...
        def clock(self) -> float: ...
        def log(self, *words: object) -> None: ...
        def members(self, role: str) -> Sequence[int]: ...
        @property
        def neighbours(self) -> Sequence[int]: ...
        def sleep(self, s: float) -> Awaitable[None]: ...
        def tell(
            self, peer: int, method: Callable[..., Any], *args: Any, **kwargs: Any
        ) -> None: ...
        def ask(
            self, peer: int, method: Callable[..., Any], *args: Any, **kwargs: Any
        ) -> Awaitable[Any]: ...
        def deadline(self, s: float) -> Deadline: ...
        def spawn(self, task: Awaitable[Any]) -> Task: ...
        def event(self) -> Event: ...
        def queue(self) -> Queue: ...
        def lock(self) -> Lock: ...
        def transfer(
            self, peer: int, array: npt.NDArray[Any], tag: str = "", scale: float = 1.0, *,
            owned: bool = False,
        ) -> Awaitable[None]: ...  # fmt: skip
        def receive(
            self, peer: int, tag: str = "", into: npt.NDArray[Any] | None = None, *,
            fold: tuple[np.ufunc, npt.NDArray[Any]] | None = None,
        ) -> Awaitable[npt.NDArray[Any]]: ...  # fmt: skip
        def arena(self, name: str, size: int) -> Any: ...
        def emit(self, **values: Any) -> None: ...
        def compute(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> Awaitable[T]: ...

    # -- built on the above, the same in every engine

    async def first(self, *coros: Awaitable[Any]) -> tuple[int, Any]:
        """Wait for the first to end, cancel the others; gives (its place, its value)."""
        if not coros:
            raise PartError("first() of nothing never ends; give at least one coroutine")
        results, tasks = self._race(coros)
        try:
            place, value, error = await results.get()
        finally:
            for task in tasks:
                task.cancel()
        if error is not None:
            raise error
        return place, value

    async def all(self, *coros: Awaitable[Any]) -> list[Any]:
        """Wait for all; gives their values in order. The first error cancels the rest."""
        results, tasks = self._race(coros)
        values: list[Any] = [None] * len(coros)
        try:
            for _ in coros:
                place, value, error = await results.get()
                if error is not None:
                    raise error
                values[place] = value
        finally:
            for task in tasks:
                task.cancel()
        return values

    def _race(self, coros: Sequence[Awaitable[Any]]) -> tuple[Queue, list[Task]]:
        results = self.queue()

        async def report(place: int, coro: Awaitable[Any]) -> None:
            try:
                value = await coro
            except Exception as error:
                results.put((place, None, error))
            else:
                results.put((place, value, None))

        return results, [self.spawn(report(place, coro)) for place, coro in enumerate(coros)]


# What exists only while a node runs. A `__getattr__` would say the same, but would also slow every
# attribute of every bound node, so each name gets a stub that the host class stands in front of.
PROVIDED = tuple(
    "id role peers rng now disk store world incarnation clock log members neighbours sleep tell "
    "ask deadline spawn event queue lock transfer receive arena emit compute".split()
)


def _not_running(name: str) -> property:
    def stub(self: Node) -> NoReturn:
        raise PartError(
            f"{type(self).__name__}.{name} exists only while the part runs; "
            "start it with orrery.run(part, world=…)"
        )

    return property(stub)


for _name in PROVIDED:
    setattr(Node, _name, _not_running(_name))


class Peers(Sequence[int]):
    """All node ids but one's own, without a list: 100,000 nodes share one range.

    >>> list(Peers(5, 2)), Peers(5, 2)[3], 2 in Peers(5, 2)
    ([0, 1, 3, 4], 4, False)
    """

    __slots__ = ("me", "n")

    def __init__(self, n: int, me: int) -> None:
        self.n = n
        self.me = me

    def __len__(self) -> int:
        return self.n - 1 if 0 <= self.me < self.n else self.n

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        size = len(self)
        if i < 0:
            i += size
        if not 0 <= i < size:
            raise IndexError(i)
        return i if i < self.me or size == self.n else i + 1

    def __iter__(self) -> Iterator[int]:
        # Every "tell all" of a protocol comes here, so it must not go through __getitem__.
        if len(self) == self.n:
            return iter(range(self.n))
        return itertools.chain(range(self.me), range(self.me + 1, self.n))

    def __contains__(self, item: object) -> bool:
        return isinstance(item, int) and 0 <= item < self.n and item != self.me

    def __repr__(self) -> str:
        return f"Peers(all of 0..{self.n - 1} but {self.me})"


Program = Coroutine[Any, Any, Any]

__all__ = [
    "TOLERABLE", "Cancelled", "Deadline", "Disk", "Event", "Lock", "Node", "Peers", "Program",
    "Queue", "Store", "Task",
]  # fmt: skip
