"""Generators against the traces they are like: lengths, bursts, sharing, sessions.

What the facts say is compared always; the traces themselves where ORRERY_DATA has them.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import numpy as np
import pytest

from orrery.base.rand import Stream
from orrery.inputs import (
    Poisson,
    Workload,
    WorkloadError,
    agents_like,
    azure_like,
    generated,
    hit_ratio,
    load_servegen,
    lru_hit_ratio,
    mooncake_like,
    multimodal_like,
    open_workload,
    read_mooncake,
    reasoning_like,
    sharegpt_like,
)
from orrery.inputs.describe import dispersion, gap_cv
from orrery.inputs.generate import GENERATORS
from orrery.inputs.measure import MODELS, SOURCES, goes_on_after, measure, to_toml
from orrery.inputs.tables import LEVELS, Lengths, facts, joint

DATA = os.environ.get("ORRERY_DATA", "")
needs_data = pytest.mark.skipif(
    not Path(DATA, "azure_llm_2023").is_dir() if DATA else True,
    reason="ORRERY_DATA does not hold the public traces",
)
SEEDS = range(3)


def mean_of(make, figure) -> float:
    return float(np.mean([figure(make(seed)) for seed in SEEDS]))


def compare(make, seen, tolerance, names=("mean", "p50", "p90", "p99")):
    """Each figure of the lengths, over some seeds, next to that of the trace."""
    made = [make(seed) for seed in SEEDS]
    for column in ("input_tokens", "output_tokens"):
        for name in names:
            found = np.mean([work.summary()[column][name] for work in made])
            within = tolerance.get(name, tolerance["else"])
            assert found == pytest.approx(seen[column][name], rel=within), (column, name)


# -- next to the facts


@pytest.mark.parametrize("service", ["conv", "code"])
def test_azure_lengths_and_bursts(service):
    seen = facts()[f"azure_{service}"]["seen"]

    def make(seed):
        return azure_like(service, seed=seed)

    assert len(make(0)) == seen["requests"]
    compare(make, seen, {"else": 0.04, "p99": 0.06})
    assert mean_of(make, lambda w: w.rate_per_s) == pytest.approx(seen["rate_per_s"], rel=0.05)
    assert mean_of(make, lambda w: gap_cv(w.arrival_s)) == pytest.approx(seen["gap_cv"], rel=0.08)
    found = mean_of(make, lambda w: w.summary()["rank_correlation"])
    assert found == pytest.approx(seen["rank_correlation"], abs=0.03)


def test_mooncake_lengths_sharing_and_sessions():
    seen = facts()["mooncake"]["seen"]

    def make(seed):
        return mooncake_like(seed=seed)

    compare(make, seen, {"else": 0.05, "p99": 0.12})
    assert mean_of(make, hit_ratio) == pytest.approx(seen["block_hit_ratio"], rel=0.04)
    work = make(0)
    assert work.block_tokens == 512
    assert (work.block_ids[work.block_starts[:-1]] == 0).all()  # one common first block
    turns = np.bincount(np.unique(work.session, return_counts=True)[1])
    assert turns[1] / turns.sum() == pytest.approx(0.69, abs=0.02)  # of the sessions, one turn


def test_mooncake_at_another_rate_keeps_its_gaps_between_turns():
    fast = mooncake_like(4000, rate_per_s=34)
    assert fast.rate_per_s == pytest.approx(34, rel=0.1)
    slow = mooncake_like(4000, arrivals=Poisson(rate_per_s=1))
    assert slow.rate_per_s == pytest.approx(1, rel=0.1)
    # Within two minutes fewer have come back than within an hour.
    assert hit_ratio(fast) < hit_ratio(slow)


def test_sharegpt_lengths_and_repeats():
    seen = facts()["sharegpt"]["seen"]

    def make(seed):
        return sharegpt_like(3000, seed=seed)

    compare(make, seen, {"else": 0.08, "p99": 0.12})
    assert mean_of(lambda seed: sharegpt_like(seed=seed), hit_ratio) == pytest.approx(
        seen["block_hit_ratio"], abs=0.025
    )
    assert make(0).rate_per_s == pytest.approx(seen["rate_per_s"], rel=0.05)


@pytest.mark.parametrize(
    ("name", "make"), [("reasoning", reasoning_like), ("multimodal", multimodal_like)]
)
def test_a_day_of_clients(name, make):
    found = facts()[name]
    # A tenth of the rate gives a whole day in a tenth of the requests.
    count = int(0.1 * 86_400 * found["arrivals"]["rate_per_s"])

    def day(seed):
        return make(count, rate_per_s=found["arrivals"]["rate_per_s"] / 10, seed=seed)

    compare(day, found["seen"], {"else": 0.06, "p90": 0.08})
    work = day(0)
    assert work.seconds == pytest.approx(86_400, rel=0.03)
    assert set(work.kinds) == set(found["clients"])
    night = make(5000, start_s=0.0).rate_per_s
    assert night != pytest.approx(make(5000, start_s=64_800.0).rate_per_s, rel=0.1)


def test_agents_wait_for_whole_levels():
    work = agents_like(200, seed=1)
    found = facts()["agents"]
    sizes = [sum(shape) for shape in found["sessions"]["shapes"]]
    assert len(work) / 200 == pytest.approx(np.mean(sizes), rel=0.15)
    several = [i for i in range(len(work)) if len(work.parents(i)) > 1]
    assert several
    for i in range(len(work)):
        for j in work.parents(i):
            assert work.session[j] == work.session[i] and work.arrival_s[j] <= work.arrival_s[i]
    assert work.output_tokens.mean() == pytest.approx(
        found["seen"]["output_tokens"]["mean"], rel=0.15
    )
    assert 0.03 < hit_ratio(work) < 0.25


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_laws_of_all_generators(name):
    make = GENERATORS[name]
    first = make(seed=3) if name != "azure_like" else make("code", 500, seed=3)
    again = make(seed=3) if name != "azure_like" else make("code", 500, seed=3)
    other = make(seed=4) if name != "azure_like" else make("code", 500, seed=4)
    assert isinstance(first, Workload) and first == again and first != other
    assert first.source and first.arrival_s[0] >= 0
    assert len(generated(f"{name}:60")) >= 60
    for wrong in (0, -3, 2.5, True, 10**12):
        with pytest.raises(WorkloadError):
            make("conv", wrong) if name == "azure_like" else make(wrong)
    for rate in (0, -1, float("nan"), "fast"):
        with pytest.raises(WorkloadError):
            make(rate_per_s=rate)


def test_wrong_names_and_doubled_rates_are_refused():
    with pytest.raises(WorkloadError, match="did you mean"):
        azure_like("cod")
    with pytest.raises(WorkloadError, match="both"):
        azure_like(rate_per_s=3, arrivals=Poisson(rate_per_s=3))
    with pytest.raises(WorkloadError, match="start_s"):
        reasoning_like(10, start_s=-5)
    for text in ("azure", "azure_like:conv,5,6", "mooncake_like:a,b", "azure_like:x"):
        with pytest.raises(WorkloadError):
            generated(text)


def test_a_table_gives_back_what_it_was_made_of():
    rng = np.random.default_rng(1)
    made = np.exp(rng.normal(6, 1, 40_000)).astype(int) + 1
    out = np.where(made > 400, 900, 30) + rng.integers(0, 20, len(made))
    table = Lengths.of(joint(made, out))
    a, b = table.draw(Stream(1, "t", ""), 40_000)
    assert a.mean() == pytest.approx(made.mean(), rel=0.03)
    assert b.mean() == pytest.approx(out.mean(), rel=0.03)
    assert np.median(b[a > 500]) == pytest.approx(910, abs=15)
    assert np.median(b[a < 300]) == pytest.approx(40, abs=15)
    assert 900 <= table.answer(3000, 0.5) <= 920 and table.answer(50, 0.5) < 60
    assert table.answer(10**9, 0.0) >= 900 and table.answer(0, 1.0) < 60
    assert LEVELS[0] == 0 and LEVELS[-1] == 1 and list(LEVELS) == sorted(LEVELS)


def test_turns_that_go_on_are_counted():
    source = np.full(400, -1)
    source[100:150] = np.arange(50)  # 50 of 350 first turns are followed up
    assert goes_on_after(source) == [pytest.approx(50 / 350, rel=1e-4), 0]


def test_the_facts_say_where_they_come_from():
    assert set(facts()) == set(SOURCES)
    for name, found in facts().items():
        assert found["source"] and found["licence"] and found["measured"], name


# -- next to the traces


@needs_data
@pytest.mark.parametrize("name", [name for name in SOURCES if name not in MODELS])
def test_the_facts_are_those_of_the_traces(name):
    written = tomllib.loads(to_toml({name: measure(name, DATA)}, facts()[name]["measured"]))
    assert written[name] == facts()[name]


@needs_data
@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_clients_are_those_of_servegen(name):
    mix = load_servegen(Path(DATA) / SOURCES[name][0], MODELS[name])
    found = facts()[name]
    assert mix.rate_per_s == pytest.approx(found["arrivals"]["rate_per_s"], rel=1e-4)
    rates = [rate for group in found["clients"].values() for rate in group["rates_per_s"]]
    assert sum(rates) == pytest.approx(mix.rate_per_s, rel=1e-3)
    assert len(rates) == len(mix.clients)


@needs_data
def test_bursts_on_all_scales_are_those_of_azure():
    for service, within in (("conv", 0.12), ("code", 0.35)):
        trace = open_workload(Path(DATA) / SOURCES[f"azure_{service}"][0])
        for window_s in (1.0, 10.0, 60.0):
            found = np.mean(
                [dispersion(azure_like(service, seed=s).arrival_s, window_s) for s in SEEDS]
            )
            wanted = dispersion(trace.arrival_s, window_s)
            assert found == pytest.approx(wanted, rel=within), (service, window_s)


@needs_data
def test_the_mooncake_trace_and_its_likeness_fill_a_cache_alike():
    trace = read_mooncake(Path(DATA) / SOURCES["mooncake"][0])
    assert hit_ratio(trace) == pytest.approx(0.366, abs=0.0005)
    like = mooncake_like(seed=1)
    assert hit_ratio(like) == pytest.approx(hit_ratio(trace), rel=0.05)
    for blocks in (10_000, 50_000):
        assert lru_hit_ratio(like, blocks) == pytest.approx(lru_hit_ratio(trace, blocks), rel=0.2)
    turns = [np.unique(w.session, return_counts=True)[1] for w in (trace, like)]
    assert len(turns[1]) == pytest.approx(len(turns[0]), rel=0.04)
    assert (turns[1] == 1).mean() == pytest.approx((turns[0] == 1).mean(), abs=0.02)


@needs_data
def test_the_public_traces_are_read_as_published():
    conv = open_workload(Path(DATA) / SOURCES["azure_conv"][0])
    code = open_workload(Path(DATA) / SOURCES["azure_code"][0])
    assert (len(conv), len(code)) == (19_366, 8_819)
    assert [round(w.input_tokens.mean()) for w in (conv, code)] == [1155, 2048]
    assert [round(w.output_tokens.mean()) for w in (conv, code)] == [211, 28]
    chats = open_workload(Path(DATA) / SOURCES["sharegpt"][0])
    assert len(chats) == 300 and len(chats.answer_ids)
    agents = open_workload(Path(DATA) / SOURCES["agents"][0])
    assert len(agents) == 73 and max(len(agents.parents(i)) for i in range(73)) == 4
    hour = open_workload(Path(DATA) / SOURCES["reasoning"][0], model="deepseek-r1")
    assert len(hour) > 10_000
