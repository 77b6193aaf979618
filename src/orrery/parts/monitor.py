"""`Monitor`: a read-only tap on a run.

A monitor sees what nodes emit and what goes in and out of each collective; it may report
violations and metrics of its own, and can change nothing. Every engine feeds the same hooks.

Where ranks are processes, all that a monitor sees has to travel to it. `at_rank` runs before that,
at the rank, and may boil a gradient down to a few numbers.
"""

from __future__ import annotations

from typing import Any

from orrery.base.violation import Violation
from orrery.parts.knobs import Part


class Monitor(Part):
    """Attach with `run(…, monitors=[MyMonitor()])`; override what you want to see."""

    def start(self) -> None:
        """Forget everything; called before each run."""

    def at_rank(
        self, memory: dict[str, Any], time_s: float, phase: str, kind: str, tag: str, data: Any
    ) -> Any:
        """What is sent to the monitor of what enters ("before") or leaves ("after") a collective.

        It runs at the rank; `memory` is the rank's own, and empty when its life begins. Nothing is
        sent where it returns None. Left alone, everything is sent.
        """
        return data

    def on_emit(self, time_s: float, node: int, values: dict[str, Any]) -> None:
        """A node emitted values."""

    def before_collective(self, time_s: float, node: int, kind: str, tag: str, data: Any) -> None:
        """A rank enters a collective with `data`, or what `at_rank` made of it."""

    def after_collective(self, time_s: float, node: int, kind: str, tag: str, data: Any) -> None:
        """A rank leaves a collective with `data`, or what `at_rank` made of it.

        Trainers also tell the loss of each batch here, with `kind` "loss".
        """

    def violations(self) -> list[Violation]:
        """What the monitor found by the end of the run."""
        return []

    def metrics(self) -> dict[str, float]:
        """Numbers to add to the run's metrics."""
        return {}


def boils_down(monitor: Monitor) -> bool:
    """Whether a monitor has a say at the ranks."""
    return type(monitor).at_rank is not Monitor.at_rank
