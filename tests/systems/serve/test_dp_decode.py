"""Data-parallel decoding: the step time, the books, the checker, and the plain rules."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from tests.systems.serve.dp_decode_runs import EARLY, FULL, PLAIN, played, small

from orrery import World, run
from orrery.base.errors import KnobError, OrreryError, PartError
from orrery.base.rand import Stream
from orrery.systems.serve.baselines.dp_least_kv import DPLeastKV
from orrery.systems.serve.baselines.dp_least_outstanding import DPLeastOutstanding
from orrery.systems.serve.baselines.dp_power_of_two import DPPowerOfTwo
from orrery.systems.serve.baselines.dp_random import DPRandom
from orrery.systems.serve.baselines.dp_round_robin import DPRoundRobin
from orrery.systems.serve.problems.dp_decode import (
    Assigner,
    Cluster,
    DPDecode,
    Load,
    StepTime,
    Waiting,
    Workers,
    faults_of,
    fit,
    least_seconds,
    overtaken,
    some_waiting,
    some_workers,
    why_illegal,
)
from orrery.systems.serve.problems.dp_decode.ports import sealed
from orrery.systems.serve.problems.dp_decode.steptime import RECORDED, plane
from orrery.systems.serve.problems.dp_decode.worker import answer
from orrery.world import Crash


def idle(workers, slots=1000, capacity=10**9):
    """Workers that hold nothing."""
    none = sealed(np.zeros(workers))
    grids = tuple(sealed(np.zeros((workers, slots)), kind) for kind in (bool, int, int, int))
    return Workers(sealed(np.ones(workers), bool), sealed(np.full(workers, slots)), none, none,
                   sealed(np.full(workers, capacity)), grids)  # fmt: skip


def pool(tokens):
    count = len(tokens)
    return Waiting(sealed(range(count)), sealed(tokens), sealed([1] * count),
                   sealed(np.zeros(count), float), sealed([1] * count))  # fmt: skip


def loads_after(part, tokens, workers):
    """Tokens and requests on each idle worker after a round."""
    part.start()
    held, count = np.zeros(workers, int), np.zeros(workers, int)
    for request, worker in part.assign(pool(tokens), idle(workers), 0.0):
        held[worker] += tokens[request]
        count[worker] += 1
    return held, count


# -- the step time


def test_a_plane_is_found_again_and_a_negative_part_is_left_out():
    rows = np.array([(1.0, n, n * c) for n in (1, 8, 32) for c in (100, 1000, 4000)])
    found, error = plane(rows, rows @ np.array([5e-3, 1e-5, 3e-8]))
    assert found[:3] == pytest.approx((5e-3, 1e-5, 3e-8)) and error < 1e-9
    falling, _ = plane(rows, rows @ np.array([5e-3, -1e-5, 3e-8]))
    assert falling.sequence_s == 0 and falling.fixed_s > 0 and falling.token_s > 0
    with pytest.raises(KnobError, match="rows"):
        plane(rows[:2], np.ones(2))
    with pytest.raises(KnobError, match="positive"):
        plane(rows, np.full(len(rows), np.nan))


@pytest.mark.skipif(not os.environ.get("ORRERY_DATA"), reason="ORRERY_DATA is not set")
def test_the_recorded_step_time_is_that_of_the_tables():
    pytest.importorskip("pyarrow", reason="pyarrow reads the tables")
    found, error = fit()
    if "rooflines" in found.source:
        pytest.skip("ORRERY_DATA has no op_profiles of h200_sxm")
    print(f"\n{found}, median error {error:.2%}")
    assert found[:3] == pytest.approx(RECORDED[:3], rel=1e-3)
    assert error < 0.03


def test_rooflines_give_a_step_time_of_the_same_kind_for_any_model():
    found, error = fit(tables=None)
    assert found[:3] == pytest.approx(RECORDED[:3], rel=0.9) and error < 0.01
    assert found.token_s == pytest.approx(RECORDED.token_s, rel=0.2)
    large = DPDecode(model="Qwen3-32B", tp=2).time()
    assert large.fixed_s > 2 * RECORDED.fixed_s
    with pytest.raises(OrreryError, match="Llama"):
        DPDecode(model="Llama-9").time()


# -- the plain rules, each on a known figure


def test_round_robin_deals_evenly_and_in_turn():
    _, count = loads_after(DPRoundRobin(), [7] * 36 * 5 + [7] * 4, 36)
    assert count.tolist() == [6] * 4 + [5] * 32


def independent_sums(load, workers, slots, draws=300):
    """The mean imbalance of workers whose slots hold independent requests.

    In a full cluster a slot holds a request with a chance in proportion to the length of its
    answer, at a uniform place in it.
    """
    rng = np.random.default_rng(1)
    chance = load.output / load.output.sum()
    who = rng.choice(len(load), size=(draws, workers, slots), p=chance)
    held = load.prompt[who] + np.floor(rng.random(who.shape) * load.output[who])
    kv = held.sum(axis=2)
    return float((kv.max(axis=1) / kv.mean(axis=1) - 1).mean())


def check_round_robin(problem, workers, seeds):
    for part in (DPRoundRobin(), DPRandom()):
        found, expected = (
            np.mean([measure(seed) for seed in seeds])
            for measure in (
                lambda seed, part=part: played(part, problem, seed, workers)["imbalance"],
                lambda seed: independent_sums(problem.requests_of(seed, workers), workers,
                                              problem.slots),
            )
        )  # fmt: skip
        print(f"\n{part}: imbalance {found:.3f}, independent sums {expected:.3f}")
        # A snapshot's deviation is a quarter of its mean, and snapshots 250 steps apart are nearly
        # independent: with some thirty of them the mean is good to about a twentieth.
        assert found == pytest.approx(expected, rel=0.15)


def test_round_robin_and_random_have_the_imbalance_of_independent_sums():
    problem = DPDecode(slots=16, requests=6500, ahead=500, load=1.2, steps=2500, warm_up=700)
    check_round_robin(problem, 12, range(3))


@pytest.mark.slow
def test_the_same_of_the_full_cluster():
    problem = FULL.with_knobs(requests=26_000, steps=2000, warm_up=1000)
    check_round_robin(problem, 36, range(6))


def test_least_outstanding_never_differs_by_more_than_one():
    rng = Stream(1, "lengths", "test")
    _, count = loads_after(DPLeastOutstanding(), [1 + rng.below(9000) for _ in range(1000)], 36)
    assert count.max() - count.min() == 1


@pytest.mark.parametrize("machines", [2, 5, 12])
def test_least_kv_is_graham_s_list_scheduling(machines):
    """Graham's tight case (1966): m(m-1) jobs of 1 and one of m end at 2m - 1; the best is m."""
    tokens = [1] * (machines * (machines - 1)) + [machines]
    held, _ = loads_after(DPLeastKV(), tokens, machines)
    assert held.max() == 2 * machines - 1
    best, _ = loads_after(DPLeastKV(), sorted(tokens, reverse=True), machines)
    assert best.max() == machines


def tails(choices, upto=4, steps=2000):
    """The share of bins with at least i balls when n balls are in n bins, for large n.

    The limit of Mitzenmacher (2001): ds_i/dt = s_(i-1)^d - s_i^d from 0 to 1. For d = 1 it is the
    Poisson tail, and s_1 = tanh(1) for d = 2.
    """
    share = np.zeros(upto + 1)
    share[0] = 1.0
    for _ in range(steps):
        half = share.copy()
        half[1:] += np.diff(-(share**choices)) / steps / 2
        share[1:] += np.diff(-(half**choices)) / steps
    return share[1:]


@pytest.mark.parametrize("choices", [1, 2, 3])
def test_choices_fill_bins_as_mitzenmacher_s_limit_says(choices):
    expected = tails(choices)
    if choices < 3:
        assert expected[0] == pytest.approx({1: 1 - np.exp(-1), 2: np.tanh(1)}[choices], rel=1e-4)
    counts = np.concatenate([
        loads_after(DPPowerOfTwo(choices=choices, seed=seed), [1] * 400, 400)[1]
        for seed in range(10)
    ])  # fmt: skip
    found = np.array([(counts >= i).mean() for i in range(1, 5)])
    # Four thousand bins: the deviation of a share is below 0.008.
    assert found == pytest.approx(expected, abs=0.016)
    plain = np.concatenate([loads_after(DPRandom(seed=s), [1] * 400, 400)[1] for s in range(10)])
    shares = np.array([(plain >= i).mean() for i in range(1, 5)])
    assert shares == pytest.approx(tails(1), abs=0.016)


@pytest.mark.parametrize("part", EARLY, ids=repr)
def test_bound_at_arrival_a_request_waits_for_its_own_worker(part):
    problem = small(requests=120, ahead=60, load=0.7)
    early, late = (problem.play(each, 1, 4) for each in (part, part.with_knobs(late=True)))
    for log, each in ((early, part), (late, part.with_knobs(late=True))):
        assert list(faults_of(log, each.most_overtaken())) == []
    assert overtaken(early.load, early.admissions).max() > 0
    assert overtaken(late.load, late.admissions).max() == 0
    if isinstance(part, DPRoundRobin):
        assert [a.worker for a in sorted(early.admissions, key=lambda a: a.request)] == [
            request % 4 for request in range(120)
        ]


# -- the offline bound


def test_no_plan_beats_the_offline_bound_and_an_even_one_meets_it():
    time = StepTime(1e-3, 1e-4, 1e-6)
    even = Load(np.zeros(8), np.full(8, 100), np.full(8, 5), np.full(8, 5))
    books = Cluster(even, DPRoundRobin(), 4, 2, 10**6, time)
    books.part.start()
    assert spend(books) == pytest.approx(least_seconds(even, 4, 2, time))
    # All plans of a small uneven load, by exhaustion: which two share a worker, and in which order.
    load = Load(np.zeros(4), np.array([900, 40, 300, 10]), np.array([3, 7, 2, 6]), np.full(4, 9))
    best = min(
        spend(Cluster(load, Scripted(order=order), 2, 1, 10**6, time))
        for order in itertools.product((0, 1), repeat=4)
    )
    bound = least_seconds(load, 2, 1, time)
    assert bound <= best < 1.4 * bound
    assert least_seconds(load.head(0), 2, 1, time) == 0.0


class Scripted(Assigner):
    """Sends request i to worker order[i], as soon as it has a slot."""

    order: tuple[int, ...] = ()

    def assign(self, waiting, workers, now_s):
        free, pairs = workers.free_slots.tolist(), []
        for request in waiting.ids.tolist():
            worker = self.order[request]
            if free[worker]:
                free[worker] -= 1
                pairs.append((request, worker))
        return pairs


def spend(books):
    now_s = 0.0
    while not books.over:
        books.arrive(now_s)
        books.decide(now_s)
        now_s = books.step(now_s)
    return now_s


# -- the books and the checker


class Naughty(Assigner):
    """Does one thing wrong, by name."""

    how: str = ""

    def assign(self, waiting, workers, now_s):
        first = int(waiting.ids[0])
        return {
            "twice": [(first, 0), (first, 1)], "stranger": [(10**6, 0)], "nowhere": [(first, 99)],
            "crowd": [(int(each), 0) for each in waiting.ids], "none": None,
            "single": [first], "text": [("x", 0)], "never": [],
        }[self.how]  # fmt: skip


@pytest.mark.parametrize(
    ("how", "says"),
    [("twice", "named twice"), ("stranger", "does not wait"), ("nowhere", "no worker 99"),
     ("crowd", "no slot"), ("none", "not a list"), ("single", "not a pair"), ("text", "no number")],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(how, says):
    with pytest.raises(PartError, match=says):
        run(Naughty(how=how), problem=small(requests=20, ahead=20), world=World.lan(2))


def test_one_that_never_assigns_is_stuck():
    made = run(Naughty(how="never"), problem=small(requests=9, ahead=9), world=World.lan(2))
    assert [each.kind for each in made.violations] == ["stuck"]


def test_dead_workers_and_short_caches_are_refused():
    rng = Stream(4, "views", "test")
    waiting = some_waiting(rng, 3)
    dead = some_workers(rng, 1, 4, dead=False)
    dead.alive = sealed([False], bool)
    assert "dead" in why_illegal([(0, 0)], waiting, dead)
    tight = some_workers(rng, 1, 4, capacity=1)
    if tight.free_slots[0]:
        assert "no room" in why_illegal([(0, 0)], waiting, tight)


@pytest.fixture(scope="module")
def log():
    return small(requests=60, ahead=30, load=0.8).play(DPRoundRobin(), 5, 3)


def changed(log, name, place, **fields):
    rows = list(getattr(log, name))
    rows[place] = rows[place]._replace(**fields)
    return log._replace(**{name: rows})


def test_the_checker_passes_what_is_right_and_names_what_is_wrong(log):
    def kinds(bad, bound=0):
        return {each.kind for each in faults_of(bad, bound)}

    assert kinds(log) == set()
    assert "lost" in kinds(log._replace(endings=log.endings[1:]))
    assert "moved" in kinds(changed(log, "endings", 7, worker=(log.endings[7].worker + 1) % 3))
    assert "answered_twice" in kinds(log._replace(endings=[*log.endings, log.endings[0]]))
    last = log.admissions[0]._replace(at_s=log.ended_s, step=0)
    assert "served_twice" in kinds(log._replace(admissions=[*log.admissions, last]))
    double = log.admissions[40]._replace(worker=(log.admissions[40].worker + 1) % 3)
    assert "moved" in kinds(log._replace(admissions=[*log.admissions[:41], double,
                                                     *log.admissions[41:]]))  # fmt: skip
    assert "slots_exceeded" in kinds(log._replace(slots=3))
    assert "kv_exceeded" in kinds(log._replace(capacity=1000))
    assert "cut_short" in kinds(changed(log, "endings", 3, step=log.endings[3].step - 1))
    assert "still_open" in kinds(log._replace(open=[0]))
    swapped = [log.admissions[1]._replace(at_s=0.0), log.admissions[0], *log.admissions[2:]]
    assert "overtaken" in kinds(log._replace(admissions=swapped))
    assert "overtaken" not in kinds(log._replace(admissions=swapped), 1)
    assert "worker_said" in kinds(log._replace(faults=["worker 1 lies"]))


def test_overtaking_is_counted_as_by_hand():
    load = Load(np.zeros(4), np.ones(4, int), np.ones(4, int), np.ones(4, int))
    log = Scripted(order=(0, 0, 0, 0))
    books = Cluster(load, log, 1, 4, 100, RECORDED)
    for request in (2, 3, 0, 1):
        books.admit(request, 0, 0.0)
    assert overtaken(load, books.admissions).tolist() == [2, 2, 0, 0]
    assert overtaken(load, books.admissions[:2]).tolist() == [2, 2, 0, 0]


def test_views_cannot_be_written_to():
    class Writes(Assigner):
        def assign(self, waiting, workers, now_s):
            waiting._tokens[0] = 0
            return []

    with pytest.raises(OrreryError, match="read-only"):
        run(Writes(), problem=small(requests=9, ahead=9), world=World.lan(2))


# -- the problem


def test_the_engine_plays_the_same_run_as_no_engine():
    problem = small(requests=80, ahead=20, load=0.5)
    made = run(PLAIN[2], problem=problem, world=World.lan(3), seed=4)
    assert made.violations == [] and made.metrics["unanswered"] == 0
    assert 0.3 < made.metrics["bound_share"] <= 1 and made.metrics["efficiency"] <= 1
    assert made.metrics["decision_s"] == 0.0
    assert len(made.decisions) == 80
    again = run(PLAIN[2], problem=problem, world=World.lan(3), seed=4)
    assert (again.digest, again.decisions) == (made.digest, made.decisions)


def test_latency_is_the_wait_and_one_step_a_token():
    """One worker with one slot: answers follow each other, and every time is known."""
    problem = small(slots=1, requests=5, ahead=5, kv_factor=0.0)
    log = problem.play(DPRoundRobin(), 0, 1)
    step_s = problem.time().seconds(1, 0)
    ends_s = np.cumsum(log.load.output) * step_s
    assert [each.at_s for each in log.endings] == pytest.approx(ends_s.tolist())
    before_s = np.concatenate([[0.0], ends_s[:-1]])
    assert log.first_s == pytest.approx(before_s + step_s)


def test_all_workers_gone_for_good_leaves_the_rest_unanswered_and_says_so():
    world = World.lan(2).with_faults(Crash(node=0, at_s=0.05), Crash(node=1, at_s=0.08))
    made = run(PLAIN[0], problem=small(requests=40, ahead=40), world=world, seed=1)
    assert made.metrics["unanswered"] > 0 and made.metrics["requeued"] > 0
    assert made.violations == []


def test_a_request_gives_the_same_answer_wherever_it_goes_on():
    whole = answer(7, 30, 20)
    assert len(set(whole)) > 5 and answer(8, 30, 20) != whole and answer(7, 29, 20) != whole


@pytest.mark.parametrize(
    "knobs",
    [{"slots": 0}, {"kv_tokens": -1}, {"load": float("nan")}, {"requests": 0}, {"ahead": -1},
     {"most_output": 0}, {"kv_factor": -1.0}, {"barrier": "no"}, {"detect_s": 0.0}, {"wokers": 3}],
)  # fmt: skip
def test_bad_knobs_are_named(knobs):
    with pytest.raises(KnobError, match=rf"DPDecode\.{next(iter(knobs))}"):
        DPDecode(**knobs)


@pytest.mark.parametrize(
    ("knobs", "says"),
    [({"kv_tokens": 100}, r"kv_tokens: 100 tokens cannot hold"),
     ({"requests": 10**8}, r"DPDecode\.requests: .*at most"),
     ({"source": "/nowhere.csv"}, "nowhere"),
     ({"source": "/tmp"}, r"DPDecode\.source: there is no"),
     ({"real": True, "barrier": False}, r"DPDecode\.real: .*barrier")],
)  # fmt: skip
def test_what_cannot_run_is_refused_with_the_fix(knobs, says):
    with pytest.raises(OrreryError, match=says):
        run(PLAIN[0], problem=small(**{"requests": 9, "ahead": 9, **knobs}), world=World.lan(2))


def test_faults_without_a_barrier_are_refused():
    world = World.lan(2).with_faults(Crash(node=0, at_s=0.01))
    with pytest.raises(OrreryError, match="barrier=True"):
        run(PLAIN[0], problem=small(requests=9, ahead=9, barrier=False), world=world)
