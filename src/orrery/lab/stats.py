"""Statistics of the lab: intervals for means, ratios, quantiles, proportions and exponents.

Runs of two systems with one seed meet the same workload and the same faults, so they are compared
in pairs. Distribution functions are computed here (regularised incomplete beta function by its
continued fraction, quantiles by bisection), which spares the core a dependency.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from orrery.base.errors import UsageError

LEVEL = 0.95
# A difference smaller than this share does not matter to anyone who must choose.
MATTERS = 0.01


class Interval(NamedTuple):
    """A value, and the ends between which it lies with some confidence."""

    mean: float
    lo: float
    hi: float
    n: int = 0

    @property
    def known(self) -> bool:
        """Whether both ends are finite."""
        return math.isfinite(self.lo) and math.isfinite(self.hi)


NOTHING = Interval(math.nan, -math.inf, math.inf, 0)


# -- distributions


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b).

    >>> round(beta_cdf(0.5, 2, 2), 12)
    0.5
    """
    if not (a > 0 and b > 0):
        raise UsageError(f"beta_cdf({x}, {a}, {b}): a and b must be > 0")
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    # The fraction converges quickly on this side of the mean; the other side is its mirror.
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(x, a, b) / a
    return 1.0 - front * _beta_fraction(1 - x, b, a) / b


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Lentz's evaluation of the continued fraction of the incomplete beta function."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    total = d
    for m in range(1, 400):
        for top in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + top * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + top / c
            c = c if abs(c) > tiny else tiny
            total *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return total


def beta_quantile(p: float, a: float, b: float) -> float:
    """The x at which `beta_cdf(x, a, b)` is p."""
    if not 0 <= p <= 1:
        raise UsageError(f"beta_quantile: p={p!r} is not a probability")
    return _bisect(lambda x: beta_cdf(x, a, b), p, 0.0, 1.0)


def t_cdf(t: float, df: float) -> float:
    """Student's t distribution.

    >>> round(t_cdf(2.776445105, 4), 9)
    0.975
    """
    if not df > 0:
        raise UsageError(f"t_cdf: df={df!r} degrees of freedom; give a number > 0")
    if math.isinf(t):
        return 1.0 if t > 0 else 0.0
    tail = 0.5 * beta_cdf(df / (df + t * t), df / 2, 0.5)
    return 1.0 - tail if t > 0 else tail


@functools.lru_cache(maxsize=1024)
def t_quantile(p: float, df: float) -> float:
    """The t below which Student's distribution has probability p.

    >>> round(t_quantile(0.975, 4), 6)
    2.776445
    """
    if not 0 < p < 1:
        raise UsageError(f"t_quantile: p={p!r}; give a probability between 0 and 1")
    if not df > 0:
        raise UsageError(f"t_quantile: df={df!r} degrees of freedom; give a number > 0")
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -t_quantile(1 - p, df)
    # In the tail, 1 - cdf keeps its digits where cdf would lose them.
    tail = 1 - p
    x = _bisect(lambda x: 0.5 * beta_cdf(x, df / 2, 0.5), tail, 0.0, 1.0)
    return math.sqrt(df * (1 - x) / x) if x > 0 else math.inf


def _bisect(rises: Callable[[float], float], goal: float, lo: float, hi: float) -> float:
    for _ in range(200):
        mid = 0.5 * (lo + hi)
        if mid in (lo, hi):
            break
        if rises(mid) < goal:
            lo = mid
        else:
            hi = mid
    return 0.5 * (lo + hi)


# -- means and ratios


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean, summed without loss."""
    if not values:
        raise UsageError("the mean of no values; give at least one")
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """The sample standard deviation; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1))


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Student's interval of a mean. One value alone has no known interval.

    >>> mean_interval([1.0, 2.0, 3.0, 4.0]).lo > 0
    True
    """
    _check_level(level)
    if not values or not all(math.isfinite(v) for v in values):
        return NOTHING._replace(n=len(values), mean=mean(values) if values else math.nan)
    middle = mean(values)
    if len(values) == 1:
        return Interval(middle, -math.inf, math.inf, 1)
    half = t_quantile(0.5 + level / 2, len(values) - 1) * deviation(values)
    half /= math.sqrt(len(values))
    return Interval(middle, middle - half, middle + half, len(values))


def ratio_interval(
    ours: Sequence[float], theirs: Sequence[float], level: float = LEVEL
) -> Interval:
    """The interval of ours / theirs over paired seeds.

    Where all values are positive this is the t interval of the mean log-ratio (so the middle is
    the geometric mean, and ours / theirs and theirs / ours agree); otherwise it is Fieller's
    interval of the ratio of the means, unbounded where theirs may be zero.
    """
    _check_level(level)
    if len(ours) != len(theirs):
        raise UsageError(f"{len(ours)} values against {len(theirs)}; pair them by seed")
    if not ours or not all(math.isfinite(v) for v in (*ours, *theirs)):
        return NOTHING._replace(n=len(ours))
    if min(ours) > 0 and min(theirs) > 0:
        logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
        found = mean_interval(logs, level)
        return Interval(math.exp(found.mean), _exp(found.lo), _exp(found.hi), len(ours))
    return _fieller(ours, theirs, level)


def _exp(x: float) -> float:
    return 0.0 if x == -math.inf else math.inf if x > 700 else math.exp(x)


def _fieller(ours: Sequence[float], theirs: Sequence[float], level: float) -> Interval:
    n, top, bottom = len(ours), mean(ours), mean(theirs)
    if bottom == 0:
        same = 1.0 if top == 0 and not any(ours) and not any(theirs) else math.nan
        # Nothing against nothing is a tie, and certain; anything against nothing has no ratio.
        return Interval(1.0, 1.0, 1.0, n) if same == 1.0 else NOTHING._replace(n=n)
    middle = top / bottom
    if n == 1:
        return Interval(middle, -math.inf, math.inf, 1)
    t = t_quantile(0.5 + level / 2, n - 1)
    var_top, var_bottom = deviation(ours) ** 2 / n, deviation(theirs) ** 2 / n
    both = math.fsum((a - top) * (b - bottom) for a, b in zip(ours, theirs, strict=True))
    shared = both / (n - 1) / n
    # The ends are the roots of (top - r bottom)^2 = t^2 var(top - r bottom).
    a = bottom**2 - t**2 * var_bottom
    b = top * bottom - t**2 * shared
    c = top**2 - t**2 * var_top
    inside = b * b - a * c
    if a <= 0:
        return Interval(middle, -math.inf, math.inf, n)
    root = math.sqrt(max(inside, 0.0))
    return Interval(middle, (b - root) / a, (b + root) / a, n)


def difference_interval(
    ours: Sequence[float], theirs: Sequence[float], level: float = LEVEL
) -> Interval:
    """The interval of ours - theirs over paired seeds."""
    if len(ours) != len(theirs):
        raise UsageError(f"{len(ours)} values against {len(theirs)}; pair them by seed")
    return mean_interval([a - b for a, b in zip(ours, theirs, strict=True)], level)


# -- quantiles, bootstrap, proportions


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile, linear between order statistics (as NumPy's default).

    >>> quantile([4, 1, 3, 2], 0.5)
    2.5
    """
    if not values:
        raise UsageError("the quantile of no values; give at least one")
    if not 0 <= q <= 1:
        raise UsageError(f"quantile: q={q!r}; give a share between 0 and 1")
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    if low + 1 >= len(ordered):
        return ordered[-1]
    return ordered[low] + (at - low) * (ordered[low + 1] - ordered[low])


def p50(values: Sequence[float]) -> float:
    """The median."""
    return quantile(values, 0.5)


def p99(values: Sequence[float]) -> float:
    """The 99th percentile."""
    return quantile(values, 0.99)


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = mean,
    *,
    level: float = LEVEL,
    draws: int = 1000,
    seed: int = 0,
) -> Interval:
    """The percentile bootstrap interval of any statistic; the same seed gives the same ends."""
    from orrery.base.rand import Stream

    _check_level(level)
    if draws < 1:
        raise UsageError(f"bootstrap_interval: draws={draws!r}; give a number >= 1")
    if not values:
        return NOTHING
    stream, n = Stream(seed, "lab", "bootstrap"), len(values)
    found = [statistic([values[stream.below(n)] for _ in range(n)]) for _ in range(draws)]
    tail = (1 - level) / 2
    return Interval(statistic(values), quantile(found, tail), quantile(found, 1 - tail), n)


def failure_interval(failures: int, trials: int, level: float = LEVEL) -> Interval:
    """The share of trials that fail (Clopper and Pearson's exact interval).

    With no failure the upper end is one-sided and about 3 / trials: the rule of three.

    >>> round(failure_interval(0, 300).hi, 4)
    0.0099
    """
    _check_level(level)
    if not 0 <= failures <= trials:
        raise UsageError(f"{failures} failures of {trials} trials; give 0 <= failures <= trials")
    if trials == 0:
        return Interval(math.nan, 0.0, 1.0, 0)
    if failures == 0:
        return Interval(0.0, 0.0, 1 - (1 - level) ** (1 / trials), trials)
    if failures == trials:
        return Interval(1.0, (1 - level) ** (1 / trials), 1.0, trials)
    tail = (1 - level) / 2
    lo = beta_quantile(tail, failures, trials - failures + 1)
    hi = beta_quantile(1 - tail, failures + 1, trials - failures)
    return Interval(failures / trials, lo, hi, trials)


# -- growth


def exponent_interval(x: Sequence[float], y: Sequence[float], level: float = LEVEL) -> Interval:
    """The e of y ~ x^e by least squares on logarithms, with Student's interval of the slope.

    >>> round(exponent_interval([1, 2, 4, 8], [3, 12, 48, 192]).mean, 9)
    2.0
    """
    _check_level(level)
    if len(x) != len(y) or len(set(x)) < 2:
        raise UsageError(f"{len(x)} x and {len(y)} y give no exponent; give two x or more")
    if not all(0 < v < math.inf for v in (*x, *y)):
        raise UsageError("an exponent needs numbers > 0; a value here is not")
    lx, ly = [math.log(v) for v in x], [math.log(v) for v in y]
    mx, my = mean(lx), mean(ly)
    spread = math.fsum((a - mx) ** 2 for a in lx)
    slope = math.fsum((a - mx) * (b - my) for a, b in zip(lx, ly, strict=True)) / spread
    if len(x) == 2:
        return Interval(slope, -math.inf, math.inf, 2)
    left = math.fsum((b - my - slope * (a - mx)) ** 2 for a, b in zip(lx, ly, strict=True))
    half = t_quantile(0.5 + level / 2, len(x) - 2) * math.sqrt(left / (len(x) - 2) / spread)
    return Interval(slope, slope - half, slope + half, len(x))


# -- adding seeds


def level_at(look: int, level: float = LEVEL) -> float:
    """The confidence to ask at the look-th look at the data (1, 2, …).

    Looking again and again until something is significant would find what is not there. Each
    look spends a part of the error, (1 - level) / (look (look + 1)), and all parts together are
    1 - level, however often one looks.
    """
    _check_level(level)
    if look < 1:
        raise UsageError(f"level_at: look={look!r}; the first look is 1")
    return 1 - (1 - level) / (look * (look + 1))


def next_seeds(have: int, least: int, most: int) -> int:
    """How many seeds to have at the next look: half as many again, so that looks stay few."""
    if have < least:
        return least
    return min(most, have + max(2, have // 2))


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise UsageError(f"level={level!r}; give a confidence between 0 and 1, such as 0.95")
