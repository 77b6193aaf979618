"""Pastry: the published path length, locality, leaf sets that mend, crashes and churn."""

from __future__ import annotations

import math

import pytest

from orrery import World, run
from orrery.base.errors import KnobError, PartError
from orrery.systems.protocols.baselines.pastry import Pastry
from orrery.systems.protocols.problems.discovery_world import discovery_world
from orrery.systems.protocols.problems.owner_lookup import OwnerLookup
from orrery.world import Crash, Duplicate, Pause, RandomCrashes, Reorder

AT_REST = OwnerLookup(keys=1500, lookups=1500, final=0, join_s=0.0, spread_s=1.0)


@pytest.mark.parametrize("n", [64, 256, 1024])
def test_mean_path_is_at_most_log16_n_and_a_half(n):
    # Rowstron and Druschel (2001), section 3.1: about log16 n hops with b = 4.
    made = run(Pastry(probe_s=5.0), problem=AT_REST, world=World.lan(n), seed=7)
    assert made.violations == []
    assert made.metrics["success_rate"] == 1.0
    assert made.metrics["mean_hops"] <= math.log(n, 16) + 0.5


def test_smaller_digits_take_more_hops():
    hops = [
        run(Pastry(b=b, probe_s=5.0), problem=AT_REST, world=World.lan(256), seed=7).metrics
        for b in (1, 2, 4)
    ]
    assert hops[0]["mean_hops"] > hops[1]["mean_hops"] > hops[2]["mean_hops"]


def test_near_entries_make_lookups_quicker():
    # Castro et al. (2002) found that locality shortens the way by far; without it hops are equal.
    world = discovery_world(256)
    near, far = (
        run(Pastry(locality=on, probe_s=5.0), problem=AT_REST, world=world, seed=2)
        for on in (True, False)
    )
    took = [
        sum(r.values["took_s"] for r in one.records if "took_s" in r.values) for one in (near, far)
    ]
    assert took[0] < 0.85 * took[1]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_tiny_networks(n):
    for warm in (True, False):
        made = run(Pastry(warm=warm), problem=OwnerLookup(lookups=20), world=World.lan(n), seed=n)
        assert made.violations == []


def test_a_cold_network_forms_by_itself():
    for seed in range(3):
        problem = OwnerLookup(join_s=3.0)
        made = run(Pastry(warm=False), problem=problem, world=World.lan(64), seed=seed)
        assert made.violations == []
        assert made.metrics["success_rate"] == 1.0


def test_crashes_and_restarts_are_mended():
    crashes = RandomCrashes(count=10, between_s=(0.0, 2.0), down_s=(0.1, 1.0), at_most=4)
    world = World.lan(24).with_faults(
        crashes,
        Duplicate(p=0.1, until_s=3.0),
        Reorder(p=0.2, spread_s=0.01, until_s=3.0),
        Pause(node=5, at_s=0.5, until_s=1.2),
    )
    for seed in range(6):
        made = run(Pastry(), problem=OwnerLookup(churn=2.0), world=world, seed=seed)
        assert made.violations == [], f"seed {seed}"
        assert made.metrics["success_rate"] > 0.8


@pytest.mark.parametrize("repair", [True, False])
def test_lost_leaves_are_replaced_by_repair(repair):
    class Frugal(Pastry):
        """Pastry whose leaf sets change by repair alone, so that nothing else can mend them."""

        async def _tend_leaves(self):
            leaves = self._leaf_nodes()
            peer = leaves[self.turns % len(leaves)]
            self.turns += 1
            if not await self._call(peer, Pastry.alive):
                self._lost(peer)
            self.emit(leaves=len(self.up) + len(self.down))

    fallen = tuple(range(0, 64, 4))
    world = World.lan(64).with_faults(Crash(node=fallen, at_s=1.0))
    part = Frugal(repair=repair, probe_s=0.1)
    problem = OwnerLookup(lookups=20, final=5, settle_s=5.0)
    made = run(part, problem=problem, world=world, seed=1)
    last = {r.node: r.values["leaves"] for r in made.records if "leaves" in r.values}
    full = [count == 16 for node, count in last.items() if node not in fallen]
    assert len(full) == 48
    # One repair may ask a leaf that is itself still ignorant; the usual exchanges mend that.
    assert sum(full) >= 45 if repair else sum(full) <= 24


def test_same_digest_in_both_kernels_and_right_on_the_wire():
    problem = OwnerLookup(lookups=40, final=10, churn=2.0)
    world = World.lan(16).with_faults(Crash(node=2, at_s=1.0, until_s=1.5))
    first = run(Pastry(), problem=problem, world=world, seed=3)
    again = run(Pastry(), problem=problem, world=world, seed=3, kernel="python")
    assert (first.digest, first.metrics) == (again.digest, again.metrics)
    wired = run(Pastry(), problem=problem, world=world, seed=3, wire=True)
    assert wired.violations == [] and wired.decisions == first.decisions


def test_bits_that_are_no_whole_number_of_digits_are_refused():
    with pytest.raises(PartError, match=r"Pastry\.bits = 50"):
        run(Pastry(bits=50), problem=OwnerLookup(lookups=1), world=World.lan(3))


@pytest.mark.parametrize(
    "knobs",
    [{"b": 0}, {"b": 9}, {"leaves": 3}, {"leaves": 0}, {"probe_s": -1.0},
     {"find_s": float("nan")}, {"leafs": 16}, {"locality": "yes"}],
)  # fmt: skip
def test_bad_knobs_are_named(knobs):
    with pytest.raises(KnobError, match=rf"Pastry\.{next(iter(knobs))}"):
        Pastry(**knobs)
