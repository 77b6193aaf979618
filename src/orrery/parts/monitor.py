"""`Monitor`: a read-only tap on a run.

A monitor sees what nodes emit and what goes in and out of each collective; it may report
violations and metrics of its own, and can change nothing. Every engine feeds the same hooks.
"""

from __future__ import annotations

from typing import Any

from orrery.base.violation import Violation
from orrery.parts.knobs import Part


class Monitor(Part):
    """Attach with `run(…, monitors=[MyMonitor()])`; override what you want to see."""

    def start(self) -> None:
        """Forget everything; called before each run."""

    def on_emit(self, time_s: float, node: int, values: dict[str, Any]) -> None:
        """A node emitted values."""

    def before_collective(self, time_s: float, node: int, kind: str, tag: str, data: Any) -> None:
        """A rank enters a collective with `data` (do not change it)."""

    def after_collective(self, time_s: float, node: int, kind: str, tag: str, data: Any) -> None:
        """A rank leaves a collective with `data` (do not change it)."""

    def violations(self) -> list[Violation]:
        """What the monitor found by the end of the run."""
        return []

    def metrics(self) -> dict[str, float]:
        """Numbers to add to the run's metrics."""
        return {}
