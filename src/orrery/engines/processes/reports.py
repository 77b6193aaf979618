"""What a run tells: records, logs, violations, and errors that name their node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orrery.base.errors import PartError
from orrery.base.violation import Violation
from orrery.parts.monitor import Monitor
from orrery.parts.problem import Record
from orrery.world import BitFlip, Byzantine
from orrery.world.faults import Fault

OnLog = Callable[[float, int, str], None]


class Reports:
    """Collects in the parent what the nodes and the driver report."""

    def __init__(
        self,
        size: int,
        seed: int,
        schedule: Sequence[Fault],
        monitors: Sequence[Monitor],
        on_log: OnLog | None,
    ) -> None:
        self.records: list[Record] = []
        self.violations: list[Violation] = []
        self._size = size
        self._seed = seed
        self._monitors = monitors
        self._on_log = on_log
        self._spoiled = any(isinstance(fault, (BitFlip, Byzantine)) for fault in schedule)

    def emit(self, time_s: float, node: int, values: dict[str, Any]) -> None:
        self.records.append(Record(time_s, node, values))
        for monitor in self._monitors:
            monitor.on_emit(time_s, node, values)

    @property
    def tapping(self) -> tuple[Monitor, ...]:
        """The monitors that look at collectives; for others their data need not be sent here."""
        hooks = ("before_collective", "after_collective")
        return tuple(
            monitor for monitor in self._monitors
            if any(getattr(type(monitor), hook) is not getattr(Monitor, hook) for hook in hooks)
        )  # fmt: skip

    def tap(
        self, time_s: float, node: int, place: int, phase: str, kind: str, tag: str, data: Any
    ) -> None:
        """A rank enters or leaves a collective, and a monitor is told of it."""
        monitor = self.tapping[place]
        see = monitor.before_collective if phase == "before" else monitor.after_collective
        see(time_s, node, kind, tag, data)

    def log(self, time_s: float, node: int, words: str) -> None:
        if self._on_log is not None:
            self._on_log(time_s, node, words)

    def malformed(self, time_s: float, why: str) -> None:
        """A message that does not fit its method is a part's mistake, unless a fault made it."""
        if not self._spoiled:
            self.violations.append(Violation(kind="malformed_message", message=why, time_s=time_s))

    def stuck(self, time_s: float) -> None:
        """All is quiet, and yet the workload has not ended."""
        self.violations.append(Violation(
            kind="stuck", time_s=time_s,
            message="nothing is left to happen, yet the workload has not ended"))  # fmt: skip

    def unanswered(self, time_s: float, asks: Sequence[Sequence[Any]]) -> None:
        """Asks that still wait when all is quiet."""
        for asker, asked, method in asks:
            self.violations.append(Violation(
                kind="unanswered_ask", node=asker, time_s=time_s,
                message=f"{self.who(asker)} asked node {asked} for {method!r} and can never be "
                        "answered; wrap the ask in deadline(s)"))  # fmt: skip

    def who(self, node: int) -> str:
        return f"node {node}" if node < self._size else "the driver"

    def blame(self, node: int, time_s: float, what: str, trace: str = "") -> PartError:
        """The error that ends a run when a part breaks."""
        return PartError(
            f"{self.who(node)} failed at {time_s:.6f} s with {what}; seed {self._seed} on real "
            "processes: the virtual engine replays exactly, this one does not"
            + (f"\n{trace.rstrip()}" if trace else "")
        )
