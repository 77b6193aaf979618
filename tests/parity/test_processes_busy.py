"""Nodes that compute for long: nothing that is said or sent to them meanwhile is lost."""

from __future__ import annotations

import time

import numpy as np
import pytest

from orrery import Node, World, rpc, run
from orrery.engines.processes import bulk, net


class Busy(Node):
    """Node 1 is deaf for a second, from its start or right after it was first heard of."""

    late: bool = False

    async def main(self):
        if self.id == 1:
            if self.late:
                await self.sleep(0.02)
            await self.compute(time.sleep, 1.0)
            self.emit(got=float((await self.receive(0, "x")).sum()))
            return
        if self.late:
            await self.sleep(0.01)  # the connections are being opened when the other goes deaf
        await self.all(self.transfer(1, np.ones(1000), "x"), self.said())

    async def said(self):
        async with self.deadline(8.0):
            self.emit(answer=await self.ask(1, Busy.double, 21))

    @rpc
    async def double(self, number: int) -> int:
        return 2 * number


@pytest.mark.parametrize("late", [False, True])
def test_what_comes_for_a_busy_node_waits_for_it(monkeypatch, late):
    # A handshake is given less time than the node is deaf.
    monkeypatch.setattr(net, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr(bulk, "HANDSHAKE_S", 0.2)
    made = run(Busy(late=late), world=World.lan(2), engine="processes", nodes_per_process=1,
               start="fork", until_s=20.0)  # fmt: skip
    told = {k: v for r in made.records for k, v in r.values.items()}
    assert told == {"got": 1000.0, "answer": 42}
    assert made.extra["lost"] == 0
