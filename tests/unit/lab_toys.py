"""A tiny problem and parts for the tests of the lab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from orrery.parts import Metric, Node, Outcome, Positive, Problem, Violation, Whole, rpc


class Racer(Node):
    """Answers after a while; `trick` makes it quicker, `polish` does nothing at all."""

    cost: Positive = 1.0
    trick: bool = True
    polish: bool = True

    @rpc
    async def work(self, load: int) -> int:
        await self.sleep(0.001 * self.cost * (0.5 if self.trick else 1.0))
        return load


class Cheat(Racer):
    """Quick and wrong."""

    cost: Positive = 0.1

    @rpc
    async def work(self, load: int) -> int:
        return load + 1


class Broken(Racer):
    """Fails in every run."""

    @rpc
    async def work(self, load: int) -> int:
        raise ValueError("broken on purpose")


class Plain(Racer):
    """The rival: no trick."""

    trick: bool = False


class Race(Problem):
    """Asks every node in turn; the time it takes is what counts."""

    rounds: Whole = 3
    noise: float = 0.2

    port = Racer
    metrics: ClassVar[Mapping[str, Metric]] = {
        "time_s": Metric("s", "lower"),
        "rate": Metric("", "higher"),
        "nodes": Metric(),
        "wrong": Metric("", "lower"),
    }

    async def drive(self, driver: Any) -> Any:
        began, wrong = driver.now, 0
        for _ in range(self.rounds):
            for node in driver.nodes:
                wrong += await driver.ask(node, Racer.work, 7) != 7
        return (driver.now - began) * (1 + self.noise * driver.rng.random()), wrong

    def check(self, outcome: Outcome) -> list[Violation]:
        if outcome.driven[1]:
            return [Violation(kind="wrong", message="an answer was wrong")]
        return []

    def measure(self, outcome: Outcome) -> dict[str, float]:
        time_s, wrong = outcome.driven
        nodes = float(len(outcome.alive))
        return {"time_s": time_s, "rate": 1 / time_s, "nodes": nodes, "wrong": float(wrong)}
