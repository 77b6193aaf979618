"""What a partition would do: fits of both phases' times, and the attainment that they predict."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from orrery.systems.serve.problems.llm_phases import Decoded, Prefilled, SplitView

# How much an observation counts after another one: about the last hundred are remembered.
PREFILL_FADES, DECODE_FADES = 0.98, 0.99
# Shares at which decode may saturate the bandwidth; the middle one is believed until one fits best.
KNEES = np.round(np.arange(0.1, 1.05, 0.1), 2)
FIRST_KNEE = 0.6
# Decode steps that are looked at in one go; more of them say the same.
MOST_STEPS = 24
# The predicted time against its target: how sharply a partition is given up. Steps vary by some
# percent from the fit.
SHARPNESS = 25.0
# Loads are averages over a longer time, and less noisy.
LOAD_SHARPNESS = 40.0
# A window in which fewer requests came says little; it is made longer, up to so many windows.
FEW_REQUESTS, MOST_WINDOWS = 24, 5
# Over how many windows the rate of arrivals fades, and what is known of answers, which take longer
# to come and go: a few seconds of Poisson arrivals say little about either.
RATE_WINDOWS, ANSWER_WINDOWS = 4.0, 10.0
# Queues longer than this share of the time are treated as growing, not as steady.
FULL = 0.98


class PrefillFit:
    """Seconds of a prefill step: a x tokens / share + b.

    >>> fit = PrefillFit()
    >>> for tokens in (500, 1000, 2000):
    ...     fit.learn(Prefilled(0.5, 1, tokens, 1e-4 * tokens / 0.5 + 0.01))
    >>> round(float(fit.seconds(np.array([1000.0]), 0.25)[0]), 2)
    0.41
    """

    def __init__(self) -> None:
        self.seen = 0
        self._sums = np.zeros((2, 2))
        self._right = np.zeros(2)
        self.a = self.b = 0.0

    def learn(self, step: Prefilled) -> None:
        """Take in one step; old ones fade."""
        row = np.array([step.tokens / step.share, 1.0])
        self._sums = PREFILL_FADES * self._sums + np.outer(row, row)
        self._right = PREFILL_FADES * self._right + row * step.seconds
        self.seen += 1
        self._solve()

    def _solve(self) -> None:
        (uu, u), (_, one) = self._sums
        slope_right = self._right[0] * one - self._right[1] * u
        spread = uu * one - u * u
        # Where all steps were alike, only a line through the origin can be told.
        if spread > 1e-6 * uu * one:
            self.a, self.b = slope_right / spread, (self._right[1] * uu - self._right[0] * u)
            self.b /= spread
        if spread <= 1e-6 * uu * one or self.a <= 0 or self.b < 0:
            self.a, self.b = self._right[0] / uu, 0.0

    def seconds(self, tokens: np.ndarray, share: float) -> np.ndarray:
        """What prompts of these lengths take, each alone."""
        return self.a * tokens / share + self.b


class DecodeFit:
    """Seconds of a decode step: (m + k x context) x max(1, knee / share).

    The first factor is the traffic at full bandwidth. Below the knee a share of the
    multiprocessors cannot draw it all, and time is a' / share with a' = knee x traffic. The knee is
    the one of a few that fits best.
    """

    def __init__(self) -> None:
        self.seen = 0
        self._sums = np.zeros((len(KNEES), 3))  # of 1, x, x * x, each over the squared factor
        self._right = np.zeros((len(KNEES), 2))
        self._squares = 0.0
        self.knee = FIRST_KNEE
        self.m = self.k = 0.0
        self.spread = 1.0  # how far the slowest of the steps is above the mean

    def learn(self, steps: Sequence[Decoded]) -> None:
        """Take in the steps of one look."""
        some = steps[:: max(-(-len(steps) // MOST_STEPS), 1)]
        if not some:
            return
        share, _, context, times = np.array(some, dtype=float).T
        old = DECODE_FADES ** np.arange(len(some), -1, -1.0)
        factor = np.maximum(1.0, KNEES[:, None] / share)  # [knee, step]
        x, square = context * 1e-5, old[1:] * factor**2
        self._sums *= old[0]
        self._sums += np.stack([square.sum(1), square @ x, square @ (x * x)], 1)
        said = old[1:] * times * factor
        self._right = old[0] * self._right + np.stack([said.sum(1), said @ x], 1)
        self._squares = old[0] * self._squares + float((old[1:] * times**2).sum())
        self.seen += len(some)
        if len(some) > 5:
            late = float(np.quantile(times, 0.95) / times.mean())
            self.spread += 0.3 * (late - self.spread)
        self._solve()

    def _solve(self) -> None:
        one, x, xx = self._sums.T
        # A little weight on "the context costs nothing", for when it hardly varied.
        xx = xx + 1e-3 * one
        down = one * xx - x * x
        m = (self._right[:, 0] * xx - self._right[:, 1] * x) / down
        k = np.maximum((self._right[:, 1] * one - self._right[:, 0] * x) / down, 0.0)
        m = np.where(k > 0, m, self._right[:, 0] / one)
        left = self._squares - (m * self._right[:, 0] + k * self._right[:, 1])
        best = float(left.min())
        # Knees that fit as well as the best one cannot be told apart: then the nearest to belief.
        alike = left <= best + 1e-3 * self._squares
        near = np.where(alike, np.abs(KNEES - self.knee), np.inf)
        at = int(np.argmin(near))
        self.knee, self.m, self.k = float(KNEES[at]), float(m[at]), float(k[at] * 1e-5)

    def seconds(self, kv_tokens: float, share: float) -> float:
        """What a step with so much context takes."""
        return (self.m + self.k * kv_tokens) * max(1.0, self.knee / share)

    def steady_s(self, share: float, kv_per_s: float) -> float:
        """Step time once the batch has settled: so many token-contexts are wanted each second.

        By Little's law the context in the batch is their rate times the time of a step.
        """
        factor = max(1.0, self.knee / share)
        room = 1.0 - factor * self.k * kv_per_s
        return math.inf if room <= 0.02 else factor * self.m / room

    def busy_with(self, share: float, tokens_per_s: float, context: float, most: float) -> float:
        """The part of the time that so many tokens a second take in batches of at most `most`."""
        return tokens_per_s * self.seconds(most * context, share) / max(most, 1.0)


class Recent:
    """What came and what ended in the last seconds."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.looks: deque[SplitView] = deque()
        self._came = 0
        self._made = self._ended = self._arrivals = self._span_s = 0.0

    def add(self, view: SplitView) -> None:
        """One more look; those beyond the window go."""
        self.looks.append(view)
        self._came += len(view.arrived)
        passed_s = view.now_s - view.since_s
        faded = math.exp(-passed_s / (RATE_WINDOWS * self.window_s))
        self._arrivals = faded * self._arrivals + len(view.arrived)
        self._span_s = faded * self._span_s + passed_s
        faded = math.exp(-passed_s / (ANSWER_WINDOWS * self.window_s))
        self._made = faded * self._made + sum(step.sequences for step in view.decodes)
        self._ended = faded * self._ended + len(view.ended)
        while len(self.looks) > 1 and self.looks[0].now_s <= view.now_s - self.window_s:
            first = self.looks[0]
            old = first.now_s <= view.now_s - MOST_WINDOWS * self.window_s
            if self._came - len(first.arrived) < FEW_REQUESTS and not old:
                break
            self._came -= len(first.arrived)
            self.looks.popleft()

    @property
    def seconds(self) -> float:
        return max(self.looks[-1].now_s - self.looks[0].since_s, 1e-9)

    @property
    def rate_per_s(self) -> float:
        """Requests that come in a second."""
        return max(self._arrivals / max(self._span_s, 1e-9), 1e-9)

    def arrived(self) -> tuple[np.ndarray, np.ndarray]:
        """(prompt tokens, target to the first token) of all that came."""
        prompts = [tokens for each in self.looks for tokens in each.arrived]
        targets = [target for each in self.looks for target in each.targets]
        return np.array(prompts, dtype=float), np.array(targets)

    def ended(self) -> list[int]:
        return [tokens for each in self.looks for tokens in each.ended]

    def answer_tokens(self) -> float:
        """How long answers are: tokens made by all, over the answers that ended.

        The estimate for lives of which most are not over (exponential, by maximum likelihood): it
        rises as soon as answers become longer, and does not wait for long ones to end.
        """
        return self._made / max(self._ended, 1.0) + 1.0

    def busy(self) -> float:
        """The share of the time in which decode steps ran."""
        steps_s = sum(step.seconds for each in self.looks for step in each.decodes)
        return min(steps_s / self.seconds, 1.0)

    def _latest(self) -> list[SplitView]:
        """The looks of one window, however long the others are kept."""
        since_s = self.looks[-1].now_s - self.window_s
        return [each for each in self.looks if each.now_s > since_s]

    def late_first(self) -> float:
        """The share of first tokens that came too late."""
        firsts = [took > target for each in self._latest() for took, target in each.firsts]
        return sum(firsts) / len(firsts) if firsts else 0.0

    def late_gaps(self) -> float:
        """The share of tokens, first ones aside, that came too late after the one before."""
        made = late = 0
        for each in self._latest():
            for step in each.decodes:
                made += step.sequences
                late += step.sequences if step.seconds > each.gap_s else 0
        return late / made if made else 0.0


def first_attainments(
    fit: PrefillFit, prompts: np.ndarray, targets: np.ndarray, seconds: float, backlog: float,
    shares: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """For each share, which part of first tokens will be in time, and how busy prefill will be.

    Waiting is that of an M/G/1 queue (Pollaczek and Khinchine, with an exponential tail), behind
    the work that waits already; a queue that grows, grows linearly over the window.
    """
    if not len(prompts):
        return np.ones(len(shares)), np.zeros(len(shares))
    share = shares[:, None]
    took = fit.a * prompts / share + fit.b  # [share, prompt]
    load = took.sum(1) / seconds
    steady = np.minimum(load, FULL)
    wait_s = (took**2).sum(1) / seconds / (2.0 * (1.0 - steady))
    at = np.linspace(0.0, seconds, len(prompts))
    behind_s = np.maximum(fit.a * backlog / share + (load - 1.0)[:, None] * at, 0.0)
    slack_s = targets - took - behind_s
    pace = (steady / np.maximum(wait_s, 1e-9))[:, None]
    late = steady[:, None] * np.exp(-np.maximum(slack_s, 0.0) * pace)
    return np.where(slack_s >= 0, 1.0 - late, 0.0).mean(1), load


def patience(ended: Sequence[int]) -> np.ndarray:
    """For answers of these lengths, by how much of a step the first gap may be longer.

    Whoever comes from prefill waits for the end of the step under way, so the first gap is one to
    two steps. In a long answer that is one gap of hundreds; in a short one it is the 99th
    percentile, but for what interpolation takes off.
    """
    return 1.0 / np.clip(1.0 - 0.01 * (np.array(ended, dtype=float) - 2.0), 1e-9, 1.0)


def gap_attainment(
    step_s: float, spread: float, target_s: float, busy: float, patient: np.ndarray
) -> float:
    """How likely requests keep the time between two tokens, with steps of this length.

    busy      the part of the time in which a step is under way when somebody comes
    patient   of the answers that ended lately; see `patience`
    """
    if not math.isfinite(step_s):
        return 0.0
    ratio = step_s * spread / target_s
    smooth = fits(ratio, 1.0)
    if not len(patient) or ratio <= 0:
        return smooth
    slack = max(1.0 / ratio - 1.0, 0.0)
    joins = float(np.minimum(slack * patient, 1.0).mean())
    return smooth * (1.0 - busy * (1.0 - joins))


def fits(wanted: float, have: float, sharpness: float = SHARPNESS) -> float:
    """How likely a load stays below what there is: 1 far below, 0 far above.

    >>> round(fits(1.0, 2.0), 2), fits(1.0, 1.0), round(fits(2.0, 1.0), 2)
    (1.0, 0.5, 0.0)
    """
    return 1.0 / (1.0 + math.exp(min(max(sharpness * (wanted / have - 1.0), -50.0), 50.0)))


__all__ = [
    "DecodeFit",
    "PrefillFit",
    "Recent",
    "first_attainments",
    "fits",
    "gap_attainment",
    "patience",
]
