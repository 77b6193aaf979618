"""The port of elastic all-reduce, and the loop that its users run: give, reduce, take.

A peer comes into a group with the group's state, works, reduces what its work gave, changes the
state by the result, and begins again. What it reports of every attempt is what the checkers of the
problems read. How peers find each other, reduce and agree is the part's own business.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Awaitable, Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from orrery.base.errors import OrreryError, PartError
from orrery.base.rand import Stream
from orrery.parts import Count, Fraction, Node, NonNegative, Part, Positive, Whole, rpc
from orrery.parts.collectives import Array

COORDINATOR, PEER = "coordinator", "peer"
COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
# After this many failures in a row to come into a group, a peer ends.
MOST_FAILURES = 2
Said = Literal["committed", "aborted", "unknown"]
Dtype = Literal["float32", "float64", "int32", "int64"]


class GroupLost(OrreryError):
    """This peer cannot go on in its group; it may try to come in again."""


class CoordinatorLost(GroupLost):
    """The coordinator gave no answer within the timeout."""


class Overtaken(GroupLost):
    """The group went on without this peer, which now has the newer state and must work anew."""


class Unsettled(GroupLost):
    """No group came about within the timeout, because members kept going; try again."""


class StateRefused(GroupLost):
    """The group does not accept the state that this peer claims to have."""


class Attempt(msgspec.Struct, frozen=True):
    """How one attempt at an operation ended, as this peer knows it.

    `unknown` is for a peer that lost the coordinator before it was told; it keeps nothing.
    """

    name: str
    members: tuple[int, ...]
    said: Said
    value: Any = None


class Work(Part):
    """What peers do between reductions: here they give made-up numbers and fold in the sums.

    Knobs: `ops`, how many reductions; `items` and `dtype` of the array; `kind` of the data, whole
    numbers (whose sums are exact in any order) or normal ones; `data_seed`; `pause_s` of work
    before each reduction; `state_items`, the size of the shared state; `tolerance`, what a lossy
    part may be off, as a part of the largest sum of magnitudes; `hollow`, arrays of one repeated
    value, which take no memory in virtual time; `scale`, as how many bytes each byte that peers
    exchange counts in virtual time.
    """

    ops: Count = 10
    items: Whole = 4096
    dtype: Dtype = "float32"
    kind: Literal["whole", "normal"] = "whole"
    data_seed: Whole = 0
    pause_s: NonNegative = 0.0
    state_items: Count = 64
    tolerance: Fraction = 0.0
    hollow: bool = False
    scale: Positive = 1.0

    def fresh(self) -> dict[str, Array]:
        """The shared state before the first reduction, equal at all peers."""
        return {"folded": np.zeros(self.state_items), "ops": np.zeros(1, np.int64)}

    async def give(self, peer: Elastic, step: int) -> Array:
        """What this peer adds to the reduction number `step`."""
        if self.pause_s:
            await peer.sleep(self.pause_s)
        return self.data(step, peer.id)

    def take(self, peer: Elastic, step: int, done: Attempt) -> None:
        """Change the shared state by a committed result; all peers do the same."""
        value = done.value.reshape(-1)[: self.state_items]
        folded = np.mod(peer.state["folded"], 8191.0)
        folded[: value.size] += value
        peer.state = {"folded": folded, "ops": peer.state["ops"] + 1}

    def data(self, step: int, node: int) -> Array:
        """The array of a node in a reduction."""
        if self.hollow:
            return np.broadcast_to(np.array(node + step % 7, self.dtype), (self.items,))
        if self.kind == "normal":
            rng = Stream(self.data_seed, node, f"churned {step}").numpy()
            return rng.standard_normal(self.items).astype(self.dtype)
        shift = (step * 40503 + node * 9973 + self.data_seed * 7919) & 0xFFFFFFFF
        mixed = (_ramp(self.items) + np.uint32(shift)) * np.uint32(2246822519)
        return ((mixed >> np.uint32(25)).astype(np.int32) - 64).astype(self.dtype)

    def total(self, step: int, members: tuple[int, ...]) -> Array:
        """The true sum over some nodes, in a type wide enough."""
        kind = np.dtype(self.dtype).kind
        total = np.zeros(self.items, np.int64 if kind == "i" else np.float64)
        for node in members:
            total += self.data(step, node)
        return total

    def deviation(self, step: int, done: Attempt) -> float:
        """How far a result is off at most, as a part of the largest sum of magnitudes."""
        most = sum(np.abs(self.data(step, node).astype(np.float64)) for node in done.members)
        off = np.abs(done.value.astype(np.float64) - self.total(step, done.members))
        largest = float(np.max(most, initial=0.0))
        return float(np.max(off, initial=0.0)) / largest if largest else float(off.any())


class Elastic(Node):
    """The port: a peer of an all-reduce whose group may change while it runs.

    A subclass writes `helper`, `enter`, `renew`, `attempt` and perhaps `idle`. It keeps
    `state` (the shared tensors), `revision` (how many results they contain), `stale` (the group is
    about to change, so `renew` must come before the next attempt) and `sent_B`.

    Knobs: `work`, given by the problem; `overlap`: the reduction of step t runs under the work of
    step t + 1, and its result comes one step late.
    """

    work: Work = Work()
    overlap: bool = False

    # -- what a subclass writes

    def helper(self) -> Node:
        """The part that plays the coordinator."""
        raise PartError(f"{type(self).__name__} has no helper(); give the coordinator's part")

    async def enter(self) -> None:
        """Come into the group and get its state."""
        raise PartError(f"{type(self).__name__} has no enter(); write how a peer joins")

    async def renew(self) -> None:
        """Agree on a new group after an abort, or to let others in; then on the state."""
        raise PartError(f"{type(self).__name__} has no renew(); write how a group changes")

    async def attempt(self, array: Array, tag: str = "") -> Attempt:
        """Try once to reduce an array over the group; the array is left as it is."""
        raise PartError(f"{type(self).__name__} has no attempt(array); write the reduction")

    def due(self) -> bool:
        """Whether `renew` must come before the next attempt."""
        return self.stale

    async def idle(self) -> None:
        """Wait, with all work done, until the group wants something; then do it."""
        await self.event().wait()

    # -- the loop

    def start(self) -> None:
        self.over = self.event()
        self.sent_B = 0
        self.state: dict[str, Array] = self.work.fresh()
        self.revision = 0
        self.launched = 0
        self.stale = False
        self._calls = 0
        self._flying: tuple[int, Any, Any] | None = None

    @rpc
    async def ended(self) -> bool:
        """Answers when this peer has done all its work, or given up."""
        await self.over.wait()
        return True

    async def main(self) -> None:
        failures, inside = 0, False
        while failures < MOST_FAILURES:
            try:
                if not inside:
                    await self._timed("enter", self.enter())
                    inside, failures = True, 0
                self.launched = self.revision
                await self._live()
            except Overtaken:
                self._drop_flying()
            except Unsettled as late:
                self.emit(unsettled=str(late))
                self._drop_flying()
                inside = False
            except GroupLost as lost:
                self.emit(lost=type(lost).__name__, why=str(lost))
                self._drop_flying()
                inside = False
                failures += 1
                if isinstance(lost, StateRefused):
                    self.state, self.revision = self.work.fresh(), 0
        self.emit(gave_up=True)
        self.over.set()

    async def _live(self) -> None:
        """Work in the group until it is lost."""
        while True:
            if self.revision >= self.work.ops:
                if not self.over.is_set():
                    self.emit(finished=self.revision, state=digest_of(self.state, self.revision))
                    self.over.set()
                await self.idle()
            elif self.launched < self.work.ops:
                await self._step()
            else:
                await self._land()

    async def _step(self) -> None:
        step = self.launched
        began_s = self.now
        array = await self.work.give(self, step)
        if self.launched != step:
            return  # the group moved on meanwhile
        if not self.overlap:
            self._take(step, await self._settle(step, array))
            self.emit(step=step, step_s=self.now - began_s)
            return
        if self._flying is not None:
            await self._land()
        results = self.queue()
        self._flying = (step, results, self.spawn(self._report(step, array, results)))
        self.launched = step + 1
        self.emit(step=step, step_s=self.now - began_s)

    def _take(self, step: int, done: Attempt) -> None:
        self.work.take(self, step, done)
        self.revision = step + 1
        self.launched = max(self.launched, self.revision)

    async def _report(self, step: int, array: Array, results: Any) -> None:
        try:
            results.put((await self._settle(step, array), None))
        except OrreryError as error:
            results.put((None, error))

    async def _land(self) -> None:
        """Wait for the reduction that runs under the work, and take its result."""
        assert self._flying is not None
        step, results, _ = self._flying
        done, error = await results.get()
        self._flying = None
        if error is not None:
            raise error
        self._take(step, done)

    def _drop_flying(self) -> None:
        if self._flying is not None:
            self._flying[2].cancel()
            self._flying = None
        self.launched = self.revision

    async def _settle(self, step: int, array: Array) -> Attempt:
        """Try until a reduction commits; each attempt is reported."""
        given, mine = checksum(array), self.revision
        while True:
            if self.due():
                await self._timed("renew", self.renew())
                if self.revision != mine:
                    raise Overtaken(f"the group is at {self.revision}, this peer was at {mine}")
            before, sent_B, began_s = digest_of(self.state, self.revision), self.sent_B, self.now
            done = await self._timed("reduce", self.attempt(array))
            told: dict[str, Any] = {}
            if done.said == COMMITTED:
                told["digest"] = digest(done.value)
                if self.work.tolerance and self.id == min(done.members):
                    told["error"] = self.work.deviation(step, done)
            self.emit(
                op=step, attempt=done.name, said=done.said, members=done.members, state=before,
                intact=checksum(array) == given, took_s=self.now - began_s,
                sent_B=self.sent_B - sent_B, **told,
            )  # fmt: skip
            if done.said == COMMITTED:
                return done
            if done.said == UNKNOWN:
                raise CoordinatorLost(f"{done.name}: nobody tells whether it committed; join again")
            self.stale = True

    async def _timed(self, call: str, body: Awaitable[Any]) -> Any:
        """Report when a call begins and ends, so that the checker sees what waits too long."""
        self._calls += 1
        number = self._calls
        self.emit(call=call, number=number, life=self.incarnation)
        try:
            value = await body
        except OrreryError:
            self.emit(done=number, life=self.incarnation)
            raise
        self.emit(done=number, life=self.incarnation)
        return value


@functools.lru_cache(maxsize=4)
def _ramp(items: int) -> Any:
    ramp = np.arange(items, dtype=np.uint32) * np.uint32(2654435761)
    ramp.setflags(write=False)
    return ramp


def is_hollow(array: Any) -> bool:
    """Whether an array is one value repeated, which nobody can change."""
    return bool(array.size > 1 and not array.flags.writeable and not any(array.strides))


def _bytes(array: Array) -> bytes:
    if is_hollow(array):
        return array.reshape(-1)[:1].tobytes() + repr(array.shape).encode()
    return np.ascontiguousarray(array).tobytes()


def digest(array: Array) -> str:
    """A short name of the bits of an array."""
    return hashlib.blake2b(_bytes(array), digest_size=8).hexdigest()


def checksum(array: Array) -> int:
    """A cheap sum of an array's bits, to see that nobody changed it."""
    raw = np.frombuffer(_bytes(array), np.uint8)
    whole = raw[: raw.size // 8 * 8].view(np.uint64)
    return int(np.add.reduce(whole, dtype=np.uint64)) ^ int(raw[whole.size * 8 :].sum())


def digest_of(state: Mapping[str, Array], revision: int) -> str:
    """A short name of a shared state: its revision, and names, types, shapes and bits."""
    hasher = hashlib.blake2b(str(revision).encode(), digest_size=16)
    for name in sorted(state):
        array = state[name]
        hasher.update(f"/{name}/{array.dtype.str}/{array.shape}/".encode())
        hasher.update(np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()


__all__ = [
    "ABORTED", "COMMITTED", "COORDINATOR", "PEER", "UNKNOWN", "Attempt", "CoordinatorLost",
    "Dtype", "Elastic", "GroupLost", "Overtaken", "StateRefused", "Unsettled", "Work", "checksum",
    "digest", "digest_of", "is_hollow",
]  # fmt: skip
