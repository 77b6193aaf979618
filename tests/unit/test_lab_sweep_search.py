"""The searches by themselves, on functions whose best place is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orrery.base.rand import Stream
from orrery.lab import stats
from orrery.lab.sweep.search import GENERATION, START, Kernels, make_search
from orrery.lab.sweep.space import Choice, Range, Space
from orrery.lab.when.axes import Axis

X = Range(parameter="x", axis=Axis(owner="world", name="x", lo=-5.0, hi=5.0))
RATE = Range(parameter="rate", axis=Axis(owner="world", name="rate", lo=1e-4, hi=1.0, log=True))
SIZE = Range(parameter="size", axis=Axis(owner="world", name="size", lo=1.0, hi=9.0, whole=True))
MODE = Choice(parameter="mode", values=("a", "b", "c", "d"))
Y = Range(parameter="y", axis=Axis(owner="world", name="y", lo=-5.0, hi=5.0))
WIDE = Space([X, RATE, MODE])
PLANE = Space([X, Y])
SMALL = Space([SIZE, MODE])


def bowl(point):
    """Lowest, 0, at x = 2, rate = 0.01 and mode c."""
    x, rate, mode = point
    return (x - 2) ** 2 / 10 + (math.log10(rate) + 2) ** 2 + (0.0 if mode == "c" else 1.0)


def drive(search, trials, cost):
    """The losses of a search, generation by generation, as a sweep does it."""
    losses = []
    while len(losses) < trials:
        until = min(search.until(len(losses)), trials)
        search.extend(until, losses)
        losses += [cost(point) for point in search.points[len(losses) :]]
    return losses


def branin(point):
    """Branin's function less its minimum: three equal valleys, lowest 0."""
    x, y = point[0] * 1.5 + 2.5, (point[1] + 5) * 1.5
    bend = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return bend**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.397887


@pytest.mark.parametrize(("cost", "space"), [(bowl, WIDE), (branin, PLANE)])
def test_the_model_beats_random_with_an_interval(cost, space):
    """Over seeds that had no part in the choice of the model's constants (those were 0 to 23)."""
    best = {
        name: [
            math.log10(min(drive(make_search(name, space, seed), 60, cost)) + 1e-9)
            for seed in range(1000, 1024)
        ]
        for name in ("random", "tpe")
    }
    gap = stats.difference_interval(best["tpe"], best["random"], 0.99)
    assert gap.known and gap.hi < 0, gap


def test_the_model_is_no_worse_where_there_is_nothing_to_learn():
    """On noise alone both are as good: a model that looked ahead would win here too."""

    def noise(point):
        return Stream(1, repr(point), "noise").random()

    best = {
        name: [min(drive(make_search(name, WIDE, seed), 40, noise)) for seed in range(24)]
        for name in ("random", "tpe")
    }
    gap = stats.difference_interval(best["tpe"], best["random"], 0.99)
    assert gap.lo < 0 < gap.hi, gap


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_equal_seeds_give_equal_trials_and_more_only_adds(name):
    one, two, other = (make_search(name, WIDE, seed) for seed in (3, 3, 4))
    drive(one, 40, bowl)
    drive(two, 27, bowl)
    drive(other, 40, bowl)
    assert one.points[:27] == two.points
    assert one.points != other.points


def test_a_generation_sees_only_the_ones_before_it():
    """A change in the last result of a generation changes nothing within that generation."""
    first = make_search("tpe", WIDE, 0)
    losses = drive(first, START + GENERATION, bowl)
    again = make_search("tpe", WIDE, 0)
    again.extend(START, [])
    again.extend(START + GENERATION, losses[:START])
    assert again.points == first.points
    turned = make_search("tpe", WIDE, 0)
    turned.extend(START, [])
    turned.extend(START + GENERATION, [-loss for loss in losses[:START]])
    assert turned.points != first.points


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_a_small_space_is_used_up_without_a_repeat(name):
    search = make_search(name, SMALL, 1)
    assert search.limit(1000) == 36
    drive(search, 36, lambda point: float(point[0]))
    assert sorted(search.points) == sorted((n, mode) for n in range(1, 10) for mode in "abcd")


def test_failed_trials_count_as_bad():
    def half(point):
        return math.nan if point[0] < 0 else bowl(point)

    search = make_search("tpe", WIDE, 5)
    losses = drive(search, 60, half)
    failed = [math.isnan(loss) for loss in losses]
    assert sum(failed[START:]) < 0.3 * len(failed[START:])
    assert min(loss for loss in losses if not math.isnan(loss)) < 0.5
    drive(make_search("tpe", WIDE, 5), 20, lambda point: math.nan)


def test_the_density_adds_up_to_one_and_is_what_is_drawn():
    places = np.array([[0.02], [0.9], [0.5]])
    kernels = Kernels(Space([X]), places)
    middles = (np.arange(4000) + 0.5) / 4000
    density = np.exp(kernels.log_density(middles[:, None]))
    assert density.mean() == pytest.approx(1.0, abs=1e-3)
    stream = Stream(0, 0, "draws")
    drawn = [kernels.draw(stream)[0] for _ in range(4000)]
    assert all(0 <= place <= 1 for place in drawn)
    for lo, hi in ((0.0, 0.1), (0.4, 0.6), (0.85, 1.0)):
        share = sum(lo <= place < hi for place in drawn) / len(drawn)
        wanted = density[(middles >= lo) & (middles < hi)].sum() / 4000
        assert share == pytest.approx(wanted, abs=0.03)


def test_listed_values_have_a_density_too():
    kernels = Kernels(Space([MODE]), np.array([[2.0], [2.0], [0.0]]))
    density = np.exp(kernels.log_density(np.array([[0.0], [1.0], [2.0], [3.0]])))
    assert density.sum() == pytest.approx(1.0)
    assert density[2] > density[0] > density[1] == pytest.approx(density[3])
