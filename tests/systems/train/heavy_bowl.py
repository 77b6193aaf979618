"""A task that costs what a language model does and has the optimum of a quadratic."""

from __future__ import annotations

from orrery.models.learn import Quadratic
from orrery.models.learn.tasks import Bowl
from orrery.parts import Count, cost


class HeavyBowl(Bowl):
    """A bowl whose gradient costs what reading so many tokens with so many weights does."""

    @cost(flops=lambda self, weights: 6 * self.task.tokens * weights.size * self.task.scale)
    def grad(self, weights):
        return super().grad(weights)


class Heavy(Quadratic):
    """A quadratic whose ranks have heavy bowls."""

    tokens: Count = 2048
    numbers: Count = 1024

    def share(self, rank, size, rng):
        return HeavyBowl(self, rank, rng, size)
