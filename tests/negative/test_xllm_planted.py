"""What xLLM's mechanisms prevent does happen without them, and the checker sees it."""

from __future__ import annotations

import msgspec
import pytest

from orrery import run
from orrery.systems.serve.problems.llm_elastic import LLMElastic, faults_of, figures
from orrery.systems.serve.problems.llm_elastic.audit import Crashed
from orrery.systems.serve.problems.llm_elastic.paced import Paced
from orrery.systems.serve.problems.llm_elastic.tiny import TinyEngine
from orrery.systems.serve.xllm import XLLM, XInstance
from orrery.world import Crash, World, machine

A100 = machine("server").replace(accelerators=("A100-80-SXM",), nic_Bps=25e9)


def pod(count, *faults):
    return World.lan(count, machine=A100, bandwidth_Bps=25e9, latency_s=5e-6).with_faults(*faults)


class Equal(XLLM):
    """Lets offline jobs in as if they were online ones."""

    def scheduler(self, profile):
        made = Paced(max_seqs=self.max_seqs, max_tokens=self.max_tokens)
        made.profile = profile
        return made


def test_without_precedence_online_jobs_suffer_from_offline_ones():
    problem = LLMElastic(model="Qwen3-14B", requests=120, rate_per_s=4.0, offline="conv",
                         seconds=30.0, ttft_s=1.0, tpot_s=0.1, sample=0)  # fmt: skip
    knobs = {"pipelined": False, "max_seqs": 64}
    found = {}
    for part in (XLLM(**knobs), Equal(**knobs), XLLM(colocate=False, **knobs)):
        log = problem.play(part, 1, pod(2))
        assert faults_of(log) == []
        found[type(part), part.colocate] = figures(log, problem.target)["attainment"]
    assert found[XLLM, True] >= found[XLLM, False] - 0.02
    assert found[Equal, True] < found[XLLM, False] - 0.2


class Deaf(XLLM):
    """Never hears of a death, so its index keeps what is gone."""

    def died(self, instance):
        pass


def test_an_index_that_forgets_nothing_still_names_the_dead():
    problem = LLMElastic(workload="prefixes", requests=50, rate_per_s=6.0, most_output=60,
                         sample=0, report_s=0.5)  # fmt: skip
    world = pod(3, Crash(node=1, at_s=5.0))
    for part, forgets in ((Deaf(pipelined=False), False), (XLLM(pipelined=False), True)):
        assert faults_of(problem.play(part, 2, world)) == []
        assert (1 not in part.index._of) == forgets


@pytest.fixture(scope="module")
def clean():
    problem = LLMElastic(requests=40, sample=0, detect_s=0.5, heartbeat_s=0.1)
    log = problem.play(XLLM(), 1, pod(2, Crash(node=1, at_s=1.0)))
    assert faults_of(log) == [] and log.crashes
    return log


def changed(log, **fields):
    return msgspec.structs.replace(log, **fields)


def test_the_checker_sees_what_must_not_happen(clean):
    first = clean.served[0]
    crash = clean.crashes[0]
    late = Crashed(crash.instance, crash.at_s, crash.at_s + 9.0, 1)
    planted = {
        "lost": changed(clean, served=clean.served[1:]),
        "answered_twice": changed(clean, served=[*clean.served, first]),
        "answered_and_failed": changed(clean, failed=[first.id]),
        "cut_short": changed(clean, served=[
            msgspec.structs.replace(first, output_tokens=first.output_tokens + 1),
            *clean.served[1:]]),
        "out_of_time": changed(clean, served=[
            msgspec.structs.replace(first, first_s=first.last_s + 1), *clean.served[1:]]),
        "wrong_answer": changed(clean, wrong=[3]),
        "cache_books": changed(clean, faults=["a page is lost"]),
        "late_notice": changed(clean, crashes=[late]),
    }  # fmt: skip
    for kind, wrong in planted.items():
        assert kind in {violation.kind for violation in faults_of(wrong)}, kind


class HastyEngine(TinyEngine):
    """Believes the last token of each draft."""

    def _advance(self, number, state):
        new = super()._advance(number, state)
        if new and number % 7 == 3 and len(state[0]) % 2:
            new[-1] = state[0][-1] = (new[-1] + 1) % self.model.vocab
        return new


class HastyInstance(XInstance):
    """An instance whose engine says some tokens that it did not verify."""

    def new_engine(self):
        made = super().new_engine()
        made.__class__ = HastyEngine
        return made


class Hasty(XLLM):
    """xLLM with such instances."""

    def instance(self):
        return HastyInstance()


def test_a_wrong_token_of_a_real_instance_is_noticed():
    problem = LLMElastic(real=True, requests=21, rate_per_s=200.0)
    made = run(Hasty(), problem=problem, world=World.lan(2), seed=1)
    assert {violation.kind for violation in made.violations} == {"wrong_answer"}
    assert run(XLLM(), problem=problem, world=World.lan(2), seed=1).violations == []
