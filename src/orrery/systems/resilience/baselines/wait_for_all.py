"""No code: every worker has its own part, and the round ends with the slowest."""

from __future__ import annotations

from orrery.systems.resilience.problems.coding import CodeCourse, Course, GradientScheme


class WaitForAll(GradientScheme):
    """Cut the data evenly and wait for all: no redundancy, and no patience with nobody.

    What synchronous training does on its own; the load is 1/n and a round takes as long as its
    slowest worker.

    Knobs: none.
    Differs from the paper: there is none; it is the control that coding is compared with.

    >>> WaitForAll().course(4).load
    0.25
    """

    def course(self, workers: int) -> Course:
        return CodeCourse(workers, 0)
