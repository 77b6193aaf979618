"""What the faults of one run share: counting their effects, and chances drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from orrery.base.rand import Stream
from orrery.world import Fault

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine

End = Callable[[], None]
T = TypeVar("T")


def each(items: Iterable[T], act: Callable[[T], Any]) -> None:
    """Do something to each item, where a statement cannot stand."""
    for item in items:
        act(item)


class Effect:
    """One fault of the schedule at work: its place, and how often it had an effect."""

    __slots__ = ("count", "fault", "place", "seed")

    def __init__(self, fault: Fault, place: int, seed: int) -> None:
        self.fault = fault
        self.place = place
        self.seed = seed
        self.count = 0

    def fired(self) -> None:
        self.count += 1

    def stream(self, owner: int | str) -> Stream:
        """The fault's own stream for one node or link, so that it shifts no other stream."""
        return Stream(self.seed, owner, f"fault {self.place}")


class Chance:
    """A chance of `p` each time, for one fault on one node; what hits is counted."""

    __slots__ = ("effect", "p", "rng")

    def __init__(self, effect: Effect, p: float, owner: int | str) -> None:
        self.effect = effect
        self.p = p
        self.rng = effect.stream(owner)

    def hits(self) -> bool:
        # A sure thing draws nothing, so its stream serves only where and what.
        if self.p < 1.0 and self.rng.random() >= self.p:
            return False
        self.effect.fired()
        return True


class Injector:
    """What the classes of faults share: the engine, and the nodes that a fault hits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _nodes(self, effect: Effect) -> tuple[int, ...]:
        return self._engine.world.targets(effect.fault)

    def _node_lost(self, node: int) -> None:
        """A crash has wiped the node's dictionary; classes that keep things there put them back."""
