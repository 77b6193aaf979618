"""DriftSched: estimates that learn, queues that use them, shares, ages, and nothing lost."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

from orrery import run
from orrery.base.errors import KnobError, PlatformLacks, UsageError
from orrery.base.rand import Stream
from orrery.inputs.draws import normals, uniforms
from orrery.models.replica import Replica, drain
from orrery.models.requests import Request, Running
from orrery.systems.serve.baselines.ageing_priority import AgeingPriority
from orrery.systems.serve.baselines.estimated_shortest import EstimatedShortest
from orrery.systems.serve.baselines.oracle_shortest import OracleShortest
from orrery.systems.serve.baselines.priority_first import PriorityFirst
from orrery.systems.serve.baselines.vllm_v1 import VllmV1
from orrery.systems.serve.baselines.weighted_shares import WeightedShares
from orrery.systems.serve.driftsched import Bias, Drift, DriftSched
from orrery.systems.serve.problems.llm_tenants import LLMTenants, faults_of
from orrery.systems.serve.problems.tenant_desk import (
    LinearSteps,
    errors_of,
    overtaken,
    service_shares,
)
from orrery.systems.serve.problems.tenant_loads import Offer, category_of, tenant_of

DRIFTS = {"a": 0.5, "b": 0.8, "c": 1.5, "d": 3.0}
TURNED = {"a": 1.5, "b": 3.0, "c": 0.5, "d": 0.8}


def play(part, seed=0, **knobs):
    """The log of one run without an engine, audited."""
    log = LLMTenants(**knobs).desk(part, seed).play()
    assert faults_of(log) == []
    return log


def latencies(log, kind=None):
    return np.array([each.latency_s for each in log.served if kind in (None, each.kind)])


# -- 1: generated drift


def drifted(seed, before, after, count=1000):
    """(category, estimate, true length, what an oracle of the factors says), finished at once."""
    names = sorted(before)
    kind = (uniforms(Stream(seed, "drift", "kind"), 4 * count) * len(names)).astype(int)
    estimate = 50 + 350 * uniforms(Stream(seed, "drift", "estimate"), 4 * count)
    noise = np.exp(0.4 * normals(Stream(seed, "drift", "noise"), 4 * count))
    for at in range(4 * count):
        name = names[kind[at]]
        factor = (before if at < 2 * count else after)[name]
        oracle = estimate[at] * factor
        yield name, estimate[at], max(round(oracle * noise[at]), 1), oracle


def mean_errors(seed, before, after, drift=None, since=0):
    """MAE of (given, corrected, oracle), over what comes `since` requests after the change."""
    drift = drift or Drift()
    after_change, rows = dict.fromkeys(before, 0), []
    for at, (name, estimate, true, oracle) in enumerate(drifted(seed, before, after)):
        told = estimate * drift.factor(name)
        drift.learn(name, estimate, true)
        after_change[name] += at >= 2000
        if not since or after_change[name] > since:
            rows.append((abs(true - estimate), abs(true - told), abs(true - oracle)))
    return np.mean(rows, axis=0)


@pytest.mark.works_when("driftsched", 1)
def test_drift_is_corrected_nearly_as_well_as_by_an_oracle(capsys):
    totals = np.mean([mean_errors(seed, DRIFTS, TURNED) for seed in range(4)], axis=0)
    given, corrected, oracle = totals
    with capsys.disabled():
        print(f"\n  MAE: given {given:.1f}, corrected {corrected:.1f}, oracle {oracle:.1f}")
    for seed in range(4):
        given, corrected, oracle = mean_errors(seed, DRIFTS, TURNED)
        assert corrected < given
        assert corrected <= 1.10 * oracle
        _, later, best = mean_errors(seed, DRIFTS, TURNED, since=100)
        assert later <= 1.15 * best, "100 requests of a category after the change"


@pytest.mark.works_when("driftsched", 1)
def test_where_nothing_drifts_the_correction_costs_little():
    still = dict.fromkeys(DRIFTS, 1.0)
    for seed in range(4):
        given, corrected, _ = mean_errors(seed, still, still)
        assert corrected <= 1.02 * given


@pytest.mark.works_when("driftsched", 1)
def test_without_forgetting_or_with_a_plain_average_the_bounds_are_missed():
    """What the two design choices are for: each bound fails without one of them."""

    class Plain(Drift):
        """The plain mean of the ratios, with no surprise cut."""

        def learn(self, kind, estimate, observed):
            bias = self.biases.setdefault(kind, Bias())
            bias.seen += 1
            bias.factor += max(0.03, 1 / (bias.seen + 4)) * (observed / estimate - bias.factor)

    still = dict.fromkeys(DRIFTS, 1.0)
    slow = [mean_errors(seed, DRIFTS, TURNED, Drift(forget=False)) for seed in range(4)]
    assert all(corrected > 1.10 * oracle for _, corrected, oracle in slow)
    mean = [mean_errors(seed, still, still, Plain()) for seed in range(4)]
    assert all(corrected > 1.02 * given for given, corrected, _ in mean)
    off = [mean_errors(seed, DRIFTS, TURNED, Drift(gain=0.0, prior=1e12, forget=False))
           for seed in range(2)]  # fmt: skip
    assert all(corrected == pytest.approx(given) for given, corrected, _ in off)


# -- 2: real lengths


def by_category(part, seed, workload):
    """For each category: how far its mean is off, and (MAE, RMSE) given and corrected."""
    data = os.environ.get("ORRERY_DATA", "") if workload == "traces" else ""
    problem = LLMTenants(workload=workload, requests=1500, data=data)
    log = problem.desk(part, seed).play()
    assert faults_of(log) == []
    kinds, told, given = errors_of(log, 200)
    found = {}
    for at, kind in enumerate(sorted({each.kind for each in log.offers})):
        mine = kinds == at
        true = np.mean([each._output_tokens for each in log.offers if each.kind == kind])
        errors = [(np.abs(e[mine]).mean(), np.sqrt((e[mine] ** 2).mean())) for e in (given, told)]
        found[kind] = (abs(true / log.offers[0].estimate - 1), *errors)
    return found, problem.figures(log)


def check_real_lengths(workload, seeds, show):
    for seed in seeds:
        found, figures = by_category(DriftSched(), seed, workload)
        far = {kind: row for kind, row in found.items() if row[0] > 0.2}
        assert {"code", "mooncake"} <= set(far)
        for kind, (_, given, told) in far.items():
            assert told[0] < given[0] and told[1] < given[1], f"{workload} {kind} seed {seed}"
        lower = [100 * (1 - figures[f"{each}_tokens"] / figures[f"given_{each}_tokens"])
                 for each in ("mae", "rmse")]  # fmt: skip
        show(f"\n  {workload} seed {seed}: MAE {lower[0]:.1f} % lower, RMSE {lower[1]:.1f} % lower "
             "(published 38.8 % / 40.5 %)")  # fmt: skip


@pytest.mark.works_when("driftsched", 2)
def test_real_lengths_from_the_generators(capsys):
    with capsys.disabled():
        check_real_lengths("lengths", range(3), lambda text: print(text, end=""))


@pytest.mark.works_when("driftsched", 2)
def test_real_lengths_from_the_traces(capsys):
    if not os.path.isdir(os.path.join(os.environ.get("ORRERY_DATA", "/nowhere"), "azure_llm_2023")):
        pytest.skip("needs ORRERY_DATA with the Azure and Mooncake traces")
    with capsys.disabled():
        check_real_lengths("traces", range(3), lambda text: print(text, end=""))


def test_uncorrected_estimates_stay_as_bad_as_they_were():
    found, _ = by_category(DriftSched(correct=False), 0, "lengths")
    assert all(given == told for _, given, told in found.values())


# -- 3: queues

ROW = {
    "fifo": VllmV1(), "priority": PriorityFirst(), "weighted": WeightedShares(),
    "ageing": AgeingPriority(), "sjf as estimated": EstimatedShortest(),
    "sjf corrected": DriftSched(), "sjf uncorrected": DriftSched(correct=False),
    "sjf oracle": OracleShortest(), "fifo corrected": DriftSched(policy="fifo"),
    "ageing corrected": DriftSched(policy="aging"),
    "weighted corrected": DriftSched(policy="weighted"),
}  # fmt: skip


@pytest.mark.works_when("driftsched", 3)
@pytest.mark.slow
def test_shortest_job_first_gains_more_with_corrected_estimates(capsys):
    wanted = ("fifo", "sjf corrected", "sjf uncorrected", "sjf oracle")
    median, p99 = {}, {}
    for name in wanted:
        logs = [play(ROW[name], seed, requests=1200) for seed in range(5)]
        median[name] = np.array([np.median(latencies(log)) for log in logs])
        p99[name] = np.mean([np.quantile(latencies(log), 0.99) for log in logs])
    with capsys.disabled():
        for name in wanted:
            print(f"\n  {name}: median {median[name].mean():.1f} s, p99 {p99[name]:.1f} s", end="")
    ours = median["sjf corrected"]
    assert (ours < median["fifo"]).all() and ours.mean() < 0.7 * median["fifo"].mean()
    assert ours.mean() < median["sjf uncorrected"].mean()
    gains = median["sjf uncorrected"] - ours
    assert gains.mean() > 2 * gains.std(ddof=1) / math.sqrt(5) > 0, "beyond the noise of the seeds"
    assert ours.mean() >= 0.98 * median["sjf oracle"].mean()
    given = play(ROW["sjf as estimated"], 0, requests=1200)
    assert np.median(latencies(given)) == median["sjf uncorrected"][0], "the same rule"


@pytest.mark.works_when("driftsched", 3)
def test_without_a_queue_all_policies_are_alike():
    medians = [
        np.mean([np.median(latencies(play(part, seed, requests=250, loads=(0.3, 0.3))))
                 for seed in range(3)])
        for part in ROW.values()
    ]  # fmt: skip
    assert max(medians) <= 1.02 * min(medians)


def test_the_constants_are_those_of_the_data_sheet():
    fixed_s, token_s, kv_s = LLMTenants().constants()
    assert fixed_s == pytest.approx(8.03e9 * 2 / (300e9 * 0.8), rel=0.01)
    assert token_s == pytest.approx(2 * 8.03e9 / (121e12 * 0.78), rel=0.01)
    assert kv_s == pytest.approx(2 * 32 * 8 * 128 * 2 / (300e9 * 0.8), rel=0.01)


# -- 4: ages


@pytest.mark.works_when("driftsched", 4)
def test_nobody_past_the_age_limit_is_overtaken():
    knobs = {"requests": 500, "priorities": {"code": 1, "reasoning": 2}}
    for seed in range(3):
        aged = play(DriftSched(policy="aging"), seed, **knobs)
        assert overtaken(aged.served, 60.0) == []
        waits = [each.started_s - each.arrival_s for each in aged.served]
        assert max(waits) > 60.0, "or nobody ever reached the limit"
        order = [each.id for each in sorted(aged.served, key=lambda each: each.started_s)]
        assert order != sorted(order), "below the limit it is no first come first served"
        plain = play(DriftSched(), seed, **knobs)
        assert len(overtaken(plain.served, 60.0)) > 50


def test_the_audit_of_ages_equals_the_obvious_one():
    log = play(DriftSched(), 1, requests=200)
    found = {
        (a.id, b.id)
        for a in log.served for b in log.served
        if (a.arrival_s, a.id) < (b.arrival_s, b.id) and a.arrival_s < b.arrival_s
        and b.started_s < a.started_s and b.started_s - a.arrival_s >= 20.0
    }  # fmt: skip
    assert set(overtaken(log.served, 20.0)) == found != set()


# -- 5: shares

WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}
THREE = {
    "tenants": ("a/x", "b/x", "c/x"), "drift": (2.0, 1.0, 0.5), "turned": (2.0, 1.0, 0.5),
    "shares": (1, 1, 2), "loads": (2.0, 2.0), "requests": 700,
}  # fmt: skip


def shares_of(part, seed):
    """Shares while all tenants are backlogged: from a minute on until the last arrival."""
    log = play(part, seed, **THREE)
    return service_shares(log.served, 60.0, log.offers[-1].arrival_s, 0.05)


@pytest.mark.works_when("driftsched", 5)
def test_backlogged_tenants_get_their_weights():
    for seed in range(3):
        for correct in (True, False):
            part = DriftSched(policy="weighted", weights=WEIGHTS, correct=correct)
            got = shares_of(part, seed)
            assert all(abs(got[tenant] - WEIGHTS[tenant]) <= 0.05 for tenant in WEIGHTS), got
    blind = shares_of(DriftSched(policy="fifo", weights=WEIGHTS), 0)
    assert max(abs(blind[tenant] - WEIGHTS[tenant]) for tenant in WEIGHTS) > 0.05


@pytest.mark.works_when("driftsched", 5)
@pytest.mark.slow
def test_a_flood_does_not_harm_a_tenant_inside_its_share(capsys):
    knobs = {"tenants": ("calm/x", "loud/x"), "shares": (1, 3), "drift": (1.0, 1.0),
             "turned": (1.0, 1.0), "loads": (0.8, 0.8), "requests": 240}  # fmt: skip

    def p95(policy, **more):
        found = [latencies(play(DriftSched(policy=policy), seed, **knobs, **more), "calm/x")
                 for seed in range(3)]  # fmt: skip
        return np.quantile(np.concatenate(found), 0.95)

    calm, flood = p95("weighted"), p95("weighted", floods={"loud": 10.0})
    with capsys.disabled():
        print(f"\n  p95 of the calm tenant: {calm:.1f} s, in the flood {flood:.1f} s", end="")
    assert flood <= 1.2 * calm
    assert p95("fifo", floods={"loud": 10.0}) > 3 * calm, "what the flood does without shares"


def test_who_comes_back_has_not_saved_up_service():
    part = DriftSched(policy="weighted")
    part.start()
    part.served = {"a": 100.0, "b": 5.0}
    part.queued = frozenset({"a"})
    waiting = [Running(Offer(n, 0.0, 1, 5, kind=f"{'ab'[n % 2]}/x", estimate=10.0), float(n))
               for n in range(8)]  # fmt: skip
    order = [tenant_of(seq.request.kind) for seq in part.order(waiting, 9.0)]
    assert order[:4] in (["a", "b", "a", "b"], ["b", "a", "b", "a"])


# -- 6: nothing lost, nothing corrupted


@pytest.mark.works_when("driftsched", 6)
@pytest.mark.parametrize("policy", ["fifo", "priority", "weighted", "sjf", "aging"])
def test_every_request_ends_once_also_cancelled_and_refused_ones(policy):
    part = DriftSched(policy=policy, limit=12)
    log = play(part, 3, requests=500, cancels=0.2, loads=(1.5, 1.5), blocks=900)
    assert len(log.refused) > 5 and len(log.cancelled) > 20 and len(log.served) > 200
    assert all("limit is 12" in reason for _, reason in log.refused)
    again = play(part, 3, requests=500, cancels=0.2, loads=(1.5, 1.5), blocks=900)
    assert again.served == log.served and again.refused == log.refused
    assert play(part, 4, requests=500, cancels=0.2, loads=(1.5, 1.5)).served != log.served


@pytest.mark.works_when("driftsched", 6)
def test_a_seed_fixes_the_run_on_the_engine():
    runs = [run(DriftSched(), problem=LLMTenants(requests=150, cancels=0.1), seed=seed)
            for seed in (5, 5, 6)]  # fmt: skip
    assert all(each.ok for each in runs)
    assert runs[0].digest == runs[1].digest and runs[0].seconds == runs[1].seconds
    assert runs[0].metrics == runs[1].metrics != runs[2].metrics


@pytest.mark.works_when("driftsched", 6)
def test_odd_ends_do_not_corrupt_the_bias():
    part = DriftSched()
    part.start()

    def end(kind, estimate, made):
        seq = Running(Offer(0, 0.0, 5, max(made, 1), kind=kind, estimate=estimate), 0.0)
        seq.generated = made
        part.finished(seq, 1.0)

    for _ in range(40):
        end("a/x", 100.0, 200)
    learnt = part.drift.factor("a/x")
    assert learnt == pytest.approx(2.0, rel=0.05)
    end("a/x", 100.0, 0)  # an empty answer
    end("a/x", math.inf, 200)  # that is no estimate; our own guess is learnt apart
    end("a/x", math.nan, 200)
    part.drift.learn("a/x", 100.0, math.nan)
    part.drift.learn("a/x", 0.0, 100.0)
    part.drift.learn("a/x", -1.0, 100.0)
    assert part.drift.ignored == 4
    assert part.drift.factor("a/x") == learnt
    assert part.drift.biases["a/x?"].seen == 2
    unknown = Request(9, 0.0, 5, 1, kind="never seen")
    assert part.expected(unknown) == 200.0, "an unknown kind has its own estimate, uncorrected"
    one = part.drift.factor("a/x")
    part.drift.learn("a/x", 100.0, 1e12)
    assert part.drift.factor("a/x") <= one * 1.5, "one absurd answer moves it by half at most"


@pytest.mark.works_when("driftsched", 6)
def test_cancelled_answers_are_not_learnt():
    """The replica tells a scheduler of complete answers only, each once."""
    told = []

    class Listening(DriftSched):
        def finished(self, seq, now_s):
            told.append((seq.request.id, seq.generated))
            super().finished(seq, now_s)

    log = play(Listening(), 2, requests=300, cancels=0.3)
    assert sorted(told) == sorted((each.id, each.output_tokens) for each in log.served)
    assert len(log.cancelled) > 40
    replica = Replica(LinearSteps(0.01, 0.0, 0.0), Listening(), blocks=50)
    told.clear()
    drain(replica, [Request(0, 0.0, 3, 7), Request(1, 0.0, 3, 1)])
    assert sorted(told) == [(0, 7), (1, 1)]


def test_the_checker_sees_what_must_not_happen():
    log = play(DriftSched(limit=5), 0, requests=120, loads=(2.0, 2.0))
    assert log.refused
    number = log.refused[0][0]
    short = log.served[0].__class__(**{
        name: getattr(log.served[0], name) for name in log.served[0].__struct_fields__
    } | {"output_tokens": 0})  # fmt: skip
    planted = {
        "lost": log._replace(served=log.served[1:]),
        "answered_twice": log._replace(served=log.served + log.served[:1]),
        "no_reason": log._replace(refused=[(number, ""), *log.refused[1:]]),
        "cut_short": log._replace(served=[short, *log.served[1:]]),
        "cache_books": log._replace(faults=["1 block counted"]),
        "answered_and_failed": log._replace(cancelled=[log.served[0].id]),
    }
    for kind, wrong in planted.items():
        assert kind in {violation.kind for violation in faults_of(wrong)}


# -- knobs and bad input


@pytest.mark.parametrize("knobs", [
    {"policy": "lifo"}, {"gain": -0.1}, {"gain": math.nan}, {"by": "user"}, {"limit": -1},
    {"weights": {"a": 0.0}}, {"weights": {"a": "much"}}, {"age_s": 0}, {"nonsense": 1},
])  # fmt: skip
def test_wrong_knobs_are_refused(knobs):
    with pytest.raises(KnobError):
        DriftSched(**knobs).start()


@pytest.mark.parametrize("knobs", [
    {"drift": (1.0,)}, {"turned": ()}, {"shares": (1.0, 1.0)}, {"shares": (0, 0, 0, 0)},
    {"floods": {"nobody": 2.0}}, {"floods": {"chat": 0.5}}, {"estimates": (5.0, 1.0)},
    {"requests": 0}, {"loads": (0.0, 1.0)}, {"workload": "poems"}, {"noise": math.inf},
    {"model": "Llama-3.1-405B"}, {"workload": "traces", "data": "/nowhere"},
])  # fmt: skip
def test_a_question_that_makes_no_sense_is_refused(knobs):
    with pytest.raises((KnobError, UsageError, PlatformLacks)):
        LLMTenants(**knobs).desk(DriftSched(), 0)


def test_gain_zero_says_what_to_do():
    with pytest.raises(KnobError, match="correct=False"):
        DriftSched(gain=0.0).start()


def test_kinds_name_tenants_and_categories():
    assert (tenant_of("acme/chat"), category_of("acme/chat")) == ("acme", "chat")
    assert tenant_of("chat") == category_of("chat") == "chat"
    shared, apart = Drift(by="category"), Drift(by="tenant")
    for drift in (shared, apart):
        for _ in range(50):
            drift.learn("acme/chat", 10.0, 30.0)
    assert shared.factor("other/chat") > 2.5 and apart.factor("other/chat") == 1.0


# -- 7: before a real engine


@pytest.mark.slow
@pytest.mark.works_when("driftsched", 7)
def test_a_real_engine_ranks_the_policies_as_virtual_time_does():
    pytest.importorskip("torch", reason="needs the extra torch")
    from tests.systems.serve.real_queue import medians_of

    fifo, sjf = medians_of(DriftSched(policy="fifo")), medians_of(DriftSched(policy="sjf"))
    for place, engine in enumerate(("real", "virtual")):
        print(f"{engine}: fifo {fifo[place]:.4f} s, sjf {sjf[place]:.4f} s")
        assert sjf[place] < fifo[place], engine
