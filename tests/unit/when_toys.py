"""A problem whose break-even line is known in closed form, for the tests of `when`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from orrery import World
from orrery.lab.claims import Claim
from orrery.parts import Count, Metric, Node, Outcome, Policy, Positive, Problem, Violation


class Plan(Policy):
    """With the trick: a fixed sum and little for each unit. Without it: the price for each unit."""

    trick: bool = True
    fixed: Positive = 20.0
    label: str = "plan"


class Bill(Problem):
    """What does a load cost? With the trick 20 + 0.1 x load, without it price x load.

    So the trick pays exactly where price > 20 / load + 0.1. `bounded` counts units that are whole;
    above `broken` units the trick breaks a rule; `noise` is a share of the bill.
    """

    load: Positive = 100.0
    price: Positive = 1.0
    units: Count = 1
    noise: float = 0.001
    broken: float = math.inf

    port: ClassVar[type] = Plan
    engines: ClassVar[tuple[str, ...]] = ("virtual",)
    metrics: ClassVar[Mapping[str, Metric]] = {"cost": Metric("s", "lower", "of the load")}

    def world(self) -> World:
        return World.lan(1)

    def host(self, part: Any, world: World) -> dict[str, Node]:
        return {"node": Node()}

    async def drive(self, driver: Any) -> float:
        part, load = driver.part, self.load * self.units
        cost = part.fixed + 0.1 * load if part.trick else self.price * load
        return cost * (1 + self.noise * driver.rng.random())

    def check(self, outcome: Outcome) -> list[Violation]:
        if outcome.part.trick and self.load > self.broken:
            return [Violation(kind="late", message="the trick came too late")]
        return []

    def measure(self, outcome: Outcome) -> dict[str, float]:
        return {"cost": outcome.driven}


CLAIM = Claim(metric="cost", says="cheaper", form="direction", better="lower",
              off={"trick": False}, seeds=2, most_seeds=3)  # fmt: skip


def price_of(load: float) -> float:
    """The break-even line."""
    return 20.0 / load + 0.1
