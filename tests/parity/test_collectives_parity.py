"""The same collectives in virtual time and on real processes give the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import Worker, World, run
from orrery.parts.worker import RankLost
from orrery.systems.collectives import (
    AllReduce,
    Direct,
    RecursiveDoubling,
    RecursiveHalving,
    Ring,
    Star,
    Tree,
)
from orrery.world import Crash

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "part", [Direct(), Ring(), Star(middle=1), Tree(), RecursiveDoubling(), RecursiveHalving()]
)
def test_all_reduce_gives_the_same_bits_and_bytes_in_both_engines(part):
    problem, world = AllReduce(items=10_001, dtype="float32"), World.lan(5)
    virtual = run(part, problem=problem, world=world, seed=3)
    real = run(part, problem=problem, world=world, seed=3, engine="processes")
    assert virtual.violations == [] and real.violations == []
    assert real.decisions == virtual.decisions
    assert real.metrics["all_sent_B"] == virtual.metrics["all_sent_B"]
    assert real.metrics["error"] == virtual.metrics["error"]


class Medley(Worker):
    """One of each kind that moves blocks, side by side."""

    async def main(self):
        x = np.arange(7.0) * (self.rank + 1)
        got = await self.all(
            self.all_gather(x[: self.rank], tag="a"), self.all_to_all(x, tag="b"),
            self.scan(x, tag="c"), self.broadcast(x, root=2, tag="d"),
        )  # fmt: skip
        await self.barrier()
        half = self.group([r for r in range(self.size) if r % 2 == self.rank % 2])
        got.append(await half.mean(np.float16(self.rank)))
        self.emit(got=[[each.tolist() for each in one] if isinstance(one, list) else one.tolist()
                       for one in got], sent_B=self.sent_B)  # fmt: skip


def test_every_kind_and_groups_agree():
    runs = [run(Medley(), world=World.lan(4), engine=e) for e in ("virtual", "processes")]
    reports = [
        {r.node: (r.values["got"], r.values["sent_B"]) for r in made.records} for made in runs
    ]
    assert len(reports[0]) == 4
    assert reports[0] == reports[1]


class Loses(Worker):
    """Goes on until a rank is lost, then sums among the survivors."""

    async def main(self):
        try:
            while True:
                await self.sum(np.ones(1000))
                await self.sleep(0.01)
        except RankLost:
            rest = await self.survivors("after")
            self.emit(total=float((await rest.sum(np.ones(3)))[0]))


def test_a_killed_rank_is_lost_in_both_engines():
    world = World.lan(3).with_faults(Crash(node=1, at_s=0.4))
    for engine in ("virtual", "processes"):
        made = run(Loses(patience_s=0.5), world=world, engine=engine, until_s=4.0)
        totals = {r.node: r.values["total"] for r in made.records if "total" in r.values}
        assert totals == {0: 2.0, 2: 2.0}, engine
