"""A group fixed at the start, as with NCCL and Gloo: whoever dies ends it for all."""

from __future__ import annotations

from typing import ClassVar

from orrery.parts import Node, Positive
from orrery.parts.collectives import OPS, Array
from orrery.systems.collectives.pccl import ring
from orrery.systems.collectives.pccl.coding import Plain
from orrery.systems.collectives.problems.elastic_peer import (
    ABORTED,
    COMMITTED,
    PEER,
    Attempt,
    Elastic,
    GroupLost,
)


class Bystander(Node):
    """The coordinator of a group that needs none."""


class StaticGroup(Elastic):
    """A ring all-reduce over a group that never changes; a silent neighbour ends it.

    This is what a communicator of NCCL (`NCCL_ASYNC_ERROR_HANDLING`) or Gloo does when a peer is
    gone: the operation aborts after a timeout and the communicator is of no more use. A peer takes
    its result as soon as it has it, so after a death some may have a result that others lack.

    Knobs: `patience_s`, after which an operation aborts.
    Differs from the libraries: parts travel whole (no segments), over one connection.

    >>> StaticGroup(patience_s=2.0).patience_s
    2.0
    """

    patience_s: Positive = 5.0

    tolerates: ClassVar[tuple[str, ...]] = ()

    def helper(self) -> Node:
        return Bystander()

    def start(self) -> None:
        super().start()
        self.ring = tuple(self.members(PEER))
        self.lanes: ring.Lanes | None = None
        self.number = 0

    async def enter(self) -> None:
        if self.incarnation or self.stale:
            raise GroupLost("a fixed group takes nobody in; start all peers again")

    async def renew(self) -> None:
        raise GroupLost("a fixed group that lost a peer is of no more use; start all peers again")

    async def attempt(self, array: Array, tag: str = "") -> Attempt:
        size, place = len(self.ring), self.ring.index(self.id)
        name = f"static/{self.number}"
        self.number += 1
        if size == 1:
            return Attempt(name, self.ring, COMMITTED, array.copy())
        if self.lanes is None:
            left, right = self.ring[place - 1], self.ring[(place + 1) % size]
            self.lanes = ring.Lanes(self, "static", left, right, 1)
        data = array.reshape(-1)
        whole_B = max(data.nbytes, 1)
        cut = ring.Cut(data.size, data.dtype.itemsize, size, 1, whole_B, whole_B)
        walk = ring.all_reduce(self.lanes, data, place, size, OPS["sum"], Plain(), cut)
        ended, value = await self.first(walk, self.sleep(self.patience_s))
        if ended == 0:
            return Attempt(name, self.ring, COMMITTED, value.reshape(array.shape))
        return Attempt(name, self.ring, ABORTED)
