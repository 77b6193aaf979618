"""Monitors that boil down at the rank what they are told, in both engines."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import Monitor, Worker, World, run


class Sums(Worker):
    async def main(self):
        for step in range(3):
            await self.sum(np.full(1000, float(self.rank + step)), tag="sum")
            await self.barrier()


class Norms(Monitor):
    """Hears one number of each array that enters a sum, numbered by the rank itself."""

    def start(self):
        self.heard = {}
        self.left = 0

    def at_rank(self, memory, time_s, phase, kind, tag, data):
        if kind == "barrier" or phase == "after":
            return None
        memory["count"] = memory.get("count", 0) + 1
        return [memory["count"], float(np.linalg.norm(data))]

    def before_collective(self, time_s, node, kind, tag, data):
        assert kind == "all_reduce" and tag == "sum"
        self.heard.setdefault(node, []).append(data)

    def after_collective(self, time_s, node, kind, tag, data):
        self.left += 1


class Everything(Monitor):
    def start(self):
        self.kinds = []

    def before_collective(self, time_s, node, kind, tag, data):
        self.kinds.append((kind, None if data is None else data.size))


@pytest.mark.parametrize("engine", ["virtual", "processes"])
def test_what_travels_is_what_the_rank_made_of_it(engine):
    norms, everything = Norms(), Everything()
    run(Sums(), world=World.lan(3), engine=engine, monitors=[norms, everything])
    root = np.sqrt(1000.0)
    assert {node: [list(each) for each in heard] for node, heard in norms.heard.items()} == {
        rank: [[step + 1, pytest.approx((rank + step) * root)] for step in range(3)]
        for rank in range(3)
    }
    assert norms.left == 0
    # A monitor without a say at the ranks sees everything, barriers too.
    assert sorted(map(str, everything.kinds)) == sorted(
        ["('all_reduce', 1000)"] * 9 + ["('barrier', None)"] * 9
    )
