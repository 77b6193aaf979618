"""Arrival processes: their rates, their burstiness, their laws; and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orrery.base.rand import Stream
from orrery.inputs import (
    MMPP,
    Constant,
    Diurnal,
    Gamma,
    Poisson,
    Profile,
    Replay,
    Weibull,
    WorkloadError,
)
from orrery.inputs.describe import dispersion, gap_cv
from orrery.inputs.draws import exponentials, gammas, normals, uniforms, weibull_shape, weibulls

ALL = [
    Constant(rate_per_s=5),
    Poisson(rate_per_s=5),
    Gamma(rate_per_s=5, cv=3),
    Gamma(rate_per_s=5, cv=0.4),
    Weibull(rate_per_s=5, cv=2),
    Profile(rate_per_s=5, shape=(1, 0, 3), step_s=10, start_s=5),
    Diurnal(rate_per_s=5, period_s=100, peak_s=20),
    MMPP(rates_per_s=(1, 20), dwell_s=(10, 2)),
    MMPP(rates_per_s=(0, 9, 4), dwell_s=(5, 2, 5)),
    Replay(times_s=[0, 0.1, 0.5, 2], rate_factor=2),
]
NAMES = [f"{i}-{type(each).__name__}" for i, each in enumerate(ALL)]


@pytest.mark.parametrize("process", ALL, ids=NAMES)
def test_laws_of_all_processes(process):
    times = process.times(3000, seed=9)
    assert len(times) == 3000 and times[0] >= 0 and (np.diff(times) >= 0).all()
    assert times.tolist() == process.times(3000, seed=9).tolist()
    assert process.times(1, seed=9).tolist() == times[:1].tolist()
    assert 3000 / times[-1] == pytest.approx(process.mean_rate_per_s, rel=0.2)
    until = process.until(float(times[999]), seed=9)
    assert until.tolist() == times[times < times[999]].tolist()
    assert process.scaled(4).mean_rate_per_s == pytest.approx(4 * process.mean_rate_per_s)


@pytest.mark.parametrize("process", [p for p in ALL if not isinstance(p, Constant | Replay)])
def test_the_seed_decides(process):
    assert process.times(50, seed=1).tolist() != process.times(50, seed=2).tolist()


@pytest.mark.parametrize("cv", [0.3, 0.8, 1.0, 2.0, 4.0])
def test_gaps_are_as_bursty_as_asked(cv):
    for kind in (Gamma, Weibull):
        times = kind(rate_per_s=10, cv=cv).times(200_000, seed=1)
        assert gap_cv(times) == pytest.approx(cv, rel=0.06)
        assert 200_000 / times[-1] == pytest.approx(10, rel=0.03)


def test_poisson_counts_are_those_of_poisson():
    times = Poisson(rate_per_s=20).times(200_000, seed=3)
    for window_s in (0.5, 5.0, 20.0):
        assert dispersion(times, window_s) == pytest.approx(1, abs=0.12)


def test_a_profile_is_followed_step_by_step():
    process = Profile(rate_per_s=30, shape=(1, 0, 3, 2), step_s=10)
    times = process.times(60_000, seed=2)
    steps = np.bincount((times // 10).astype(int) % 4)
    assert steps[1] == 0
    assert (steps / steps.sum())[[0, 2, 3]] == pytest.approx([1 / 6, 3 / 6, 2 / 6], rel=0.03)
    shifted = process.replace(start_s=10.0).times(60_000, seed=2)
    assert shifted[0] >= 10  # the silent step comes first
    later = process.replace(start_s=20.0).times(20_000, seed=2)
    counts = np.bincount((later // 10).astype(int) % 4, minlength=4)
    assert counts[3] == 0 and counts[0] > counts[1] > counts[2]


def test_measured_gaps_are_drawn_from_their_table():
    process = Profile(rate_per_s=1, shape=(1,), step_s=1, gaps=(0, 0, 10), gap_levels=(0, 0.9, 1))
    times = process.times(50_000, seed=2)
    gaps = np.diff(times)
    assert (gaps == 0).mean() == pytest.approx(0.9, abs=0.01)
    assert gaps.mean() == pytest.approx(1, rel=0.05)


def test_a_day_rises_and_falls():
    process = Diurnal(rate_per_s=2, swing=0.8, peak_s=50_400)
    times = process.until(86_400, seed=1)
    assert len(times) == pytest.approx(2 * 86_400, rel=0.02)
    hours = np.bincount((times // 3600).astype(int), minlength=24) / 3600
    wanted = 2 * (1 + 0.8 * np.cos(2 * np.pi * (np.arange(24) + 0.5 - 14) / 24))
    assert hours == pytest.approx(wanted, rel=0.12)


def test_states_of_an_mmpp_last_as_long_as_they_should():
    process = MMPP(rates_per_s=(0.0, 50.0), dwell_s=(9.0, 1.0))
    times = process.times(200_000, seed=4)
    assert process.mean_rate_per_s == 5
    assert 200_000 / times[-1] == pytest.approx(5, rel=0.05)
    silences = np.diff(times)[np.diff(times) > 1.0]
    assert silences.mean() - 1 == pytest.approx(9, rel=0.1)
    # Long windows of an on-off process (Fischer and Meier-Hellstern, 1993).
    a, b, rate = 1 / 9.0, 1 / 1.0, 50.0
    limit = 1 + 2 * b * rate / (a + b) ** 2
    assert dispersion(times, 200.0) == pytest.approx(limit, rel=0.2)


def test_a_replay_goes_round():
    process = Replay(times_s=np.array([0.0, 1.0, 3.0]), rate_factor=0.5)
    assert process.times(5).tolist() == [0, 2, 6, 9, 11]
    assert process == Replay(times_s=[0, 1, 3], rate_factor=0.5)


WRONG = [
    lambda: Poisson(rate_per_s=0),
    lambda: Poisson(rate_per_s=-1),
    lambda: Poisson(rate_per_s=float("nan")),
    lambda: Poisson(rate_per_s="fast"),
    lambda: Gamma(rate_per_s=1, cv=0),
    lambda: Gamma(rate_per_s=1, cv=1e9),
    lambda: Profile(rate_per_s=1, shape=(), step_s=1),
    lambda: Profile(rate_per_s=1, shape=(0, 0), step_s=1),
    lambda: Profile(rate_per_s=1, shape=(1, -1), step_s=1),
    lambda: Profile(rate_per_s=1, shape=(1,), step_s=0),
    lambda: Profile(rate_per_s=1, shape=(1,), step_s=1, gaps=(0, 0), gap_levels=(0, 1)),
    lambda: Profile(rate_per_s=1, shape=(1,), step_s=1, gaps=(0, 1), gap_levels=(0, 0.5)),
    lambda: Profile(rate_per_s=1, shape=(1,), step_s=1, gaps=(0, 1, 2), gap_levels=(0, 0, 1)),
    lambda: Profile(rate_per_s=1, shape=(1,), step_s=1, gaps=(0, 1)),
    lambda: Diurnal(rate_per_s=1, swing=1.5),
    lambda: MMPP(rates_per_s=(1,), dwell_s=(1,)),
    lambda: MMPP(rates_per_s=(1, 2), dwell_s=(1,)),
    lambda: MMPP(rates_per_s=(0, 0), dwell_s=(1, 1)),
    lambda: MMPP(rates_per_s=(1, 2), dwell_s=(1, 0)),
    lambda: Replay(times_s=[]),
    lambda: Replay(times_s=[1]),
    lambda: Replay(times_s=[2, 1]),
    lambda: Replay(times_s=[1, 1]),
    lambda: Replay(times_s=[0, float("nan")]),
    lambda: Poisson(rate_per_s=1).times(0),
    lambda: Poisson(rate_per_s=1).times(2.5),
    lambda: Poisson(rate_per_s=1).times(1 << 40),
    lambda: Poisson(rate_per_s=1).until(0),
    lambda: Poisson(rate_per_s=1).until(float("inf")),
    lambda: Poisson(rate_per_s=1).replace(rate=2),
]


@pytest.mark.parametrize("make", WRONG, ids=range(len(WRONG)))
def test_wrong_knobs_are_named(make):
    with pytest.raises(WorkloadError) as caught:
        make()
    assert caught.value.path and caught.value.fix


# -- draws


def test_many_draws_equal_one_by_one_draws():
    one, many = Stream(1, 2, "x"), Stream(1, 2, "x")
    assert uniforms(many, 20).tolist() == [one.random() for _ in range(20)]
    assert many.word() == one.word()


@settings(max_examples=20, deadline=None)
@given(st.floats(0.05, 50))
def test_gamma_draws_have_mean_one_and_the_right_spread(shape):
    drawn = gammas(Stream(3, "g", str(shape)), shape, 60_000)
    assert (drawn >= 0).all()
    assert drawn.mean() == pytest.approx(1, abs=5 / math.sqrt(60_000 * shape) + 0.005)
    assert drawn.var() * shape == pytest.approx(1, abs=0.15 + 0.06 / shape)


def test_other_draws():
    stream = Stream(5, "d", "")
    assert exponentials(stream, 100_000).mean() == pytest.approx(1, abs=0.02)
    drawn = normals(stream, 100_001)
    assert len(drawn) == 100_001
    assert (drawn.mean(), drawn.std()) == pytest.approx((0, 1), abs=0.02)
    shape = weibull_shape(2.0)
    drawn = weibulls(stream, shape, 400_000)
    assert (drawn.mean(), drawn.std()) == pytest.approx((1, 2), rel=0.05)
