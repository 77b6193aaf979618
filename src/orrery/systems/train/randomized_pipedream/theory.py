"""What stale block SGD can promise: the delay, the largest step size, bounds on stale reads.

Setting: f is L-smooth with S blocks; a stochastic gradient is unbiased with variance sigma^2 in
all; iteration k moves a uniformly drawn block i_k by -rate times that block of a gradient at
x_{k - tau_k}, with tau_k <= tau. Write g_k for the full stochastic gradient at the delayed point,
G_k = E|grad f(x_{k - tau_k})|^2, and D_k = E|x_k - x_{k - tau_k}|^2.

1. x_k - x_{k - tau_k} is a sum of at most tau block steps, so by Cauchy and Schwarz, and because
   the block is drawn independently of the point,
       D_k <= rate^2 tau sum_j E|block i_j of g_j|^2 <= rate^2 tau^2 M
   where M = max_j (G_j + sigma^2) / S bounds the second moment of a block gradient. With
   tau = S^2 - S/2 this is Theta(rate^2 S^4 M).
2. The descent lemma gives in expectation
       f(x_{k+1}) <= f(x_k) - rate/(2S) (|grad f(x_k)|^2 + G_k) + rate L^2/(2S) D_k
                     + L rate^2/(2S) (G_k + sigma^2).
   Summed up with 1., the terms in G_k cancel where L rate + L^2 rate^2 tau^2 / S <= 1
   (`largest_rate`), which leaves
       mean_k E|grad f(x_k)|^2 <= 2 S gap / (rate K) + L rate sigma^2 + L^2 rate^2 tau^2 sigma^2 / S
   whose last term is the contribution of stale reads: Theta(rate^2 S^4) in the variance of a block,
   sigma^2 / S.
3. The same sum, cut off at any k <= K, bounds E f(x_k) - min f, and |grad f|^2 <= 2 L (f - min f)
   then bounds M before anything has run (`Setting.block_moment`).

The paper's own constants were not at hand; these are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from orrery.base.errors import PartError
from orrery.parts.collectives import Array


def delay_law(stages: int) -> int:
    """Block updates from the read of a batch at PipeDream's first stage to its write there.

    S^2 - S/2, rounded down: in steady state, with passes of equal time.

    >>> [delay_law(stages) for stages in (1, 2, 3, 4, 8, 16, 32)]
    [0, 3, 7, 14, 60, 248, 1008]
    """
    if stages < 1:
        raise PartError(f"delay_law({stages}): a pipeline has at least 1 stage")
    return (2 * stages * stages - stages) // 2


def largest_rate(smooth: float, delay: int, stages: int) -> float:
    """The largest step size for which the terms of the descent lemma cancel.

    >>> largest_rate(1.0, 0, 1)
    1.0
    """
    if not (smooth > 0 and math.isfinite(smooth)) or delay < 0 or stages < 1:
        raise PartError(
            f"largest_rate({smooth}, {delay}, {stages}): smoothness is above 0, the delay at "
            "least 0, and there is at least 1 stage"
        )
    # The positive root of  c y^2 + y - 1  with  y = smooth * rate,  written so that c may be 0.
    c = delay * delay / stages
    return 2.0 / (1.0 + math.sqrt(1.0 + 4.0 * c)) / smooth


class Setting(NamedTuple):
    """What is known before anything runs: stages, delay, smoothness, noise, gap, iterations."""

    stages: int
    delay: int
    smooth: float
    noise2: float  # the variance of a whole stochastic gradient
    gap: float  # f at the start, above its minimum
    steps: int

    def check(self, rate: float) -> None:
        """Refuse a step size for which nothing is promised."""
        most = largest_rate(self.smooth, self.delay, self.stages)
        if not 0 < rate <= most * (1 + 1e-12):
            raise PartError(f"rate = {rate}: nothing is promised above {most:.4g}; lower it")

    def block_moment(self, rate: float) -> float:
        """A bound on the second moment of a block gradient in all iterations (3. above)."""
        self.check(rate)
        per_step = self.smooth * rate * self.noise2 + stale_term(self, rate)
        gap = self.gap + self.steps * rate / (2 * self.stages) * per_step
        return (2 * self.smooth * gap + self.noise2) / self.stages


def stale_bound(setting: Setting, rate: float) -> float:
    """The bound on the mean squared distance between current and stale weights (1. above)."""
    return rate**2 * setting.delay**2 * setting.block_moment(rate)


def stale_term(setting: Setting, rate: float) -> float:
    """What stale reads add to the bound on the mean squared gradient (2. above)."""
    return setting.smooth**2 * rate**2 * setting.delay**2 * setting.noise2 / setting.stages


Gradients = Callable[[Array, int], Array]


def walk(
    gradients: Gradients, start: Array, slices: list[slice], blocks: Array, delays: Array,
    rates: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Stale block SGD without stages, for many walks at once: (distances squared, the ends).

    `gradients(points, k)` gives a gradient of iteration k for each row of points; `blocks` has a
    row of drawn blocks for each walk, `delays` a delay for each iteration, `rates` a rate for each
    walk. Distances are (iterations, walks). A walk of K iterations takes O(K numbers).

    >>> ends = walk(lambda x, k: x, np.ones(2), [slice(0, 1), slice(1, 2)],
    ...     np.array([[0, 1]]), np.array([0, 1]), np.array([0.5]))
    >>> ends[0].tolist(), ends[1].tolist()
    ([[0.0], [0.25]], [[0.5, 0.5]])
    """
    walks, steps = blocks.shape
    depth = int(delays.max(initial=0)) + 1
    past: Array = np.empty((depth, walks, start.size))
    now: Array = np.tile(start, (walks, 1)).astype(float)
    owner = np.empty(start.size, np.int64)
    for block, where in enumerate(slices):
        owner[where] = block
    distances = np.empty((steps, walks))
    for k in range(steps):
        past[k % depth] = now
        stale = past[(k - int(delays[k])) % depth]
        distances[k] = np.sum((now - stale) ** 2, axis=1)
        mine = owner[None, :] == blocks[:, k, None]
        now = now - rates[:, None] * np.where(mine, gradients(stale, k), 0.0)
    return distances, now
