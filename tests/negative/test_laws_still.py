"""The laws of the shapes that never wait fail on planted lawbreakers, and the lawful pass."""

from __future__ import annotations

import itertools
from typing import ClassVar

import msgspec
import numpy as np
import pytest

from orrery import Estimator, Policy, Problem, Routine
from orrery.base.errors import OrreryError
from orrery.lab import laws
from orrery.lab.laws import common, still
from orrery.parts import Metric, Work

COUNTER = itertools.count()


def broken(part) -> set[str]:
    """The names of the laws that a part breaks."""
    return {each.law for each in laws.check(part)}


def name_of(value) -> str:
    return value if isinstance(value, str) else type(value).__name__


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


POLICY_CASES = [
    (Shortest(), Picking(), None),
    (Grabbing(), Picking(), "leaves_the_view_alone"),
    (Fickle(), Picking(), "decides_the_same"),
    (Hoarder(), Picking(), "decides_the_same"),
    (Outlaw(), Picking(), "chooses_legally"),
    (Brittle(), Picking(), "chooses_legally"),
    (Shortest(), Sightless(), "decides_the_same"),
    (Shortest(), NeverEmpty(), "chooses_legally"),
]


@pytest.mark.parametrize("part, problem, law", POLICY_CASES, ids=name_of)
def test_laws_of_policies(part, problem, law):
    subject = laws.Subject(part, problem)
    found = {b.law for each in still.POLICY_LAWS for b in common.try_law(each, subject)}
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


ROUTINE_CASES = [
    (Norm(), None),
    (Off(), "equals_its_reference"),
    (NanBlind(), "equals_its_reference"),
    (Scribbler(), "equals_its_reference"),
    (Narrow(), "equals_its_reference"),
    (Crasher(), "equals_its_reference"),
    (Cheap(), "costs_what_it_declares"),
    (Uncounted(), "costs_what_it_declares"),
]


@pytest.mark.parametrize("part, law", ROUTINE_CASES, ids=name_of)
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


ESTIMATOR_CASES = [
    (Line(), None),
    (Guessing(), "unfitted_raises"),
    (Restless(), "predicts_what_it_has_not_seen"),
    (Unsure(), "predicts_what_it_has_not_seen"),
    (Falling(), "is_monotone_where_declared"),
    (Dataless(), "unfitted_raises"),
]


@pytest.mark.parametrize("part, law", ESTIMATOR_CASES, ids=name_of)
def test_laws_of_estimators(part, law):
    found = broken(part)
    assert law in found if law else found == set()


def test_an_error_inside_a_part_is_a_finding():
    class Explodes(Norm):
        """Explodes."""

        def samples(self, rng):
            raise OrreryError("boom")

    assert {str(each) for each in laws.check(Explodes())} >= {
        "equals_its_reference: OrreryError: boom"
    }


def test_every_law_has_a_lawbreaker():
    tried = {case[-1] for case in (*POLICY_CASES, *ROUTINE_CASES, *ESTIMATOR_CASES)}
    all_laws = (*still.POLICY_LAWS, *still.ROUTINE_LAWS, *still.ESTIMATOR_LAWS)
    assert {law.__name__ for law in all_laws} <= tried
