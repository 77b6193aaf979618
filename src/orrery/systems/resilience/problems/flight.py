"""`Recorder`: what a rank's communication library notes of itself; and communicators that use it.

A recorder stands round the collectives of one rank: for each operation the communicator, its
sequence number, kind, size, when it was enqueued, when something first moved, when it ended, and
how many arrays went out, arrived and came in meanwhile. The last ones stay in a ring of fixed size.
All times are the rank's own clock, and only differences of them are ever used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import msgspec
import numpy as np

from orrery.base.errors import PartError
from orrery.parts import Worker
from orrery.parts.collectives import Array, combiner
from orrery.parts.groups import Group, Line
from orrery.parts.node import Event

NEVER = -1.0
NOBODY = -1
# Of each peer so many of the arrays under way are remembered.
LATEST = 16
# Every so many calls the recorder takes its own time, since looking at a clock costs time too.
SAMPLED = 16


class Op(msgspec.Struct, array_like=True):
    """One operation of a rank in a communicator."""

    slot: str  # what the communicator is for this rank: "tp", "dp", "forward_in" …
    comm: str
    seq: int
    kind: str
    nbytes: int
    enqueued_s: float
    work_s: float  # what the rank had computed until then, since it started
    started_s: float = NEVER  # when something first moved
    ended_s: float = NEVER
    posted: int = 0
    shipped: int = 0
    taken: int = 0
    awaits: int = NOBODY  # the node whose array is waited for now

    @property
    def took_s(self) -> float:
        """From enqueue to end."""
        return self.ended_s - self.enqueued_s


class Channel(msgspec.Struct, array_like=True):
    """What one rank knows of its way to one peer; counts are of arrays, over the whole run."""

    peer: int
    posted: int = 0
    shipped: int = 0
    taken: int = 0
    oldest_s: float = 0.0  # how long the oldest array on its way has been there
    slow: int = 0  # how many of the latest took unusually long, by the probe's judgement
    ratio: float = 1.0  # and how many times the usual time they took, in the middle


class Dump(msgspec.Struct, array_like=True):
    """All that a rank tells of itself when it is asked."""

    rank: int
    now_s: float
    idle_s: float  # how long it has been outside of any communication; 0 when it is in one
    open: list[Op]  # operations that have not ended, the oldest first
    counts: dict[str, int]  # by slot, how many operations were enqueued
    seqs: dict[str, int]  # the same by communicator
    comms: dict[str, list[int]]  # the nodes of each communicator
    channels: list[Channel]
    ring: list[Op] = []  # the latest that have ended, the oldest first


class Recorder:
    """Notes a rank's operations; a probe of a diagnostic system inherits from it.

    `clock` gives the rank's time, `size` is the number of operations in the ring. `spent_s` is the
    time inside the recorder itself, by the same clock, scaled up from every 16th of its `calls`.
    """

    def __init__(self, rank: int, clock: Callable[[], float], size: int) -> None:
        self.rank, self.clock, self.size = rank, clock, size
        self.ring: deque[Op] = deque(maxlen=size)
        self.busy: list[Op] = []
        self.counts: dict[str, int] = {}
        self.seqs: dict[str, int] = {}
        self.members: dict[str, list[int]] = {}
        self.channels: dict[int, Channel] = {}
        self.under_way: dict[int, deque[float]] = {}
        self.work_s = 0.0
        self.idle_since_s = clock()
        self.spent_s = 0.0
        self.calls = 0

    # -- called round each operation

    def enqueue(self, slot: str, comm: str, kind: str, nbytes: int, members: list[int]) -> Op:
        """An operation begins."""
        now_s = self.clock()
        if not self.busy:
            self.work_s += now_s - self.idle_since_s
        seq = self.seqs.get(comm, 0)
        self.seqs[comm] = seq + 1
        self.counts[slot] = self.counts.get(slot, 0) + 1
        self.members[comm] = members
        op = Op(slot, comm, seq, kind, nbytes, now_s, self.work_s)
        self.busy.append(op)
        self.ring.append(op)
        self._leave(now_s)
        return op

    def end(self, op: Op) -> None:
        """It has ended."""
        now_s = self.clock()
        op.ended_s = now_s
        op.awaits = NOBODY
        self.busy.remove(op)
        if not self.busy:
            self.idle_since_s = now_s
        self.ended(op)
        self._leave(now_s)

    def post(self, op: Op, peer: int) -> None:
        """An array leaves for a peer."""
        now_s = self.clock()
        op.posted += 1
        channel = self.channels.get(peer)
        if channel is None:
            channel = self._meet(peer)
        channel.posted += 1
        self.under_way[peer].append(now_s)
        self._leave(now_s)

    def shipped(self, op: Op, peer: int, nbytes: int) -> None:
        """The oldest array on its way to a peer has arrived."""
        now_s = self.clock()
        if op.started_s == NEVER:
            op.started_s = now_s
        op.shipped += 1
        self.channels[peer].shipped += 1
        under_way = self.under_way[peer]
        if under_way:
            self.arrived(peer, nbytes, now_s - under_way.popleft())
        self._leave(now_s)

    def takes(self, op: Op, peer: int) -> None:
        """The rank waits for an array of a peer."""
        op.awaits = peer

    def took(self, op: Op, peer: int) -> None:
        """It has come."""
        sampled = (self.calls + 1) % SAMPLED == 0
        now_s = self.clock() if sampled or op.started_s == NEVER else 0.0
        if op.started_s == NEVER:
            op.started_s = now_s
        op.awaits = NOBODY
        op.taken += 1
        channel = self.channels.get(peer)
        if channel is None:
            channel = self._meet(peer)
        channel.taken += 1
        self._leave(now_s)

    def _meet(self, peer: int) -> Channel:
        found = self.channels[peer] = Channel(peer)
        self.under_way[peer] = deque(maxlen=LATEST)
        return found

    def _leave(self, since_s: float) -> None:
        self.calls += 1
        if self.calls % SAMPLED == 0:
            self.spent_s += SAMPLED * (self.clock() - since_s)

    # -- for a probe

    def ended(self, op: Op) -> None:
        """A probe learns from an operation that has ended."""

    def arrived(self, peer: int, nbytes: int, took_s: float) -> None:
        """A probe learns from an array that has arrived at a peer."""

    def told(self) -> None:
        """A probe brings its channels up to date, before they are told."""

    # -- telling

    def dump(self, last: int = 0) -> Dump:
        """What is going on, with so many of the latest operations that have ended."""
        now_s = self.clock()
        for peer, under_way in self.under_way.items():
            self.channels[peer].oldest_s = now_s - under_way[0] if under_way else 0.0
        self.told()
        ended = [op for op in self.ring if op.ended_s != NEVER] if last else []
        # Copies, because what is on its way to a watcher no longer changes.
        return Dump(
            self.rank, now_s, 0.0 if self.busy else now_s - self.idle_since_s,
            [copy(op) for op in self.busy], dict(self.counts), dict(self.seqs), dict(self.members),
            [copy(self.channels[peer]) for peer in sorted(self.channels)],
            [copy(op) for op in ended[-last:]],
        )  # fmt: skip


class ProbedLine(Line):
    """The `Ranks` of one call whose every array is noted."""

    def __init__(self, group: Group, kind: str, tag: str, recorder: Recorder, op: Op) -> None:
        super().__init__(group, kind, tag)
        self._recorder, self._op = recorder, op

    def post(self, rank: int, array: Array) -> Event:
        self._recorder.post(self._op, self.group.nodes[rank])
        return super().post(rank, array)

    def shipped(self, rank: int, array: Array) -> None:
        self._recorder.shipped(self._op, self.group.nodes[rank], int(array.nbytes))

    async def take(self, rank: int) -> Array:
        peer = self.group.nodes[rank]
        self._recorder.takes(self._op, peer)
        array = await super().take(rank)
        self._recorder.took(self._op, peer)
        return array


class Communicator:
    """Some ranks that talk, with a recorder round them, as NCCL's communicators have one.

    Ranks that disagree about an operation hang, as with NCCL, and no rank ever gives up by itself.
    """

    def __init__(self, worker: Worker, recorder: Recorder, ranks: Sequence[int], name: str) -> None:
        self.worker, self.recorder, self.name = worker, recorder, name
        self.group = worker.group(ranks, name)
        self.nodes = [int(node) for node in self.group.nodes]

    async def collective(self, slot: str, kind: str, array: Array) -> Array | None:
        """One collective: "all_reduce", or "all_gather" for one that was not meant."""
        recorder, group = self.recorder, self.group
        op = recorder.enqueue(slot, self.name, kind, int(array.nbytes), self.nodes)
        combine = combiner("sum")

        async def body(how: Any, _: Line) -> Array:
            # Kernels of different operations do not understand one another's arrays.
            line = ProbedLine(group, kind, f"c{kind}", recorder, op)
            if kind == "all_gather":
                found = np.concatenate(await how.all_gather(line, array))
            else:
                found = await how.all_reduce(line, array, combine)
            await line.flush()
            return found

        try:
            result = await group.call(kind, "", array, body)
        except PartError:
            # Shapes that do not fit: NCCL's kernels would wait for bytes that never come.
            await self.worker.event().wait()
            return None
        recorder.end(op)
        return result

    async def send(self, slot: str, place: int, array: Array, lane: str) -> None:
        """Send to the rank at a place of the communicator; returns when it has arrived."""
        op, line = self._between(slot, lane, self.group.rank, place, int(array.nbytes))
        line.post(place, array)
        await line.flush()
        self.recorder.end(op)

    async def recv(self, slot: str, place: int, nbytes: int, lane: str) -> Array:
        """What the rank at a place sends next."""
        op, line = self._between(slot, lane, place, self.group.rank, nbytes)
        array = await line.take(place)
        self.recorder.end(op)
        return array

    def _between(
        self, slot: str, lane: str, source: int, target: int, nbytes: int
    ) -> tuple[Op, ProbedLine]:
        """Each way between two ranks has a sequence of its own, as it has an order of its own."""
        ends = [self.nodes[source], self.nodes[target]]
        name = f"{self.name}.{lane}.{source}"
        op = self.recorder.enqueue(slot, name, "p2p", nbytes, ends)
        return op, ProbedLine(self.group, "p2p", f"p{lane}", self.recorder, op)
