"""`Monitor`: a read-only tap on a run.

A monitor sees what nodes emit and what goes in and out of each collective; it may report
violations and metrics of its own, and can change nothing. Every engine feeds the same hooks.

Where ranks are processes, all that a monitor sees has to travel to it. `at_rank` runs before that,
at the rank, and may boil a gradient down to a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orrery.base.violation import Violation
from orrery.parts.knobs import Part

if TYPE_CHECKING:
    from orrery.parts.groups import Group


class Memory(dict[str, Any]):
    """What one monitor keeps at one rank; empty when the rank's life begins.

    Besides it knows the rank's `node`, the `clock` by which it has its times, and the `group` whose
    collective is shown (None where there is none, as for the loss of a batch).
    """

    __slots__ = ("clock", "group", "node")

    def __init__(self, node: int = 0, clock: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__()
        self.node = node
        self.clock = clock
        self.group: Group | None = None


class Monitor(Part):
    """Attach with `run(…, monitors=[MyMonitor()])`; override what you want to see."""

    def start(self) -> None:
        """Forget everything; called before each run."""

    def at_rank(
        self, memory: Memory, time_s: float, phase: str, kind: str, tag: str, data: Any
    ) -> Any:
        """What is sent to the monitor of what enters ("before") or leaves ("after") a collective.

        It runs at the rank; `memory` is the rank's own, and empty when its life begins. Nothing is
        sent where it returns None. Left alone, everything is sent.
        """
        return data

    def array_at_rank(
        self, memory: Memory, peer: int, nbytes: int, took_s: float, among: int
    ) -> None:
        """An array of a collective has arrived at node `peer`, `took_s` after it was posted.

        `among` are the arrays that this rank had under way then or now, this one included.
        It runs at the rank that sent it, and nothing travels: what is worth telling goes with the
        next `at_rank`. Left alone, nobody looks at arrays.
        """

    def on_emit(self, time_s: float, node: int, values: dict[str, Any]) -> None:
        """A node emitted values."""

    def before_collective(self, time_s: float, node: int, kind: str, tag: str, data: Any) -> None:
        """A rank enters a collective with `data`, or what `at_rank` made of it."""

    def after_collective(self, time_s: float, node: int, kind: str, tag: str, data: Any) -> None:
        """A rank leaves a collective with `data`, or what `at_rank` made of it.

        Trainers also tell the loss of each batch here, with `kind` "loss".
        """

    def on_end(self, time_s: float, crashed: Collection[int]) -> None:
        """The run is over, also where a part failed; `crashed` are nodes that did, up again or not.

        It is what a launcher sees, whose processes end, and the last hook that is called.
        """

    def violations(self) -> list[Violation]:
        """What the monitor found by the end of the run."""
        return []

    def metrics(self) -> dict[str, float]:
        """Numbers to add to the run's metrics."""
        return {}


# -- for the hosts of engines


def boils_down(monitor: Monitor) -> bool:
    """Whether a monitor has a say at the ranks."""
    return type(monitor).at_rank is not Monitor.at_rank


def looks_at_arrays(monitors: Sequence[Monitor]) -> bool:
    """Whether any of them wants to know of single arrays."""
    return any(type(each).array_at_rank is not Monitor.array_at_rank for each in monitors)


def told_by(
    host: Any, monitors: Sequence[Monitor], group: Group | None, *what: Any
) -> Iterator[tuple[int, Any]]:
    """(place of a monitor, what it is to hear) of what a rank shows: phase, kind, tag, data."""
    for place, monitor in enumerate(monitors):
        told = what[-1]
        if boils_down(monitor):
            memory = _memory_at(host, place)
            memory.group = group
            told = monitor.at_rank(memory, host.now, *what)
            if told is None:
                continue
        yield place, told


def note_array(host: Any, monitors: Sequence[Monitor], *what: Any) -> None:
    """Show all monitors an array that has arrived: (peer, nbytes, took_s, among)."""
    for place, monitor in enumerate(monitors):
        monitor.array_at_rank(_memory_at(host, place), *what)


def _memory_at(host: Any, place: int) -> Memory:
    memories: dict[int, Memory] = host.__dict__.setdefault("_monitor_memories", {})
    memory = memories.get(place)
    if memory is None:
        memory = memories[place] = Memory(host.id, lambda: float(host.now))
    return memory
