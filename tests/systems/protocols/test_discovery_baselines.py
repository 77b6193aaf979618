"""The plain directories that the overlays are compared with: registry, one hop, flooding, walks."""

from __future__ import annotations

import math

import pytest

from orrery import run
from orrery.base.errors import KnobError
from orrery.systems.protocols.agent_discovery_dhts import AgentDirectory
from orrery.systems.protocols.baselines.central_registry import CentralRegistry
from orrery.systems.protocols.baselines.flood_search import FloodSearch
from orrery.systems.protocols.baselines.one_hop_gossip import OneHopGossip
from orrery.systems.protocols.problems.agent_discovery import AgentDiscovery
from orrery.systems.protocols.problems.discovery_world import discovery_world
from orrery.world import Crash

ALL = (CentralRegistry(), OneHopGossip(), FloodSearch(), FloodSearch(style="walk"))


@pytest.mark.parametrize("part", ALL, ids=repr)
def test_every_offer_is_found_in_calm(part):
    made = run(part, problem=AgentDiscovery(), seed=3)
    assert made.violations == []
    assert made.metrics["success_rate"] == 1.0
    assert len(made.decisions) == 24


def messages_of(part, lookups, **more):
    problem = AgentDiscovery(lookups=lookups, final=0, ttl_s=60.0, **more)
    return run(part, problem=problem, seed=3).messages


def test_a_registry_takes_two_messages_a_lookup():
    # One question and one answer, and the client's own two; the registry's own clients save two.
    part = CentralRegistry(refresh_s=30.0)
    more = messages_of(part, 481, nodes=48, span_s=4.0) - messages_of(part, 1, nodes=48, span_s=4.0)
    assert more == pytest.approx(480 * 4 * (1 - 0.5 / 48), rel=0.02)


def test_a_lookup_at_the_registry_takes_one_round_trip():
    problem = AgentDiscovery(nodes=48, lookups=400, final=0)
    made = run(CentralRegistry(), problem=problem, seed=1)
    world = discovery_world(48)
    mean_s = sum(world.wiring().latency(node, 0) for node in range(1, 48)) / 48
    # Jitter adds a tenth on average, the client's way a quarter of a millisecond each way.
    want_s = 2 * 1.1 * (mean_s + 0.00025)
    assert made.metrics["mean_latency_s"] == pytest.approx(want_s, rel=0.08)


def test_without_its_registry_nothing_is_found_and_a_dht_shrugs():
    problem = AgentDiscovery(lookups=200, span_s=4.0, final=0)
    world = problem.world().with_faults(Crash(node=0, at_s=1.8))
    central = run(CentralRegistry(), problem=problem, world=world, seed=1)
    spread = run(AgentDirectory(), problem=problem, world=world, seed=1)
    assert central.metrics["success_rate"] < 0.1
    assert spread.metrics["success_rate"] > 0.95


def test_a_fall_is_noticed_after_e_over_e_minus_one_periods():
    # Das, Gupta and Motivala (2002), section 3.1: with one random ping for each member and period,
    # the first notice comes in period e / (e - 1) = 1.58 on average, counted in whole periods.
    waits = []
    for seed in range(12):
        fallen = tuple(range(5 + seed, 60, 12))
        problem = AgentDiscovery(nodes=60, lookups=1, span_s=1.0, final=1, settle_s=40.0)
        world = problem.world().with_faults(Crash(node=fallen, at_s=2.0))
        made = run(OneHopGossip(period_s=4.0), problem=problem, world=world, seed=seed)
        for node in fallen:
            first = min(r.time_s for r in made.records if r.values.get("gone") == node)
            waits.append((first - 2.0 - 0.2) / 4.0)  # less the two unanswered tries of a ping
    assert len(waits) >= 50
    periods = [math.ceil(max(wait, 1e-9)) for wait in waits]
    assert sum(periods) / len(periods) == pytest.approx(math.e / (math.e - 1), abs=0.3)


def test_news_reaches_everybody_in_a_few_times_log_n_periods():
    problem = AgentDiscovery(nodes=64, lookups=1, span_s=1.0, final=64, settle_s=12.0)
    world = problem.world().with_faults(Crash(node=(7, 8, 9), at_s=2.0))
    part = OneHopGossip(period_s=1.0)
    made = run(part, problem=problem, world=world, seed=2)
    assert made.violations == []
    gone = [r for r in made.records if "gone" in r.values and r.time_s > 2.0 + 3 * math.log2(64)]
    assert gone == []  # nobody has to find out by itself any more


def test_a_flood_crosses_every_cable_but_the_tree_twice():
    # Each node but the first passes a question on to all neighbours but one:
    # 2 * cables - (nodes - 1) messages; counted by the difference of two runs.
    class Still(FloodSearch):
        """Neighbours that never change, and a record nobody holds, so that only floods count."""

        def _on_shelf(self, key):
            return ()

        async def _tend(self, turn):
            self.emit(links=len(self.links))

    problem = AgentDiscovery(nodes=40, lookups=0, final=0, ttl_s=60.0, settle_s=0.0)
    part = Still(refresh_s=30.0, reach=40, wait_s=0.4)
    with_one = problem.with_knobs(lookups=20, span_s=2.0)
    made = run(part, problem=with_one, seed=1, until_s=8.0)
    links = {r.node: r.values["links"] for r in made.records if "links" in r.values}
    assert len(links) == 40
    expected = sum(links.values()) - 39
    quiet = run(part, problem=problem.with_knobs(lookups=1, span_s=2.0), seed=1, until_s=8.0)
    asked = made.messages - quiet.messages
    assert asked / 19 == pytest.approx(expected + 2, rel=0.02)  # and the client's two


def test_a_walk_takes_about_nodes_over_copies_steps():
    # Lv et al. (2002): on a random graph a walk is nearly a random sample of the nodes, so that a
    # record on r of n nodes is met after about n / r steps.
    part = FloodSearch(style="walk", walkers=1, steps=4000, replicas=4, degree=10, wait_s=60.0,
                       refresh_s=500.0, period_s=500.0)  # fmt: skip
    problem = AgentDiscovery(nodes=100, lookups=0, final=0, ttl_s=900.0, deadline_s=100.0)
    many = run(part, problem=problem.with_knobs(lookups=400), seed=1)
    few = run(part, problem=problem.with_knobs(lookups=1), seed=1)
    assert many.metrics["success_rate"] == 1.0
    steps = (many.messages - few.messages) / 399 - 3  # the answer and the client's two
    assert steps == pytest.approx(100 / 4, rel=0.3)


def test_a_short_reach_finds_less():
    near, far = (
        run(FloodSearch(reach=reach, replicas=1, degree=4),
            problem=AgentDiscovery(nodes=120, final=0), seed=1).metrics["success_rate"]
        for reach in (1, 8)
    )  # fmt: skip
    assert near < 0.3 and far == 1.0


@pytest.mark.parametrize(
    ("cls", "knobs"),
    [
        (CentralRegistry, {"registry": -1}),
        (CentralRegistry, {"timeout_s": 0.0}),
        (OneHopGossip, {"period_s": float("nan")}),
        (OneHopGossip, {"spread": 0}),
        (FloodSearch, {"style": "shout"}),
        (FloodSearch, {"degree": 0}),
    ],
)
def test_bad_knobs_are_named(cls, knobs):
    with pytest.raises(KnobError, match=rf"{cls.__name__}\.{next(iter(knobs))}"):
        cls(**knobs)
