"""PCCL on real processes under SIGKILL, beside Gloo under the same kills."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from orrery import World, run
from orrery.base.rand import Stream
from orrery.parts import NonNegative
from orrery.systems.collectives.baselines.static_group import StaticGroup
from orrery.systems.collectives.pccl import PCCL, Coordinator
from orrery.systems.collectives.problems.churned_all_reduce import ChurnedAllReduce, attempts_of
from orrery.systems.collectives.problems.elastic_peer import COMMITTED
from orrery.world import Crash

KILLS_S = (1.0, 1.6)


class Holding(Coordinator):
    """Announces no commit between two times, so that a kill can fall before the announcement."""

    hold_from_s: NonNegative = 0.0
    hold_to_s: NonNegative = 0.0

    def conclude(self, key):
        if self.hold_from_s <= self.now < self.hold_to_s:
            self.spawn(self._later(key))
        else:
            super().conclude(key)

    async def _later(self, key):
        await self.sleep(max(self.hold_to_s - self.now, 0.0))
        if key not in self.decided:
            super().conclude(key)


class Held(PCCL):
    """PCCL with such a coordinator."""

    hold_from_s: NonNegative = 0.0
    hold_to_s: NonNegative = 0.0

    def helper(self):
        return Holding(
            hold_from_s=self.hold_from_s, hold_to_s=self.hold_to_s,
            **{k: v for k, v in super().helper().knobs().items() if "hold" not in k},
        )  # fmt: skip


def kills(seed, peers, count, every_s, down_s, first_s):
    """So many kills of random peers at random moments; a peer is killed only while it is there."""
    rng, at_s = Stream(seed, 0, "kills"), first_s
    back = dict.fromkeys(range(1, peers + 1), 0.0)
    found = []
    for _ in range(count):
        at_s += rng.uniform(0.5 * every_s, 1.5 * every_s)
        there = [node for node, since_s in back.items() if since_s <= at_s]
        node = rng.choice(there)
        up_s = at_s + rng.uniform(0.5 * down_s, 1.5 * down_s)
        back[node] = up_s + 0.3
        found.append(Crash(node=node, at_s=at_s, until_s=up_s))
    return found


def storm(part, problem, peers, faults, until_s, seed=1):
    world = World.lan({"coordinator": 1, "peer": peers}).with_faults(*faults)
    made = run(part, problem=problem, world=world, engine="processes", raw=True,
               nodes_per_process=1, until_s=until_s, seed=seed)  # fmt: skip
    assert made.violations == []
    assert made.extra["faults_fired"]["Crash"] == len(faults)
    return made


@pytest.mark.works_when("pccl", 1)
def test_four_processes_survive_six_kills_also_before_the_commit(record_property):
    record_property("engine", ("pccl", "processes"))
    # Between 1 s and 2.2 s nothing is announced; node 2 dies there, after its last byte and vote.
    faults = [Crash(node=2, at_s=1.6, until_s=2.6), *kills(4, 4, 5, 0.6, 0.6, 2.8)]
    part = Held(hold_from_s=1.0, hold_to_s=2.2, silence_s=1.2, beat_s=0.2)
    problem = ChurnedAllReduce(ops=30, items=1 << 18, pause_s=0.03)
    made = storm(part, problem, 4, faults, until_s=60.0)
    assert made.metrics["committed"] == 30
    assert made.metrics["stall_s"] < problem.timeout_s
    # The one that died before the announcement took part, and the rest committed with it.
    without = [
        said for said in attempts_of(made).values()
        if any(v["said"] == COMMITTED and 2 in v["members"] for v in said.values())
        and 2 not in said
    ]  # fmt: skip
    assert without


@pytest.mark.slow
@pytest.mark.works_when("pccl", 1)
def test_eight_processes_survive_a_hundred_kills(record_property):
    record_property("engine", ("pccl", "processes"))
    faults = kills(9, 8, 100, 1.5, 1.5, 1.0)
    problem = ChurnedAllReduce(ops=300, items=1 << 20, pause_s=0.2)
    made = storm(PCCL(silence_s=1.5, beat_s=0.3), problem, 8, faults, until_s=550.0)
    print(made.metrics)
    assert made.metrics["committed"] == 300


@pytest.mark.slow
@pytest.mark.works_when("pccl", 1)
def test_ten_minutes_of_kills(record_property):
    """One of eight peers dies every few seconds for ten minutes, and others join."""
    record_property("engine", ("pccl", "processes"))
    faults = [f for f in kills(11, 8, 150, 4.0, 3.0, 2.0) if f.until_s < 595.0]
    problem = ChurnedAllReduce(ops=100_000, items=1 << 18, pause_s=0.1)
    made = storm(PCCL(silence_s=2.0, beat_s=0.4), problem, 8, faults, until_s=600.0)
    print(made.metrics, made.extra["faults_fired"])
    assert made.metrics["stall_s"] <= 10.0
    assert made.metrics["committed"] > 300


def test_int8_and_training_by_rounds_run_on_processes_too():
    from orrery.systems.collectives.pccl import error_bound

    world = World.lan({"coordinator": 1, "peer": 3})
    problem = ChurnedAllReduce(ops=4, items=100_000, kind="normal", tolerance=error_bound(3))
    made = run(PCCL(quantise="int8", overlap=True), problem=problem, world=world,
               engine="processes", raw=True, until_s=30.0)  # fmt: skip
    assert made.violations == []
    assert made.metrics["committed"] == 4


# -- what Gloo does under the same kills


@pytest.mark.works_when("pccl", 6)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="Gloo comes with torch")
def test_gloo_aborts_or_hangs_when_a_peer_is_killed():
    script = Path(__file__).with_name("gloo_peers.py")
    words = [sys.executable, str(script), "4", str(1 << 18), "60", "6", *map(str, KILLS_S)]
    told = json.loads(subprocess.run(words, capture_output=True, timeout=60, check=True).stdout)
    ends = {peer["rank"]: peer["said"] for peer in told["peers"]}
    survivors = [rank for rank in range(4) if rank not in told["killed"]]
    assert told["killed"][0] == 3
    for rank in survivors:
        assert rank in told["hung"] or ends[rank].startswith("aborted"), told
    assert all(peer["done"] < 60 for peer in told["peers"])


@pytest.mark.works_when("pccl", 6)
def test_the_same_kills_end_a_static_group_and_not_pccl():
    faults = [Crash(node=4, at_s=KILLS_S[0], until_s=3.0), Crash(node=3, at_s=KILLS_S[1])]
    world = World.lan({"coordinator": 1, "peer": 4}).with_faults(*faults)
    problem = ChurnedAllReduce(ops=60, items=1 << 12, pause_s=0.05)
    fixed = run(StaticGroup(patience_s=2.0), problem=problem, world=world, until_s=30.0)
    assert fixed.metrics["committed"] < 60
    assert "undone" in {violation.kind for violation in fixed.violations}
    elastic = run(PCCL(), problem=problem, world=world, until_s=30.0)
    assert elastic.violations == [] and elastic.metrics["committed"] == 60
