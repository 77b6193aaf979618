"""Arrivals: when requests come, from a seed.

Each process gives `times(count, seed)`, ascending seconds from 0, and `until(seconds, seed)`. A
renewal process with gaps of mean 1 runs in *operational* time; the process's rate over time then
turns operational into real time, by inverting the rate's integral (Cinlar, 1975). So burstiness and
a day's profile combine, a change of rate keeps the draws, and asking for more arrivals changes none
of the earlier ones::

    Constant    one request each 1 / rate_per_s
    Poisson     independent arrivals
    Gamma       bursty (cv > 1) or smooth (cv < 1) gaps
    Weibull     the same with a heavier tail
    Profile     a rate that follows a table, again and again; gaps as for Gamma, or measured
    Diurnal     a rate that follows a sinusoid: one day, unless told otherwise
    MMPP        a rate that jumps between states of random length (Markov-modulated Poisson)
    Replay      recorded times, faster or slower, again and again when more are asked for
"""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from orrery.base.rand import Stream, mix64
from orrery.inputs import draws
from orrery.inputs.columns import column
from orrery.inputs.workload import F64, WorkloadError
from orrery.world.spec import NonNegative, Positive, Spec, brief

Cv = Annotated[float, Meta(gt=0, le=100)]
MAX_COUNT = 1 << 28
DAY_S = 86_400.0


class Arrivals(Spec, frozen=True, kw_only=True):
    """A process that gives arrival times; see the module for the kinds."""

    label: ClassVar[str] = "arrivals"
    error: ClassVar[type[WorkloadError]] = WorkloadError

    def times(self, count: int, seed: int = 0) -> F64:
        """The first `count` arrivals, in seconds."""
        if isinstance(count, bool) or not isinstance(count, int | np.integer):
            raise WorkloadError("arrivals.count", f"{brief(count)} is refused", "give an integer")
        if not 1 <= count <= MAX_COUNT:
            raise WorkloadError("arrivals.count", f"{count} arrivals", f"give 1 to {MAX_COUNT}")
        stream = Stream(seed, "arrivals", type(self).__name__)
        found = self._real(self._operational(stream, int(count)), stream)
        # Whole nanoseconds: what a processor does with the last bit of a logarithm drops out.
        return np.maximum.accumulate(np.round(found, 9))

    def until(self, seconds: float, seed: int = 0) -> F64:
        """All arrivals before `seconds`; there may be none."""
        if not (math.isfinite(seconds) and seconds > 0):
            raise WorkloadError("arrivals.seconds", f"{seconds!r} is refused", "give a number > 0")
        count = max(16, int(seconds * self.mean_rate_per_s * 1.05 + 64))
        while True:
            found = self.times(count, seed)
            if found[-1] >= seconds:
                return found[: np.searchsorted(found, seconds)]
            count *= 2

    @property
    def mean_rate_per_s(self) -> float:
        """Arrivals per second in the long run."""
        return float(getattr(self, "rate_per_s"))  # noqa: B009

    def scaled(self, rate_factor: float) -> Any:
        """The same process, `rate_factor` times as fast on average."""
        return self.replace(rate_per_s=self.mean_rate_per_s * rate_factor)

    def _operational(self, stream: Stream, count: int) -> F64:
        return np.cumsum(self._gaps(stream, count))

    def _gaps(self, stream: Stream, count: int) -> F64:
        return draws.exponentials(stream, count)

    def _real(self, operational: F64, stream: Stream) -> F64:
        return operational / self.mean_rate_per_s


class Constant(Arrivals, frozen=True, kw_only=True):
    """One request each 1 / rate_per_s seconds, the first at 0.

    >>> Constant(rate_per_s=4).times(3).tolist()
    [0.0, 0.25, 0.5]
    """

    rate_per_s: Positive

    def _operational(self, stream: Stream, count: int) -> F64:
        return np.arange(count, dtype=np.float64)


class Poisson(Arrivals, frozen=True, kw_only=True):
    """Independent arrivals: exponential gaps."""

    rate_per_s: Positive


class Gamma(Arrivals, frozen=True, kw_only=True):
    """Gamma gaps: `cv` is their standard deviation over their mean (1 is Poisson)."""

    rate_per_s: Positive
    cv: Cv

    def _gaps(self, stream: Stream, count: int) -> F64:
        return draws.gammas(stream, 1.0 / self.cv**2, count)


class Weibull(Arrivals, frozen=True, kw_only=True):
    """Weibull gaps: as bursty as `cv` says, with a heavier tail than Gamma."""

    rate_per_s: Positive
    cv: Annotated[float, Meta(gt=0.02, le=20)]

    def _gaps(self, stream: Stream, count: int) -> F64:
        return draws.weibulls(stream, draws.weibull_shape(self.cv), count)


class Profile(Arrivals, frozen=True, kw_only=True):
    """A rate that follows a table of steps, again and again.

    `rate_per_s` is the mean; `shape` holds the relative rate of each step of `step_s` seconds, of
    which the first starts at `start_s` into the table. Gaps in operational time are Gamma of this
    `cv`, or, where `gaps` is given, drawn from these quantiles of measured gaps, which stand at the
    cumulative probabilities `gap_levels`.
    """

    rate_per_s: Positive
    shape: tuple[NonNegative, ...]
    step_s: Positive
    start_s: NonNegative = 0.0
    cv: Cv = 1.0
    gaps: tuple[NonNegative, ...] = ()
    gap_levels: tuple[NonNegative, ...] = ()

    def _check(self) -> None:
        if not any(each > 0 for each in self.shape):
            raise self._refuse("shape", "has no step above 0", "give relative rates")
        if self.gaps and (len(self.gaps) < 2 or not self.gaps[-1] > 0):
            raise self._refuse("gaps", "has no gap above 0", "give at least two quantiles")
        levels = self.gap_levels
        rising = all(a < b for a, b in itertools.pairwise(levels))
        if len(levels) != len(self.gaps) or (levels and (levels[0], levels[-1]) != (0, 1)):
            problem = f"{len(levels)} levels for {len(self.gaps)} gaps"
            raise self._refuse("gap_levels", problem, "give one a gap, from 0 to 1")
        if not rising:
            raise self._refuse("gap_levels", "do not rise", "give ascending levels")

    def _gaps(self, stream: Stream, count: int) -> F64:
        if self.gaps:
            levels, table = np.array(self.gap_levels), np.array(self.gaps)
            mean = float(((table[1:] + table[:-1]) / 2 * np.diff(levels)).sum())
            drawn: F64 = np.interp(draws.uniforms(stream, count), levels, table) / mean
            return drawn
        if self.cv == 1.0:
            return draws.exponentials(stream, count)
        return draws.gammas(stream, 1.0 / self.cv**2, count)

    def _relative(self) -> F64:
        return np.array(self.shape)

    def _real(self, operational: F64, stream: Stream) -> F64:
        shape = self._relative()
        ends = np.concatenate([[0.0], np.cumsum(shape)]) * (len(shape) / shape.sum())
        # One turn of the table is len(shape) steps, in both times, once the shape has mean 1.
        begun = self.start_s / self.step_s
        before = (begun // len(shape)) * len(shape) + np.interp(
            begun % len(shape), np.arange(len(ends)), ends
        )
        steps = operational / (self.rate_per_s * self.step_s) + before
        turns = np.floor(steps / len(shape))
        within = np.interp(steps - turns * len(shape), ends, np.arange(len(ends)))
        found: F64 = (turns * len(shape) + within) * self.step_s - self.start_s
        return found


class Diurnal(Arrivals, frozen=True, kw_only=True):
    """A rate that follows a sinusoid around its mean: rate_per_s * (1 + swing * cos(...)).

    The rate is highest at `peak_s`, which is 2 p.m. unless told otherwise, and time 0 is midnight.
    """

    rate_per_s: Positive
    swing: Annotated[float, Meta(ge=0, le=1)] = 0.5
    period_s: Positive = DAY_S
    peak_s: NonNegative = 50_400.0
    cv: Cv = 1.0

    def _profile(self) -> Profile:
        steps = 1440  # a minute of a day: the sinusoid is followed to within a millionth
        middle = (np.arange(steps) + 0.5) / steps - self.peak_s / self.period_s
        shape = 1.0 + self.swing * np.cos(2.0 * np.pi * middle)
        return Profile(
            rate_per_s=self.rate_per_s,
            shape=tuple(shape.tolist()),
            step_s=self.period_s / steps,
            cv=self.cv,
        )

    def _gaps(self, stream: Stream, count: int) -> F64:
        return self._profile()._gaps(stream, count)

    def _real(self, operational: F64, stream: Stream) -> F64:
        return self._profile()._real(operational, stream)


class MMPP(Arrivals, frozen=True, kw_only=True):
    """A Poisson process whose rate jumps between states (Markov-modulated).

    State k has `rates_per_s[k]` and lasts `dwell_s[k]` on average, exponentially; the next state is
    any other, all alike. It starts in state 0.
    """

    rates_per_s: tuple[NonNegative, ...]
    dwell_s: tuple[Positive, ...]

    def _check(self) -> None:
        if len(self.rates_per_s) < 2 or len(self.rates_per_s) != len(self.dwell_s):
            problem = f"{len(self.rates_per_s)} rates for {len(self.dwell_s)} dwell times"
            raise self._refuse("rates_per_s", problem, "give one rate and one dwell time a state")
        if not any(rate > 0 for rate in self.rates_per_s):
            raise self._refuse("rates_per_s", "has no rate above 0", "let one state be busy")

    @property
    def mean_rate_per_s(self) -> float:
        """Arrivals per second in the long run (states are visited equally often)."""
        work = sum(r * d for r, d in zip(self.rates_per_s, self.dwell_s, strict=True))
        return work / sum(self.dwell_s)

    def scaled(self, rate_factor: float) -> MMPP:
        """The same states, each `rate_factor` times as fast."""
        return self.replace(rates_per_s=tuple(rate * rate_factor for rate in self.rates_per_s))

    def _real(self, operational: F64, stream: Stream) -> F64:
        states = len(self.rates_per_s)
        rates, dwells = np.array(self.rates_per_s), np.array(self.dwell_s)
        visits = 64
        # The jumps have streams of their own, so that more arrivals or jumps change no earlier one.
        leap, stay = mix64(stream.key ^ 1), mix64(stream.key ^ 2)
        while True:
            jumps = 1 + (draws.uniforms(Stream.keyed(leap), visits) * (states - 1)).astype(int)
            state = (np.cumsum(jumps) - jumps[0]) % states
            lasts = draws.exponentials(Stream.keyed(stay), visits) * dwells[state]
            done = np.concatenate([[0.0], np.cumsum(lasts * rates[state])])
            if done[-1] >= operational[-1]:
                ends = np.concatenate([[0.0], np.cumsum(lasts)])
                found: F64 = np.interp(operational, done, ends)
                return found
            visits *= 2


class Replay(Arrivals, frozen=True, kw_only=True):
    """Recorded times, `rate_factor` times as fast; again and again when more are asked for.

    >>> Replay(times_s=[0, 1, 3], rate_factor=2).times(4).tolist()
    [0.0, 0.5, 1.5, 2.25]
    """

    unchecked: ClassVar[frozenset[str]] = frozenset({"times_s"})
    times_s: Any
    rate_factor: Positive = 1.0

    def _check(self) -> None:
        given = column("times_s", self.times_s, np.float64)
        if len(given) < 2 or given[0] < 0 or (np.diff(given) < 0).any() or not given[-1] > given[0]:
            fix = "give at least two different times >= 0, ascending"
            raise self._refuse("times_s", "is no ascending list of times", fix)
        msgspec.structs.force_setattr(self, "times_s", given)

    @property
    def mean_rate_per_s(self) -> float:
        """Arrivals per second over the record."""
        return (
            self.rate_factor * (len(self.times_s) - 1) / float(self.times_s[-1] - self.times_s[0])
        )

    def scaled(self, rate_factor: float) -> Replay:
        """The same record, `rate_factor` times as fast again."""
        return self.replace(rate_factor=self.rate_factor * rate_factor)

    def _operational(self, stream: Stream, count: int) -> F64:
        return np.arange(count, dtype=np.float64)

    def _real(self, operational: F64, stream: Stream) -> F64:
        record: F64 = self.times_s
        # After the last request the record starts again, one mean gap later.
        turn_s = float(record[-1] - record[0]) * len(record) / (len(record) - 1)
        which = operational.astype(np.int64)
        return (record[which % len(record)] + turn_s * (which // len(record))) / self.rate_factor

    def __hash__(self) -> int:
        return hash((self.rate_factor, self.times_s.tobytes()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Replay) and hash(self) == hash(other)
