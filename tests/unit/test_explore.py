"""Chosen order: seeds, scripts, and the explorer that tries every delivery order."""

from __future__ import annotations

import math

import pytest

from orrery import Node, World, rpc, run
from orrery.base.errors import UsageError
from orrery.engines.virtual.explore import explore
from orrery.parts import Violation


class Collector(Node):
    """Node 0 collects one message from each other node, in the order in which they arrive."""

    def start(self):
        self.heard: list[int] = []

    @rpc
    def note(self, who: int) -> None:
        self.heard.append(who)
        self.emit(heard=list(self.heard))

    async def main(self):
        if self.id:
            self.tell(0, Collector.note, self.id)


class Account(Node):
    """A read and a write that are not atomic: lost updates in some orders only."""

    def start(self):
        self.value = 0

    @rpc
    def read(self) -> int:
        return self.value

    @rpc
    def write(self, value: int) -> None:
        self.value = value
        self.emit(value=value)

    async def main(self):
        if self.id:
            value = await self.ask(0, Account.read)
            self.tell(0, Account.write, value + 1)


def lost_update(outcome):
    last = outcome.records[-1].values["value"]
    if last != 2:
        return [Violation(kind="lost_update", message=f"two increments gave {last}")]
    return []


def test_every_order_is_tried_and_counted():
    orders = set()

    def note(outcome):
        orders.add(tuple(outcome.records[-1].values["heard"]))
        return []

    for n in (3, 4, 5):
        orders.clear()
        found = explore({"node": Collector()}, world=World.chosen(n), check=note)
        assert found.complete and not found.violations
        assert len(orders) == math.factorial(n - 1)


def test_a_race_is_found_and_its_schedule_replays():
    found = explore({"node": Account()}, world=World.chosen(3), check=lost_update)
    assert found.violations[0].kind == "lost_update"
    again = run(Account(), world=World.chosen(3), schedule=found.schedule)
    assert again.records[-1].values["value"] == 1
    assert again.extra["schedule"][: len(found.schedule)] == found.schedule


def test_a_bound_on_deviations_shrinks_the_search_and_zero_is_fifo():
    fifo = explore({"node": Account()}, world=World.chosen(3), check=lost_update, deviations=0)
    assert fifo.schedules == 1
    one = explore({"node": Collector()}, world=World.chosen(5), deviations=1, stop_at_first=False)
    full = explore({"node": Collector()}, world=World.chosen(5), stop_at_first=False)
    assert 1 < one.schedules < full.schedules


class Adder(Node):
    """The sum does not depend on the order, so orders lead to equal states."""

    def start(self):
        self.total = 0

    @rpc
    def add(self, amount: int) -> None:
        self.total += amount

    async def main(self):
        if self.id:
            self.tell(0, Adder.add, 1)


def test_equal_states_are_merged():
    found = explore({"node": Adder()}, world=World.chosen(6))
    # Without merging there are 120 orders; the states are the subsets already delivered.
    assert found.complete and found.merged > 0
    assert found.states <= 2**5
    assert found.schedules < 120


def test_the_budget_is_honest_about_what_was_left_out():
    found = explore({"node": Collector()}, world=World.chosen(5), max_schedules=5)
    assert found.schedules == 5 and not found.complete


def test_a_seed_picks_one_order_and_repeats_it():
    orders = set()
    for seed in range(30):
        a = run(Collector(), world=World.chosen(4), seed=seed)
        b = run(Collector(), world=World.chosen(4), seed=seed)
        assert a.digest == b.digest
        orders.add(tuple(a.records[-1].values["heard"]))
    assert len(orders) == 6


def test_a_schedule_of_another_run_is_refused():
    with pytest.raises(UsageError, match="belongs to another run"):
        run(Collector(), world=World.chosen(3), schedule=[7])
    with pytest.raises(UsageError, match="chosen"):
        run(Collector(), world=World.lan(3), schedule=[0])


class Waiter(Node):
    """A timer races a message."""

    def start(self):
        self.log_: list[str] = []

    @rpc
    def poke(self) -> None:
        self.emit(saw="message")

    async def main(self):
        if self.id == 0:
            await self.sleep(1.0)
            self.emit(saw="timer")
        else:
            self.tell(0, Waiter.poke)


def test_timers_can_be_a_choice():
    firsts = set()

    def note(outcome):
        firsts.add(outcome.records[0].values["saw"])
        return []

    explore({"node": Waiter()}, world=World.chosen(2), check=note, timers="any")
    assert firsts == {"message", "timer"}
    firsts.clear()
    explore({"node": Waiter()}, world=World.chosen(2), check=note)
    assert firsts == {"message"}
