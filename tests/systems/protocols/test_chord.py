"""The problem `lookup` and Chord: right owners, the published path length, crashes and churn."""

from __future__ import annotations

import math

import pytest
from tests.systems.protocols import overlays

from orrery import Node, World, run
from orrery.base.errors import KnobError, PartError
from orrery.systems.protocols import Chord, Lookup
from orrery.systems.protocols.problems.lookup import place_of, ring_of
from orrery.world import Crash, RandomCrashes

AT_REST = overlays.at_rest(1500, 1.0)


@pytest.mark.parametrize("n", [64, 256, 1024])
def test_mean_path_is_half_of_log2_n(n):
    # Stoica et al. (2001), section 6.2: the mean path length is about half of log2 n.
    made = run(Chord(), problem=AT_REST, world=World.lan(n), seed=7)
    assert made.violations == []
    assert made.metrics["success_rate"] == 1.0
    assert made.metrics["mean_hops"] == pytest.approx(0.5 * math.log2(n), rel=0.1)


def test_both_styles_and_shortcuts_find_the_same_owners():
    world = World.lan(64)
    made = {
        name: run(Chord(**knobs), problem=AT_REST, world=world, seed=7)
        for name, knobs in {
            "recursive": {},
            "iterative": {"style": "iterative"},
            "shortcuts": {"shortcuts": True},
        }.items()
    }
    assert all(one.ok for one in made.values())
    assert made["iterative"].decisions == made["recursive"].decisions
    assert made["shortcuts"].decisions == made["recursive"].decisions
    # On a ring at rest both styles take the same way; walking it oneself takes longer.
    assert made["iterative"].metrics["mean_hops"] == made["recursive"].metrics["mean_hops"]
    assert made["iterative"].metrics["p99_latency_s"] > made["recursive"].metrics["p99_latency_s"]
    assert made["shortcuts"].metrics["mean_hops"] < made["recursive"].metrics["mean_hops"]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_tiny_rings(n):
    overlays.serves_tiny_worlds(Chord, n)


def test_a_cold_ring_forms_by_itself():
    overlays.forms_by_itself(Chord, Lookup(join_s=4.0), 48, seeds=3)


def test_a_bootstrap_node_that_falls_before_anybody_joined_begins_again():
    world = World.lan(10).with_faults(Crash(node=0, at_s=0.0004, until_s=0.8))
    made = run(Chord(warm=False), problem=Lookup(lookups=20, final=20), world=world, seed=1)
    assert made.violations == []


def test_a_ring_of_one_comes_back_by_itself():
    world = World.lan(1).with_faults(Crash(node=0, at_s=0.5, until_s=0.8))
    assert run(Chord(), problem=Lookup(lookups=5, final=5), world=world).ok


def test_a_bootstrap_beyond_the_world_is_its_last_node():
    part = Chord(warm=False, bootstrap=99)
    assert run(part, problem=Lookup(lookups=5, final=5), world=World.lan(4)).ok


def test_deadlines_adapt_to_a_network_across_oceans():
    made = run(Chord(), problem=Lookup(deadline_s=10.0), world=World.wan(20), seed=1)
    assert made.violations == []
    assert made.metrics["success_rate"] == 1.0


def test_crashes_and_restarts_are_mended():
    for seed in range(8):
        overlays.survives_the_storm(Chord(style=("recursive", "iterative")[seed % 2]), seed)


def test_nodes_that_stay_away_are_left_out():
    world = World.lan(20).with_faults(Crash(node=(3, 9), at_s=0.5))
    made = run(Chord(), problem=Lookup(join_s=0.0), world=world, seed=2)
    assert made.violations == []
    assert not {3, 9} & {owner for _, owner in made.decisions}


def test_a_thousand_nodes_with_faults():
    crashes = RandomCrashes(count=40, between_s=(0.0, 1.0), down_s=(0.2, 0.6), at_most=30)
    problem = Lookup(join_s=0.0, spread_s=1.0, settle_s=1.5)
    made = run(Chord(), problem=problem, world=World.lan(1000).with_faults(crashes), seed=1)
    assert made.violations == []
    assert made.metrics["success_rate"] > 0.95


def test_leaving_in_good_order_loses_nothing():
    made = run(Chord(), problem=Lookup(churn=10.0, join_s=0.0), world=World.lan(30), seed=5)
    assert made.violations == []
    assert made.metrics["success_rate"] > 0.95


def test_same_digest_in_both_kernels_and_right_on_the_wire():
    overlays.agrees_with_itself(Chord)


def test_places_are_stable_and_distinct():
    # The place of a node is part of every digest: it must never change.
    assert place_of(0, 48) == place_of(0, 62) >> 14
    places, nodes = ring_of(1000, 48)
    assert list(places) == sorted(set(places))
    assert sorted(nodes) == list(range(1000))


def test_a_part_without_the_port_is_refused():
    class Other(Node):
        pass

    with pytest.raises(PartError, match="inherit from Overlay"):
        run(Other(), problem=Lookup(), world=World.lan(3))


@pytest.mark.parametrize(
    ("cls", "knobs"),
    [
        (Chord, {"successors": 0}),
        (Chord, {"bits": 63}),
        (Chord, {"style": "sideways"}),
        (Chord, {"timeout_s": -1.0}),
        (Lookup, {"keys": 0}),
        (Lookup, {"churn": -1.0}),
        (Lookup, {"lookups": -1}),
    ],
)
def test_bad_knobs_are_named(cls, knobs):
    with pytest.raises(KnobError, match=rf"{cls.__name__}\.{next(iter(knobs))}"):
        cls(**knobs)
