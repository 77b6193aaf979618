"""Pastry: the published path length, locality, leaf sets that mend, crashes and churn."""

from __future__ import annotations

import math

import pytest
from tests.systems.protocols import overlays

from orrery import World, run
from orrery.base.errors import KnobError, PartError
from orrery.systems.protocols.baselines.chord import Chord
from orrery.systems.protocols.baselines.kademlia import Kademlia
from orrery.systems.protocols.baselines.pastry import Pastry
from orrery.systems.protocols.problems.discovery_world import discovery_world
from orrery.systems.protocols.problems.lookup import Lookup
from orrery.world import Crash

AT_REST = overlays.at_rest(1500, 1.0)


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
    overlays.serves_tiny_worlds(Pastry, n)


def test_a_cold_network_forms_by_itself():
    overlays.forms_by_itself(Pastry, Lookup(join_s=3.0), 64, seeds=3)


def test_crashes_and_restarts_are_mended():
    for seed in range(6):
        overlays.survives_the_storm(Pastry(), seed)


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
    problem = Lookup(lookups=20, final=5, settle_s=5.0)
    made = run(part, problem=problem, world=world, seed=1)
    last = {r.node: r.values["leaves"] for r in made.records if "leaves" in r.values}
    full = [count == 16 for node, count in last.items() if node not in fallen]
    assert len(full) == 48
    # One repair may ask a leaf that is itself still ignorant; the usual exchanges mend that.
    assert sum(full) >= 45 if repair else sum(full) <= 24


def test_same_digest_in_both_kernels_and_right_on_the_wire():
    overlays.agrees_with_itself(Pastry)


def test_bits_that_are_no_whole_number_of_digits_are_refused():
    with pytest.raises(PartError, match=r"Pastry\.bits = 50"):
        run(Pastry(bits=50), problem=Lookup(lookups=1), world=World.lan(3))


@pytest.mark.parametrize("cls", [Chord, Pastry, Kademlia])
def test_identifiers_too_short_for_the_world_are_refused(cls):
    with pytest.raises(PartError, match=r"bits = 8 gives two of 40 nodes the same identifier"):
        run(cls(bits=8), problem=Lookup(lookups=1), world=World.lan(40))


@pytest.mark.parametrize(
    "knobs",
    [{"b": 0}, {"b": 9}, {"leaves": 3}, {"leaves": 0}, {"probe_s": -1.0},
     {"find_s": float("nan")}, {"leafs": 16}, {"locality": "yes"}],
)  # fmt: skip
def test_bad_knobs_are_named(knobs):
    with pytest.raises(KnobError, match=rf"Pastry\.{next(iter(knobs))}"):
        Pastry(**knobs)
