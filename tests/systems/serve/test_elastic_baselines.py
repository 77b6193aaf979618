"""The baselines of the elastic pool stand where theory, or the plain replica, puts them."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import run
from orrery.base.errors import KnobError, PartError, UsageError
from orrery.models.replica import Replica, drain
from orrery.models.requests import Request
from orrery.systems.serve.baselines.elastic_separate import ElasticSeparate
from orrery.systems.serve.baselines.elastic_static_split import ElasticStaticSplit
from orrery.systems.serve.baselines.elastic_synchronous import ElasticSynchronous
from orrery.systems.serve.baselines.vllm_v1 import VllmV1
from orrery.systems.serve.problems.llm_elastic import LLMElastic, faults_of, figures
from orrery.systems.serve.problems.llm_elastic.device import HOST_S, Synchronous, floored_run
from orrery.systems.serve.problems.llm_elastic.ports import ElasticPolicy, Placement
from orrery.systems.serve.problems.tenant_desk import LinearSteps
from orrery.world import World, machine

A100 = machine("server").replace(accelerators=("A100-80-SXM",), nic_Bps=25e9)


def pod(count):
    """So many machines with one A100 each, on a fast network."""
    return World.lan(count, machine=A100, bandwidth_Bps=25e9, latency_s=5e-6)


@pytest.mark.parametrize("part", [
    ElasticSeparate(max_seqs=24), ElasticSynchronous(paced=False, max_seqs=24), ElasticPolicy(),
])  # fmt: skip
def test_one_fused_instance_is_the_plain_replica(part):
    """With one instance and nothing offline, the pool serves exactly as `Replica` does."""
    problem = LLMElastic(requests=120, rate_per_s=6.0, blocks=3000, sample=0)
    log = problem.play(part, 3, pod(1))
    assert faults_of(log) == []
    plan = problem.plan(pod(1))
    seats = part.knobs().get("max_seqs", 256)
    plain = Replica(
        Synchronous(plan.device), VllmV1(max_seqs=seats), blocks=plan.blocks, ahead=False
    )
    alone = drain(plain, [
        Request(job.id, job.arrival_s, job.prompt_tokens, job._output_tokens)
        for job in problem.jobs(3)
    ])  # fmt: skip
    rows = sorted((each.id, each.first_s, each.last_s, each.preempted) for each in alone)
    assert sorted((each.id, each.first_s, each.last_s, each.preempted) for each in log.served) == [
        (number, pytest.approx(first), pytest.approx(last), lost)
        for number, first, last, lost in rows
    ]
    assert plain.preemptions == log.preemptions


def test_a_prefill_instance_is_an_m_d_1_queue():
    """Prompts that fill a step each wait as Pollaczek and Khinchine say: rho s / 2 (1 - rho)."""
    problem = LLMElastic(workload="even", prompt=2048, output=1, requests=4000, sample=0,
                         rate_per_s=4.0)  # fmt: skip
    service_s = Synchronous(problem.device(pod(2))).seconds(((2048, 0),), 0, 0)
    load = problem.rate_per_s * service_s
    assert 0.4 < load < 0.8
    log = problem.play(ElasticStaticSplit(prefill=1), 1, pod(2))
    mean_s = np.mean([each.ttft_s for each in log.served])
    assert mean_s == pytest.approx(service_s + load * service_s / (2 * (1 - load)), rel=0.05)
    assert log.busy_s[1] == 0.0, "nobody decodes a single token"


def test_a_decode_instance_gives_the_closed_form_of_its_steps():
    """One job on one prefill and one decode instance: its times are sums of step times."""
    problem = LLMElastic(workload="even", prompt=1000, output=50, requests=1, sample=0)
    log = problem.play(ElasticStaticSplit(prefill=1), 1, pod(2))
    (each,), plan = log.served, problem.plan(pod(2))
    steps = Synchronous(plan.device)
    assert each.ttft_s == pytest.approx(steps.seconds(((1000, 0),), 0, 0))
    sent_s = plan.move_s(1000)
    assert each.last_s - each.first_s == pytest.approx(sent_s + steps.decode_run(1, 1001, 49))
    assert log.moved_B == 1000 * plan.kv_B


def test_static_split_never_changes_and_its_oracle_does():
    problem = LLMElastic(workload="flip", rates=(10.0, 4.0), window_s=5.0, seconds=10.0, sample=0,
                         most_output=100)  # fmt: skip
    still = problem.play(ElasticStaticSplit(prefill=2), 1, pod(4))
    moved = problem.play(ElasticStaticSplit(prefill=3, oracle=((0, 3), (5.0, 1))), 1, pod(4))
    assert still.switches == [] and len(moved.switches) == 2
    assert faults_of(still) == faults_of(moved) == []
    assert all(abs(when - 5.0) < 1.1 for when, *_ in moved.switches)


def test_separate_clusters_stay_separate():
    problem = LLMElastic(requests=60, rate_per_s=6.0, offline="conv", seconds=15.0, sample=0)
    log = problem.play(ElasticSeparate(online=1, max_seqs=32), 2, pod(3))
    assert {each.replica for each in log.served} == {0}
    assert {each.replica for each in log.offline} == {1, 2}
    alone = problem.with_knobs(offline="").play(ElasticSeparate(max_seqs=32), 2, pod(1))
    assert [each.last_s for each in log.served] == [each.last_s for each in alone.served]


def test_the_synchronous_engine_adds_the_host_to_every_step():
    device = LLMElastic().device(LLMElastic().world())
    steps = Synchronous(device)
    bare = device.decode_run(16, 16_000, 100)
    assert steps.decode_run(16, 16_000, 100) == pytest.approx(bare + 100 * HOST_S)
    assert floored_run(LinearSteps(1.0, 0.0, 0.0), 1, 0, 5, 3.0) == 15.0


def test_pacing_keeps_the_target_of_a_token_and_costs_nothing_when_off():
    problem = LLMElastic(requests=150, rate_per_s=500.0, tpot_s=0.05, sample=0)
    paced = figures(problem.play(ElasticSynchronous(), 1, pod(1)), problem.target)
    loose = figures(problem.play(ElasticSynchronous(paced=False), 1, pod(1)), problem.target)
    assert paced["tpot_p99_s"] <= 0.05 < loose["tpot_p99_s"]
    assert paced["paced_tokens_per_s"] > loose["paced_tokens_per_s"]


def test_they_run_on_the_engine():
    problem = LLMElastic(requests=60)
    for part in (ElasticStaticSplit(), ElasticSeparate(online=6), ElasticSynchronous(graphs=True)):
        made = run(part, problem=problem, seed=4)
        assert made.ok and made.metrics["failed"] == 0 and made.ended == "driven"


# -- bad input


@pytest.mark.parametrize("knobs", [
    {"model": "Llama-3.1-405B"}, {"offline": "poems"}, {"detect_s": 0.3}, {"workload": "poems"},
    {"requests": 0}, {"rate_per_s": float("nan")}, {"rates": (0.0, 1.0)}, {"tpot_s": -1.0},
    {"wave": "high"}, {"no_such": 1}, {"blocks": 3}, {"requests": 2_000_000_000},
])  # fmt: skip
def test_a_question_that_makes_no_sense_is_refused(knobs):
    with pytest.raises((KnobError, UsageError)):
        LLMElastic(**knobs).pool(ElasticSeparate(), 0, pod(2))


def test_a_world_without_accelerators_is_refused():
    with pytest.raises(UsageError, match="no accelerator"):
        LLMElastic().play(ElasticSeparate(), 0, World.lan(2))


@pytest.mark.parametrize("answer", [["E"] * 2, ["EP"] * 2, ["D"], ["EPD", "X"]])
def test_roles_that_cannot_be_are_refused(answer):
    class Odd(ElasticPolicy):
        """Gives roles that cannot be."""

        def roles(self, view):
            return answer

    with pytest.raises(PartError, match=r"Odd\.roles"):
        LLMElastic(requests=2, sample=0).play(Odd(), 0, pod(2))


def test_a_place_that_is_not_there_is_refused():
    class Lost(ElasticPolicy):
        """Sends jobs to an instance that is not there."""

        def place(self, job, phase, view):
            return Placement(77)

    with pytest.raises(PartError, match="instance 77"):
        LLMElastic(requests=2, sample=0).play(Lost(), 0, pod(2))
