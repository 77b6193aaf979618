"""Routing in a cluster: nothing is lost under any fault, and routers do what they say."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import run, worlds
from orrery.base.errors import OrreryError, UsageError
from orrery.base.rand import Stream
from orrery.inputs import Workload
from orrery.systems.serve import (
    KVAware,
    LeastKV,
    LeastOutstanding,
    LLMRouting,
    PowerOfTwo,
    RandomChoice,
    RoundRobin,
    Router,
    SessionSticky,
    ShortestQueue,
)
from orrery.world import Crash, RandomCrashes, Slow

ROUTERS = [RoundRobin(), RandomChoice(), PowerOfTwo(), LeastOutstanding(), ShortestQueue(),
           LeastKV(), KVAware(), SessionSticky()]  # fmt: skip


class Talks(LLMRouting):
    """Conversations: each turn begins with all that was said before."""

    def load(self, seed):
        draws = Stream(seed, "talks")
        rows, ids, starts = [], [], [0]
        for number in range(self.requests):
            talk, turn = number % 12, number // 12
            rows.append((number * 0.05, 320 * (turn + 1) + 10, draws.randrange(5, 30), talk))
            ids += [talk * 1000 + place for place in range(20 * (turn + 1))]
            starts.append(len(ids))
        at_s, prompt, output, talk = zip(*rows, strict=True)
        n = len(rows)
        return Workload(
            arrival_s=np.array(at_s), input_tokens=np.array(prompt, np.int32),
            output_tokens=np.array(output, np.int32), block_ids=np.array(ids),
            block_starts=np.array(starts), block_tokens=16, session=np.array(talk, np.int32),
            kind=np.zeros(n, np.int16), kinds=("talk",), parent=np.full(n, -1, np.int32),
            delay_s=np.zeros(n), source="made up",
        )  # fmt: skip


def cluster(*faults, nodes=4):
    return worlds.get(f"h100_pod:{nodes}").with_faults(*faults)


@pytest.mark.parametrize("router", ROUTERS, ids=lambda each: type(each).__name__)
def test_everyone_is_answered_once_although_replicas_die(router):
    faults = (Crash(node=1, at_s=1.0, until_s=4.0), Crash(node=2, at_s=2.0),
              Slow(node=0, at_s=0.5, until_s=3.0, factor=5.0))  # fmt: skip
    problem = Talks(requests=144, detect_s=0.2)
    done = run(router, problem=problem, world=cluster(*faults), seed=3)
    assert done.violations == [] and done.metrics["failed"] == 0
    assert done.metrics["resent"] > 0, "the crashes hit requests in flight"
    again = run(router, problem=problem, world=cluster(*faults), seed=3)
    assert again.digest == done.digest and again.metrics == done.metrics


def test_when_all_are_gone_for_good_the_rest_is_reported_failed():
    faults = [Crash(node=node, at_s=1.0) for node in range(2)]
    done = run(RoundRobin(), problem=Talks(requests=96), world=cluster(*faults, nodes=2))
    assert done.violations == [] and 0 < done.metrics["failed"] < 96
    assert done.metrics["attainment"] < 1


@pytest.mark.slow
def test_many_random_crashes_lose_nothing():
    for seed in range(100):
        world = cluster(RandomCrashes(per_node_per_s=0.1, down_s=0.5, until_s=8.0))
        done = run(KVAware(), problem=Talks(requests=144), world=world, seed=seed)
        assert done.violations == []


def test_sticky_and_aware_routers_find_the_past_of_a_talk():
    hits = {
        type(router).__name__: run(router, problem=Talks(requests=144), world=cluster(), seed=1)
        .metrics["hit_ratio"]
        for router in (RoundRobin(), SessionSticky(), KVAware(), KVAware(overlap_weight=0.0))
    }  # fmt: skip
    # Twelve talks over four replicas in turn: every turn of a talk comes to the same replica.
    best = sum(20 * turn for turn in range(12)) * 16 / sum(320 * t + 330 for t in range(12))
    assert hits["SessionSticky"] == pytest.approx(best, rel=0.01)
    assert hits["KVAware"] <= best + 1e-9


def test_round_robin_is_even_and_random_is_not():
    counts = {}
    for router in (RoundRobin(), RandomChoice()):
        done = run(router, problem=LLMRouting(requests=400, rate_per_s=20.0), world=cluster())
        replicas = [values["served"].replica for values in (each.values for each in done.records)]
        counts[type(router).__name__] = np.bincount(replicas, minlength=4)
    assert set(counts["RoundRobin"]) == {100}
    assert np.ptp(counts["RandomChoice"]) > 4


def test_two_choices_keep_the_longest_queue_short():
    """Balls into bins: with one choice the fullest of n has about log n / log log n more, with two
    about log log n (Mitzenmacher); 1,000 balls in 100 bins."""

    class View:
        def __init__(self, index):
            self.index, self.outstanding = index, 0

    longest = {}
    for choices in (1, 2):
        router, views = PowerOfTwo(choices=choices), [View(index) for index in range(100)]
        router.start()
        for _ in range(1000):
            views[router.route(None, views)].outstanding += 1
        longest[choices] = max(view.outstanding for view in views)
    assert longest[1] >= 17 and longest[2] <= 13


def test_a_router_that_names_a_dead_replica_is_told():
    class Stubborn(Router):
        def route(self, request, replicas):
            return 99

    with pytest.raises(OrreryError, match="replica 99"):
        run(Stubborn(), problem=Talks(requests=5), world=cluster())


@pytest.mark.parametrize(
    ("knobs", "match"),
    [({"model": "Llama-9"}, "Llama"), ({"workload": "azure"}, "unknown"),
     ({"trace": "/nowhere.csv"}, "nowhere")],
)  # fmt: skip
def test_bad_knobs_are_named(knobs, match):
    with pytest.raises(OrreryError, match=match):
        run(RoundRobin(), problem=LLMRouting(requests=5, **knobs), world=cluster())


def test_machines_without_accelerators_cannot_serve():
    with pytest.raises((UsageError, OrreryError), match="no accelerator"):
        run(RoundRobin(), problem=LLMRouting(requests=5), world=worlds.get("lan:3"))
