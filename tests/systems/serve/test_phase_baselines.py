"""The rivals of semi-PD where theory or another model of ours puts them, and their refusals."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import run
from orrery.base.errors import KnobError, PartError, SpecError, UsageError
from orrery.base.rand import Stream
from orrery.inputs.draws import uniforms
from orrery.models.replica import Replica, drain
from orrery.models.requests import Request
from orrery.systems.serve.baselines.phase_chunked import PhaseChunked
from orrery.systems.serve.baselines.phase_disaggregated import PhaseDisaggregated
from orrery.systems.serve.baselines.phase_static_split import PhaseStaticSplit
from orrery.systems.serve.baselines.phase_unchunked import PhaseUnchunked
from orrery.systems.serve.baselines.sarathi import Sarathi
from orrery.systems.serve.problems.llm_phases import (
    Asked,
    LLMPhases,
    PhasePolicy,
    Place,
    Session,
    faults_of,
    figures,
    loads,
    reach,
    slowdown,
)
from orrery.systems.serve.problems.llm_phases.session import Link
from orrery.world import worlds

# One H100 with an 8B model, by rooflines: no file is needed and a step costs a microsecond.
ONE = {"model": "Llama-3.1-8B", "tp": 1, "devices": 1, "tables": ""}


class Given(LLMPhases):
    """The problem with requests that a test wrote down."""

    def load(self, seed, rate_per_s, world=None):
        return self.__dict__["rows"]


def given(rows, **knobs):
    """A problem that serves (arrival, prompt, answer) rows."""
    problem = Given(**knobs)
    problem.__dict__["rows"] = [
        (Asked(at, arrival_s, prompt, 1.0, 0.1), output)
        for at, (arrival_s, prompt, output) in enumerate(rows)
    ]
    return problem


def conversations(count, rate_per_s, seed=3):
    prompt, output = loads.lengths("azure-conv", "", count, seed)
    arrival_s = loads.arrivals(count, rate_per_s, seed)
    return list(zip(arrival_s.tolist(), prompt.tolist(), output.tolist(), strict=True))


def play(part, rows, **knobs):
    log = given(rows, **{**ONE, **knobs}).play(part, 0)
    assert faults_of(log) == []
    return log


# -- un-chunked: queueing theory


def waits(arrival_s, service_s):
    """The wait of each customer of a single server, one after the other (Lindley, 1952)."""
    free_s, found = 0.0, []
    for at_s, took_s in zip(arrival_s, service_s, strict=True):
        begin_s = max(at_s, free_s)
        found.append(begin_s - at_s)
        free_s = begin_s + took_s
    return np.array(found)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_whole_prompts_of_one_length_wait_as_in_an_md1_queue(load):
    service_s = LLMPhases(**ONE).costs(1).prefill([(2048, 0)])[0]
    arrival_s = loads.arrivals(300_000, load / service_s, 5).tolist()
    exact = waits(arrival_s, [service_s] * 300_000)
    assert exact.mean() == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.04)
    log = play(PhaseUnchunked(), [(at, 2048, 1) for at in arrival_s[:3000]])
    ours = [each.started_s - each.arrival_s for each in log.answers]
    assert ours == pytest.approx(exact[:3000].tolist(), abs=1e-6)


def test_whole_prompts_of_two_lengths_wait_as_in_an_mg1_queue():
    problem = LLMPhases(**ONE)
    took = [problem.costs(1).prefill([(tokens, 0)])[0] for tokens in (1100, 2048)]
    mean, square = np.mean(took), np.mean(np.square(took))
    rate = 0.7 / mean
    arrival_s = loads.arrivals(300_000, rate, 6).tolist()
    draw = (uniforms(Stream(6, "phases", "draw"), 300_000) < 0.5).astype(int).tolist()
    exact = waits(arrival_s, [took[which] for which in draw])
    assert exact.mean() == pytest.approx(rate * square / (2 * (1 - 0.7)), rel=0.04)
    # Two prompts of 1,100 do not fit into one step of 2,048, so each is served alone.
    rows = [(arrival_s[n], (1100, 2048)[draw[n]], 1) for n in range(3000)]
    log = play(PhaseUnchunked(), rows)
    ours = [each.started_s - each.arrival_s for each in log.answers]
    assert ours == pytest.approx(exact[:3000].tolist(), abs=1e-6)


def test_answers_stand_still_while_a_prompt_is_computed():
    rows = [(0.0, 500, 200), (0.5, 8000, 2)]
    whole_s = LLMPhases(**ONE).costs(1).prefill([(8000, 0)])[0]
    log = play(PhaseUnchunked(), rows, prompt_tokens=8192)
    chunked = play(PhaseChunked(chunk=512), rows)
    gap = {each.id: each for each in log.answers}[0]
    assert gap.last_s - gap.first_s > whole_s
    slowest = {each.id: each.gap_s for each in chunked.answers}[0]
    assert slowest < 0.2 * whole_s


# -- chunked: the replica that was held against real runs


@pytest.mark.parametrize("chunk", [512, 2048])
def test_chunks_are_those_of_the_replica_with_sarathi(chunk):
    rows = conversations(250, 12.0)
    problem = LLMPhases(**ONE)
    log = play(PhaseChunked(chunk=chunk), rows)
    replica = Replica(
        problem.costs(1).steps, Sarathi(max_tokens=chunk), caching=False, ahead=False,
        blocks=problem.site().room[1] // 16,
    )  # fmt: skip
    served = {each.id: each for each in drain(replica, [
        Request(at, *row) for at, row in enumerate(rows)
    ])}  # fmt: skip
    for each in log.answers:
        assert each.first_s == pytest.approx(served[each.id].first_s, rel=1e-9)
        assert each.last_s == pytest.approx(served[each.id].last_s, rel=1e-9)


# -- disaggregated: bytes over bandwidth


def two_engines(rows, rate_Bps, **knobs):
    """One prefill and one decode engine of an 8B model, with a link of our own."""
    problem = given(rows, **{**ONE, "devices": 2, **knobs})
    session = problem.session(PhaseDisaggregated(), 0)
    session.links = {(0, 1): Link(1e-5, rate_Bps)}
    log = session.play()
    assert faults_of(log) == []
    return problem, log


def test_a_slow_link_takes_bytes_over_bandwidth():
    problem, log = two_engines([(0.0, 4000, 10)], 1e9)
    (sent,) = log.transfers
    size_B = 4000 * 131_072
    assert sent.size_B == size_B
    prefill_s = problem.costs(1).prefill([(4000, 0)])[0]
    # From the end of the first layer on, the link is never idle.
    assert sent.end_s == pytest.approx(prefill_s / 32 + size_B / 1e9 + 1e-5)
    answer = log.answers[0]
    assert answer.first_s == pytest.approx(prefill_s)
    step_s = problem.costs(1).decode(1, 4001)[0]
    assert answer.gap_s == pytest.approx(sent.end_s - prefill_s + step_s, rel=0.1)


def test_a_fast_link_hides_all_but_the_last_layer():
    problem, log = two_engines([(0.0, 4000, 10)], 1e12)
    prefill_s = problem.costs(1).prefill([(4000, 0)])[0]
    layer_s = 4000 * 131_072 / 32 / 1e12
    assert log.transfers[0].end_s == pytest.approx(prefill_s + layer_s + 1e-5)


def test_caches_queue_for_the_link():
    _, log = two_engines([(0.0, 1000, 5), (0.0, 1000, 5)], 1e8)
    first, second = log.transfers
    assert second.begin_s == pytest.approx(first.end_s - 1e-5)
    assert second.end_s - first.end_s == pytest.approx(1000 * 131_072 / 1e8)


def test_the_worlds_links_join_the_engines():
    problem = LLMPhases(**{**ONE, "devices": 4})
    places = PhaseDisaggregated(prefill=2).places(problem.site())
    inside = problem._links(places, worlds.get("h100_pod:1"))
    assert inside[0, 2].rate_Bps == 450e9
    apart = problem.with_knobs(devices=16)
    far = apart._links([Place("prefill", 8), Place("decode", 8)], worlds.get("h100_pod:2"))
    assert far[0, 1].rate_Bps == pytest.approx(400e9)


def test_decode_admits_by_room_and_nobody_is_lost():
    """A decode engine with room for a few: prompts wait where they are, and all end."""
    rows = conversations(60, 40.0)
    share = (16.06e9 + 6000 * 131_072) / 85_899_345_920
    problem = given(rows, **{**ONE, "devices": 2, "memory_share": share})
    log = problem.play(PhaseDisaggregated(), 0)
    assert faults_of(log) == []
    assert log.room_tokens < 8000
    assert len(log.answers) + len(log.refused) == 60 and len(log.answers) > 50
    late = [each for each in log.answers if each.gap_s > 0.2]
    assert late, "somebody had to wait for room"


# -- static split


def test_prefill_alone_on_a_share_is_one_server_with_that_service():
    costs = LLMPhases(**ONE).costs(1)
    service_s = costs.prefill([(2048, 0)], 0.5)[0]
    assert 1.8 < service_s / costs.prefill([(2048, 0)])[0] <= 2.0
    arrival_s = loads.arrivals(3000, 0.6 / service_s, 8).tolist()
    log = play(PhaseStaticSplit(), [(at, 2048, 1) for at in arrival_s])
    ours = [each.started_s - each.arrival_s for each in log.answers]
    assert ours == pytest.approx(waits(arrival_s, [service_s] * 3000).tolist(), abs=1e-6)


def test_decode_alone_on_a_share_takes_what_the_bandwidth_curve_says():
    problem = LLMPhases(**ONE)
    log = play(PhaseStaticSplit(share_of_prefill=0.5), [(0.0, 100, 400)])
    (answer,) = log.answers
    full_s = problem.costs(1).decode(1, 300)[0]
    assert answer.tpot_s / full_s == pytest.approx(1 / reach(0.5), rel=0.05)
    linear = play(PhaseStaticSplit(share_of_prefill=0.5), [(0.0, 100, 400)], saturates=False)
    # Twice, but for what a kernel costs at least, which no share changes.
    assert 1.75 < linear.answers[0].tpot_s / full_s <= 2.0


def test_phases_that_fit_the_memory_do_not_slow_each_other():
    assert slowdown(0.5, 0.2, 0.5, 0.7) == 1.0
    assert slowdown(0.5, 0.7, 0.5, 0.7) == pytest.approx(1.4)
    assert slowdown(0.3, 0.5, 0.7, 0.9) == pytest.approx(0.5 / 0.3)
    assert slowdown(0.3, 0.5, 0.7, 0.6) == pytest.approx(0.5 / 0.4), "what the other leaves over"
    assert slowdown(0.9, 0.2, 0.6, 0.2) == pytest.approx(1.5), "shares of more than the device"
    assert [reach(x) for x in (0.0, 1.0)] == [0.0, 1.0]
    assert all(reach(a / 50) < reach((a + 1) / 50) for a in range(50))


# -- room, refusals


def test_a_full_pool_preempts_and_everyone_ends():
    share = (16.06e9 + 4000 * 131_072) / 85_899_345_920
    rows = [(0.01 * n, 200 + 37 * n % 300, 150) for n in range(40)]
    for part in (PhaseChunked(), PhaseUnchunked(), PhaseStaticSplit()):
        log = play(part, rows, memory_share=share)
        assert len(log.answers) == 40
        assert log.preemptions > 0, type(part).__name__


def test_a_request_that_never_fits_is_refused_with_a_reason():
    share = (16.06e9 + 4000 * 131_072) / 85_899_345_920
    log = play(PhaseChunked(), [(0.0, 5000, 10), (0.1, 100, 10)], memory_share=share)
    assert [number for number, _ in log.refused] == [0] and "blocks" in log.refused[0][1]
    assert figures(log)["refused"] == 0.5


def test_the_checker_notices_what_is_wrong():
    log = play(PhaseChunked(), [(0.0, 100, 10), (0.1, 100, 10)])
    lost = log._replace(answers=log.answers[:1])
    assert [each.kind for each in faults_of(lost)] == ["lost"]
    cut = log._replace(answers=[log.answers[0]._replace(output_tokens=3), log.answers[1]])
    assert [each.kind for each in faults_of(cut)] == ["cut_short"]
    early = log._replace(answers=[log.answers[0]._replace(first_s=-1.0), log.answers[1]])
    assert [each.kind for each in faults_of(early)] == ["out_of_time"]
    assert faults_of(log._replace(faults=["engine 0: blocks"]))[0].kind == "cache_books"


def test_bad_knobs_are_named():
    with pytest.raises(KnobError, match="prefill"):
        LLMPhases(**ONE).play(PhaseDisaggregated(), 0)
    with pytest.raises(KnobError, match="prefill"):
        LLMPhases(**{**ONE, "devices": 4}).play(PhaseDisaggregated(prefill=4), 0)
    with pytest.raises(KnobError, match="share_of_prefill"):
        PhaseStaticSplit(share_of_prefill=1.0)
    with pytest.raises(KnobError, match="chunk"):
        PhaseChunked(chunk=0)
    with pytest.raises(KnobError, match=r"LLMPhases\.tp"):
        LLMPhases(model="Llama-3.1-70B", tp=1, devices=1, tables="").site()
    with pytest.raises(UsageError, match="devices"):
        LLMPhases(devices=99).site()
    with pytest.raises(KnobError, match="rate_per_s"):
        LLMPhases(rate_per_s=0.0)
    with pytest.raises(KnobError, match="nan"):
        LLMPhases(rate_per_s=float("nan"))
    with pytest.raises(KnobError, match="turn_s"):
        LLMPhases(**ONE, turn_s=5.0).play(PhaseChunked(), 0)
    with pytest.raises(UsageError, match="workload"):
        LLMPhases(**ONE, workload="nothing").play(PhaseChunked(), 0)
    with pytest.raises(UsageError, match=r"LLMPhases\.data"):
        LLMPhases(**ONE, data="/nowhere").play(PhaseChunked(), 0)
    with pytest.raises((SpecError, UsageError, KnobError)):
        LLMPhases(model="no-such-model").site()


def test_illegal_policies_are_named():
    class Nowhere(PhaseChunked):
        def route(self, request, engines):
            return 7

    class Greedy(PhasePolicy):
        def places(self, site):
            return [Place("mixed", site.tp)] * 99

    class HalfPair(PhasePolicy):
        def places(self, site):
            return [Place("prefill", site.tp)]

    with pytest.raises(PartError, match="engine 7"):
        play(Nowhere(), [(0.0, 10, 2)])
    with pytest.raises(PartError, match="devices used"):
        play(Greedy(), [(0.0, 10, 2)])
    with pytest.raises(PartError, match="decode engines"):
        play(HalfPair(), [(0.0, 10, 2)])


def test_it_runs_in_the_virtual_engine_and_its_seed_fixes_it():
    problem = LLMPhases(**{**ONE, "devices": 2}, requests=60, rate_per_s=20.0)
    one = run(PhaseDisaggregated(), problem=problem, world=problem.world(), seed=4)
    two = run(PhaseDisaggregated(), problem=problem, world=problem.world(), seed=4)
    assert one.violations == [] and one.metrics == two.metrics and one.digest == two.digest
    assert one.metrics["moved_B"] > 0 and 0 < one.metrics["attainment"] <= 1


def test_capacity_is_where_attainment_falls_below_the_goal():
    problem = LLMPhases(**ONE, requests=150)
    rate, log = problem.capacity(PhaseChunked(), 2, goal=0.9)
    assert sum(each.met for each in log.answers) >= 0.9 * 150
    above = problem.play(PhaseChunked(), 2, rate_per_s=rate * 1.3)
    assert sum(each.met for each in above.answers) < 0.9 * 150
    assert isinstance(problem.session(PhaseChunked(), 2), Session)
