"""Faults of machines in virtual time: stopping, slow devices, prices, clocks.

`Pause` and `Hang` look alike in virtual time: what comes for the node, messages and timers, waits
and happens when it ends, in its order. They differ on real machines, where a hung process still
answers its kernel's side of a connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orrery.base.units import to_ns
from orrery.engines.virtual.tally import Chance, Effect, End, Injector, each

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine


class MachineFaults(Injector):
    """Crash, Pause, Hang, SpotReclaim, Slow's devices, Straggler, PowerCap, losses, clocks."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.down: dict[int, int] = {}
        self._stopped: dict[int, int] = {}
        self._drifts: dict[int, tuple[float, list[float]]] = {}
        self._prices: list[float] = []

    # -- nodes that stop

    def _begin_crash(self, effect: Effect) -> End:
        nodes = self._nodes(effect)
        for node in nodes:
            self._take_down(node, effect)
        return lambda: each(nodes, self._bring_up)

    def _take_down(self, node: int, effect: Effect) -> None:
        self.down[node] = self.down.get(node, 0) + 1
        engine = self._engine
        if not engine.kernel.state[node]:
            return
        effect.fired()
        engine.crash(node)
        self._node_lost(node)

    def _bring_up(self, node: int) -> None:
        self.down[node] -= 1
        if self.down[node]:
            return
        del self.down[node]
        self._engine.restart(node)
        if self._stopped.get(node):
            self._engine.kernel.pause(node)

    def _begin_pause(self, effect: Effect) -> End:
        nodes = self._nodes(effect)
        kernel = self._engine.kernel
        for node in nodes:
            self._stopped[node] = self._stopped.get(node, 0) + 1
            if kernel.state[node]:
                effect.fired()
            kernel.pause(node)

        def end() -> None:
            for node in nodes:
                self._stopped[node] -= 1
                if not self._stopped[node]:
                    kernel.resume(node)

        return end

    _begin_hang = _begin_pause

    def _plan_notice(self, effect: Effect) -> None:
        fault: Any = effect.fault
        notice_s = max(fault.at_s - fault.notice_s, 0.0)
        left_s = fault.at_s - notice_s

        def notify() -> None:
            for node in self._nodes(effect):
                host: Any = self._engine.kernel.hosts[node]
                if self._engine.kernel.state[node]:
                    host.emit(spot_notice_s=left_s)
                    host.spawn(_tell_part(host, left_s))

        self._engine.kernel.call_at(to_ns(notice_s), notify)

    def _begin_spotreclaim(self, effect: Effect) -> End:
        nodes = self._nodes(effect)
        for node in nodes:
            self._take_down(node, effect)
            self._engine.devices.reclaim(node, True)

        def end() -> None:
            for node in nodes:
                self._engine.devices.reclaim(node, False)
                self._bring_up(node)

        return end

    # -- devices and money

    def _on_health(self, effect: Effect, stack: str, entry: Callable[[int], Any]) -> End:
        devices = self._engine.devices
        entries = {node: entry(node) for node in self._nodes(effect)}
        for node, one in entries.items():
            getattr(devices.health(node), stack).append(one)
            devices.changed(node)

        def end() -> None:
            for node, one in entries.items():
                getattr(devices.health(node), stack).remove(one)
                devices.changed(node)

        return end

    def _slow_devices(self, effect: Effect) -> End:
        factor: float = effect.fault.factor  # type: ignore[attr-defined]
        return self._on_health(effect, "slow", lambda _: factor)

    def _begin_straggler(self, effect: Effect) -> End:
        fault: Any = effect.fault
        entry = lambda node: (Chance(effect, fault.p, node), fault.factor)  # noqa: E731
        return self._on_health(effect, "stragglers", entry)

    def _begin_powercap(self, effect: Effect) -> End:
        fault: Any = effect.fault
        effect.fired()
        return self._on_health(effect, "caps_W", lambda _: fault.watts)

    def _begin_deviceloss(self, effect: Effect) -> End:
        fault: Any = effect.fault
        nodes = self._nodes(effect)
        for node in nodes:
            effect.fired()
            self._engine.devices.lose(node, fault.device)
        health = self._engine.devices.health
        return lambda: each(nodes, lambda node: health(node).lost.remove(fault.device))

    def _begin_pricejump(self, effect: Effect) -> End:
        factor: float = effect.fault.factor  # type: ignore[attr-defined]
        effect.fired()
        self._price(factor, True)
        return lambda: self._price(factor, False)

    def _price(self, factor: float, begins: bool) -> None:
        if begins:
            self._prices.append(factor)
        else:
            self._prices.remove(factor)
        now = 1.0
        for one in self._prices:
            now *= one
        self._engine.devices.set_prices(now)

    # -- clocks

    def _begin_clockskew(self, effect: Effect) -> End:
        skew_s: float = effect.fault.skew_s  # type: ignore[attr-defined]
        self._jump(effect, skew_s)
        return lambda: self._jump(effect, -skew_s)

    def _begin_clockjump(self, effect: Effect) -> None:
        self._jump(effect, effect.fault.jump_s)  # type: ignore[attr-defined]

    def _jump(self, effect: Effect, by_s: float) -> None:
        effect.fired()
        now = self._engine.kernel.now
        each(self._nodes(effect), lambda node: self._engine.clocks.jump(node, now, by_s))

    def _begin_clockdrift(self, effect: Effect) -> End:
        drift: float = effect.fault.drift  # type: ignore[attr-defined]
        effect.fired()
        each(self._nodes(effect), lambda node: self._drift(node, drift, True))
        return lambda: each(self._nodes(effect), lambda node: self._drift(node, drift, False))

    def _drift(self, node: int, drift: float, begins: bool) -> None:
        clocks, now = self._engine.clocks, self._engine.kernel.now
        if node not in self._drifts:
            self._drifts[node] = (clocks.set_drift(node, now, 0.0), [])
        own, active = self._drifts[node]
        if begins:
            active.append(drift)
        else:
            active.remove(drift)
        clocks.set_drift(node, now, own + sum(active))
        if not active:
            del self._drifts[node]


async def _tell_part(host: Any, left_s: float) -> None:
    """Call the part's `on_notice(seconds left)`, plain or async, where it has one."""
    on_notice = getattr(type(host), "on_notice", None)
    if on_notice is not None:
        result = on_notice(host, left_s)
        if hasattr(result, "__await__"):
            await result
