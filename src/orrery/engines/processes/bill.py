"""What a real run would have cost: the world's rents for the wall time, and the store's requests.

Energy is left at zero: nothing here measures it, and a modelled figure would pass for a measured
one. Machines that nobody rents therefore cost nothing on this engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from orrery.engines.processes.spec import Counters
from orrery.world import PriceJump, World
from orrery.world.faults import Fault


def rent(world: World, seconds: float, faults: Sequence[Fault], counters: Counters) -> float:
    """Machine-hours at the world's prices, with the price jumps of the schedule."""
    per_s = 0.0
    for group in world.groups:
        machine = world.machines[group.machine]
        prices = [machine.price_per_h, *(item.price_per_h for item in machine.accelerators)]
        per_s += group.count * sum(price for price in prices if price is not None) / 3600.0
    jumps = [(i, f) for i, f in enumerate(faults) if isinstance(f, PriceJump)]
    edges = {0.0, seconds}
    for place, fault in jumps:
        if fault.at_s < seconds:
            counters.fire(place)
            edges.add(fault.at_s)
            if fault.until_s is not None:
                edges.add(min(fault.until_s, seconds))
    money, times = 0.0, sorted(edges)
    for begin_s, end_s in pairwise(times):
        factor = 1.0
        for _, fault in jumps:
            if fault.during(begin_s):
                factor *= fault.factor
        money += per_s * factor * (end_s - begin_s)
    return money
