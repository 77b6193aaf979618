"""Every law fails on a planted lawbreaker, and the lawful twin of each passes."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from orrery import Estimator, Node, Policy, Problem, Routine, Worker, World
from orrery.base.errors import OrreryError, UsageError
from orrery.lab import laws
from orrery.lab.laws import common, ranks, running, still
from orrery.parts import Metric, Work, rpc
from orrery.parts.collectives import Ring
from orrery.parts.worker import RankLost
from orrery.systems.collectives import AllReduce
from orrery.systems.protocols import Broadcast, Flood, PushGossip

COUNTER = itertools.count()
SHOWN: set[str] = set()


def broken(part, problem=None, **options) -> set[str]:
    """The names of the laws that a part breaks; remembered, to see that each law can fail."""
    names = {each.law for each in laws.check(part, problem, **options)}
    SHOWN.update(names)
    return names


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

    how: Any = object()


class Unchecked(Plain):
    """Has a knob whose annotation names nothing."""

    what: NoSuchType = 1  # noqa: F821


def part_laws(part) -> set[str]:
    subject = laws.Subject(part)
    found = {b.law for law in common.PART_LAWS for b in common.try_law(law, subject)}
    SHOWN.update(found)
    return found


@pytest.mark.parametrize(
    "part, law",
    [
        (Plain(), None),
        (OwnInit(), "knobs_only"),
        (Silent(), "has_docstring"),
        (Opaque(), "repr_round_trips"),
        (Unchecked(), "bad_knobs_are_named"),
    ],
)
def test_laws_of_every_part(part, law):
    assert part_laws(part) == ({law} if law else set())


@pytest.mark.parametrize("door", ["import time", "from random import choice",
                                  "def f():\n    import socket", "import asyncio.events",
                                  "from urllib import request"])  # fmt: skip
def test_a_module_that_opens_a_door_is_found(tmp_path, door, monkeypatch):
    text = f'from orrery import Policy\n{door}\n\nclass Leaky(Policy):\n    """Leaks."""\n'
    assert module_laws(tmp_path, monkeypatch, text) == {"no_leaks"}
    clean = text.replace(door, "import math\nfrom urllib.parse import quote")
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
        box.append(-1)  # the sender sees this only when the list was not copied
        await super().learn(frozenset(v for v in box if v >= 0 and -1 in self.box))


class Boaster(Flood):
    """Says that it survives lost messages, and sends each only once."""

    tolerates: ClassVar[tuple[str, ...]] = ("drop",)


class Hermit(PushGossip):
    """Says that it survives what never reaches it."""

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate",)

    async def main(self):
        return

    @rpc
    async def learn(self, values: frozenset[int]) -> None:
        return


class Sulking(PushGossip):
    """Never speaks again after a silence."""

    tolerates: ClassVar[tuple[str, ...]] = ("partition",)

    async def main(self):
        self.heard_s = 0.0
        while self.now - self.heard_s < 0.3:
            await self.sleep(self.period_s)
            for peer in self.rng.sample(self.peers, self.fanout):
                self.tell(peer, PushGossip.learn, frozenset(self.seen))

    @rpc
    async def learn(self, values: frozenset[int]) -> None:
        self.heard_s = self.now
        await super().learn(values)


class Wordy(PushGossip):
    """Declares a word that means nothing."""

    tolerates: ClassVar[tuple[str, ...]] = ("earthquake",)


@pytest.mark.parametrize(
    "part, law",
    [
        (PushGossip(), None),
        (Inventor(), "runs_clean"),
        (Moody(), "same_seed_same_run"),
        (Boaster(), "tolerates_what_it_says"),
        (Sulking(), "tolerates_what_it_says"),
        (Wordy(), "tolerates_what_it_says"),
    ],
    ids=lambda value: getattr(value, "__class__", type(value)).__name__,
)
def test_laws_of_running(part, law):
    found = broken(part, Broadcast(values=5, settle_s=1.0))
    assert law in found if law else found == set()


def test_what_works_only_by_sharing_memory_is_found_in_wire_mode():
    found = broken(Aliased(), Broadcast(values=3, settle_s=0.5))
    assert "same_in_wire_mode" in found and "runs_clean" not in found


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
    assert any("not live again" in message for message in said)
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
    SHOWN.add("same_on_other_engines")


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


@pytest.mark.parametrize(
    "part, law",
    [
        (Careless(), "equals_the_sequential_reference"),
        (Vandal(), "equals_the_sequential_reference"),
        (Miscounted(), "bytes_are_counted_exactly"),
        (Heedless(), "a_lost_rank_is_noticed"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_laws_of_collectives(part, law):
    subject = laws.Subject(part)
    found = {b.law for each in ranks.COLLECTIVE_LAWS for b in common.try_law(each, subject)}
    SHOWN.update(found)
    assert found == {law}


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


# -- policies


class Queue(msgspec.Struct, frozen=True):
    """One queue as a policy sees it."""

    index: int
    waiting: list[int]


class Picking(Problem):
    """Pick the index of a queue, or None when there is none."""

    metrics: ClassVar[dict[str, Metric]] = {"x": Metric("", "", "nothing")}
    port: ClassVar[type] = Policy

    def views(self, rng):
        for size in (3, 5, 0, 1, 4):
            queues = [Queue(i, [rng.below(9) for _ in range(rng.below(4))]) for i in range(size)]
            legal = {queue.index for queue in queues} or {None}
            yield "pick", (queues,), legal.__contains__


class Sightless(Picking):
    """Forgets to say what policies see."""

    views = None


class NeverEmpty(Picking):
    """Never shows an empty view."""

    def views(self, rng):
        return [view for view in super().views(rng) if view[1][0]]


class Shortest(Policy):
    """Pick the queue with the fewest waiting."""

    def pick(self, queues):
        return min(queues, key=lambda q: len(q.waiting)).index if queues else None


class Grabbing(Shortest):
    """Puts itself into the queue that it picks."""

    def pick(self, queues):
        place = super().pick(queues)
        if place is not None:
            queues[place].waiting.append(0)
        return place


class Fickle(Shortest):
    """Picks by a counter that all runs share."""

    def pick(self, queues):
        return queues[next(COUNTER) % len(queues)].index if queues else None


class Hoarder(Shortest):
    """Remembers beyond `start()`."""

    def pick(self, queues):
        self.__dict__["count"] = self.__dict__.get("count", 0) + 1
        return queues[self.__dict__["count"] % len(queues)].index if queues else None


class Outlaw(Shortest):
    """Picks a queue that is not there."""

    def pick(self, queues):
        return len(queues)


class Brittle(Shortest):
    """Falls over when there is nothing to pick from."""

    def pick(self, queues):
        return min(queues, key=lambda q: len(q.waiting)).index


@pytest.mark.parametrize(
    "part, problem, law",
    [
        (Shortest(), Picking(), None),
        (Grabbing(), Picking(), "leaves_the_view_alone"),
        (Fickle(), Picking(), "decides_the_same"),
        (Hoarder(), Picking(), "decides_the_same"),
        (Outlaw(), Picking(), "chooses_legally"),
        (Brittle(), Picking(), "chooses_legally"),
        (Shortest(), Sightless(), "decides_the_same"),
        (Shortest(), NeverEmpty(), "chooses_legally"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_laws_of_policies(part, problem, law):
    subject = laws.Subject(part, problem)
    found = {b.law for each in still.POLICY_LAWS for b in common.try_law(each, subject)}
    SHOWN.update(found)
    assert law in found if law else found == set()


# -- routines


class Norm(Routine):
    """The sum of squares."""

    def __call__(self, x):
        return float(np.dot(x, x))

    def reference(self, x):
        return float(sum(float(each) ** 2 for each in x))

    def samples(self, rng):
        for size in (0, 1, 7, 8):
            yield (rng.numpy().standard_normal(size),)

    def work(self, x):
        return Work(2 * x.size, x.nbytes)

    def count(self, x):
        return Work(sum(2 for _ in x), sum(each.itemsize for each in x))


class Off(Norm):
    """Is off by a thousandth."""

    def __call__(self, x):
        return super().__call__(x) * 1.001


class NanBlind(Norm):
    """Skips what is not a number."""

    def __call__(self, x):
        return float(np.nansum(x * x))


class Scribbler(Norm):
    """Squares its input in place."""

    def __call__(self, x):
        x *= x
        return float(x.sum())


class Narrow(Norm):
    """Is only ever tried on even sizes."""

    def samples(self, rng):
        yield (rng.numpy().standard_normal(4),)


class Crasher(Norm):
    """Answers an empty array with a bare error, as does its reference."""

    def __call__(self, x):
        return super().__call__(x) + 0 * x[0]

    def reference(self, x):
        return super().reference(x) + 0 * x[0]


class Cheap(Norm):
    """Declares half of its cost."""

    def work(self, x):
        return Work(x.size, x.nbytes)


class Uncounted(Norm):
    """Declares a cost that nobody can count."""

    count = None


@pytest.mark.parametrize(
    "part, law",
    [
        (Norm(), None),
        (Off(), "equals_its_reference"),
        (NanBlind(), "equals_its_reference"),
        (Scribbler(), "equals_its_reference"),
        (Narrow(), "equals_its_reference"),
        (Crasher(), "equals_its_reference"),
        (Cheap(), "costs_what_it_declares"),
        (Uncounted(), "costs_what_it_declares"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_laws_of_routines(part, law):
    assert broken(part) == ({law} if law else set())


# -- estimators


class Line(Estimator):
    """Least squares on one column."""

    monotone: ClassVar[dict[int, int]] = {0: 1}

    def samples(self, rng):
        x = np.linspace(0.0, 1.0, 30)[:, None]
        return x, 3.0 * x[:, 0] + 0.01 * rng.numpy().standard_normal(30)

    def fit(self, inputs, targets):
        self.__dict__["slope"], self.__dict__["base"] = np.polyfit(inputs[:, 0], targets, 1)
        return self

    def predict(self, inputs):
        return self.fitted("slope") * np.asarray(inputs)[:, 0] + self.fitted("base")


class Guessing(Line):
    """Answers before it was fitted."""

    def predict(self, inputs):
        return np.zeros(len(inputs)) + self.__dict__.get("slope", 0.0)


class Restless(Line):
    """Fits otherwise each time."""

    def fit(self, inputs, targets):
        super().fit(inputs, targets)
        self.__dict__["base"] += next(COUNTER)
        return self


class Unsure(Line):
    """Predicts nothing beyond what it saw."""

    def fit(self, inputs, targets):
        self.__dict__["top"] = float(np.max(inputs))
        return super().fit(inputs, targets)

    def predict(self, inputs):
        made = super().predict(inputs)
        return np.where(np.asarray(inputs)[:, 0] <= self.fitted("top"), made, np.nan)


class Falling(Line):
    """Declares that it falls, and rises."""

    monotone: ClassVar[dict[int, int]] = {0: -1}


class Dataless(Line):
    """Brings nothing to be tried on."""

    samples = None


@pytest.mark.parametrize(
    "part, law",
    [
        (Line(), None),
        (Guessing(), "unfitted_raises"),
        (Restless(), "predicts_what_it_has_not_seen"),
        (Unsure(), "predicts_what_it_has_not_seen"),
        (Falling(), "is_monotone_where_declared"),
        (Dataless(), "unfitted_raises"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_laws_of_estimators(part, law):
    found = broken(part)
    assert law in found if law else found == set()


# -- problems, and the laws themselves


class Welcoming(Picking):
    """Takes anything."""

    def accept(self, part):
        return


class Unmeasured(Picking):
    """Measures nothing."""

    metrics: ClassVar[dict[str, Metric]] = {}


@pytest.mark.parametrize("problem, says", [(Welcoming(), "accept takes"), (Unmeasured(), "empty")])
def test_laws_of_problems(problem, says):
    found = laws.check_problem(problem)
    assert [each.law for each in found] == ["asks_a_full_question"]
    assert says in found[0].message
    assert laws.check_problem(Picking()) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: laws.check(Plain),
        lambda: laws.check(7),
        lambda: laws.check(PushGossip()),
        lambda: laws.check(PushGossip(), Broadcast),
        lambda: laws.check(Norm(), seeds=()),
        lambda: laws.check_problem(Norm()),
    ],
)
def test_a_wrong_call_is_named(call):
    with pytest.raises(UsageError):
        call()


def test_an_error_inside_a_part_is_a_finding():
    class Explodes(Norm):
        """Explodes."""

        def samples(self, rng):
            raise OrreryError("boom")

    assert {str(each) for each in laws.check(Explodes())} >= {
        "equals_its_reference: OrreryError: boom"
    }


def test_the_laws_of_a_part_are_those_of_its_shape():
    names = {law.__name__ for law in laws.laws_of(Ring(), AllReduce())}
    assert {"bytes_are_counted_exactly", "runs_clean", "knobs_only"} <= names
    assert "decides_the_same" not in names
