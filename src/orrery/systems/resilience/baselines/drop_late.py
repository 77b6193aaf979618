"""Drop what is late: the gradient of a round is that of whoever answered in time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from orrery.systems.resilience.problems.coding import (
    CodeCourse,
    Course,
    GradientScheme,
    Recipe,
)


class DropLate(GradientScheme):
    """Take the answers that are there when the time is up, scaled to the whole.

    Backup workers without the backup (Chen et al., "Revisiting distributed synchronous SGD", 2016):
    cheap and quick, and the gradient is only an estimate, biased when the same workers are always
    late.

    Knobs: none.
    Differs from the paper: the time limit is that of the problem's master, and no number of workers
    is fixed beforehand.

    >>> DropLate().exact
    False
    """

    exact: ClassVar[bool] = False

    def course(self, workers: int) -> Course:
        return _Dropping(workers, 0)


class _Dropping(CodeCourse):
    def fits(self, number: int, heard: Iterable[int]) -> bool:
        return any(True for _ in heard)

    def recipe(self, job: int) -> Recipe | None:
        have = dict(self.answered.get(job, ()))
        if not have:
            return None
        return {(worker, mini): self.workers / len(have) for worker, mini in have.items()}
