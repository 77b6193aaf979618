"""The lab's statistics against scipy, known values and simulation."""

from __future__ import annotations

import math

import pytest

from orrery.base.errors import UsageError
from orrery.base.rand import Stream
from orrery.lab import stats


@pytest.mark.parametrize(
    ("p", "df", "known"),
    [  # from printed tables
        (0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 4, 2.776), (0.975, 9, 2.262),
        (0.975, 30, 2.042), (0.95, 10, 1.812), (0.995, 5, 4.032), (0.9995, 3, 12.924),
    ],
)  # fmt: skip
def test_t_quantile_is_that_of_the_tables(p, df, known):
    assert stats.t_quantile(p, df) == pytest.approx(known, abs=5e-4)
    assert stats.t_quantile(1 - p, df) == pytest.approx(-known, abs=5e-4)


def test_distributions_agree_with_scipy():
    scipy_stats = pytest.importorskip("scipy.stats")
    for df in (1, 2, 3, 7, 23, 100, 5000):
        for p in (0.5, 0.6, 0.9, 0.975, 0.999, 0.99999):
            expected = scipy_stats.t.ppf(p, df)
            assert stats.t_quantile(p, df) == pytest.approx(expected, rel=1e-9, abs=1e-12)
            assert stats.t_cdf(expected, df) == pytest.approx(p, abs=1e-12)
    for a, b in ((0.5, 0.5), (1, 3), (30, 2), (200, 100)):
        for x in (0.001, 0.2, 0.5, 0.9, 0.999):
            assert stats.beta_cdf(x, a, b) == pytest.approx(
                scipy_stats.beta.cdf(x, a, b), abs=1e-12
            )


def test_failure_interval_is_exact():
    scipy_stats = pytest.importorskip("scipy.stats")
    exact = scipy_stats.binomtest(3, 50).proportion_ci(0.95, "exact")
    found = stats.failure_interval(3, 50)
    assert (found.lo, found.hi) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_no_failure_gives_the_rule_of_three():
    for trials in (30, 100, 1000):
        assert stats.failure_interval(0, trials).hi == pytest.approx(3 / trials, rel=0.1)
    assert stats.failure_interval(0, 0).hi == 1.0
    assert stats.failure_interval(5, 5).hi == 1.0


def test_mean_interval_agrees_with_scipy():
    scipy_stats = pytest.importorskip("scipy.stats")
    values = [3.1, 2.7, 4.4, 3.3, 2.9]
    found = stats.mean_interval(values)
    expected = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.lo, found.hi) == pytest.approx((expected.low, expected.high))


def test_intervals_cover_as_often_as_they_say():
    stream = Stream(1, "test", "cover")
    hits = 0
    for _ in range(600):
        values = [stream.gauss(5.0, 2.0) for _ in range(6)]
        found = stats.mean_interval(values, 0.9)
        hits += found.lo <= 5.0 <= found.hi
    assert 0.86 <= hits / 600 <= 0.94


def test_one_value_has_no_known_interval():
    assert not stats.mean_interval([2.0]).known
    assert not stats.ratio_interval([2.0], [1.0]).known
    assert stats.mean_interval([]).n == 0
    assert not stats.mean_interval([1.0, math.nan]).known


def test_equal_values_have_an_interval_of_no_width():
    found = stats.mean_interval([2.0, 2.0, 2.0])
    assert (found.lo, found.hi) == (2.0, 2.0)


def test_pairs_remove_what_seeds_share():
    base = [1.0, 10.0, 100.0, 5.0]
    found = stats.ratio_interval([2 * v for v in base], base)
    assert (found.mean, found.lo, found.hi) == pytest.approx((2, 2, 2))


def test_a_ratio_and_its_inverse_agree():
    a, b = [1.0, 1.2, 0.9, 1.1], [2.0, 2.1, 2.2, 1.7]
    one, other = stats.ratio_interval(a, b), stats.ratio_interval(b, a)
    assert one.mean == pytest.approx(1 / other.mean)
    assert (one.lo, one.hi) == pytest.approx((1 / other.hi, 1 / other.lo))


def test_ratio_with_zeros_is_fiellers():
    found = stats.ratio_interval([0.0, 1.0, 0.0, 1.0], [10.0, 11.0, 9.0, 10.0])
    assert found.mean == pytest.approx(0.05)
    assert found.lo < 0.05 < found.hi < 0.2
    assert stats.ratio_interval([0.0, 0.0], [0.0, 0.0])[:3] == (1.0, 1.0, 1.0)
    assert not stats.ratio_interval([1.0, 1.0], [0.0, 0.0]).known
    # A rival that may be zero leaves the ratio without bounds.
    assert not stats.ratio_interval([1.0, 2.0], [-1.0, 1.5]).known


def test_quantiles_are_numpys():
    np = pytest.importorskip("numpy")
    values = [5.0, 1.0, 4.0, 2.0, 8.0]
    for q in (0, 0.1, 0.5, 0.77, 0.99, 1):
        assert stats.quantile(values, q) == pytest.approx(float(np.quantile(values, q)))
    assert stats.p50(values) == 4.0
    assert stats.p99([1.0]) == 1.0


def test_bootstrap_is_reproducible_and_sane():
    values = [float(i % 7) for i in range(60)]
    one, two = stats.bootstrap_interval(values), stats.bootstrap_interval(values)
    assert one == two
    student = stats.mean_interval(values)
    assert one.lo == pytest.approx(student.lo, abs=0.15)
    assert one.hi == pytest.approx(student.hi, abs=0.15)
    assert stats.bootstrap_interval(values, seed=1) != one


def test_exponent_agrees_with_scipy():
    scipy_stats = pytest.importorskip("scipy.stats")
    x, y = [1, 2, 4, 8, 16], [1.1, 3.7, 17.0, 60.0, 260.0]
    found = stats.exponent_interval(x, y)
    line = scipy_stats.linregress([math.log(v) for v in x], [math.log(v) for v in y])
    half = scipy_stats.t.ppf(0.975, 3) * line.stderr
    assert found[:3] == pytest.approx((line.slope, line.slope - half, line.slope + half))


def test_looks_spend_no_more_than_the_error():
    assert sum(1 - stats.level_at(look) for look in range(1, 10_000)) < 0.05
    assert stats.level_at(2) > stats.level_at(1) > 0.95


def test_seeds_grow_to_the_limit():
    have, looks = 0, 0
    while have < 24:
        have, looks = stats.next_seeds(have, 3, 24), looks + 1
    assert (have, looks) == (24, 7)


@pytest.mark.parametrize(
    "call",
    [
        lambda: stats.mean([]),
        lambda: stats.quantile([], 0.5),
        lambda: stats.quantile([1.0], 1.5),
        lambda: stats.quantile([1.0], math.nan),
        lambda: stats.mean_interval([1.0], 1.0),
        lambda: stats.ratio_interval([1.0], [1.0, 2.0]),
        lambda: stats.exponent_interval([1, 1], [1, 2]),
        lambda: stats.exponent_interval([1, 2], [0, 2]),
        lambda: stats.failure_interval(3, 2),
        lambda: stats.failure_interval(-1, 2),
        lambda: stats.t_quantile(0.9, 0),
        lambda: stats.t_quantile(1.0, 5),
        lambda: stats.level_at(0),
        lambda: stats.bootstrap_interval([1.0], draws=0),
    ],
)
def test_bad_input_is_named(call):
    with pytest.raises(UsageError):
        call()
