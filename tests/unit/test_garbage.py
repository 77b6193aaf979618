"""The collector of cycles during a run: rare, as it was afterwards, and off where it was off."""

from __future__ import annotations

import gc

import pytest

from orrery import Node, Problem, World, run
from orrery.base.garbage import YOUNG


class Looks(Node):
    async def main(self):
        self.emit(young=gc.get_threshold()[0])


class Once(Problem):
    async def drive(self, driver):
        await driver.sleep(1.0)


@pytest.fixture
def threshold():
    before = gc.get_threshold()
    yield gc.set_threshold
    gc.set_threshold(*before)


@pytest.mark.parametrize(("before", "during"), [(700, YOUNG), (0, 0), (YOUNG + 1, YOUNG + 1)])
def test_a_run_sets_it_back(threshold, before, during):
    threshold(before, 10, 10)
    made = run(Looks(), problem=Once(), world=World.lan(2))
    assert {record.values["young"] for record in made.records} == {during}
    assert gc.get_threshold() == (before, 10, 10)


def test_a_run_that_fails_sets_it_back_too(threshold):
    class Fails(Node):
        async def main(self):
            raise ValueError("no")

    threshold(700, 10, 10)
    with pytest.raises(Exception, match="no"):
        run(Fails(), problem=Once(), world=World.lan(2))
    assert gc.get_threshold() == (700, 10, 10)
