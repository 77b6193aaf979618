"""What each tier asks for, as far as the last seconds tell: how often, how long, how surely."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# So many lengths stand for a tier: the means of equal shares of what was seen, in order.
LEVELS = 16
# With fewer answers than this, the rest is guessed.
ENOUGH = 150
# An answer that has not ended is longer than usual: by this much on average.
LONGER = 1.5
# Lengths are looked at in so many of the newest first.
NEWEST = 64
# Beyond so many standard deviations, what came earlier is not what comes now.
APART = 3.0


class Demand(NamedTuple):
    """One tier's requests: arrivals a second, and lengths that stand for all of theirs.

    unsure   the standard error of the prompt tokens a second, as a share of them
    """

    rate_per_s: float
    prompts: tuple[float, ...]
    answers: tuple[float, ...]
    unsure: float = 0.0

    @property
    def prompt(self) -> float:
        return sum(self.prompts) / len(self.prompts)

    @property
    def answer(self) -> float:
        return sum(self.answers) / len(self.answers)


class Watch:
    """Arrivals and lengths of one tier, as far back as they tell of the present.

    The rate is counted over the last seconds and then over twice, four times, … as long, while
    what came earlier agrees with what came since (within three standard deviations of a Poisson
    count): so it is steady while nothing changes, and quick when something does. Lengths are taken
    likewise: the newest ones, and twice as many while their means agree.
    """

    def __init__(self, shortest_s: float, longest_s: float, kept: int = 2000) -> None:
        self.shortest_s, self.longest_s = shortest_s, longest_s
        self.times: deque[float] = deque()
        self.prompts: deque[int] = deque(maxlen=kept)
        self.answers: deque[int] = deque(maxlen=kept)

    def arrived(self, prompt_tokens: int, now_s: float) -> None:
        """A request came."""
        self.times.append(now_s)
        self.prompts.append(prompt_tokens)

    def finished(self, tokens: int) -> None:
        """An answer ended."""
        self.answers.append(tokens)

    def rate_per_s(self, now_s: float) -> float:
        """Arrivals a second, now."""
        count, span_s = self.counted(now_s)
        return count / span_s if span_s > 0 else 0.0

    def counted(self, now_s: float) -> tuple[int, float]:
        """(arrivals, seconds) of the time that tells of the present."""
        while self.times and self.times[0] <= now_s - self.longest_s:
            self.times.popleft()
        span_s = min(self.shortest_s, now_s)
        if span_s <= 0:
            return 0, 0.0
        when = np.asarray(self.times)
        count = int((when > now_s - span_s).sum())
        while span_s < min(self.longest_s, now_s):
            wider_s = min(2 * span_s, self.longest_s, now_s)
            earlier = int((when > now_s - wider_s).sum()) - count
            expected = count / span_s * (wider_s - span_s)
            if abs(earlier - expected) > APART * max(earlier + expected, 4.0) ** 0.5:
                break
            span_s, count = wider_s, count + earlier
        return count, span_s

    def changed(self, now_s: float) -> bool:
        """Whether what comes now has come only lately: since the beginning, or since a change."""
        return self.counted(now_s)[1] < 0.5 * self.longest_s

    def demand(self, now_s: float, answer_guess: float, running: int = 0) -> Demand:
        """What is asked for, where so many answers are being made.

        Short answers end first: a guess stands for those not seen yet, and what is still being made
        counts as long.
        """
        prompts = recent(self.prompts)
        count, span_s = self.counted(now_s)
        unsure = 0.0
        if count and len(prompts):
            spread = float(prompts.std() / prompts.mean())
            unsure = (1 / count + spread**2 / len(prompts)) ** 0.5
        ended = recent(self.answers)
        usual = float(ended.mean()) if len(self.answers) >= ENOUGH else answer_guess
        unseen = max(ENOUGH - len(self.answers) - running, 0)
        answers = [*ended, *([round(answer_guess)] * unseen), *([round(LONGER * usual)] * running)]
        rate = count / span_s if span_s > 0 else 0.0
        return Demand(rate, levels(prompts) or (1.0,) * LEVELS, levels(answers), unsure)


def recent(values: deque[int]) -> np.ndarray:
    """The newest values, as far back as their mean is that of the newest."""
    every = np.asarray(values, float)
    taken = min(NEWEST, len(every))
    while taken < len(every):
        wider = min(2 * taken, len(every))
        new, old = every[-taken:], every[-wider:-taken]
        error = (every[-wider:].var() * (1 / len(new) + 1 / len(old))) ** 0.5
        if abs(new.mean() - old.mean()) > APART * error:
            break
        taken = wider
    return every[len(every) - taken :]


def levels(values: Sequence[float] | np.ndarray) -> tuple[float, ...]:
    """Lengths in order, cut into equal shares, and the mean of each; nothing of nothing."""
    if not len(values):
        return ()
    ordered = np.sort(np.asarray(values, float))
    if len(ordered) < LEVELS:
        ordered = np.repeat(ordered, -(-LEVELS // len(ordered)))
    return tuple(float(part.mean()) for part in np.array_split(ordered, LEVELS))


__all__ = ["LEVELS", "Demand", "Watch", "levels", "recent"]
