"""Computations that wait together are made together, and nobody can tell."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import Worker, World, cost, run
from orrery.base.errors import PartError
from orrery.engines.virtual.together import MOST, Together
from orrery.parts import together
from orrery.world import Crash

SIZES: list[int] = []


class Doubler:
    alike = "doubler"

    @staticmethod
    def many(calls):
        SIZES.append(len(calls))
        return [2 * array for _, array in calls]

    @together(lambda calls: Doubler.many(calls))
    @cost(flops=1e9)
    def double(self, array):
        return 2 * array


class Doubles(Worker):
    def start(self):
        self.doubler = Doubler()

    async def main(self):
        mine = np.full(3, float(self.rank))
        task = self.spawn(self.compute(self.doubler.double, mine))
        await self.sleep(0.0001)
        mine += 100.0  # what was asked is what was there when the call began
        self.emit(value=(await task).tolist())


def values(made):
    return {r.node: r.values["value"] for r in made.records}


def test_calls_that_wait_at_once_are_made_at_once():
    SIZES.clear()
    made = run(Doubles(), world=World.lan(5))
    assert values(made) == {n: [2.0 * n] * 3 for n in range(5)}
    assert SIZES == [5]


def test_a_node_that_crashes_meanwhile_takes_nobody_with_it():
    SIZES.clear()
    world = World.lan(4).with_faults(Crash(node=1, at_s=0.0002))
    made = run(Doubles(), world=world)
    assert values(made) == {n: [2.0 * n] * 3 for n in (0, 2, 3)}


def test_a_batch_has_an_upper_size_and_kinds_do_not_mix():
    SIZES.clear()
    batches = Together()
    ones = [Doubler() for _ in range(MOST + 1)]
    other = Doubler()
    other.alike = "another"
    asked = [batches.add(one.double, (np.ones(1),), {}) for one in [*ones, other]]
    assert [later()[0] for later in asked] == [2.0] * (MOST + 2)
    assert SIZES == [MOST, 1, 1]


def test_an_error_reaches_all_who_asked():
    class Bad:
        @together(lambda calls: 1 / 0)
        @cost(flops=1)
        def go(self):
            return 0

    batches = Together()
    asked = [batches.add(Bad().go, (), {}) for _ in range(2)]
    for later in asked:
        with pytest.raises(ZeroDivisionError):
            later()
    assert batches.add(lambda: 3, (), {}) is None


def test_a_byte_may_stand_for_many():
    class Ships(Worker):
        times: float = 1.0

        async def main(self):
            if self.rank == 0:
                await self.transfer(1, np.zeros(1_000_000, np.uint8), scale=self.times)
                self.emit(value=self.now)

    world = World.lan(2, latency_s=0.0, bandwidth_Bps=1e6)
    once, often = (values(run(Ships(times=t), world=world))[0] for t in (1.0, 50.0))
    assert once == pytest.approx(1.0, rel=1e-6) and often == pytest.approx(50.0, rel=1e-6)
    with pytest.raises(PartError, match="above 0"):
        run(Ships(times=-1.0), world=world)
