"""Every law fails on a planted lawbreaker, and the lawful twin of each passes."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from typing import Any, ClassVar

import numpy as np
import pytest

from orrery import Node, Policy, Problem, Worker, World
from orrery.base.errors import UsageError
from orrery.lab import laws
from orrery.lab.laws import common, ranks, running
from orrery.parts import Metric, rpc
from orrery.parts.collectives import Ring
from orrery.parts.worker import RankLost
from orrery.systems.collectives import AllReduce
from orrery.systems.protocols import Broadcast, Broadcaster, Flood, PushGossip

COUNTER = itertools.count()


def broken(part, problem=None, **options) -> set[str]:
    """The names of the laws that a part breaks."""
    return {each.law for each in laws.check(part, problem, **options)}


def name_of(value) -> str:
    return value if isinstance(value, str) else type(value).__name__


# -- any part


class Plain(Policy):
    """A lawful part that does nothing."""

    size: int = 3
    share: float = 0.5


class OwnInit(Plain):
    """Makes state where only knobs belong."""

    def __init__(self, **knobs):
        super().__init__(**knobs)
        self.state = []


class Silent(Plain):
    pass


class Opaque(Plain):
    """Has a knob that cannot be written down."""

    how: Any = None


class Unchecked(Plain):
    """Has a knob whose annotation names nothing."""

    what: NoSuchType = 1  # noqa: F821


def part_laws(part) -> set[str]:
    subject = laws.Subject(part)
    return {b.law for law in common.PART_LAWS for b in common.try_law(law, subject)}


PART_CASES = [
    (Plain(), None),
    (OwnInit(), "knobs_only"),
    (Silent(), "has_docstring"),
    (Opaque(how=len), "repr_round_trips"),
    (Unchecked(), "bad_knobs_are_named"),
]


@pytest.mark.parametrize("part, law", PART_CASES, ids=name_of)
def test_laws_of_every_part(part, law):
    assert part_laws(part) == ({law} if law else set())


DOORS = {
    "import time": "time.time()",
    "from random import choice": "choice([1, 2])",
    "import socket": "socket.socket()",
    "import threading": "threading.Thread()",
    "import asyncio": "asyncio.sleep(1)",
}


@pytest.mark.parametrize("door, use", DOORS.items())
def test_a_module_that_opens_a_door_is_found(tmp_path, door, use, monkeypatch):
    text = (
        f'from orrery import Policy\n{door}\n\nclass Leaky(Policy):\n    """Leaks."""\n'
        f"    def choose(self):\n        return {use}\n"
    )
    assert module_laws(tmp_path, monkeypatch, text) == {"no_leaks"}
    clean = text.replace(use, "7").replace(door, "import math")
    assert module_laws(tmp_path, monkeypatch, clean) == set()


def module_laws(tmp_path, monkeypatch, text) -> set[str]:
    name = f"leaky_{next(COUNTER)}"
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return part_laws(module.Leaky())


# -- parts that run


class Inventor(Flood):
    """Delivers what nobody sent."""

    @rpc
    async def broadcast(self, value: int) -> None:
        self.emit(delivered=value + 1000)


class Moody(PushGossip):
    """Behaves otherwise each time it is run."""

    async def main(self):
        await self.sleep(1e-3 * (next(COUNTER) % 97))
        await super().main()


class Aliased(PushGossip):
    """Sends its own list and later changes it: right only while nothing is copied."""

    def start(self):
        super().start()
        self.box = []

    async def main(self):
        while True:
            await self.sleep(0.01)
            for peer in self.peers:
                self.tell(peer, Aliased.hand_over, self.box)

    @rpc
    async def learn(self, values: frozenset[int]) -> None:
        await super().learn(values)
        self.box.extend(sorted(values))

    @rpc
    async def hand_over(self, box: list[int]) -> None:
        if -1 not in box:
            box.append(-1)  # the sender sees this only when the list was not copied
        await super().learn(frozenset(v for v in box if v >= 0 and -1 in self.box))


class Once(Broadcaster):
    """Tells everybody once, and never learns who did not hear."""

    @rpc
    async def broadcast(self, value: int) -> None:
        self.emit(delivered=value)
        for peer in self.peers:
            self.tell(peer, Once.hear, value)

    @rpc
    async def hear(self, value: int) -> None:
        self.emit(delivered=value)


class Boaster(Once):
    """Says that it survives lost messages."""

    tolerates: ClassVar[tuple[str, ...]] = ("drop",)


class Believer(Once):
    """Says that it survives a partition."""

    tolerates: ClassVar[tuple[str, ...]] = ("partition",)


class Stutterer(Once):
    """Says that it survives messages that come twice."""

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate",)


class Hermit(PushGossip):
    """Says that it survives what never reaches it."""

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate",)

    async def main(self):
        return

    @rpc
    async def learn(self, values: frozenset[int]) -> None:
        return


class Wordy(PushGossip):
    """Declares a word that means nothing."""

    tolerates: ClassVar[tuple[str, ...]] = ("earthquake",)


RUNNING_CASES = [
    (PushGossip(), None),
    (Inventor(), "runs_clean"),
    (Moody(), "same_seed_same_run"),
    (Boaster(), "tolerates_what_it_says"),
    (Believer(), "tolerates_what_it_says"),
    (Stutterer(), "tolerates_what_it_says"),
    (Once(), None),
    (Wordy(), "tolerates_what_it_says"),
]


@pytest.mark.parametrize("part, law", RUNNING_CASES, ids=name_of)
def test_laws_of_running(part, law):
    found = broken(part, Broadcast(values=5, settle_s=1.0))
    assert law in found if law else found == set()


def test_what_works_only_by_sharing_memory_is_found_in_wire_mode():
    subject = laws.Subject(Aliased(), Broadcast(values=2, spread_s=0.01, settle_s=0.1))
    assert common.try_law(running.runs_clean, subject) == []
    said = common.try_law(running.same_in_wire_mode, subject)
    assert "wire mode" in said[0].message


def test_a_fault_that_never_bites_proves_nothing():
    subject = laws.Subject(Hermit(), Broadcast(values=5))
    said = [b.message for b in common.try_law(running.tolerates_what_it_says, subject)]
    assert any("never had an effect" in message for message in said)


class Endless(Problem):
    """Waits for an answer that a lost message prevents for ever."""

    metrics: ClassVar[dict[str, Metric]] = {"x": Metric("", "", "nothing")}

    async def drive(self, driver):
        await driver.sleep(1.0)
        await driver.ask(0, Chatter.all_heard)


class Chatter(Node):
    """Keeps talking, but never asks again for what was lost."""

    tolerates: ClassVar[tuple[str, ...]] = ("drop",)

    def start(self):
        self.heard = set()
        self.complete = self.event()

    @rpc
    async def hear(self, number: int, sender: int) -> None:
        self.heard.add((sender, number))
        if len(self.heard) == 50 * len(self.peers):
            self.complete.set()

    @rpc
    async def all_heard(self) -> bool:
        await self.complete.wait()
        return True

    async def main(self):
        for number in range(10**9):
            await self.sleep(0.01)
            if number < 50:
                for peer in self.peers:
                    self.tell(peer, Chatter.hear, number)


def test_a_part_that_is_not_live_after_healing_is_found():
    subject = laws.Subject(Chatter(), Endless())
    said = [b.message for b in common.try_law(running.tolerates_what_it_says, subject)]
    assert any("it is not live" in message for message in said)
    assert common.try_law(running.runs_clean, subject) == []


def test_another_verdict_on_another_engine_is_found(monkeypatch):
    real = running.run

    def other(part, **options):
        made = real(part, **{**options, "engine": "virtual"})
        if options.get("engine") == "processes":
            made.decisions = {}
        return made

    monkeypatch.setattr(running, "run", other)
    subject = laws.Subject(PushGossip(), Broadcast(values=3), engines=("processes",))
    found = common.try_law(running.same_on_other_engines, subject)
    assert "other decisions" in found[0].message


# -- workers and collectives


class Careless(Ring):
    """Is off by one in the last element of a scatter-reduce."""

    async def reduce_scatter(self, ranks, parts, combine):
        mine = await super().reduce_scatter(ranks, parts, combine)
        if mine.size and ranks.size > 2:
            mine[-1] += 1
        return mine


class Vandal(Ring):
    """Changes the array that it was given."""

    async def scan(self, ranks, array, combine):
        total = await super().scan(ranks, array, combine)
        array[...] = total
        return total


class Miscounted(Ring):
    """Sends a copy too many in a broadcast."""

    async def broadcast(self, ranks, array, root):
        if ranks.size > 1 and ranks.rank == root:
            ranks.post((root + 1) % ranks.size, array)
        if ranks.rank == (root + 1) % ranks.size != root:
            await ranks.take(root)
        return await super().broadcast(ranks, array, root)


class Heedless(Ring):
    """Goes on with its own array when a rank is lost."""

    async def all_reduce(self, ranks, array, combine):
        try:
            return await super().all_reduce(ranks, array, combine)
        except RankLost:
            return array.copy()


COLLECTIVE_CASES = [
    (Careless(), "equals_the_sequential_reference"),
    (Vandal(), "equals_the_sequential_reference"),
    (Miscounted(), "bytes_are_counted_exactly"),
    (Heedless(), "a_lost_rank_is_noticed"),
]


@pytest.mark.parametrize("part, law", COLLECTIVE_CASES, ids=name_of)
def test_laws_of_collectives(part, law):
    subject = laws.Subject(part)
    found = {b.law for each in ranks.COLLECTIVE_LAWS for b in common.try_law(each, subject)}
    assert law in found


class Sum(Worker):
    """Sums its rank."""

    extra: int = 0

    @rpc
    async def total(self) -> float:
        if self.extra:
            await self.all(self.send(self.rank, np.ones(self.extra)), self.recv(self.rank))
        return float((await self.sum([self.rank + 1.0]))[0]) + self.extra


class SumOfRanks(Problem):
    """Asks every rank for the sum of all."""

    metrics: ClassVar[dict[str, Metric]] = {"x": Metric("", "", "nothing")}
    port: ClassVar[type] = Sum
    unique_outcome: ClassVar[bool] = True

    def world(self):
        return World.lan(3)

    async def drive(self, driver):
        return await driver.all(*(driver.ask(node, Sum.total) for node in driver.nodes))

    def decisions(self, outcome):
        return outcome.driven

    def sequential(self, part):
        return [1.0]


def test_laws_of_workers():
    assert broken(Sum(), SumOfRanks()) == set()
    assert broken(Sum(extra=2), SumOfRanks()) == {"one_rank_is_sequential"}


# -- problems, and the laws themselves


class Welcoming(SumOfRanks):
    """Takes anything."""

    def accept(self, part):
        return


class Unmeasured(SumOfRanks):
    """Measures nothing."""

    metrics: ClassVar[dict[str, Metric]] = {}


@pytest.mark.parametrize("problem, says", [(Welcoming(), "accept takes"), (Unmeasured(), "empty")])
def test_laws_of_problems(problem, says):
    found = laws.check_problem(problem)
    assert [each.law for each in found] == ["asks_a_full_question"]
    assert says in found[0].message
    assert laws.check_problem(SumOfRanks()) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: laws.check(Plain),
        lambda: laws.check(7),
        lambda: laws.check(PushGossip()),
        lambda: laws.check(PushGossip(), Broadcast),
        lambda: laws.check(Plain(), seeds=()),
        lambda: laws.check_problem(Plain()),
    ],
)
def test_a_wrong_call_is_named(call):
    with pytest.raises(UsageError):
        call()


def test_the_laws_of_a_part_are_those_of_its_shape():
    names = {law.__name__ for law in laws.laws_of(Ring(), AllReduce())}
    assert {"bytes_are_counted_exactly", "runs_clean", "knobs_only"} <= names
    assert "decides_the_same" not in names


def test_every_law_has_a_lawbreaker():
    tried = {case[-1] for case in (*PART_CASES, *RUNNING_CASES, *COLLECTIVE_CASES)}
    # These have tests of their own above.
    tried |= {"no_leaks", "same_in_wire_mode", "same_on_other_engines", "one_rank_is_sequential"}
    all_laws = (*common.PART_LAWS, *running.RUNNING_LAWS, *ranks.COLLECTIVE_LAWS,
                *ranks.WORKER_LAWS)  # fmt: skip
    assert {law.__name__ for law in all_laws} <= tried
