"""Plain repetition: every part is computed by several workers, and the first answer counts."""

from __future__ import annotations

from orrery.base.errors import PartError
from orrery.parts import Count
from orrery.systems.resilience.problems.coding import CodeCourse, Course, GradientScheme


class Repetition(GradientScheme):
    """Groups of `copies` workers do the same work; one of each group is enough.

    The redundancy of replicated tasks (Dean and Barroso, "The tail at scale", CACM 2013), set up
    beforehand. It forgives any copies - 1 stragglers, and more when they fall in different groups.

    Knobs: `copies`, workers of a group; they must divide the number of workers.
    Differs from the paper: copies start at once and not when the first is late.

    >>> Repetition(copies=2).course(4).load
    0.5
    """

    copies: Count = 2

    def course(self, workers: int) -> Course:
        if workers % self.copies:
            raise PartError(
                f"copies = {self.copies} does not divide {workers} workers; take a divisor"
            )
        return CodeCourse(workers, self.copies - 1)
