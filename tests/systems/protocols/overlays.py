"""What the tests of the overlays share: workloads, a storm of faults, and questions put to each."""

from __future__ import annotations

from orrery import World, run
from orrery.parts import rpc
from orrery.systems.protocols.baselines.kademlia import Kademlia
from orrery.systems.protocols.problems.lookup import Lookup, place_of
from orrery.world import Crash, Duplicate, Pause, RandomCrashes, Reorder


def at_rest(lookups: int, spread_s: float) -> Lookup:
    """Questions to a network that is whole from the first moment."""
    return Lookup(keys=lookups, lookups=lookups, final=0, join_s=0.0, spread_s=spread_s)


def storm() -> World:
    """24 nodes with crashes, copies, disorder and a node that stands still, for three seconds."""
    return World.lan(24).with_faults(
        RandomCrashes(count=10, between_s=(0.0, 2.0), down_s=(0.1, 1.0), at_most=4),
        Duplicate(p=0.1, until_s=3.0),
        Reorder(p=0.2, spread_s=0.01, until_s=3.0),
        Pause(node=5, at_s=0.5, until_s=1.2),
    )


def survives_the_storm(part, seed):
    """Right again after the storm, and mostly right within it."""
    made = run(part, problem=Lookup(churn=2.0), world=storm(), seed=seed)
    assert made.violations == [], f"seed {seed}"
    assert made.metrics["success_rate"] > 0.8


def serves_tiny_worlds(cls, n):
    """A handful of nodes is an overlay too, warm or cold."""
    for warm in (True, False):
        made = run(cls(warm=warm), problem=Lookup(lookups=20), world=World.lan(n), seed=n)
        assert made.violations == []


def forms_by_itself(cls, problem, n, seeds):
    """Cold nodes find together through the bootstrap node."""
    for seed in range(seeds):
        made = run(cls(warm=False), problem=problem, world=World.lan(n), seed=seed)
        assert made.violations == []
        assert made.metrics["success_rate"] == 1.0


def agrees_with_itself(cls):
    """The same digest in both kernels, and the same owners where every message is encoded."""
    problem = Lookup(lookups=40, final=10, churn=2.0)
    world = World.lan(16).with_faults(Crash(node=2, at_s=1.0, until_s=1.5))
    first = run(cls(), problem=problem, world=world, seed=3)
    again = run(cls(), problem=problem, world=world, seed=3, kernel="python")
    assert (first.digest, first.metrics) == (again.digest, again.metrics)
    wired = run(cls(), problem=problem, world=world, seed=3, wire=True)
    assert wired.violations == []
    assert wired.decisions == first.decisions


class Telling(Kademlia):
    """Kademlia that also reports the k nearest of each search."""

    @rpc
    async def lookup(self, key: int) -> tuple[int, int]:
        search = await self._search(key)
        nearest = self._first_nodes(search, self.k)
        self.emit(target=key, nearest=nearest)
        return nearest[0], 0


def true_sets(made, n, k):
    """The share of searches of `Telling` that found exactly the k nearest, by brute force."""
    told = [one.values for one in made.records if "nearest" in one.values]
    assert len(told) >= 100
    good = 0
    for one in told:
        order = sorted(range(n), key=lambda node: place_of(node, 48) ^ one["target"])
        good += order[:k] == list(one["nearest"])
    return good / len(told)
