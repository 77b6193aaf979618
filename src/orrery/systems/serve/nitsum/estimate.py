"""What each tier asks for, as far as the last seconds tell: how often, how long."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# So many lengths stand for a tier: the means of equal shares of what was seen, in order.
LEVELS = 16
# With fewer answers than this, the rest is guessed.
ENOUGH = 150


class Demand(NamedTuple):
    """One tier's requests: arrivals a second, and lengths that stand for all of theirs."""

    rate_per_s: float
    prompts: tuple[float, ...]
    answers: tuple[float, ...]

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
    count): so it is steady while nothing changes, and quick when something does.
    """

    def __init__(self, shortest_s: float, longest_s: float, kept: int = 200) -> None:
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
        while self.times and self.times[0] <= now_s - self.longest_s:
            self.times.popleft()
        span_s = min(self.shortest_s, now_s)
        if span_s <= 0:
            return 0.0
        when = np.asarray(self.times)
        count = int((when > now_s - span_s).sum())
        while span_s < min(self.longest_s, now_s):
            wider_s = min(2 * span_s, self.longest_s, now_s)
            earlier = int((when > now_s - wider_s).sum()) - count
            expected = count / span_s * (wider_s - span_s)
            if abs(earlier - expected) > 3.0 * max(earlier + expected, 4.0) ** 0.5:
                break
            span_s, count = wider_s, count + earlier
        return count / span_s

    def demand(self, now_s: float, answer_guess: float) -> Demand:
        """What is asked for. Short answers end first, so a guess stands for those not seen yet."""
        prompts = levels(self.prompts) or (1.0,) * LEVELS
        unseen = max(ENOUGH - len(self.answers), 0)
        answers = levels([*self.answers, *([round(answer_guess)] * unseen)])
        return Demand(self.rate_per_s(now_s), prompts, answers)


def levels(values: Sequence[int] | deque[int]) -> tuple[float, ...]:
    """Lengths in order, cut into equal shares, and the mean of each; nothing of nothing."""
    if not values:
        return ()
    ordered = np.sort(np.asarray(values, float))
    if len(ordered) < LEVELS:
        ordered = np.repeat(ordered, -(-LEVELS // len(ordered)))
    return tuple(float(part.mean()) for part in np.array_split(ordered, LEVELS))


__all__ = ["LEVELS", "Demand", "Watch", "levels"]
