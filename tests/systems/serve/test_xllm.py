"""xLLM's service: gaps for offline jobs, roles that follow the load, phases, caches, deaths."""

from __future__ import annotations

import itertools
import os

import pytest

from orrery import run
from orrery.base.errors import KnobError
from orrery.base.rand import Stream
from orrery.models.requests import Target
from orrery.systems.serve.baselines.elastic_separate import ElasticSeparate
from orrery.systems.serve.baselines.elastic_static_split import ElasticStaticSplit
from orrery.systems.serve.problems.llm_elastic import (
    LLMElastic,
    faults_of,
    figures,
    some_profile,
    some_view,
)
from orrery.systems.serve.problems.llm_elastic.ports import InstanceView, Job, PoolView
from orrery.systems.serve.xllm import XLLM
from orrery.systems.serve.xllm.epd import GROUPINGS, choose, dealt, layouts, proportional
from orrery.systems.serve.xllm.kvindex import GlobalIndex, placed
from orrery.systems.serve.xllm.roles import RoleKeeper
from orrery.world import Crash, World, machine

A100 = machine("server").replace(accelerators=("A100-80-SXM",), nic_Bps=25e9)
# The service alone is tried here, so ours has the synchronous engine that the rivals have.
PLAIN = {"pipelined": False}


def pod(count, *faults):
    """So many machines with one A100 each, on a fast network."""
    return World.lan(count, machine=A100, bandwidth_Bps=25e9, latency_s=5e-6).with_faults(*faults)


def measured(problem, part, seed, world=None):
    """The figures of a run, which must be clean."""
    log = problem.play(part, seed, world)
    assert faults_of(log) == []
    return figures(log, problem.target)


# -- 2: offline jobs in the gaps of a wave

SEATS = {"max_seqs": 64}


def online(seconds, wave, peak):
    """Conversations like Azure's; a wave of 4:1 has the same peak as the flat load."""
    rate = peak * (1 + wave) / (2 * wave) if wave else peak
    return LLMElastic(
        model="Qwen3-14B", rate_per_s=rate, requests=int(rate * seconds), wave=wave,
        wave_s=seconds / 2, offline="conv", seconds=seconds, ttft_s=5.0, tpot_s=0.2, sample=0,
    )  # fmt: skip


def carried(seed, seconds):
    """The largest rate, in quarters, that two of the four machines carry within the targets."""
    part, rate = ElasticSeparate(online=2, **SEATS), 9.75
    while measured(online(seconds, 0.0, rate), part, seed, pod(4))["attainment"] < 0.98:
        rate -= 0.25
    return rate


def gains(seed, seconds, peak, say):
    """(gain in offline tokens in a wave, gain under a flat load) over the static partition."""
    problem, world, seats = online(seconds, 4.0, peak), pod(4), SEATS
    alone = measured(problem, XLLM(colocate=False, **PLAIN, **seats), seed, world)
    ours = measured(problem, XLLM(**PLAIN, **seats), seed, world)
    static = [
        measured(problem, ElasticSeparate(online=count, **seats), seed, world) for count in (1, 2)
    ]
    assert static[0]["attainment"] < 0.9, "one machine is not enough for the peak"
    assert static[1]["attainment"] >= alone["attainment"] - 0.01, "two are"
    gain = ours["offline_tokens_per_s"] / static[1]["offline_tokens_per_s"]
    flat = online(seconds, 0.0, peak)
    apart = measured(flat, ElasticSeparate(online=2, **seats), seed, world)
    mixed = measured(flat, XLLM(**PLAIN, **seats), seed, world)
    flat_gain = mixed["offline_tokens_per_s"] / apart["offline_tokens_per_s"]
    say(f"\n  wave: online {ours['attainment']:.3f} (alone {alone['attainment']:.3f}), offline x "
        f"{gain:.2f}; flat: x {flat_gain:.3f}")  # fmt: skip
    assert ours["attainment"] >= alone["attainment"] - 0.01
    assert apart["attainment"] >= 0.98, "two machines carry the flat load"
    assert mixed["attainment"] >= 0.98
    return gain, flat_gain


@pytest.mark.works_when("xllm", 2)
@pytest.mark.slow
def test_offline_jobs_fill_the_gaps_of_an_online_wave(capsys):
    with capsys.disabled():
        gain, flat_gain = gains(1, 160.0, 9.0, lambda text: print(text, end=""))
    assert gain >= 1.3 and flat_gain < 1.05


@pytest.mark.slow
@pytest.mark.works_when("xllm", 2)
def test_offline_jobs_fill_the_gaps_for_more_seeds(capsys):
    with capsys.disabled():
        for seed in (2, 3, 4):
            peak = carried(seed, 160.0)
            gain, flat_gain = gains(seed, 160.0, peak, lambda text: print(text, end=""))
            assert gain >= 1.3 and flat_gain < 1.05


def test_an_online_job_evicts_offline_ones_and_they_finish_later():
    problem = LLMElastic(requests=40, rate_per_s=8.0, offline="conv", seconds=6.0, blocks=3000,
                         sample=0)  # fmt: skip
    log = problem.play(XLLM(**PLAIN), 5, pod(1))
    assert faults_of(log) == [] and log.preemptions > 0 and len(log.offline) > 0
    assert all(each.preempted == 0 for each in log.served), "online jobs lose nothing"
    assert any(each.preempted for each in log.offline)
    alone = measured(problem, XLLM(colocate=False, **PLAIN), 5, pod(1))
    assert alone["offline_tokens_per_s"] == 0.0 and alone["preemptions"] == 0.0


# -- 3: roles that follow the load

FLIP = {"rates": (34.0, 16.0), "most_output": 800, "ttft_s": 1.0, "tpot_s": 0.03, "sample": 0}


def check_roles(seed, window_s, windows, splits, say):
    """Against every split that stays, and every pair of splits that change with the windows."""
    problem = LLMElastic(workload="flip", window_s=window_s, seconds=windows * window_s, **FLIP)
    static = max(
        measured(problem, ElasticStaticSplit(prefill=count), seed)["attainment"]
        for count in sorted({*splits[0], *splits[1]})
    )
    oracle = static
    for pair in itertools.product(*splits):
        turns = tuple((window * window_s, pair[window % 2]) for window in range(windows))
        part = ElasticStaticSplit(prefill=pair[0], oracle=turns)
        oracle = max(oracle, measured(problem, part, seed)["attainment"])
    assert oracle > static + 0.05, "or nothing flips"
    found = measured(problem, XLLM(grouping="EP-D", **PLAIN), seed)
    share = (found["attainment"] - static) / (oracle - static)
    say(f"\n  flips: static {static:.3f}, adaptive {found['attainment']:.3f}, oracle "
        f"{oracle:.3f}: {share:.0%} of the gap; a role takes effect within "
        f"{found['switch_effect_s']:.1f} s")  # fmt: skip
    assert found["attainment"] > static and share >= 0.5
    assert found["switches"] >= windows - 1 and found["switch_effect_s"] < 5.0
    assert found["failed"] == 0


def check_steady(seed, seconds, splits, say):
    problem = LLMElastic(workload="reasoning", requests=int(12 * seconds), rate_per_s=12.0, **FLIP)
    static = max(
        measured(problem, ElasticStaticSplit(prefill=count), seed)["attainment"] for count in splits
    )
    ours = measured(problem, XLLM(grouping="EP-D", **PLAIN), seed)["attainment"]
    say(f"\n  steady: static {static:.3f}, adaptive {ours:.3f}")
    assert ours >= 0.97 * static


@pytest.mark.works_when("xllm", 3)
@pytest.mark.slow
def test_roles_follow_a_load_that_flips(capsys):
    with capsys.disabled():
        check_roles(1, 30.0, 4, ((5, 6), (4,)), lambda text: print(text, end=""))


@pytest.mark.works_when("xllm", 3)
def test_roles_stay_where_a_steady_load_wants_them(capsys):
    with capsys.disabled():
        check_steady(1, 40.0, (4, 5), lambda text: print(text, end=""))


@pytest.mark.slow
@pytest.mark.works_when("xllm", 3)
def test_roles_follow_for_more_seeds_and_against_every_split(capsys):
    every = tuple(range(1, 8))
    with capsys.disabled():
        for seed in (2, 3):
            pairs = ((4, 5, 6, 7), (2, 3, 4, 5))
            check_roles(seed, 40.0, 4, pairs, lambda text: print(text, end=""))
            check_steady(seed, 60.0, every, lambda text: print(text, end=""))


def test_a_role_that_changes_loses_no_job_and_moves_its_decodes():
    problem = LLMElastic(workload="flip", window_s=6.0, seconds=12.0, **{**FLIP, "rates": (20, 8)})
    log = problem.play(XLLM(grouping="EP-D", memory_s=1.0, slack=0.5, **PLAIN), 3, pod(4))
    assert faults_of(log) == [] and len(log.switches) > 2
    assert len(log.served) == len(log.jobs)
    left = [switch for switch in log.switches if switch[2] == "D"]
    assert left, "an instance that decoded took up prefill"
    whole_B = sum(each.prompt_tokens for each in log.served) * problem.plan(pod(4)).kv_B
    assert log.moved_B > whole_B, "beyond what every prompt sends once, decodes moved"


def test_the_keeper_waits_for_a_second_look():
    keeper = RoleKeeper(some_profile(), "EP", "D", memory_s=5.0, slack=0.5, moves=2)
    view = PoolView(0.0, [InstanceView(n, 1000, 16, "EP" if n < 2 else "D") for n in range(4)])
    assert keeper.split(view) == ["EP", "EP", "D", "D"]
    for each in view.instances[:2]:
        each.prefill_tokens = 50_000
    view.now_s = 1.0
    assert keeper.split(view) == ["EP", "EP", "D", "D"], "one look may be a burst"
    view.now_s = 2.0
    assert keeper.split(view).count("EP") == 3, "one instance always decodes"
    assert keeper.split(PoolView(3.0, view.instances[:1])) == ["EPD"]


# -- 4: which phases share an instance


def check_phases(name, rate, data, requests, say):
    problem = LLMElastic(workload=name, requests=requests, rate_per_s=rate, ttft_s=1.0,
                         tpot_s=0.04, sample=requests, data=data)  # fmt: skip
    world = pod(4)
    found = {
        each: measured(problem, XLLM(grouping=each[0], share=each[1], adaptive=False), 1, world)
        for each in layouts(4)
    }
    ours = XLLM(grouping="auto", adaptive=False)
    score = measured(problem, ours, 1, world)["goodput_per_s"]
    best = max(found, key=lambda each: found[each]["goodput_per_s"])
    top = found[best]["goodput_per_s"]
    low = min(each["goodput_per_s"] for each in found.values())
    say(f"\n  {name}: chose {ours.chosen}, {score:.2f}/s; best {best}, {top:.2f}/s; worst "
        f"{low:.2f}/s")  # fmt: skip
    assert {grouping for grouping, _ in found} == set(GROUPINGS)
    assert score >= 0.95 * top and low < 0.9 * top, "and a bad choice would have been worse"


@pytest.mark.works_when("xllm", 4)
@pytest.mark.parametrize(("name", "rate"), [("images", 18.0), ("texts", 20.0), ("mixed", 20.0)])
def test_the_profiled_grouping_is_near_the_best(name, rate, capsys):
    with capsys.disabled():
        check_phases(name, rate, "", 120, lambda text: print(text, end=""))


@pytest.mark.slow
@pytest.mark.works_when("xllm", 4)
@pytest.mark.parametrize(("name", "rate"), [("images", 18.0), ("texts", 20.0), ("mixed", 20.0)])
def test_the_profiled_grouping_for_the_histograms_of_servegen(name, rate, capsys):
    data = os.environ.get("ORRERY_DATA", "/nowhere")
    if not os.path.isdir(os.path.join(data, "servegen")):
        pytest.skip("needs ORRERY_DATA with ServeGen's histograms")
    with capsys.disabled():
        check_phases(name, rate, data, 400, lambda text: print(text, end=""))


def test_every_layout_is_listed_once_and_climbing_finds_a_single_hump():
    every = layouts(5)
    assert len(every) == len(set(every)) == 1 + 4 + 4 + 4 + 6
    assert all(sum(share) == 5 and len(dealt(name, share)) == 5 for name, share in every)

    def hump(name, share):
        return -abs(share[0] - 9) if name == "ED-P" else -100.0

    assert choose(16, hump, most=10) == ("ED-P", (9, 7))
    assert proportional(7, (5.0, 0.0, 1.0)) == (5, 1, 1)


def test_encoding_costs_time_where_it_is_done():
    """One job with an image: the phases follow each other, wherever they are."""
    problem = LLMElastic(workload="images", requests=1, sample=0)
    (job,), device = problem.jobs(0), problem.plan(pod(3)).device
    image_s = device.encode_s(job.image_tokens)
    first = {}
    for name, groups in GROUPINGS.items():
        log = problem.play(XLLM(grouping=name, adaptive=False, **PLAIN), 0, pod(len(groups)))
        assert faults_of(log) == []
        first[name] = log.served[0].ttft_s
    assert image_s > 0.001
    assert first["EPD"] == pytest.approx(first["EP-D"])
    assert all(value >= first["EPD"] for value in first.values())
    text = LLMElastic(workload="even", prompt=job.prompt_tokens, requests=1, sample=0)
    bare = text.play(XLLM(**PLAIN), 0, pod(1)).served[0].ttft_s
    assert first["EPD"] - bare == pytest.approx(image_s, rel=1e-6)


# -- 5: an instance dies

PREFIXES = LLMElastic(workload="prefixes", requests=80, rate_per_s=6.0, most_output=120, sample=0,
                      report_s=0.5, heartbeat_s=0.1, detect_s=0.5)  # fmt: skip
REAL = LLMElastic(real=True, requests=45, rate_per_s=300.0, heartbeat_s=0.1, detect_s=0.5)


@pytest.mark.works_when("xllm", 5)
def test_jobs_of_a_dead_instance_finish_elsewhere_and_use_what_is_cached_there():
    world = pod(4, Crash(node=1, at_s=8.0))
    log = PREFIXES.play(XLLM(**PLAIN), 2, world)
    assert faults_of(log) == [] and len(log.served) == len(log.jobs)
    (crash,) = log.crashes
    assert crash.requests > 0 and log.resent >= crash.requests
    assert 0 < crash.noticed_s - crash.at_s <= PREFIXES.detect_s
    assert all(each.replica != 1 for each in log.served if each.last_s > crash.at_s)
    later = [each for each in log.served if each.started_s > crash.noticed_s]
    assert sum(each.hit_tokens for each in later) > 0, "prefixes that survive are used again"
    blind = PREFIXES.play(XLLM(hit_weight=0.0, fetches=False, **PLAIN), 2, world)
    ours, without = (figures(each, PREFIXES.target)["hit_ratio"] for each in (log, blind))
    assert ours > 1.2 * without


@pytest.mark.works_when("xllm", 5)
def test_a_real_instance_dies_in_virtual_time_and_every_answer_is_right():
    world = World.lan(3).with_faults(Crash(node=1, at_s=0.1))
    made = run(XLLM(), problem=REAL, world=world, seed=1)
    assert made.violations == [] and not made.extra.get("faults_never_fired")
    assert made.metrics["resent"] >= 1 and made.metrics["failed"] == 0
    assert 0 < made.metrics["detect_s"] <= REAL.detect_s
    assert made.metrics["hit_ratio"] > 0.2


@pytest.mark.slow
@pytest.mark.works_when("xllm", 5)
def test_kill_9_of_an_instance_under_load(record_property):
    record_property("engine", ("xllm", "processes"))
    world = World.lan(3).with_faults(Crash(node=1, at_s=1.0))
    problem = REAL.with_knobs(detect_s=1.5, heartbeat_s=0.2, rate_per_s=40.0, requests=60)
    made = run(XLLM(), problem=problem, world=world, seed=1, engine="processes", until_s=60.0)
    assert made.violations == [] and made.ended == "driven"
    assert not made.extra.get("faults_never_fired")
    assert made.metrics["resent"] >= 1 and made.metrics["failed"] == 0
    assert 0 < made.metrics["detect_s"] <= 1.5 and made.metrics["hit_ratio"] > 0.2


def test_an_instance_that_comes_back_serves_again():
    world = pod(3, Crash(node=0, at_s=3.0, until_s=5.0))
    problem = LLMElastic(requests=150, rate_per_s=10.0, sample=0)
    assert faults_of(problem.play(XLLM(grouping="EP-D", **PLAIN), 1, world)) == []
    log = problem.play(XLLM(**PLAIN), 1, world)
    assert faults_of(log) == [] and len(log.crashes) == 1
    back_s = 5.0 + problem.plan(world).restart_s
    assert any(each.replica == 0 and each.started_s > back_s for each in log.served)
    gone = problem.play(XLLM(**PLAIN), 1, pod(1, Crash(node=0, at_s=3.0, until_s=5.0)))
    assert faults_of(gone) == [], "alone, it makes its jobs wait until it is back"


def test_the_index_weighs_a_hit_against_load():
    index = GlobalIndex()
    index.heard(1, [10, 11, 12, 13], [])
    views = [InstanceView(n, 1000, 16, "EPD") for n in range(2)]
    job = Job(0, 0.0, 70, 5, blocks=(10, 11, 12, 13))
    profile = some_profile()._replace(move_s=lambda tokens: 99.0)

    def chosen(**knobs):
        return placed(job, views, index, profile, 1e-3, **knobs)

    assert chosen().instance == 1 and chosen(hit_weight=0.0).instance == 0
    views[1].prefill_tokens = 63
    assert chosen().instance == 1
    views[1].prefill_tokens = 65
    assert chosen().instance == 0, "beyond 64 cached tokens, waiting costs more than the hit saves"
    quick = profile._replace(move_s=lambda tokens: 1e-6 * tokens)
    assert placed(job, views, index, quick, 1e-3).fetch == 1, "copied from the one that has it"
    index.died(1)
    assert chosen().instance == 0 and index.depths(job.blocks) == {} and len(index) == 0


def test_the_index_equals_the_obvious_one():
    rng, index, have = Stream(3, "index", "test"), GlobalIndex(), {n: set() for n in range(4)}
    for _ in range(300):
        node, keys = rng.below(4), [rng.below(12) for _ in range(3)]
        gone = [rng.below(12)]
        index.heard(node, keys, gone)
        have[node] = (have[node] | set(keys)) - set(gone)
        if rng.below(20) == 0:
            index.died(node)
            have[node] = set()
        asked = [rng.below(12) for _ in range(4)]
        want = {}
        for each, there in have.items():
            depth = next((at for at, key in enumerate(asked) if key not in there), len(asked))
            if depth:
                want[each] = depth
        assert index.depths(asked) == want


# -- the whole


def test_a_seed_fixes_the_run_on_the_engine():
    problem = LLMElastic(requests=80)
    runs = [run(XLLM(grouping="EP-D"), problem=problem, seed=seed) for seed in (5, 5, 6)]
    assert all(each.ok for each in runs)
    assert runs[0].digest == runs[1].digest and runs[0].metrics == runs[1].metrics
    assert runs[0].metrics != runs[2].metrics


def test_empty_views_are_handled():
    part, empty = XLLM(), some_view(Stream(0, "view", "empty"), 0)
    part.start()
    assert part.roles(empty) == [] and part.place(Job(0, 0.0, 5, 5), "P", empty).instance == -1


@pytest.mark.parametrize("knobs", [
    {"grouping": "DPE"}, {"memory_s": 0.0}, {"gap": 1.5}, {"hit_weight": -0.1}, {"moves": 0},
    {"share": (0, 2)}, {"keep_share": float("nan")}, {"paced": "yes"}, {"no_such": 1},
])  # fmt: skip
def test_bad_knobs_are_named(knobs):
    with pytest.raises(KnobError, match=rf"XLLM\.{next(iter(knobs))}"):
        XLLM(**knobs)


def test_a_share_that_does_not_fit_its_grouping_is_named():
    with pytest.raises(KnobError, match=r"XLLM\.share"):
        LLMElastic(sample=0).play(XLLM(grouping="EP-D", share=(1, 2, 1)), 0, pod(4))
    assert Target(1.0, 0.05).met(0.5, 0.01)
