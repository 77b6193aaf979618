"""The baselines of `dnn_edge_serving`, each beside a figure that is known without them."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from orrery import run
from orrery.base.errors import KnobError, PartError
from orrery.lab import laws
from orrery.systems.serve.baselines.edge_edf import EdgeEDF
from orrery.systems.serve.baselines.edge_fifo import EdgeFIFO
from orrery.systems.serve.baselines.edge_largest_queue import EdgeLargestQueue
from orrery.systems.serve.baselines.edge_round_robin import EdgeRoundRobin
from orrery.systems.serve.baselines.edge_shallowest import EdgeShallowest
from orrery.systems.serve.baselines.edge_shortest_job import EdgeShortestJob
from orrery.systems.serve.baselines.edge_spatial import EdgeSpatial
from orrery.systems.serve.problems.dnn_edge_serving import (
    DNNEdgeServing,
    EdgePolicy,
    Executor,
    Noise,
    Profile,
    Trace,
    Turn,
    View,
    fitting_batch,
    plain_profile,
)

ALL = [EdgeEDF, EdgeFIFO, EdgeRoundRobin, EdgeLargestQueue, EdgeShortestJob, EdgeSpatial,
       EdgeShallowest]  # fmt: skip
S = 0.01


@pytest.fixture
def one_model(tmp_path):
    """A profile file with one exit and batch size 1, so that a request takes S seconds."""

    def write(models: int = 1, exits: int = 1) -> str:
        path = tmp_path / f"plain{models}{exits}.json"
        path.write_bytes(msgspec.json.encode(plain_profile(models, exits, full_s=S)))
        return str(path)

    return write


def poisson(path: str, load: float, seconds: float) -> DNNEdgeServing:
    return DNNEdgeServing(profile=path, models=(), load=load, seconds=seconds, swing=0.0,
                          deadline_lo=1e6, deadline_hi=1e6)  # fmt: skip


# -- closed forms of queues


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_fifo_with_one_model_and_batch_one_is_the_queue_m_d_1(one_model, load):
    made = run(EdgeFIFO(), problem=poisson(one_model(), load, 150.0), seed=1)
    assert made.violations == []
    wait_s = load * S / (2 * (1 - load))  # Pollaczek and Khinchine
    assert made.metrics["mean_wait_s"] == pytest.approx(wait_s, rel=0.08)
    assert made.metrics["busy"] == pytest.approx(load, rel=0.03)


@pytest.mark.parametrize("part", [EdgeRoundRobin(), EdgeLargestQueue(), EdgeEDF()], ids=repr)
def test_orders_that_ignore_the_service_time_wait_as_long_as_fifo(one_model, part):
    """Kleinrock's conservation law: with equal service times no order changes the mean wait."""
    problem = poisson(one_model(3), 0.7, 100.0)
    ours, fifo = (run(each, problem=problem, seed=2).metrics for each in (part, EdgeFIFO()))
    assert ours["mean_wait_s"] == pytest.approx(fifo["mean_wait_s"], rel=1e-6)
    assert ours["mean_wait_s"] == pytest.approx(0.7 * S / (2 * 0.3), rel=0.1)


def test_spatial_sharing_is_processor_sharing(one_model):
    """The mean time in the system of M/G/1-PS is S / (1 - load), and requests overlap."""
    # One model has one stream, so that sharing needs many models of small load each.
    load = 0.6
    problem = poisson(one_model(60), load, 60.0)
    made = run(EdgeSpatial(), problem=problem, seed=3)
    assert made.violations == []
    whole_s = made.metrics["mean_wait_s"] + S
    latency_s = float(np.mean(Kept.latencies(EdgeSpatial(), problem, 3)))
    assert latency_s == pytest.approx(S / (1 - load), rel=0.08)
    assert latency_s > 1.5 * whole_s  # batches last longer than alone


def test_shallowest_is_the_same_queue_at_the_time_of_the_first_exit(one_model):
    load = 0.7  # at full depth; the first of two exits takes half of the time
    made = run(EdgeShallowest(), problem=poisson(one_model(1, 2), load, 120.0), seed=1)
    rho, service_s = load / 2, S / 2
    assert made.metrics["mean_wait_s"] == pytest.approx(rho * service_s / (2 * (1 - rho)), rel=0.08)
    assert made.metrics["full_depth"] == 0.0


class Kept(DNNEdgeServing):
    """The problem, which keeps the log of its last run."""

    logs = []

    def measure(self, outcome):
        self.logs[:] = [outcome.driven]
        return super().measure(outcome)

    @classmethod
    def latencies(cls, part, problem, seed):
        run(part, problem=cls(**problem.changed_knobs()), seed=seed)
        log = cls.logs[0]
        return [b.ended_s - log.trace.arrival_s[r] for b in log.batches for r in b.requests]


# -- optimal orders, against all orders


def all_there(profile: Profile, models: list[int], deadlines_s: list[float]) -> Trace:
    order = sorted(range(len(models)), key=lambda i: (models[i], deadlines_s[i]))
    count = len(profile.models)
    return Trace(np.zeros(len(models)), np.array([deadlines_s[i] for i in order]),
                 np.array([models[i] for i in order]), (1.0,) * count, (1.0,) * count)  # fmt: skip


def play(policy: EdgePolicy, trace: Trace, profile: Profile) -> list[float]:
    """When each request ends, by a loop without an engine."""
    policy.start()
    executor = Executor(trace, profile, policy, Noise((1.0,) * len(profile.models), 0.0, 0.0), 0)
    now_s = 0.0
    while True:
        executor.finish(now_s)
        executor.arrive(now_s)
        executor.fill(now_s)
        following_s = executor.next_s(now_s)
        if following_s is None:
            break
        now_s = following_s
    ends = dict(pair for b in executor.log.batches for pair in zip(b.requests,
                [b.ended_s] * len(b.requests), strict=True))  # fmt: skip
    return [ends[i] for i in range(len(trace))]


def brute(trace: Trace, profile: Profile, cost) -> float:
    best = np.inf
    for order in itertools.permutations(range(len(trace))):
        now_s, ends = 0.0, [0.0] * len(trace)
        for i in order:
            now_s += profile.full_s(int(trace.model[i]))
            ends[i] = now_s
        best = min(best, cost(ends))
    return best


def instances():
    rng = np.random.default_rng(5)
    for _ in range(12):
        times = sorted(rng.uniform(0.5, 3.0, 3))
        profile = Profile(models=("a", "b", "c"), batches=(1,), accuracy=((1.0,),) * 3,
                          seconds=tuple(((float(t),),) for t in times)).check()  # fmt: skip
        models = rng.integers(0, 3, 6).tolist()
        yield profile, all_there(profile, models, rng.uniform(2.0, 12.0, 6).tolist())


def test_edf_has_the_least_greatest_lateness_of_all_orders():
    for profile, trace in instances():

        def worst(ends, trace=trace):
            return float(np.max(np.array(ends) - trace.deadline_s))

        ours = worst(play(EdgeEDF(most_batch=1), trace, profile))
        assert ours == pytest.approx(brute(trace, profile, worst), abs=1e-6)
        if ours <= 0:  # a feasible instance: nobody is late
            assert all(play(EdgeEDF(most_batch=1), trace, profile) <= trace.deadline_s + 1e-6)
    # The same test would see another rule: FIFO by model order is worse somewhere.
    assert any(
        np.max(np.array(play(EdgeRoundRobin(most_batch=1), trace, profile)) - trace.deadline_s)
        > brute(trace, profile, lambda e, t=trace: float(np.max(np.array(e) - t.deadline_s))) + 1e-6
        for profile, trace in instances()
    )


def test_shortest_job_has_the_least_mean_time_of_all_orders():
    for profile, trace in instances():
        ours = np.mean(play(EdgeShortestJob(most_batch=1), trace, profile))
        assert ours == pytest.approx(brute(trace, profile, np.mean), abs=1e-6)


# -- what they are made of


def view_of(profile, queues, now_s=0.0):
    count = len(profile.models)
    return View(now_s, queues, (0.0,) * count, (1.0,) * count, (0,) * count, profile)


def test_adaptive_batching_takes_the_largest_batch_in_time():
    profile = plain_profile(1, batches=(1, 2, 4, 8), full_s=1.0)  # 1, 1.5, 2.5, 4.5 s
    for due_s, batch in ((1.2, 1), (1.6, 2), (2.5, 4), (9.0, 8)):
        assert fitting_batch(view_of(profile, ((due_s,) * 8,)), 0, 0) == batch
    assert fitting_batch(view_of(profile, ((9.0,) * 3,)), 0, 0) == 2  # three in a four are fewer
    assert fitting_batch(view_of(profile, ((9.0,) * 8,)), 0, 0, most=2) == 2
    assert fitting_batch(view_of(profile, ((0.1,) * 8,)), 0, 0) == 8  # lost: throughput counts


def test_adaptive_batching_avoids_a_size_that_answers_fewer_a_second():
    profile = Profile(models=("a",), batches=(1, 2, 4), accuracy=((1.0,),),
                      seconds=(((1.0, 1.2, 9.0),),)).check()  # fmt: skip
    assert fitting_batch(view_of(profile, ((50.0,) * 4,)), 0, 0) == 2


def test_round_robin_takes_turns_and_largest_queue_looks_at_length():
    profile = plain_profile(3)
    robin = EdgeRoundRobin()
    robin.start()
    full = view_of(profile, ((1.0,),) * 3)
    assert [robin.next_turn(full).model for _ in range(4)] == [0, 1, 2, 0]
    assert robin.next_turn(view_of(profile, ((1.0,), (), (1.0,)))).model == 2
    uneven = view_of(profile, ((1.0,), (1.0, 1.0), ()))
    assert EdgeLargestQueue().next_turn(uneven).model == 1


@pytest.mark.parametrize("late", ["serve", "last", "drop"])
def test_hopeless_requests_are_served_put_last_or_dropped(late):
    made = run(EdgeEDF(late=late), problem=DNNEdgeServing(load=1.1, seconds=0.1), seed=4)
    assert made.violations == []
    assert (made.metrics["dropped"] > 0) == (late == "drop")


@pytest.mark.parametrize("cls", ALL)
def test_they_obey_the_laws_of_policies(cls):
    assert [str(broken) for broken in laws.check(cls(), DNNEdgeServing(seconds=0.1))] == []


def test_bad_knobs_and_bad_parts_are_refused_by_name():
    with pytest.raises(KnobError, match="most_batch"):
        EdgeFIFO(most_batch=0.5)
    with pytest.raises(KnobError, match="late"):
        EdgeEDF(late="never")
    with pytest.raises(KnobError, match="one real executor"):
        run(EdgeSpatial(), problem=DNNEdgeServing(real=True), seed=0)

    class Wild(EdgePolicy):
        """Answers nonsense."""

        def next_turn(self, view):
            return Turn(7, 0, 1)

    with pytest.raises(PartError, match="there is no model 7"):
        run(Wild(), problem=DNNEdgeServing(seconds=0.1), seed=0)
