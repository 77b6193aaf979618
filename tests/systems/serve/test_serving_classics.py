"""The classics of serving, each against a figure of its own."""

from __future__ import annotations

import numpy as np
import pytest

from orrery.base.rand import Stream
from orrery.models.replica import NEVER, Replica, drain
from orrery.models.requests import Request
from orrery.systems.serve import (
    AgeingPriority,
    LeastKV,
    LeastOutstanding,
    Orca,
    PriorityFirst,
    RandomChoice,
    RoundRobin,
    Sarathi,
    ShortestJob,
    ShortestQueue,
    VllmV1,
    WeightedShares,
)


class TokenSteps:
    """A step takes a second for each hundred tokens, and nothing else."""

    extrapolated, spread = 0, False

    def seconds(self, prefill, decodes, decode_kv):
        return (sum(new for new, _ in prefill) + decodes) / 100

    def decode_run(self, decodes, decode_kv, steps):
        return steps * decodes / 100


def one_at_a_time(scheduler, requests):
    made = scheduler.with_knobs(max_seqs=1, max_tokens=1000)
    served = drain(Replica(TokenSteps(), made, blocks=1000, ahead=False), requests)
    return {each.id: each.started_s - each.arrival_s for each in served}


def two_classes(seed, load=0.8, count=20_000):
    """Short jobs of 0.5 s and long ones of 2 s, equally many, one token each."""
    draws, at_s, found = Stream(seed, "classes"), 0.0, []
    for number in range(count):
        at_s += draws.expovariate(load / 1.25)
        long = draws.below(2)
        found.append(Request(number, at_s, 200 if long else 50, 1, priority=long,
                             kind="long" if long else "short"))  # fmt: skip
    return found


def waits(scheduler, load=0.8):
    requests = two_classes(11, load)
    told = one_at_a_time(scheduler, requests)
    return [np.mean([told[each.id] for each in requests if each.kind == kind])
            for kind in ("short", "long")]  # fmt: skip


def cobham(load=0.8):
    """Mean waits of two classes served by priority, without interruption (Cobham, 1954)."""
    rate = load / 1.25
    rest = rate * (0.5 * 0.5**2 + 0.5 * 2.0**2) / 2
    short = rate / 2 * 0.5
    return rest / (1 - short), rest / ((1 - short) * (1 - load))


@pytest.mark.parametrize(
    "scheduler", [PriorityFirst(), ShortestJob()], ids=lambda s: type(s).__name__
)
def test_two_priorities_wait_as_cobham_says(scheduler):
    short, long = waits(scheduler)
    assert short == pytest.approx(cobham()[0], rel=0.06)
    assert long == pytest.approx(cobham()[1], rel=0.12)


def test_in_order_of_arrival_all_wait_as_pollaczek_and_khinchine_say():
    rate = 0.8 / 1.25
    expected = rate * (0.5 * 0.25 + 0.5 * 4.0) / 2 / (1 - 0.8)
    short, long = waits(VllmV1())
    assert short == pytest.approx(expected, rel=0.1) and long == pytest.approx(expected, rel=0.1)


def overtakings(scheduler, limit_s):
    """How often a request that was older than the limit was overtaken by a younger one."""
    made = scheduler.with_knobs(max_seqs=1, max_tokens=1000)
    requests = two_classes(3, load=0.95, count=2000)
    served = drain(Replica(TokenSteps(), made, blocks=1000, ahead=False), requests)
    served.sort(key=lambda each: each.started_s)
    latest, found = -1.0, 0
    for each in served:
        waited_s = each.started_s - each.arrival_s
        if each.arrival_s < latest and waited_s > limit_s + 2.0:
            found += 1
        latest = max(latest, each.arrival_s)
    return found


def test_nobody_old_is_overtaken_where_priorities_age():
    """One that waits longer than the limit is next but for those older still; SJF breaks that."""
    ageing = AgeingPriority(age_s=1e9, age_limit_s=5.0)
    assert overtakings(ShortestJob(), 40.0) > 0
    waited = one_at_a_time(ageing, two_classes(3, load=0.95, count=2000))
    sjf = one_at_a_time(ShortestJob(), two_classes(3, load=0.95, count=2000))
    assert max(waited.values()) < max(sjf.values())


@pytest.mark.parametrize("weights", [{}, {"a": 3.0}, {"a": 1.0, "b": 2.0, "c": 5.0}])
def test_shares_are_the_weights_while_all_wait(weights):
    requests = [Request(number, 0.0, 50, 1, kind="abc"[number % 3]) for number in range(600)]
    one = Replica(TokenSteps(), WeightedShares(weights=weights, max_seqs=1, max_tokens=1000),
                  blocks=1000, ahead=False)  # fmt: skip
    served = sorted(drain(one, requests), key=lambda each: each.started_s)[:180]
    whole = sum(weights.get(kind, 1.0) for kind in "abc")
    for kind in "abc":
        share = sum(each.kind == kind for each in served) / 180
        assert share == pytest.approx(weights.get(kind, 1.0) / whole, abs=0.03)


def test_orca_reserves_so_that_nobody_is_preempted_and_vllm_packs_more():
    def most_at_once(scheduler):
        one, most = Replica(TokenSteps(), scheduler, blocks=60, ahead=False), 0
        for number in range(20):
            one.submit(Request(number, 0.0, 64, 100, max_tokens=400), 0.0)
        while one.next_s < NEVER:
            one.advance(one.next_s)
            most = max(most, len(one.running))
        return most, one.preemptions

    assert most_at_once(Orca()) == (60 // 29, 0)
    packed, lost = most_at_once(VllmV1())
    assert packed > 6 and lost > 0


def test_sarathi_bounds_the_gap_between_tokens():
    """No step computes more than the budget: 512 tokens, 5.12 s with these steps."""
    one, ends = Replica(TokenSteps(), Sarathi(), blocks=2000, ahead=False), [0.0]
    for number in range(10):
        one.submit(Request(number, 0.0, 2000, 3), 0.0)
    while one.next_s < NEVER:
        ends.append(one.next_s)
        one.advance(one.next_s)
    assert max(np.diff(ends)) <= 5.12 + 1e-9
    assert Sarathi().max_tokens == 512 < VllmV1().max_tokens


def cluster(router, load=0.7, servers=8, count=12_000):
    """Requests of one second each to servers that do one at a time: mean wait, by the router."""
    steps, scheduler = TokenSteps(), VllmV1(max_seqs=1, max_tokens=1000)
    replicas = [Replica(steps, scheduler, blocks=1000, index=index, ahead=False)
                for index in range(servers)]  # fmt: skip
    draws, at_s, done = Stream(2, "cluster"), 0.0, []
    router.start()
    for number in range(count):
        at_s += draws.expovariate(load * servers)
        for each in replicas:
            while each.next_s <= at_s:
                done += each.advance(each.next_s)
        chosen = router.route(Request(number, at_s, 100, 1), [each.view for each in replicas])
        replicas[chosen].submit(Request(number, at_s, 100, 1), at_s)
    for each in replicas:
        while each.next_s < NEVER:
            done += each.advance(each.next_s)
    return np.mean([each.started_s - each.arrival_s for each in done])


def test_routers_stand_where_queueing_theory_puts_them():
    """Random splitting is M/D/1; for equal jobs, in turn is best of all (Liu and Towsley, 1994)."""
    random = cluster(RandomChoice())
    assert random == pytest.approx(0.7 / (2 * 0.3), rel=0.06)
    in_turn, shortest = cluster(RoundRobin()), cluster(LeastOutstanding())
    assert in_turn < shortest < random
    # All requests are alike, so counting them and counting their tokens is the same.
    assert cluster(ShortestQueue()) == pytest.approx(shortest, rel=0.1)
    assert cluster(LeastKV()) == pytest.approx(shortest, rel=0.1)
