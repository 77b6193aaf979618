"""Faults of the network in virtual time, for messages (`traffic`) and for bulk flows (`gates`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orrery.engines.virtual.gates import Gates
from orrery.engines.virtual.tally import Effect, End, Injector, each
from orrery.engines.virtual.traffic import FILTERS, Flapping, OneWay, Traffic
from orrery.world import Clog, Drop, Partition
from orrery.world.schedule import sides

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine


class NetworkFaults(Injector):
    """Partition, Drop, Duplicate, Reorder, Corrupt, Clog, NicFlap, and how a slow node sends."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._traffic = Traffic(engine)
        self._gates: Gates | None = None  # made when the schedule is known

    # -- the network

    def _begin_traffic(self, effect: Effect) -> End:
        fault: Any = effect.fault
        one = FILTERS[type(fault)](self._engine, effect)
        link = getattr(fault, "link", None)
        nodes = None if fault.node is None and link is None else self._nodes(effect)
        self._traffic.add(one, nodes, link)
        return lambda: self._traffic.remove(one, nodes, link)

    _begin_corrupt = _begin_duplicate = _begin_reorder = _begin_traffic

    def _begin_drop(self, effect: Effect) -> End:
        fault = effect.fault
        assert isinstance(fault, Drop)
        if fault.node is not None or fault.link is not None:
            return self._begin_traffic(effect)
        effect.fired()
        self._traffic.drop_everywhere(fault.p, True)
        return lambda: self._traffic.drop_everywhere(fault.p, False)

    def _begin_clog(self, effect: Effect) -> End:
        fault = effect.fault
        assert isinstance(fault, Clog) and self._gates is not None
        messages = self._begin_traffic(effect)
        gates, nodes = self._gates, self._nodes(effect)

        def flows(begins: bool) -> None:
            if fault.fraction == 1.0:
                return
            if fault.link is not None:
                gates.clog_link(fault, begins)
            else:
                each(nodes, lambda node: gates.scale_nic(node, fault.fraction, begins))

        def end() -> None:
            messages()
            flows(False)

        flows(True)
        return end

    def _begin_nicflap(self, effect: Effect) -> End:
        gates, nodes = self._gates, self._nodes(effect)
        assert gates is not None
        one = Flapping(self._engine, effect)
        self._traffic.add(one, nodes)
        flaps = [gates.flap(node, one) for node in nodes]

        def end() -> None:
            self._traffic.remove(one, nodes)
            for flap in flaps:
                gates.unflap(flap)

        return end

    def _begin_partition(self, effect: Effect) -> End:
        fault, gates = effect.fault, self._gates
        assert isinstance(fault, Partition) and gates is not None
        side = sides(fault, self._engine.size)
        effect.fired()
        gates.partition(effect.place, True)
        if not fault.one_way:
            self._traffic.cut(side, True)

            def heal() -> None:
                gates.partition(effect.place, False)
                self._traffic.cut(side, False)

            return heal
        one = OneWay(self._engine, effect, side)
        # Every message that is stopped leaves a side below the highest.
        nodes = tuple(int(node) for node in (side < side.max()).nonzero()[0])
        self._traffic.add(one, nodes)

        def end() -> None:
            gates.partition(effect.place, False)
            self._traffic.remove(one, nodes)

        return end
