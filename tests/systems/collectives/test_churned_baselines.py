"""The rivals of PCCL on `churned_all_reduce`: each first gives a figure that is known of it."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.systems.collectives.baselines.checkpoint_restart import CheckpointRestart
from orrery.systems.collectives.baselines.elastic_server import ElasticServer
from orrery.systems.collectives.baselines.static_group import StaticGroup
from orrery.systems.collectives.pccl import PCCL
from orrery.systems.collectives.problems.churned_all_reduce import ChurnedAllReduce
from orrery.world import Crash

LATENCY_S, BANDWIDTH_BPS = 1e-4, 1e8


def world(peers=4, **network):
    return World.lan(
        {"coordinator": 1, "peer": peers},
        **{"latency_s": LATENCY_S, "bandwidth_Bps": BANDWIDTH_BPS, "jitter": 0.0, **network},
    )


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_static_ring_takes_the_time_of_its_formula(n):
    items = 80_000
    made = run(StaticGroup(), problem=ChurnedAllReduce(ops=2, items=items), world=world(n))
    assert made.violations == []
    part_s = 4 * items / n / BANDWIDTH_BPS
    assert made.metrics["time_s"] == pytest.approx(2 * (n - 1) * (part_s + LATENCY_S), rel=0.02)
    assert made.metrics["sent_B"] == 2 * (n - 1) * 4 * items


@pytest.mark.parametrize("n", [2, 8])
def test_a_server_carries_every_array_twice(n):
    items = 200_000
    made = run(ElasticServer(), problem=ChurnedAllReduce(ops=2, items=items), world=world(n))
    assert made.violations == []
    whole_s = 4 * items / BANDWIDTH_BPS
    assert made.metrics["time_s"] == pytest.approx(2 * (n * whole_s + LATENCY_S), rel=0.02)
    ring = run(PCCL(probe_B=0), problem=ChurnedAllReduce(ops=2, items=items), world=world(n))
    assert ring.metrics["time_s"] < made.metrics["time_s"]


def test_a_server_survives_churn_as_well():
    where = world().with_faults(Crash(node=2, at_s=0.5, until_s=2.0))
    made = run(ElasticServer(silence_s=0.5, beat_s=0.1), world=where,
               problem=ChurnedAllReduce(ops=30, items=20_000, pause_s=0.05))  # fmt: skip
    assert made.violations == []
    assert made.metrics["committed"] == 30 and made.metrics["aborted"] >= 1


def test_a_restart_does_again_what_came_after_the_checkpoint():
    """A death in operation 17 with a checkpoint every 5 costs the operations 15 and 16."""
    every, pause_s = 5, 0.1
    problem = ChurnedAllReduce(ops=25, items=100, pause_s=pause_s)
    part = CheckpointRestart(every=every, restart_s=1.0, silence_s=0.5, beat_s=0.1, probe_B=0)
    calm = run(part, problem=problem, world=world())
    step_s = calm.metrics["time_s"] + pause_s
    where = world().with_faults(Crash(node=3, at_s=17.5 * step_s))
    made = run(part, problem=problem, world=where)
    assert made.violations == []
    assert {r.values["redone"] for r in made.records if "redone" in r.values} == {17 % every}
    elastic = run(PCCL(silence_s=0.5, beat_s=0.1, probe_B=0), problem=problem, world=where)
    lost_s = made.seconds - elastic.seconds
    assert lost_s == pytest.approx(1.0 + (17 % every) * step_s, rel=0.15)
    assert elastic.metrics["goodput_Bps"] > made.metrics["goodput_Bps"]


def test_a_static_group_gives_up_when_a_peer_dies():
    where = world().with_faults(Crash(node=2, at_s=0.2, until_s=0.5))
    problem = ChurnedAllReduce(ops=30, items=1000, pause_s=0.02)
    made = run(StaticGroup(patience_s=1.0), problem=problem, world=where, until_s=20.0)
    assert made.metrics["committed"] < 30
    assert {r.node for r in made.records if "gave_up" in r.values} == {1, 2, 3, 4}
    assert "undone" in {violation.kind for violation in made.violations}
