"""`PCCL`: a peer of an all-reduce that survives joins, leaves and deaths."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any, ClassVar, Literal

import numpy as np

from orrery.base.errors import DeadlineExceeded, PartError, Refused, did_you_mean
from orrery.parts import Count, Node, Positive, Whole, rpc
from orrery.parts.collectives import OPS, Array
from orrery.systems.collectives.pccl import ring
from orrery.systems.collectives.pccl.coding import CODERS
from orrery.systems.collectives.pccl.coordinator import (
    COMMIT,
    NOBODY_KNOWS,
    Coordinator,
    Decision,
    Topology,
)
from orrery.systems.collectives.problems.elastic_peer import (
    ABORTED,
    COMMITTED,
    COORDINATOR,
    PEER,
    UNKNOWN,
    Attempt,
    CoordinatorLost,
    Elastic,
    StateRefused,
    Unsettled,
    digest_of,
)

# A part is spread over the connections in pieces of this size or more.
LEAST_PIECE_B = 1 << 20


class PCCL(Elastic):
    """All-reduce and shared state for a group whose peers join, leave and die at any moment.

    Prime Intellect, "Prime Collective Communications Library -- Technical Report" (2025).

    A coordinator keeps the membership; peers pass data to each other directly. The group changes
    only between operations, when all present members ask for it (`renew`): dead ones go, newcomers
    come, the ring is ordered by measured times, and whoever has another state than the group gets
    it from a holder. An all-reduce goes round the ring in pieces over `connections` parallel
    connections. Its result stays in scratch until the coordinator has the success of every member
    and says commit; a death says abort to all, inputs are as they were, and the caller tries again
    in a new group. So two survivors never disagree on what happened, and all hold the same bits.

    `all_reduce(array, op, tag=…, way=…)` tries once and gives an `Attempt`; several tags may run at
    once, and ways 0, 1, 2 … go round the same members over different links. `renew()` and
    `all_reduce()` are what a training loop calls; the loop itself is in `Elastic`.

    Knobs: `timeout_s`, the longest that an operation waits; `silence_s`, after which a peer counts
    as dead, and `beat_s` between its signs of life; `connections` to each neighbour; `piece_B`, the
    largest piece; `quantise`, "none" or "int8"; `probe_B`, the array by which links are timed (0:
    the ring keeps the order of node ids); `first_size` of the first group (0: all peers);
    `sync_every`: the states are compared again after so many operations (0: only when the group
    changes); `vote`: results wait for the commit (off, they are kept at once, and a death can leave
    some peers with a result that others never get).

    **Differs from the paper.** The commit by votes, the election of the right state and the fixed
    order of sums in int8 are our designs for what the paper promises. The death of a peer is seen
    by silence and by its next life, not by a closed socket, which nodes here cannot see; so work
    that keeps a process busy for `silence_s` at a stretch looks like a death. A connection carries
    one piece at a time and waits for its arrival. Addition costs no virtual time. The ring is
    ordered exactly up to nine peers, beyond that by local search. If all members die at once, what
    they had is lost: keeping checkpoints is the caller's business.

    >>> PCCL(connections=4).helper().timeout_s
    10.0
    """

    timeout_s: Positive = 10.0
    silence_s: Positive = 2.0
    beat_s: Positive = 0.4
    connections: Count = 16
    piece_B: Count = 8 << 20
    quantise: Literal["none", "int8"] = "none"
    probe_B: Whole = 64 << 10
    first_size: Whole = 0
    sync_every: Whole = 16
    vote: bool = True

    tolerates: ClassVar[tuple[str, ...]] = (
        "drop", "duplicate", "reorder", "crash", "restart", "pause",
    )  # fmt: skip

    def helper(self) -> Node:
        return Coordinator(
            silence_s=self.silence_s, timeout_s=self.timeout_s, first_size=self.first_size,
            optimise=self.probe_B > 0,
        )  # fmt: skip

    def start(self) -> None:
        super().start()
        self.hub = self.members(COORDINATOR)[0]
        self.epoch = -1
        self.ring: tuple[int, ...] = ()
        self.broken = self.event()
        self.ended_epoch = -1
        self.numbers: dict[str, int] = {}
        self.busy: set[str] = set()
        self.lanes: dict[tuple[str, int], ring.Lanes] = {}
        self.syncs = 0
        self.heard_s = self.now
        self.beating: Any = None

    # -- speaking with the coordinator

    async def _beat(self) -> None:
        """Show signs of life, and see those of the coordinator."""
        while True:
            try:
                async with self.deadline(self.silence_s):
                    ended = await self.ask(self.hub, Coordinator.beat, self.incarnation)
                self.heard_s = self.now
                self._end_epoch(ended)
            except DeadlineExceeded:
                continue  # the next one may come through
            await self.sleep(self.beat_s)

    @rpc
    async def aborted(self, epoch: int) -> None:
        """The coordinator says that a group is over."""
        self._end_epoch(epoch)

    def _end_epoch(self, epoch: int) -> None:
        self.ended_epoch = max(self.ended_epoch, epoch)
        if self.epoch <= self.ended_epoch:
            self.broken.set()

    async def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Ask the coordinator, again if need be; if it shows no sign of life, it is lost."""
        while True:
            try:
                async with self.deadline(self.timeout_s / 20):
                    answer = await self.ask(self.hub, method, self.incarnation, *args)
                self.heard_s = self.now
                return answer
            except DeadlineExceeded:
                if self.now - self.heard_s > self.timeout_s / 3:
                    raise CoordinatorLost(
                        f"the coordinator (node {self.hub}) gave no sign for "
                        f"{self.timeout_s / 3:g} s; start it again, or raise timeout_s"
                    ) from None

    # -- membership

    async def enter(self) -> None:
        """Come into the group: wait until the present members let newcomers in."""
        if self.beating is None:
            self.heard_s = self.now
            self.beating = self.spawn(self._beat())
        self.epoch, self.stale = -1, True
        await self.renew()

    async def leave(self) -> None:
        """Go, between two operations; the others need not find out by silence."""
        await self._call(Coordinator.leave)

    async def idle(self) -> None:
        self.stale = True
        await self._form_group()

    def due(self) -> bool:
        done = self.numbers.get("", 0)
        return self.stale or bool(self.sync_every and done and done % self.sync_every == 0)

    async def renew(self) -> None:
        """Agree on a new group and on its state, or raise `Unsettled` when the time is up."""
        try:
            async with self.deadline(0.9 * self.timeout_s):
                await self._form_group()
        except DeadlineExceeded:
            raise Unsettled(
                f"no group within {0.9 * self.timeout_s:g} s: members keep coming and going; try "
                "again, or raise timeout_s"
            ) from None

    async def _form_group(self) -> None:
        if not self.stale and await self.sync_shared_state():
            return
        while True:
            try:
                topology = await self._call(Coordinator.update, self.epoch)
            except Refused:
                await self.sleep(self.beat_s)  # it came too late for the last group
                continue
            self._adopt(topology)
            await self.regroup(topology)
            if topology.unknown and not await self._measure(topology):
                continue
            if await self.sync_shared_state():
                self.stale = False
                return

    async def regroup(self, topology: Topology) -> None:
        """What else a change of members means; nothing here."""

    def _adopt(self, topology: Topology) -> None:
        for lanes in self.lanes.values():
            lanes.close()
        self.lanes.clear()
        self.numbers.clear()
        self.syncs = 0
        self.epoch, self.ring = topology.epoch, topology.ring
        self.broken = self.event()
        self._end_epoch(self.ended_epoch)

    async def _measure(self, topology: Topology) -> bool:
        """Time a small array to each member that nobody has timed yet; then all take one order."""
        mark = f"probe/{topology.epoch}"
        come = [a for a, b in topology.unknown if b == self.id]
        drains = [self.spawn(self._drain(node, mark)) for node in come]
        costs: dict[int, float] = {}
        probe = np.zeros(self.probe_B, np.uint8)
        for node in [b for a, b in topology.unknown if a == self.id]:
            began_s = self.now
            place, _ = await self.first(
                self.transfer(node, probe, mark), self.sleep(self.timeout_s / 10),
                self.broken.wait(),
            )  # fmt: skip
            if place == 2:
                break
            costs[node] = self.now - began_s
        order = await self._call(Coordinator.measured, topology.epoch, costs)
        for drain in drains:
            drain.cancel()
        if order:
            self.ring = tuple(order)
        return bool(order)

    async def _drain(self, node: int, mark: str) -> None:
        await self.receive(node, mark)

    # -- shared state

    async def sync_shared_state(self) -> bool:
        """Have the state that the group has; false when the group broke meanwhile."""
        number = self.syncs
        self.syncs += 1
        digest = digest_of(self.state, self.revision)
        try:
            told = await self._call(
                Coordinator.offer, self.epoch, number, self.revision, digest
            )  # fmt: skip
        except Refused as refused:
            raise StateRefused(str(refused)) from None
        if told.epoch < 0:
            return False
        if told.all_same:
            return True
        success = True
        if (self.revision, digest) != (told.revision, told.digest):
            success = await self._download(told.holder, told.revision, told.digest, number)
        return bool(await self._call(Coordinator.synced, self.epoch, number, success))

    async def _download(self, holder: int, revision: int, digest: str, number: int) -> bool:
        mark = f"state/{self.epoch}/{number}"
        place, found = await self.first(
            self._fetch(holder, mark), self.broken.wait(), self.sleep(self.timeout_s / 2)
        )
        if place != 0 or digest_of(found, revision) != digest:
            return False
        self.state, self.revision = found, revision
        self.emit(downloaded=revision, holder=holder, state=digest)
        return True

    async def _fetch(self, holder: int, mark: str) -> dict[str, Array]:
        names = await self.ask(holder, PCCL.give_state, mark)
        return {name: await self.receive(holder, mark) for name in names}

    @rpc
    async def give_state(self, mark: str, sender: int) -> list[str]:
        """The names of the shared tensors, which follow in this order as arrays."""
        names = sorted(self.state)
        self.spawn(self._ship([self.state[name] for name in names], sender, mark))
        return names

    async def _ship(self, arrays: list[Array], peer: int, mark: str) -> None:
        for array in arrays:
            self.sent_B += int(array.nbytes)
            place, _ = await self.first(
                self.transfer(peer, array, mark), self.sleep(self.timeout_s / 2)
            )
            if place:
                return

    # -- operations

    async def attempt(self, array: Array, tag: str = "") -> Attempt:
        return await self.all_reduce(array, tag=tag)

    async def all_reduce(
        self, array: Any, op: str = "sum", *, tag: str = "", way: int = 0, out: Any = None
    ) -> Attempt:
        """Try once to reduce an array over the group.

        The value of a committed attempt is at every member the same, to the bit. `out` is memory
        for it; whatever becomes of the attempt, `out` may be overwritten and `array` is not.
        """
        data, scratch = self._checked(array, op, tag, out)
        epoch, broken = self.epoch, self.broken
        number = self.numbers.get(tag, 0)
        self.numbers[tag] = number + 1
        members = tuple(sorted(self.ring))
        name = f"{epoch}/{tag}/{number}"
        self.busy.add(tag)
        try:
            value = await self._reduce(data, op, tag, way, scratch, broken)
            said = await self._agree(epoch, tag, number, value is not None)
        finally:
            self.busy.discard(tag)
        if said == COMMITTED and value is not None:
            return Attempt(name, members, said, value.reshape(np.shape(array)))
        return Attempt(name, members, said)

    def _checked(self, array: Any, op: str, tag: str, out: Any) -> tuple[Array, Array | None]:
        data = np.asarray(array)
        if self.epoch < 0:
            raise PartError("all_reduce before enter(): this peer is in no group yet")
        if tag in self.busy:
            raise PartError(f"all_reduce(tag={tag!r}) runs already; give another tag= to run two")
        if op not in OPS:
            raise PartError(f"op={op!r:.60}: no such operation; {did_you_mean(str(op), OPS)}")
        if data.dtype.kind not in "iuf":
            raise PartError(
                f"an array of {data.dtype} cannot be reduced; give whole or floating numbers"
            )
        if self.quantise != "none" and (data.dtype != np.float32 or op != "sum"):
            raise PartError(
                f"quantise={self.quantise!r} sums float32 only, not {op} of {data.dtype}"
            )
        if out is None:
            return data.reshape(-1), None
        fits = isinstance(out, np.ndarray) and out.shape == data.shape and out.dtype == data.dtype
        if not fits or not out.flags.c_contiguous or np.shares_memory(out, data):
            raise PartError(
                "out must be another contiguous array of the same shape and type as the input"
            )
        return data.reshape(-1), out.reshape(-1)

    async def _reduce(
        self, data: Array, op: str, tag: str, way: int, out: Array | None, broken: Any
    ) -> Array | None:
        """The result in scratch, or None when the group broke or the time was up."""
        size = len(self.ring)
        if size == 1:
            return data.copy()
        if broken.is_set():
            return None
        lanes, place = self._lanes(tag, way)
        coder = CODERS[self.quantise]()
        cut = ring.Cut(
            data.size, data.dtype.itemsize, size, self.connections, self.piece_B, LEAST_PIECE_B
        )
        walk = ring.all_reduce(lanes, data, place, size, OPS[op], coder, cut, out)
        ended, value = await self.first(walk, broken.wait(), self.sleep(0.6 * self.timeout_s))
        return value if ended == 0 else None

    def _lanes(self, tag: str, way: int) -> tuple[ring.Lanes, int]:
        size = len(self.ring)
        steps = [step for step in range(1, size) if gcd(step, size) == 1]
        step = steps[way % len(steps)]
        order = [self.ring[i * step % size] for i in range(size)]
        place = order.index(self.id)
        lanes = self.lanes.get((tag, step))
        if lanes is None:
            left, right = order[place - 1], order[(place + 1) % size]
            name = f"{self.epoch}/{tag}/{step}"
            lanes = ring.Lanes(self, name, left, right, self.connections)
            self.lanes[tag, step] = lanes
        return lanes, place

    async def _agree(self, epoch: int, tag: str, number: int, success: bool) -> Any:
        """How the attempt ends for all."""
        if success and not self.vote:
            return COMMITTED
        try:
            decision: Decision = await self._call(Coordinator.vote, epoch, tag, number, success)
        except CoordinatorLost:
            # Without this peer's success nothing can have committed; with it, nobody here knows.
            return UNKNOWN if success else ABORTED
        self.stale = self.stale or decision.renew
        if decision.verdict == NOBODY_KNOWS:
            return UNKNOWN if success else ABORTED
        return COMMITTED if decision.verdict == COMMIT else ABORTED


__all__ = ["COORDINATOR", "PCCL", "PEER"]
