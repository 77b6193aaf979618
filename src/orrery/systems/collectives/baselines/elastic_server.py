"""A parameter server with elastic membership: all arrays meet at the coordinator."""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.parts import Node, rpc
from orrery.parts.collectives import OPS, Array
from orrery.systems.collectives.pccl import PCCL, Coordinator


class SummingServer(Coordinator):
    """A coordinator that also adds: it takes an array from each member and sends the sum to all."""

    @rpc
    async def reduce_for(
        self, epoch: int, mark: str, op: str, members: list[int], sender: int
    ) -> None:
        """The first member of a group that asks starts the sum under this mark."""
        if epoch == self.epoch and not self.broken and mark not in self.gates:
            self.gates[mark] = self.event()
            self.spawn(self._serve(epoch, mark, op, members))

    async def _serve(self, epoch: int, mark: str, op: str, members: list[int]) -> None:
        await self.first(self._add(mark, op, members), self.gates[mark].wait())

    async def _add(self, mark: str, op: str, members: list[int]) -> None:
        total: Any = None
        for node in members:  # in one order, so that all get the same bits
            array = await self.receive(node, mark)
            total = array if total is None else OPS[op](total, array)
        await self.all(*(self.transfer(node, total, mark) for node in members))


class ElasticServer(PCCL):
    """All-reduce through one server, with the membership, votes and shared state of `PCCL`.

    Every peer sends its array to the server and gets the sum (Li et al., "Scaling distributed
    machine learning with the parameter server", OSDI 2014, with one server). Two latencies, but the
    server's link carries n arrays each way, so the time grows with the number of peers.

    Knobs: those of `PCCL` that have to do with membership.
    Differs from the paper: synchronous, one server; the server is the coordinator.

    >>> type(ElasticServer().helper()).__name__
    'SummingServer'
    """

    def helper(self) -> Node:
        return SummingServer(
            silence_s=self.silence_s, timeout_s=self.timeout_s, first_size=self.first_size,
            optimise=False,
        )  # fmt: skip

    async def _reduce(
        self, data: Array, op: str, tag: str, way: int, out: Array | None, broken: Any
    ) -> Array | None:
        if broken.is_set():
            return None
        mark = f"{self.epoch}/{tag}/{self.numbers[tag] - 1}"
        self.tell(
            self.hub, SummingServer.reduce_for, self.epoch, mark, op, sorted(self.ring)
        )  # fmt: skip
        ended, value = await self.first(
            self._through(data, mark), broken.wait(), self.sleep(0.6 * self.timeout_s)
        )
        if ended != 0:
            return None
        if out is not None:
            out[:] = value
            return out
        return np.asarray(value)

    async def _through(self, data: Array, mark: str) -> Array:
        scale = self.work.scale
        self.sent_B += round(data.nbytes * scale)
        await self.transfer(self.hub, data, mark, scale)
        return await self.receive(self.hub, mark)
