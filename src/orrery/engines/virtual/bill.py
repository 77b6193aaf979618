"""Energy and money of a run: integrated between the moments at which a price or a machine changes.

Equal machines stand in groups, so a world of 100,000 nodes is billed in a few steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from orrery.world import Machine

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine

J_PER_KWH = 3.6e6


def _rent_per_h(machine: Machine) -> float | None:
    """What a machine costs by the hour, or None when nobody rents it."""
    prices = [machine.price_per_h, *(item.price_per_h for item in machine.accelerators)]
    given = [price for price in prices if price is not None]
    return sum(given) if given else None


class Bill:
    """Adds up what runs, from one change to the next."""

    def __init__(self, engine: Engine, busy: Callable[[], dict[tuple[int, int], float]]) -> None:
        self._engine = engine
        self._busy = busy
        self._billed_busy: dict[tuple[int, int], float] = {}
        self._since_ns = 0
        self._factor = 1.0
        self._taken: dict[int, int] = {}  # node -> how many reclaims hold it
        self._energy_J = 0.0
        self._money = 0.0

    def reclaim(self, node: int, taken: bool) -> None:
        self._settle()
        held = self._taken.get(node, 0) + (1 if taken else -1)
        if held:
            self._taken[node] = held
        else:
            del self._taken[node]

    def set_prices(self, factor: float) -> None:
        self._settle()
        self._factor = factor

    def total(self) -> tuple[float, float]:
        """(energy in J, money) up to now."""
        self._settle()
        return self._energy_J, self._money

    def _settle(self) -> None:
        now = self._engine.kernel.now
        seconds = (now - self._since_ns) / 1e9
        self._since_ns = now
        world = self._engine.world
        if seconds > 0:
            for group in world.groups:
                self._run(world.machines[group.machine], seconds * group.count)
            for node in self._taken:
                self._run(world.machine_of(node), -seconds)
        busy = self._busy()
        for (node, place), total_s in sorted(busy.items()):
            more_s = total_s - self._billed_busy.get((node, place), 0.0)
            if more_s > 0:
                machine = world.machine_of(node)
                self._power(machine, more_s * self._above_idle_W(machine, place))
        self._billed_busy = busy

    def _run(self, machine: Machine, seconds: float) -> None:
        """So many machine-seconds of being switched on, without work."""
        self._power(machine, seconds * machine.watts(0.0, 0.0))
        rent_per_h = _rent_per_h(machine)
        if rent_per_h is not None:
            self._money += self._factor * rent_per_h * seconds / 3600.0

    def _power(self, machine: Machine, energy_J: float) -> None:
        self._energy_J += energy_J
        if _rent_per_h(machine) is None:
            world = self._engine.world
            price = world.prices.electricity_per_kWh * world.power.pue * self._factor
            self._money += price * energy_J / J_PER_KWH

    @staticmethod
    def _above_idle_W(machine: Machine, place: int) -> float:
        if place < 0:
            return machine.active_W - machine.idle_W
        device = machine.accelerators[place]
        idle_W, active_W = device.watts(0.0), device.watts(1.0)
        return 0.0 if idle_W is None or active_W is None else active_W - idle_W
