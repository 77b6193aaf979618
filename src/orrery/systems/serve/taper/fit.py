"""What a decode step takes, learnt from the steps that were: least squares that forget."""

from __future__ import annotations

import math

from orrery.base.errors import UsageError

# Typical sizes of the four terms of a step, so that their coefficients are of the same order.
SCALE = (1.0, 64.0, 64_000.0, 512.0)
# What is believed before any step: seconds of the four terms of that size.
FIRST_S = (0.02, 0.003, 0.004, 0.04)
# How firmly it is believed, as a share of one step of that size. What the steps say outweighs it
# at once; it decides only where they say nothing, as about prompts when there were none for long.
BELIEF = 0.01


class StepFit:
    """step = a + b x sequences + c x KV tokens read + d x prompt tokens, refitted at every step.

    Least squares over the past, whose weight falls by `keep` with each step, with a weak pull
    towards a first belief. The sums behind it are kept, and the four equations solved anew when
    they are asked for: nothing drifts, however long a term goes without news. A term that comes out
    negative is left out, and the others are solved again, so that a branch never seems to make a
    step shorter. O(1) a step.

    >>> fit = StepFit()
    >>> for n in range(400):
    ...     fit.learn(n % 7 * 64, 20 + n % 40, 1000 * (20 + n % 50), 0.02 + 1e-4 * (20 + n % 40))
    >>> abs(fit.seconds(0, 30, 30_000) - 0.023) < 1e-4
    True
    """

    __slots__ = ("_terms", "keep", "products", "seen", "sums")

    def __init__(self, keep: float = 0.995) -> None:
        if not 0.0 < keep <= 1.0:
            raise UsageError(f"keep = {keep}: give the weight of the past, above 0 and at most 1")
        self.keep, self.seen = keep, 0
        self.products = [[0.0] * 4 for _ in range(4)]
        self.sums = [0.0] * 4
        self._terms: tuple[float, float, float, float] | None = None

    def learn(self, prefill: int, sequences: int, kv_tokens: int, seconds: float) -> None:
        """Take in what one step took; a time that cannot be is left out."""
        if not (math.isfinite(seconds) and seconds > 0):
            return
        x = (1.0, sequences / SCALE[1], kv_tokens / SCALE[2], prefill / SCALE[3])
        keep, sums = self.keep, self.sums
        for i, row in enumerate(self.products):
            at = x[i]
            self.products[i] = [keep * row[j] + at * x[j] for j in range(4)]
            sums[i] = keep * sums[i] + at * seconds
        self.seen += 1
        self._terms = None

    def terms(self) -> tuple[float, float, float, float]:
        """a, b, c and d, in seconds."""
        if self._terms is None:
            a, b, c, d = (w / s for w, s in zip(self._solved(), SCALE, strict=True))
            self._terms = (a, b, c, d)
        return self._terms

    def seconds(self, prefill: int, sequences: int, kv_tokens: float) -> float:
        """What a step would take."""
        a, b, c, d = self.terms()
        return a + b * sequences + c * kv_tokens + d * prefill

    def _solved(self) -> list[float]:
        used = [0, 1, 2, 3]
        while True:
            found = _solve(
                [[self.products[i][j] + (BELIEF if i == j else 0.0) for j in used] for i in used],
                [self.sums[i] + BELIEF * FIRST_S[i] for i in used],
            )
            least = min(found)
            if least >= 0.0:
                break
            used.pop(found.index(least))
        terms = [0.0] * 4
        for i, w in zip(used, found, strict=True):
            terms[i] = w
        return terms


def _solve(rows: list[list[float]], right: list[float]) -> list[float]:
    """A few equations whose matrix is symmetric and positive, by elimination."""
    size = len(right)
    for at in range(size):
        pivot = rows[at]
        for below in range(at + 1, size):
            share = rows[below][at] / pivot[at]
            row = rows[below]
            for j in range(at, size):
                row[j] -= share * pivot[j]
            right[below] -= share * right[at]
    found = [0.0] * size
    for at in range(size - 1, -1, -1):
        known = sum([rows[at][j] * found[j] for j in range(at + 1, size)])
        found[at] = (right[at] - known) / rows[at][at]
    return found


__all__ = ["StepFit"]
