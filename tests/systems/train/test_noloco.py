"""NoLoCo: its acceptance lines, each with what fails when the mechanism is off."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from orrery import World, run
from orrery.base.errors import KnobError
from orrery.models.learn import Quadratic
from orrery.systems.collectives import Ring, Tree
from orrery.systems.train import DataParallel, DiLoCo, NoTalk
from orrery.systems.train.noloco import NoLoCo, partner, stationary_variance
from orrery.systems.train.problems.data_parallel import final
from orrery.world import Crash, Slow


def quick_links(ranks):  # links that cost next to nothing
    return World.lan(ranks, latency_s=1e-6, jitter=0.0, bandwidth_Bps=1e15)


def trained(part, ranks=8, seed=1, world=None, engine="virtual", **knobs):
    return run(
        part, problem=DataParallel(**knobs), world=world or World.lan(ranks), seed=seed,
        engine=engine,
    )  # fmt: skip


def weights_of(made):
    return np.stack([values["weights"] for values in final(made).values()])


def losses(part, seeds, **knobs):
    return np.mean([trained(part, seed=seed, **knobs).metrics["loss"] for seed in range(seeds)])


# -- line 1: as good as DiLoCo, better than silence


def compared(every, **knobs):
    parts = NoLoCo(every=every), DiLoCo(every=every), NoTalk()
    return [losses(part, 3, **knobs) for part in parts]


@pytest.mark.works_when("noloco", 1)
def test_the_loss_is_that_of_diloco_and_below_that_of_replicas_apart():
    ours, diloco, apart = compared(steps=80, every=8)
    assert ours <= 1.03 * diloco and ours < apart


@pytest.mark.slow
@pytest.mark.works_when("noloco", 1)
def test_the_loss_with_half_a_million_weights():
    large = {"width": 96, "layer_count": 5, "heads": 4, "context": 16}
    ours, diloco, apart = compared(20, ranks=16, steps=200, rate=1e-3, more=large)
    assert DataParallel(more=large).learning().start_weights().size >= 500_000
    assert ours <= 1.03 * diloco and ours < apart


# -- line 2: nothing but pairs


@pytest.mark.works_when("noloco", 2)
def test_only_pairs_talk_and_nobody_waits_for_more_than_one():
    made = trained(NoLoCo(every=2), steps=20, task="logistic")
    rounds = [(r.node, r.values["mixed_with"]) for r in made.records if "mixed_with" in r.values]
    assert len(rounds) == 8 * 10
    for number in range(10):
        met = dict(rounds[i] for i in range(len(rounds)) if i // 8 == number)
        assert all(met[met[node]] == node for node in met)
    # Two models to one partner in each round, and not a byte beside; no collective ever ran.
    model_B = Quadratic().start_weights().nbytes
    assert made.extra["transfers"] == 8 * 10
    assert made.extra["transfer_bytes"] == 8 * 10 * 2 * model_B
    assert made.metrics["widest"] == 0
    assert trained(DiLoCo(every=2), steps=20, task="logistic").metrics["widest"] == 8


@pytest.mark.works_when("noloco", 2)
def test_every_pair_meets_equally_often():
    stats = pytest.importorskip("scipy.stats")
    ranks, rounds = 8, 1000
    seen = dict.fromkeys(combinations(range(ranks), 2), 0)
    for number in range(rounds):
        met = [partner(rank, ranks, 1, number) for rank in range(ranks)]
        assert all(met[met[rank]] == rank for rank in range(ranks))
        for rank in range(ranks):
            if rank < met[rank]:
                seen[rank, met[rank]] += 1
    # A round has four pairs that exclude each other, which only narrows the spread of counts.
    assert stats.chisquare(list(seen.values())).pvalue > 0.01
    always = [rounds // 2] * 8 + [rounds // 28] * 20
    assert stats.chisquare(always).pvalue < 1e-6


# -- line 3: the spread


@pytest.mark.works_when("noloco", 3)
def test_the_spread_is_bounded_shrinks_with_the_rate_and_grows_without_the_coupling():
    def spread_of(coupling, rate_scale=1.0, steps=200):
        part = NoLoCo(coupling=coupling, rate_scale=rate_scale, every=10)
        return trained(part, steps=steps, task="logistic", batch=2, rate=0.02).metrics["spread"]

    kept = spread_of(0.5)
    assert spread_of(0.5, steps=400) < 2 * kept
    assert spread_of(0.5, rate_scale=0.2) < 0.5 * kept
    assert spread_of(0.0) >= 3 * kept


@pytest.mark.works_when("noloco", 3)
@pytest.mark.parametrize(
    ("ranks", "momentum", "coupling"),
    [(8, 0.5, 0.5), (6, 0.2, 0.9)],
)
@pytest.mark.slow
def test_the_stationary_spread_is_that_of_the_linear_recursion(ranks, momentum, coupling):
    every, steps = 5, 400
    task = Quadratic(numbers=60, condition=4.0, spread=0.0, noise=0.5, rate=0.2)
    part = NoLoCo(every=every, optimiser="sgd", outer_momentum=momentum, coupling=coupling)
    # All numbers of a run share its pairs, so the pairs must differ between runs.
    seen = [
        weights_of(trained(part.with_knobs(pair_seed=seed), ranks=ranks, own=task, steps=steps))
        .var(axis=0).mean() for seed in range(10)
    ]  # fmt: skip
    follow = 1 - (1 - task.rate * task.curvature()) ** every
    powers = (1 - task.rate * task.curvature()[:, None]) ** (2 * np.arange(every))
    noise = task.rate * task.noise * np.sqrt(powers.sum(axis=1))
    told = [
        stationary_variance(ranks, momentum, coupling, 0.7 * f, 0.7 * n)
        for f, n in zip(follow, noise, strict=True)
    ]
    assert np.mean(seen) == pytest.approx(np.mean(told), rel=0.1)


def test_the_recursion_knows_its_limits():
    # Noise alone, nothing that draws together: the spread has no limit.
    assert stationary_variance(8, 0.5, 0.0, 0.0, 1.0) == float("inf")
    assert stationary_variance(8, 0.0, 1.0, 0.0, 1.0) < float("inf")
    assert stationary_variance(8, 0.5, 9.0, 0.0, 1.0) == float("inf")


# -- line 4: what it saves


def outer_step_s(part, ranks, sigma, rounds=3, **knobs):
    world = World.lan(ranks, latency_s=0.05, jitter=0.0, latency_sigma=sigma)
    made = trained(part, world=world, task="quadratic", steps=rounds, **knobs)
    assert made.violations == []
    return made.metrics["waited_s"]


@pytest.mark.works_when("noloco", 4)
@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_an_outer_step_among_many_is_far_quicker_than_a_tree(sigma, record_property):
    ranks = 512
    ours = outer_step_s(NoLoCo(every=1, timeout_s=60.0), ranks, sigma)
    tree = outer_step_s(DiLoCo(every=1, collective=Tree()), ranks, sigma)
    record_property("ratio", tree / ours)
    assert tree >= 5 * ours


@pytest.mark.slow
@pytest.mark.works_when("noloco", 4)
def test_a_ring_is_slower_still():
    ours = outer_step_s(NoLoCo(every=1, timeout_s=60.0), 512, 0.5, rounds=1)
    ring = outer_step_s(DiLoCo(every=1, collective=Ring()), 512, 0.5, rounds=1)
    assert ring >= 5 * ours


@pytest.mark.works_when("noloco", 4)
def test_idle_time_stays_where_that_of_diloco_grows():
    idle = {}
    for ranks in (8, 64, 512):
        for part in (NoLoCo(every=1, timeout_s=1e6), DiLoCo(every=1, collective=Tree())):
            # The time of a local phase is log-normal, and links cost nothing.
            made = trained(
                part, world=quick_links(ranks), task="quadratic",
                steps=8, jitter=0.5, scale=1e9, more={"numbers": 2},
            )  # fmt: skip
            phase = made.metrics["step_s"] - made.metrics["waited_s"]
            idle[ranks, type(part).__name__] = made.metrics["waited_s"] / phase
    gaps = [idle[n, "DiLoCo"] - idle[n, "NoLoCo"] for n in (8, 64, 512)]
    assert 0 < gaps[0] < gaps[1] < gaps[2]


def one_step_s():
    made = trained(NoTalk(), task="logistic", steps=4, scale=1e6)
    return final(made)[0]["busy_s"] / 4


def straggling(step_s, **knobs):
    world = quick_links(8).with_faults(Slow(node=3, at_s=0.0, factor=10.0))
    made = trained(
        NoLoCo(every=1, **knobs), world=world, task="logistic", steps=40, scale=1e6,
    )  # fmt: skip
    took = [values["took_s"] for node, values in final(made).items() if node != 3]
    waits = [r.values["waited_s"] for r in made.records if "waited_s" in r.values and r.node != 3]
    return max(took) / 40 / step_s, max(waits) / step_s


@pytest.mark.works_when("noloco", 4)
def test_one_straggler_slows_all_unless_there_is_a_timeout():
    step_s = one_step_s()
    pace, _ = straggling(step_s, timeout_s=1e6, ping_s=0.0)
    assert pace > 6.0  # near the straggler's own ten
    pace, longest = straggling(step_s, timeout_s=2 * step_s, ping_s=0.0)
    assert longest <= 2.0 + 1e-6 and pace <= 3.0 + 1e-6
    # Whoever asks a partner where it is does not wait for one that is far behind.
    asked, longest = straggling(step_s, timeout_s=2 * step_s, ping_s=0.1 * step_s)
    assert longest <= 2.0 + 1e-6 and asked < 0.75 * pace


# -- line 5: crashes and odd numbers


@pytest.mark.works_when("noloco", 5)
def test_a_crash_stalls_the_partner_alone_and_costs_nobody_a_step():
    step_s = one_step_s()
    world = quick_links(6).with_faults(Crash(node=2, at_s=7.5 * step_s))
    made = trained(
        NoLoCo(every=1, timeout_s=20 * step_s, ping_s=step_s), world=world, task="logistic",
        steps=20, scale=1e6,
    )  # fmt: skip
    ends = final(made)
    assert made.violations == [] and sorted(ends) == [0, 1, 3, 4, 5]
    assert all(values["taken"] == 20 for values in ends.values())
    # Whoever met the dead one waited and asked, and only in those rounds.
    for record in made.records:
        if "mixed_with" in record.values and record.values["mixed_with"] == -1:
            assert record.values["waited_s"] == pytest.approx(2 * step_s, rel=0.01)
    alone = sum(r.values.get("alone", 0) for r in made.records)
    met_dead = sum(partner(2, 6, 1, number) is not None for number in range(7, 20))
    assert alone == met_dead


@pytest.mark.works_when("noloco", 5)
def test_a_replica_that_comes_back_goes_on_from_the_round_of_the_others():
    step_s = one_step_s()
    back = Crash(node=2, at_s=7.5 * step_s, until_s=9 * step_s)
    made = trained(
        NoLoCo(every=1, timeout_s=20 * step_s, ping_s=step_s),
        world=quick_links(6).with_faults(back), task="logistic", steps=30, scale=1e6,
    )  # fmt: skip
    ends = final(made)
    assert made.violations == [] and len(ends) == 6 and ends[2]["lives"] == 2
    assert 0 < ends[2]["taken"] < 30
    late = [r.values["mixed_with"] for r in made.records if r.node == 2 and "waited_s" in r.values]
    assert sum(other >= 0 for other in late[-10:]) >= 8
    apart = [np.linalg.norm(ends[n]["weights"] - ends[0]["weights"]) for n in range(1, 6)]
    assert apart[1] < 2 * max(apart[0], *apart[2:])


@pytest.mark.works_when("noloco", 5)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_an_odd_replica_goes_alone_for_a_round(ranks):
    made = trained(NoLoCo(every=2), ranks=ranks, steps=20, task="logistic")
    alone = sum(r.values.get("alone", 0) for r in made.records)
    assert made.violations == [] and alone == (10 if ranks % 2 else 0)
    assert all(values["taken"] == 20 for values in final(made).values())


@pytest.mark.slow
@pytest.mark.works_when("noloco", 5)
def test_a_killed_process_stalls_its_partner_alone():
    world = World.lan(4).with_faults(Crash(node=2, at_s=1.0))
    made = trained(
        NoLoCo(every=5, timeout_s=2.0), world=world, engine="processes", steps=600,
        task="language", patience_s=20.0,
    )  # fmt: skip
    ends = final(made)
    assert made.violations == [] and sorted(ends) == [0, 1, 3]
    assert all(values["taken"] == 600 for values in ends.values())


def test_bad_input_is_named():
    for knobs in ({"every": 0}, {"coupling": -1.0}, {"timeout_s": float("nan")}, {"gamma": 1.0}):
        with pytest.raises(KnobError):
            NoLoCo(**knobs)
