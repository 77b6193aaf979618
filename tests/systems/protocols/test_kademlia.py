"""Kademlia: the true k nearest, buckets that keep who answers, crashes, silence and churn."""

from __future__ import annotations

import math

import pytest
from tests.systems.protocols import overlays

from orrery import Node, World, run
from orrery.base.errors import KnobError, PartError
from orrery.base.rand import Stream
from orrery.systems.protocols.baselines.chord import Chord
from orrery.systems.protocols.baselines.kademlia import Kademlia
from orrery.systems.protocols.baselines.kademlia.buckets import SHIFT, Search, contacts_of
from orrery.systems.protocols.problems.lookup import Lookup, Overlay
from orrery.world import Crash, Drop, Pause, RandomCrashes

AT_REST = overlays.at_rest(500, 2.0)


@pytest.mark.parametrize("n", [64, 512])
def test_the_true_k_nearest_are_found(n):
    # Maymounkov and Mazieres (2002): a lookup finds the k nearest; here at least 99 % of the sets.
    made = run(overlays.Telling(upkeep_s=10.0), problem=AT_REST, world=World.lan(n), seed=3)
    assert made.violations == []
    assert overlays.true_sets(made, n, 20) >= 0.99


def test_hops_stay_below_log2_n():
    made = run(Kademlia(upkeep_s=10.0), problem=AT_REST, world=World.lan(512), seed=3)
    assert made.metrics["success_rate"] == 1.0
    assert 0 < made.metrics["mean_hops"] <= math.log2(512)


def test_more_questions_at_a_time_are_quicker():
    slow, quick = (
        run(Kademlia(alpha=alpha, upkeep_s=10.0), problem=AT_REST, world=World.lan(128), seed=1)
        for alpha in (1, 3)
    )
    assert quick.metrics["p99_latency_s"] < 0.6 * slow.metrics["p99_latency_s"]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_tiny_networks(n):
    overlays.serves_tiny_worlds(Kademlia, n)


def test_a_cold_network_forms_by_itself():
    overlays.forms_by_itself(Kademlia, Lookup(lookups=50, final=10), 48, seeds=2)


def test_crashes_drops_and_churn_are_mended():
    crashes = RandomCrashes(count=8, between_s=(0.0, 2.0), down_s=(0.1, 1.0), at_most=4)
    world = World.lan(24).with_faults(
        crashes, Drop(p=0.05, until_s=2.0), Pause(node=5, at_s=0.5, until_s=1.2)
    )
    for seed in range(3):
        made = run(Kademlia(k=8), problem=Lookup(churn=2.0), world=world, seed=seed)
        assert made.violations == [], f"seed {seed}"
        assert made.metrics["success_rate"] > 0.8


class Watched(Kademlia):
    """Kademlia on a small bucket that reports what the oldest contact's fate was."""

    async def _ping_oldest(self, i):
        before = list(self.buckets[i])
        await super()._ping_oldest(i)
        self.emit(oldest=before[0] & 0xFFFFFF, stays=before[0] in self.buckets.get(i, []))


def test_a_full_bucket_drops_its_oldest_only_when_that_is_silent():
    # Nodes 1 to 4 fall: those pinged among them must go, and nobody else may.
    problem = Lookup(lookups=100, final=10, spread_s=4.0)
    world = World.lan(40).with_faults(Crash(node=(1, 2, 3, 4), at_s=1.0))
    made = run(Watched(k=3, upkeep_s=0.5), problem=problem, world=world, seed=2)
    fates = [(r.time_s, r.values) for r in made.records if "oldest" in r.values]
    dead = [v for t, v in fates if v["oldest"] in (1, 2, 3, 4) and t > 1.3]
    living = [v for _, v in fates if v["oldest"] not in (1, 2, 3, 4)]
    assert dead and not any(v["stays"] for v in dead)
    assert len(living) > 20 and all(v["stays"] for v in living)


def test_a_search_sorts_by_xor_and_leaves_the_silent_out():
    book = contacts_of(50, 48)
    search = Search(1, key=12345, want=False, done=None, mine=contacts_of(51, 48)[50])
    search.learn(book, range(50), 0, 50)
    target = 12345 << SHIFT
    assert search.near == sorted(c ^ target for c in book)
    first = search.near[0]
    search.drop(first)
    assert first not in search.near
    assert search.nearest(5) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_search_asks_the_nearest_k_each_once_whatever_is_learnt_and_lost(seed):
    """Against the plain rule: the first of the nearest k kept that was never asked."""
    rng, k, most = Stream(seed, "test", "search"), 4, 9
    book = contacts_of(200, 48)
    search = Search(1, key=rng.getrandbits(48), want=False, done=None, mine=book[0])
    kept, heard, asked = [], {book[0] ^ search.target}, []
    for _ in range(80):
        nodes = rng.sample(range(200), 1 + rng.below(6))
        fresh = {book[node] ^ search.target for node in nodes} - heard
        heard |= fresh
        kept = sorted([*kept, *fresh])[:most]
        search.learn(book, nodes, 1, most)
        if asked and rng.random() < 0.4:
            lost = rng.choice(asked)
            kept = [x for x in kept if x != lost]
            search.drop(lost)
        right = next((x for x in kept[:k] if x not in asked), -1)
        assert search.near == kept
        assert search.next(k) == right
        asked += [right] if right >= 0 else []
    assert len(asked) > 15 and book[0] ^ search.target not in asked


def test_same_digest_in_both_kernels_and_right_on_the_wire():
    overlays.agrees_with_itself(Kademlia)


# -- the problem


def test_chord_has_its_own_rule_on_the_same_problem():
    made = run(Chord(), problem=AT_REST, world=World.lan(64), seed=1)
    assert made.violations == [] and made.metrics["success_rate"] == 1.0


@pytest.mark.parametrize("rule", ["successor", "nearest"])
def test_an_owner_by_another_rule_is_a_violation(rule):
    class Mistaken(Kademlia):
        """Kademlia that is judged by a rule which is not its own."""

        owner_rule = rule

    made = run(Mistaken(), problem=Lookup(lookups=40, final=0), world=World.lan(32))
    assert {v.kind for v in made.violations} >= {"wrong_owner"}
    assert made.metrics["success_rate"] < 0.95


def test_an_unknown_rule_and_a_strange_part_are_refused():
    class Odd(Overlay):
        """A rule that nobody knows."""

        owner_rule = "furthest"

    class Other(Node):
        pass

    with pytest.raises(PartError, match="furthest"):
        run(Odd(), problem=Lookup(), world=World.lan(3))
    with pytest.raises(PartError, match="inherit from Overlay"):
        run(Other(), problem=Lookup(), world=World.lan(3))


@pytest.mark.parametrize(
    "knobs",
    [{"k": 0}, {"alpha": 0}, {"upkeep_s": 0.0}, {"timeout_s": float("nan")}, {"bits": 3},
     {"alhpa": 3}, {"tries": "two"}],
)  # fmt: skip
def test_bad_knobs_are_named(knobs):
    with pytest.raises(KnobError, match=rf"Kademlia\.{next(iter(knobs))}"):
        Kademlia(**knobs)
