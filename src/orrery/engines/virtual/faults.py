"""Faults in virtual time: every kind of the schedule becomes real at its time.

Each kind has one method that begins it and gives back how to end it; they stand in the three
classes below, by what they hit. What may overlap is kept as counts or stacks, so that two faults of
one kind unwind in any order. Every fault draws from streams of its own, and counts its effects, so
that a schedule that never fired can be noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orrery.base.errors import FaultError
from orrery.base.units import to_ns
from orrery.engines.virtual.data_faults import DataFaults
from orrery.engines.virtual.gates import Gates
from orrery.engines.virtual.machine_faults import MachineFaults
from orrery.engines.virtual.tally import Effect, End, each
from orrery.engines.virtual.traffic import Duplicating
from orrery.world import BitFlip, Duplicate, Fault

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine


class Faults(DataFaults, MachineFaults):
    """The fault schedule of one run; `down` holds the nodes that are crashed now."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.effects: list[Effect] = []

    # -- the schedule

    def install(self) -> None:
        """Put every fault of the world on the kernel's calendar."""
        engine = self._engine
        schedule = engine.world.schedule(engine.seed)
        self._traffic.install()
        self._gates = Gates(engine, schedule)
        if engine.world.network.duplicate > 0:
            always = Effect(Duplicate(p=engine.world.network.duplicate), -1, engine.seed)
            self._traffic.add(Duplicating(engine, always), None)
        for place, fault in enumerate(schedule):
            begin = getattr(self, f"_begin_{fault.kind.lower()}", None)
            if begin is None:
                raise FaultError(fault.kind, "is unknown to the virtual engine", "leave it out")
            effect = Effect(fault, place, engine.seed)
            self.effects.append(effect)
            if fault.kind == "SpotReclaim":
                self._plan_notice(effect)
            elif fault.kind == "Byzantine":
                self._plan_byzantine(effect)
            self._plan(fault, begin, effect)

    def _plan(self, fault: Fault, begin: Callable[[Effect], End | None], effect: Effect) -> None:
        call_at = self._engine.kernel.call_at
        end: list[End] = []

        def start() -> None:
            undo = begin(effect)
            if undo is not None:
                end.append(undo)

        def stop() -> None:
            if end:
                end.pop()()

        flips_state = isinstance(fault, BitFlip) and fault.p is None  # there is none before start()
        if fault.at_s == 0 and not flips_state:
            start()  # before any node runs, so that its first message already meets the fault
        else:
            call_at(to_ns(fault.at_s), start)
        if fault.until_s is not None:
            call_at(to_ns(fault.until_s), stop)

    def extra(self) -> dict[str, Any]:
        """How often each kind had an effect, and which faults had none."""
        fired: dict[str, int] = {}
        for effect in self.effects:
            fired[effect.fault.kind] = fired.get(effect.fault.kind, 0) + effect.count
        idle = [f"{e.fault.kind} at {e.fault.at_s:g} s" for e in self.effects if not e.count]
        return {"faults_fired": fired, "faults_never_fired": idle}

    def _begin_slow(self, effect: Effect) -> End:
        """A slow node computes slowly, and what it sends is late."""
        effect.fired()
        ends = (self._slow_devices(effect), self._begin_traffic(effect))
        return lambda: each(ends, lambda end: end())
