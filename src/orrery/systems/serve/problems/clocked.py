"""Models that tell when their next event is due, played on the clock of a run."""

from __future__ import annotations

import math
from typing import Protocol

from orrery.parts import Driver

TICK_S = 1e-3


class Clocked(Protocol):
    """A model without a clock of its own."""

    def next_s(self) -> float:
        """When its next event is due; infinity when nothing is left."""

    def step(self, due_s: float) -> object:
        """Do what is due."""


async def play_out(driver: Driver, model: Clocked) -> None:
    """Let every event of a model happen at its time.

    On a real clock there is nothing to wait for, since nothing but the model acts: all happens at
    once.
    """
    begin_s = driver.now
    await driver.sleep(TICK_S)
    virtual = abs(driver.now - begin_s - TICK_S) < 1e-9
    begin_s = driver.now
    while (due_s := model.next_s()) < math.inf:
        if virtual:
            await driver.sleep(max(begin_s + due_s - driver.now, 0.0))
        model.step(due_s)


__all__ = ["Clocked", "play_out"]
