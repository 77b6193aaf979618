"""A driver that waits for all nodes: for those that come back, and not for those that do not."""

from __future__ import annotations

import pytest

from orrery import Node, Problem, World, rpc, run
from orrery.world import Crash, SpotReclaim


class Slowly(Node):
    """Is done two seconds after it started, in each of its lives."""

    def start(self) -> None:
        self.done = self.event()

    async def main(self) -> None:
        await self.sleep(2.0)
        self.done.set()

    @rpc
    async def ended(self) -> None:
        await self.done.wait()


class WaitForAll(Problem):
    """Waits with a patience that outlasts the run: whoever is asked in vain ends it late."""

    async def drive(self, driver):
        await driver.until_all(Slowly.ended, 600.0)


def waited(engine, *faults):
    world = World.lan(3).with_faults(*faults)
    return run(Slowly(), problem=WaitForAll(), world=world, engine=engine, until_s=60.0)


@pytest.mark.parametrize("engine", ["virtual", "processes"])
@pytest.mark.parametrize(
    "gone", [Crash(node=1, at_s=1.0), Crash(node=1, at_s=0.0), SpotReclaim(node=1, at_s=1.0)]
)
def test_a_node_that_is_gone_for_good_is_not_waited_for(engine, gone):
    assert waited(engine, gone).ended == "driven"


@pytest.mark.parametrize("engine", ["virtual", "processes"])
@pytest.mark.parametrize("at_s", [0.0, 1.0])
def test_a_node_that_comes_back_is_asked_again(engine, at_s):
    made = waited(engine, Crash(node=1, at_s=at_s, until_s=3.0))
    assert made.ended == "driven" and made.seconds >= 5.0


def test_in_virtual_time_the_wait_ends_with_the_last_answer():
    twice = (Crash(node=1, at_s=1.0, until_s=3.0), Crash(node=1, at_s=4.0, until_s=6.0))
    assert waited("virtual", *twice).seconds == pytest.approx(8.0, abs=0.01)
    overlapping = (Crash(node=1, at_s=1.0, until_s=3.0), Crash(node=1, at_s=2.0))
    assert waited("virtual", *overlapping).seconds == pytest.approx(2.0, abs=0.01)
