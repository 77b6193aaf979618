"""`Group`: some ranks of a run and the collectives among them. A `Worker` is in one from the start.

Arrays travel as bulk transfers, so this works in every engine. Messages between two ranks under
one tag arrive in the order of sending, though transfers may overtake each other: a sender has at
most `WINDOW` of them under way, each on a lane of its own, and the receiver reads the lanes in
turn. The number of lanes, and so of inboxes, stays small however long the run is.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from orrery.base.errors import Cancelled, DeadlineExceeded, OrreryError, PartError
from orrery.parts.collectives import Array, Collective, Combine, combiner

if TYPE_CHECKING:
    from orrery.parts.node import Event, Task
    from orrery.parts.worker import Worker

T = TypeVar("T")

# Node ids in rank order; a range where they follow each other, since 10,000 ranks share it.
Nodes = tuple[int, ...] | range

WINDOW = 8


class RankLost(OrreryError):
    """A rank sent nothing for `patience_s`: it has crashed, or waits for one that has."""

    def __init__(self, rank: int, node: int, doing: str, patience_s: float) -> None:
        self.rank = rank
        self.node = node
        super().__init__(
            f"{doing}: rank {rank} (node {node}) gave no sign for patience_s = {patience_s:g} s; "
            "it crashed or waits for one that did. Catch RankLost and go on in a group of the "
            'survivors(), set on_lost = "stop", or be more patient'
        )


class Calls:
    """The collectives as a user calls them; `Worker` and `Group` have the same ones.

    Arrays may have any shape and number type. Sums stay in the array's own type (so float16 may
    overflow to infinity, and integers wrap), but truth values are counted as int64; `mean` of
    integers is float64. Every rank gets the same bits.
    """

    def _ranks(self) -> Group:
        raise PartError(f"{type(self).__name__} is in no group")

    async def all_reduce(self, array: Any, op: str | Combine = "sum", *, tag: str = "") -> Array:
        """The reduction of all ranks' arrays, at every rank."""
        data, combine = _number(array, op), combiner(op)
        return await self._ranks().call(
            "all_reduce", tag, data, lambda how, ranks: how.all_reduce(ranks, data, combine)
        )

    async def sum(self, array: Any, *, tag: str = "") -> Array:
        """The sum over the ranks, at every rank."""
        return await self.all_reduce(array, "sum", tag=tag)

    async def mean(self, array: Any, *, tag: str = "") -> Array:
        """The sum over the ranks, divided by their number, at every rank."""
        return np.asarray(await self.all_reduce(array, "sum", tag=tag) / self._ranks().size)

    async def max(self, array: Any, *, tag: str = "") -> Array:
        """The largest value over the ranks, element by element, at every rank."""
        return await self.all_reduce(array, "max", tag=tag)

    async def min(self, array: Any, *, tag: str = "") -> Array:
        """The smallest value over the ranks, element by element, at every rank."""
        return await self.all_reduce(array, "min", tag=tag)

    async def reduce(
        self, array: Any, op: str | Combine = "sum", *, root: int = 0, tag: str = ""
    ) -> Array | None:
        """The reduction at the root; None at the others."""
        data, combine = _number(array, op), combiner(op)
        self._ranks().check_rank("root", root)
        return await self._ranks().call(
            "reduce", tag, data, lambda how, ranks: how.reduce(ranks, data, combine, root)
        )

    async def reduce_scatter(
        self, array: Any, op: str | Combine = "sum", *, tag: str = ""
    ) -> Array:
        """Part r of the reduction at rank r; the array is cut along its first axis."""
        data, combine = _number(array, op), combiner(op)
        parts = _cut(data, self._ranks().size)
        return await self._ranks().call(
            "reduce_scatter",
            tag,
            data,
            lambda how, ranks: how.reduce_scatter(ranks, parts, combine),
        )

    async def all_gather(self, array: Any, *, tag: str = "") -> list[Array]:
        """The arrays of all ranks, in rank order, at every rank; shapes may differ."""
        data = _number(array)
        return await self._ranks().call(
            "all_gather", tag, data, lambda how, ranks: how.all_gather(ranks, data)
        )

    async def gather(self, array: Any, *, root: int = 0, tag: str = "") -> list[Array] | None:
        """The arrays of all ranks, in rank order, at the root; None at the others."""
        data = _number(array)
        self._ranks().check_rank("root", root)
        return await self._ranks().call(
            "gather", tag, data, lambda how, ranks: how.gather(ranks, data, root)
        )

    async def broadcast(self, array: Any = None, *, root: int = 0, tag: str = "") -> Array:
        """The root's array, at every rank; what the others give does not matter."""
        group = self._ranks()
        group.check_rank("root", root)
        data = _number(array) if group.rank == root else None
        return await group.call(
            "broadcast", tag, data, lambda how, ranks: how.broadcast(ranks, data, root)
        )

    async def scatter(self, parts: Any = None, *, root: int = 0, tag: str = "") -> Array:
        """Part r of what the root gives, at rank r: a list, or an array cut along axis 0."""
        group = self._ranks()
        group.check_rank("root", root)
        data = _parts(parts, group.size) if group.rank == root else None
        return await group.call(
            "scatter", tag, data, lambda how, ranks: how.scatter(ranks, data, root)
        )

    async def all_to_all(self, parts: Any, *, tag: str = "") -> list[Array]:
        """Everybody's part for this rank, in rank order; parts as in `scatter`."""
        data = _parts(parts, self._ranks().size)
        return await self._ranks().call(
            "all_to_all", tag, data, lambda how, ranks: how.all_to_all(ranks, data)
        )

    async def scan(self, array: Any, op: str | Combine = "sum", *, tag: str = "") -> Array:
        """The reduction over the ranks 0 to r, at rank r."""
        data, combine = _number(array, op), combiner(op)
        return await self._ranks().call(
            "scan", tag, data, lambda how, ranks: how.scan(ranks, data, combine)
        )

    async def barrier(self, *, tag: str = "") -> None:
        """Nobody leaves before all have come."""
        await self._ranks().call("barrier", tag, None, lambda how, ranks: how.barrier(ranks))

    async def send(self, rank: int, array: Any, *, tag: str = "") -> None:
        """Send an array to a rank; returns when it has arrived."""
        group = self._ranks()
        group.check_rank("rank", rank)
        line = Line(group, "send", f"p{tag}")
        line.post(rank, _number(array))
        await line.flush()

    async def recv(self, rank: int, *, tag: str = "") -> Array:
        """The next array that a rank sent to this one under the tag."""
        group = self._ranks()
        group.check_rank("rank", rank)
        return await Line(group, "recv", f"p{tag}").take(rank)

    def group(self, ranks: Sequence[int], name: str = "") -> Group:
        """The group of these ranks, in this order; every member must give the same ranks.

        Groups of the same ranks and name are one group. A restarted rank is a stranger to the
        groups of its former life; a new `name`, on which the members agree, lets it in again.
        """
        return self._ranks().part_of(ranks, name)


class Group(Calls):
    """Some ranks of a run, seen from one of them. Made by `worker.group(ranks)`."""

    def __init__(self, worker: Worker, nodes: Nodes, name: str) -> None:
        self.worker = worker
        self.nodes = nodes
        self.name = name
        self.size = len(nodes)
        self.rank = nodes.index(worker.id)
        again = "" if name else worker.incarnation
        mark = repr((nodes, name, again)).encode()
        self.key = hashlib.blake2b(mark, digest_size=6).hexdigest()
        self.busy: dict[str, str] = {}
        # Per (peer, tag): how many arrays went out and came in, and the last WINDOW arrivals.
        self.sent: dict[tuple[int, str], int] = {}
        self.got: dict[tuple[int, str], int] = {}
        self.arrivals: dict[tuple[int, str], list[Event | None]] = {}
        self.lost: RankLost | None = None
        self.cut_off: dict[str, str] = {}

    def _ranks(self) -> Group:
        return self

    def __repr__(self) -> str:
        return f"Group(rank {self.rank} of {self.size}, nodes {self.nodes})"

    def check_rank(self, what: str, rank: Any) -> None:
        """Refuse what is no rank of this group."""
        if isinstance(rank, bool) or not isinstance(rank, int | np.integer):
            raise PartError(f"{what}={rank!r:.60} is not a rank; give a whole number")
        if not 0 <= rank < self.size:
            raise PartError(f"{what}={rank}: no such rank; ranks are 0..{self.size - 1}")

    def part_of(self, ranks: Sequence[int], name: str) -> Group:
        for rank in ranks:
            self.check_rank("ranks", rank)
        if len(set(ranks)) != len(ranks) or not len(ranks):
            raise PartError(f"group({list(ranks)!r:.80}): name each member once, and at least one")
        if self.rank not in ranks:
            raise PartError(
                f"group({list(ranks)!r:.80}): rank {self.rank} is not in it; only members make it"
            )
        return self.worker._group_of([self.nodes[int(rank)] for rank in ranks], name)

    async def call(
        self, kind: str, tag: str, data: Any, body: Callable[[Collective, Line], Awaitable[T]]
    ) -> T:
        """Run one collective: monitors before and after, one at a time for each tag."""
        worker = self.worker
        if tag in self.busy:
            raise PartError(
                f"{kind}(tag={tag!r}): {self.busy[tag]} runs under this tag already; give tag= to "
                "run several at once"
            )
        if self.lost is not None:
            raise self.lost
        if tag in self.cut_off:
            raise PartError(
                f"{kind}(tag={tag!r}): {self.cut_off[tag]} was cut off under this tag, so the "
                "ranks are out of step; go on under another tag, or in a group of another name"
            )
        if self.size > worker.widest:
            worker.widest = self.size
        worker.tap("before", kind, tag, _shown(data), self)
        line = (TimedLine if worker.taps_arrays() else Line)(self, kind, f"c{tag}")
        self.busy[tag] = kind
        try:
            result = await body(worker.collective, line)
            await line.flush()
        except RankLost as lost:
            line.cancel()
            self.lost = lost
            if worker.on_lost == "stop":
                worker.emit(lost=lost.rank)
                await worker.event().wait()
            raise
        except (Exception, Cancelled):
            # What the others sent to this call must not be taken for a part of the next one.
            line.cancel()
            self.cut_off[tag] = kind
            raise
        finally:
            del self.busy[tag]
        worker.tap("after", kind, tag, _shown(result), self)
        return result


class Line:
    """What one call sees of its group: the `Ranks` of a collective."""

    def __init__(self, group: Group, doing: str, tag: str) -> None:
        self.rank = group.rank
        self.size = group.size
        self.group = group
        self._doing = doing
        self._tag = tag
        self._posts: list[tuple[int, Task, Event]] = []

    def _lane(self, number: int) -> str:
        return f"{self.group.key}/{self._tag}/{number % WINDOW}"

    def post(self, rank: int, array: Array) -> Event:
        """Send an array to a rank without waiting; leave it unchanged until the call ends.

        Gives the event of its arrival, for those who will not have too much under way.
        """
        group, worker = self.group, self.group.worker
        key = (rank, self._tag)
        number = group.sent.get(key, 0)
        group.sent[key] = number + 1
        worker.sent_B += int(array.nbytes)
        lanes = group.arrivals.setdefault(key, [None] * WINDOW)
        before = lanes[number % WINDOW]
        lanes[number % WINDOW] = arrived = worker.event()
        node, data = group.nodes[rank], np.asarray(array, order="C")
        scale = worker.training.scale

        async def ship() -> None:
            try:
                if before is not None and not before.is_set():
                    await before.wait()
                await worker.transfer(node, data, self._lane(number), scale)
                self.shipped(rank, data)
            finally:
                arrived.set()

        self._posts.append((rank, worker.spawn(ship()), arrived))
        return arrived

    async def take(self, rank: int) -> Array:
        """The next array that a rank posted to this one, in the order of its posts."""
        group, worker = self.group, self.group.worker
        key = (rank, self._tag)
        number = group.got.get(key, 0)
        try:
            async with worker.deadline(worker.patience_s):
                array = await worker.receive(group.nodes[rank], self._lane(number))
        except DeadlineExceeded:
            raise self._lost(rank) from None
        group.got[key] = number + 1
        return array

    async def flush(self) -> None:
        """Wait until all that was posted has arrived."""
        for rank, _, arrived in self._posts:
            await self.arrival(rank, arrived)

    async def arrival(self, rank: int, arrived: Event) -> None:
        """Wait until one thing that was posted to a rank has arrived, or the rank is lost."""
        if arrived.is_set():
            return
        try:
            async with self.group.worker.deadline(self.group.worker.patience_s):
                await arrived.wait()
        except DeadlineExceeded:
            raise self._lost(rank) from None

    def shipped(self, rank: int, array: Array) -> None:
        """What was posted to a rank has arrived there; for a subclass that watches progress."""

    def cancel(self) -> None:
        """Wait no longer for what was posted."""
        for _, task, _ in self._posts:
            task.cancel()

    def _lost(self, rank: int) -> RankLost:
        group = self.group
        return RankLost(rank, group.nodes[rank], self._doing, group.worker.patience_s)


class TimedLine(Line):
    """A line that shows monitors how long each array took to its peer, and among how many."""

    def __init__(self, group: Group, doing: str, tag: str) -> None:
        super().__init__(group, doing, tag)
        self._posted: dict[int, deque[tuple[float, int]]] = {}

    def post(self, rank: int, array: Array) -> Event:
        worker = self.group.worker
        worker.under_way += 1
        self._posted.setdefault(rank, deque()).append((worker.now, worker.under_way))
        return super().post(rank, array)

    def shipped(self, rank: int, array: Array) -> None:
        worker, peer = self.group.worker, self.group.nodes[rank]
        began_s, among = self._posted[rank].popleft()
        among = max(among, worker.under_way)
        worker.under_way -= 1
        worker.tap_array(peer, int(array.nbytes), worker.now - began_s, among)


def compact(nodes: Sequence[int]) -> Nodes:
    """Node ids as something small that can be hashed.

    >>> compact([3, 4, 5]), compact([4, 3])
    (range(3, 6), (4, 3))
    """
    if isinstance(nodes, range) and nodes.step == 1:
        return nodes
    ids = tuple(nodes)
    run = range(ids[0], ids[0] + len(ids)) if ids else range(0)
    return run if ids == tuple(run) else ids


def _number(array: Any, op: Any = None) -> Array:
    """What a user gave as an array that can travel; truth values that are added are counted."""
    data = np.asarray(array)
    if data.dtype.hasobject:
        raise PartError(
            f"{array!r:.60} is no array of numbers (dtype {data.dtype}); give numbers of one type"
        )
    if data.dtype == np.bool_ and op in ("sum", "prod"):
        return data.astype(np.int64)
    return data


def _shown(data: Any) -> Any:
    """The same for a monitor, which cannot change it."""
    if isinstance(data, list):
        return [_shown(one) for one in data]
    if not isinstance(data, np.ndarray):
        return data
    seen = data.view()
    seen.flags.writeable = False
    return seen


def _cut(data: Array, size: int) -> list[Array]:
    if data.ndim == 0:
        raise PartError("an array without axes cannot be cut into parts; reshape it to (1,)")
    return np.array_split(data, size, axis=0)


def _parts(parts: Any, size: int) -> list[Array]:
    if isinstance(parts, np.ndarray):
        return _cut(_number(parts), size)
    if not isinstance(parts, list | tuple) or len(parts) != size:
        found = f"{len(parts)}" if isinstance(parts, list | tuple) else f"{parts!r:.60}"
        raise PartError(
            f"parts: got {found}; give an array, or a list of {size} arrays (one a rank)"
        )
    return [_number(part) for part in parts]
