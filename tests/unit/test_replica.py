"""The modelled replica: conservation, the effect of each mechanism, closed forms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orrery.base.errors import PartError
from orrery.base.rand import Stream
from orrery.models.ports import Batch, Scheduler
from orrery.models.replica import NEVER, Replica, drain
from orrery.models.requests import Request, Target
from orrery.systems.serve import AgeingPriority, Orca, Sarathi, ShortestJob, VllmV1, WeightedShares


class FlatSteps:
    """A step takes `fixed_s`, and more for each token and each token in the cache."""

    extrapolated, spread = 0, False

    def __init__(self, fixed_s=0.01, token_s=0.0001, kv_s=1e-7):
        self.fixed_s, self.token_s, self.kv_s = fixed_s, token_s, kv_s

    def seconds(self, prefill, decodes, decode_kv):
        tokens = sum(new for new, _ in prefill) + decodes
        return self.fixed_s + self.token_s * tokens + self.kv_s * decode_kv

    def decode_run(self, decodes, decode_kv, steps):
        grown = decodes * steps * (steps - 1) / 2
        one = self.fixed_s + self.token_s * decodes
        return steps * one + self.kv_s * (steps * decode_kv + grown)


def replica(blocks=200, scheduler=None, steps=None, **options):
    return Replica(steps or FlatSteps(), scheduler or VllmV1(), blocks=blocks, **options)


def some_requests(seed, count=60, rate=30.0, shared=True):
    draws, at_s = Stream(seed, "requests"), 0.0
    found = []
    for number in range(count):
        at_s += draws.expovariate(rate)
        prompt, output = draws.randrange(1, 300), draws.randrange(1, 80)
        group = draws.randrange(4)
        blocks = tuple(group * 1000 + place for place in range(min(prompt // 16, 6)))
        found.append(Request(number, at_s, prompt, output, blocks=blocks if shared else (),
                             kind=f"k{group % 2}", priority=group))  # fmt: skip
    return found


SCHEDULERS = [
    VllmV1(), VllmV1(max_tokens=64), VllmV1(max_seqs=3), VllmV1(whole=False),
    VllmV1(long_prompt=20), Sarathi(max_tokens=32), Orca(), ShortestJob(),
    AgeingPriority(), WeightedShares(),
]  # fmt: skip


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=repr)
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("blocks", [25, 60, 400])
def test_everyone_is_served_once_and_no_block_is_lost(scheduler, ahead, blocks):
    for seed in range(3):
        one = replica(blocks, scheduler, ahead=ahead)
        requests = some_requests(seed)
        served = drain(one, requests)
        assert sorted(each.id for each in served) == list(range(60))
        assert one.faults() == [] and one.pool.free == blocks
        assert one.prefill_tokens == one.kv_tokens == 0
        for each in served:
            request = requests[each.id]
            assert each.output_tokens == request._output_tokens
            assert request.arrival_s <= each.queued_s <= each.started_s < each.first_s
            assert each.first_s <= each.last_s


@pytest.mark.slow
def test_ten_thousand_random_schedules_lose_nothing():
    for seed in range(10_000):
        scheduler = SCHEDULERS[seed % len(SCHEDULERS)]
        one = replica(25 + seed % 50, scheduler, ahead=bool(seed & 1))
        served = drain(one, some_requests(seed, count=25, rate=5.0 + seed % 60))
        assert sorted(each.id for each in served) == list(range(25))
        assert one.faults() == [] and one.pool.free == one.pool.blocks


class OneByOne(VllmV1):
    """Never lets the engine do several steps as one."""

    def steady(self, view):
        return False


def test_runs_give_the_times_of_single_steps():
    """A run of equal steps as one event must not change anything."""
    for seed, blocks in itertools.product(range(4), (25, 60, 400)):
        runs = drain(replica(blocks), some_requests(seed))
        steps = drain(replica(blocks, OneByOne()), some_requests(seed))
        key = lambda each: each.id  # noqa: E731
        for a, b in zip(sorted(runs, key=key), sorted(steps, key=key), strict=True):
            assert (a.first_s, a.last_s) == pytest.approx((b.first_s, b.last_s), rel=1e-9)


def test_a_lone_request_takes_prefill_and_decodes():
    """Closed form: 100 prompt tokens, then 9 decode steps with a cache that grows by one."""
    steps = FlatSteps(fixed_s=0.01, token_s=0.001, kv_s=1e-5)
    (served,) = drain(replica(steps=steps, ahead=False), [Request(0, 2.0, 100, 10)])
    assert served.ttft_s == pytest.approx(0.01 + 0.1)
    decodes = sum(0.011 + 1e-5 * (101 + place) for place in range(9))
    assert served.last_s - served.first_s == pytest.approx(decodes)


def test_planning_ahead_costs_an_arrival_one_more_step():
    """Who comes during a step waits for its end, and for the one that is planned already."""
    steps = FlatSteps(fixed_s=1.0, token_s=0.0, kv_s=0.0)
    late = [Request(0, 0.0, 10, 50), Request(1, 3.5, 10, 2)]
    for ahead, expected in ((False, 1.5), (True, 2.5)):
        served = {each.id: each for each in drain(replica(steps=steps, ahead=ahead), late)}
        assert served[1].ttft_s == pytest.approx(expected)
        assert served[1].queued_s == pytest.approx(4.0)


def test_chunks_bound_a_step():
    steps = FlatSteps(fixed_s=0.0, token_s=0.001, kv_s=0.0)
    long = [Request(0, 0.0, 16, 100), Request(1, 0.02, 1000, 2)]
    gaps = {}
    for budget in (64, 2000):
        one = replica(steps=steps, scheduler=OneByOne(max_tokens=budget), ahead=False)
        ends = []
        for request in long:
            while one.next_s <= request.arrival_s:
                ends.append(one.next_s)
                one.advance(one.next_s)
            one.submit(request, request.arrival_s)
        while one.next_s < NEVER:
            ends.append(one.next_s)
            one.advance(one.next_s)
        gaps[budget] = max(np.diff(ends))
    assert gaps[64] <= 0.064 + 1e-9 and gaps[2000] > 0.9


def test_a_shared_beginning_is_computed_once():
    blocks = tuple(range(50))
    requests = [Request(n, float(n), 800, 5, blocks=blocks) for n in range(5)]
    with_cache, without = replica(), replica(caching=False)
    hot, cold = drain(with_cache, requests), drain(without, requests)
    assert with_cache.hit_tokens == 4 * 49 * 16, "the last token is always computed"
    assert without.hit_tokens == 0
    assert hot[4].ttft_s < cold[4].ttft_s / 5


def test_too_few_blocks_preempt_the_newest_and_it_still_finishes():
    one = replica(blocks=12)
    served = drain(one, [Request(n, 0.0, 60, 60) for n in range(3)])
    assert one.preemptions > 0 and len(served) == 3
    assert next(each for each in served if each.id == 0).preempted == 0


def test_a_slow_replica_is_slower_and_a_crash_drops_everything():
    slow, fast = replica(), replica()
    slow.set_speed(0.25, 0.0)
    a, b = (drain(each, [Request(0, 0.0, 100, 20)])[0] for each in (slow, fast))
    assert a.latency_s == pytest.approx(4 * b.latency_s)
    one = replica()
    for number in range(5):
        one.submit(Request(number, 0.0, 100, 50), 0.0)
    one.advance(one.next_s)
    assert sorted(each.id for each in one.drop_all()) == list(range(5))
    assert one.faults() == [] and one.pool.free == one.pool.blocks and one.next_s == NEVER
    assert len(drain(one, [Request(9, one.busy_s + 1, 10, 3)])) == 1


def test_speed_may_change_in_the_middle_of_a_run():
    one = replica(steps=FlatSteps(fixed_s=1.0, token_s=0.0, kv_s=0.0), ahead=False)
    one.submit(Request(0, 0.0, 10, 10), 0.0)
    one.advance(one.next_s)
    one.set_speed(0.5, 3.5)
    while one.next_s < NEVER:
        done = one.advance(one.next_s)
    assert done[0].last_s == pytest.approx(3.5 + 2 * 0.5 + 2 * 6)


def test_cancelled_requests_leave_and_free_their_blocks():
    one = replica(blocks=100)
    for number in range(3):
        one.submit(Request(number, 0.0, 200, 500), 0.0)
    one.advance(one.next_s)
    assert one.cancel(0, one.busy_s) and one.cancel(2, one.busy_s) and not one.cancel(7, 0.0)
    while one.next_s < NEVER:
        one.advance(one.next_s)
    assert one.pool.free == 100 and one.faults() == []


def test_a_request_that_can_never_fit_is_refused():
    with pytest.raises(PartError, match="needs 63 blocks"):
        replica(blocks=10).submit(Request(0, 0.0, 500, 500), 0.0)


class Greedy(Scheduler):
    """Gives more tokens than a request lacks."""

    def next_batch(self, view):
        return Batch([(seq, seq.missing + 1) for seq in (*view.running, *view.waiting)])


class Lazy(Scheduler):
    """Starts requests and then forgets them."""

    def next_batch(self, view):
        return Batch([(seq, seq.missing) for seq in view.waiting])


@pytest.mark.parametrize(("bad", "match"), [(Greedy(), "lacks"), (Lazy(), "gave no work")])
def test_a_scheduler_that_errs_is_named(bad, match):
    with pytest.raises(PartError, match=match):
        drain(replica(scheduler=bad, ahead=False), [Request(0, 0.0, 20, 5)])


def test_single_server_queue_waits_as_theory_says():
    """One request at a time, equal service, Poisson arrivals: M/D/1 waits rho S / 2 (1 - rho)."""
    steps = FlatSteps(fixed_s=1.0, token_s=0.0, kv_s=0.0)
    draws, at_s, requests, load = Stream(5, "queue"), 0.0, [], 0.7
    for number in range(20_000):
        at_s += draws.expovariate(load)
        requests.append(Request(number, at_s, 10, 1))
    served = drain(replica(100, VllmV1(max_seqs=1), steps, ahead=False), requests)
    waited_s = np.mean([each.started_s - each.arrival_s for each in served])
    assert waited_s == pytest.approx(load / (2 * (1 - load)), rel=0.06)


def test_targets():
    assert Target(1.0, 0.1).met(1.0, 0.1) and not Target(1.0, 0.1).met(1.1, 0.1)
