"""A training step run as a task graph: bubbles, exchanges, folding, slow ranks and NICs."""

from __future__ import annotations

import math

import pytest

from orrery.base.errors import SpecError
from orrery.base.rand import Stream
from orrery.models.specs import ModelSpec, spec
from orrery.models.taskgraph import Builder, GraphError, one_f_one_b, replay
from orrery.models.training import (
    IDEAL_TRAINING,
    TrainingPlan,
    Trouble,
    best_interval_s,
    critical_step_s,
    default_efficiency,
    estimate,
    expected_run,
    slow_nic,
    step_graph,
    zero_bubble,
)
from orrery.models.training.efficiency import constants
from orrery.models.training.work import params_of
from orrery.world import Crash, Slow, World, hardware, worlds

# No output matrix to speak of, so that all stages have the same work.
EVEN = ModelSpec(
    name="even", layers=24, hidden=8192, heads=64, intermediate=32768, vocab=1, max_context=512,
    tied=False, norms=0, rope=False,
)  # fmt: skip
TINY = ModelSpec(
    name="tiny", layers=4, hidden=256, heads=8, intermediate=1024, vocab=1024, max_context=128
)
MIXED = ModelSpec(
    name="mixed", layers=4, hidden=256, heads=8, intermediate=1024, vocab=1024, max_context=128,
    experts=8, experts_active=2, expert_intermediate=512, first_dense=1,
)  # fmt: skip


def still(count):
    """Ranks whose links take no time."""
    rank = worlds.a100_pod(1, rank_per_gpu=True).machines["rank"].replace(nic_Bps=1e18)
    return World.lan(count, latency_s=0.0, jitter=0.0, bandwidth_Bps=1e18, model="flows",
                     machine="rank", machines={"rank": rank})  # fmt: skip


def pod(nodes):
    return worlds.a100_pod(nodes, rank_per_gpu=True)


# -- schedules


@pytest.mark.parametrize("p, m, v, schedule", [
    (1, 4, 1, "1f1b"), (2, 2, 1, "1f1b"), (4, 8, 1, "1f1b"), (8, 8, 1, "1f1b"), (4, 8, 1, "gpipe"),
    (4, 8, 2, "interleaved"), (4, 16, 3, "interleaved"), (2, 8, 12, "interleaved"),
])  # fmt: skip
def test_the_bubble_is_the_closed_form(p, m, v, schedule):
    plan = TrainingPlan(pp=p, global_batch=m, chunks=v, schedule=schedule)
    found = estimate(EVEN, plan, still(p), efficiency=IDEAL_TRAINING)
    parts = found.parts
    # What is left of embedding and loss is well below a thousandth of the work.
    assert parts["bubble_s"] / parts["compute_s"] == pytest.approx(
        (p - 1) / (m * v), rel=2e-3, abs=3e-4)  # fmt: skip
    assert found.bubble == pytest.approx((p - 1) / (m * v + p - 1), rel=2e-3, abs=3e-4)


def pipeline_s(make, p, m, f=1.0, b=1.0, w=1.0):
    """A pipeline of given times, made task by task from the definition."""
    build = Builder(p)
    order = [make(stage, p, m) for stage in range(p)]
    place = {}
    for stage, steps in enumerate(order):
        for step in steps:
            place[step.direction, step.micro_batch, stage] = len(place)
    split = any(step.direction == "W" for step in order[0])
    took = {"F": f, "B": b if split else b + w, "W": w}
    for stage, steps in enumerate(order):
        for step in steps:
            d, k = step.direction, step.micro_batch
            before = {
                "F": ("F", k, stage - 1),
                "B": ("B", k, stage + 1) if stage < p - 1 else ("F", k, stage),
                "W": ("B", k, stage),
            }[d]
            build.compute(stage, took[d], after=[place[before]] if before in place else [])
    return replay(build.graph()).seconds


@pytest.mark.parametrize("p, m", [(1, 3), (2, 4), (4, 4), (4, 16), (8, 16)])
def test_zero_bubble_leaves_a_third_of_the_bubble(p, m):
    work = 3.0 * m
    assert pipeline_s(one_f_one_b, p, m) - work == pytest.approx(3 * (p - 1))
    assert pipeline_s(zero_bubble, p, m) - work == pytest.approx(p - 1)
    # (p - 1) (F + B - W) in general, as the paper says.
    assert pipeline_s(zero_bubble, p, m, 1.0, 1.2, 0.9) - 3.1 * m == pytest.approx(1.3 * (p - 1))


def test_zero_bubble_runs_faster_in_the_model_too():
    plans = [TrainingPlan(pp=4, global_batch=8, schedule=name) for name in ("1f1b", "zero_bubble")]
    plain, zero = (estimate(EVEN, each, still(4), efficiency=IDEAL_TRAINING) for each in plans)
    assert zero.seconds < plain.seconds
    assert zero.parts["compute_s"] == pytest.approx(plain.parts["compute_s"])
    with pytest.raises(GraphError, match="chunks"):
        zero_bubble(0, 2, 2, 2)


# -- a plan of ones, and what each degree adds


def test_a_plan_of_ones_is_the_sum_of_its_kernels():
    plan = TrainingPlan()
    found = estimate(TINY, plan, still(1))
    parts = found.parts
    assert found.seconds == pytest.approx(parts["compute_s"] + parts["update_s"])
    assert parts["bubble_s"] == parts["messages_s"] == parts["exchange_s"] == 0.0
    assert found.bubble == 0.0 and found.devices == 1 and found.fits
    again = estimate(TINY, plan, still(1))
    assert again == found


def test_the_exchange_of_gradients_is_a_ring():
    n = 4
    world = World.lan(
        n, latency_s=0.0, jitter=0.0, bandwidth_Bps=1e9, model="flows", machine="rank",
        machines={"rank": pod(1).machines["rank"].replace(nic_Bps=1e9)},
    )  # fmt: skip
    plan = TrainingPlan(dp=n, global_batch=n, overlap_gradients=False)
    found = estimate(TINY, plan, world, efficiency=IDEAL_TRAINING)
    size_B = 4 * TINY.params
    assert found.parts["exchange_s"] == pytest.approx(2 * (n - 1) / n * size_B / 1e9)
    graph = step_graph(TINY, plan, world).graph(False)
    assert graph.total_bytes() == {"all_reduce": size_B}
    shared = TrainingPlan(dp=n, global_batch=n, overlap_gradients=False, sharded_optimizer=True)
    told = step_graph(TINY, shared, world).graph(False).total_bytes()
    assert told == {"reduce_scatter": size_B, "all_gather": 2 * TINY.params}
    # Beside the backward pass a part of it costs nothing.
    beside = estimate(TINY, TrainingPlan(dp=n, global_batch=n), world, efficiency=IDEAL_TRAINING)
    assert beside.seconds < found.seconds


def test_tensor_parallelism_sends_four_all_reduces_a_layer():
    world = pod(1)
    plan = TrainingPlan(tp=8, overlap_tensor=False)
    told = step_graph(TINY, plan, world).graph(False).total_bytes()
    row_B = 128 * TINY.hidden * 2
    loss_B = 128 * 3 * 4
    assert told["all_reduce"] == 4 * TINY.layers * row_B + 2 * row_B + 2 * loss_B
    split = TrainingPlan(tp=8, overlap_tensor=False, sequence_parallel=True)
    told = step_graph(TINY, split, world).graph(False).total_bytes()
    assert told["reduce_scatter"] == told["all_gather"]
    hidden = estimate(TINY, TrainingPlan(tp=8), world)
    assert hidden.seconds < estimate(TINY, plan, world).seconds


PLANS = [
    (TINY, {"tp": 2, "pp": 2, "dp": 4, "chunks": 2, "global_batch": 8}),
    (TINY, {"tp": 2, "cp": 2, "dp": 4, "global_batch": 4, "sharded_optimizer": True}),
    (TINY, {"pp": 4, "dp": 4, "schedule": "zero_bubble", "global_batch": 16,
            "overlap_gradients": False}),
    (MIXED, {"tp": 2, "dp": 8, "ep": 8, "global_batch": 8, "sequence_parallel": True}),
    (MIXED, {"tp": 2, "pp": 2, "dp": 4, "ep": 2, "global_batch": 8, "recompute": "full",
             "sharded_optimizer": True}),
]  # fmt: skip


@pytest.mark.parametrize("model, knobs", PLANS, ids=range(len(PLANS)))
def test_folded_ranks_and_the_critical_path_agree(model, knobs):
    plan, even = TrainingPlan(**knobs), pod(2)
    for world in (even, slow_nic(even, 5), even.with_faults(Slow(node=3, factor=1.5))):
        for contention in (False, True):
            told = [
                estimate(model, plan, world, contention=contention, fold=fold).seconds
                for fold in (True, False)
            ]
            assert told[0] == pytest.approx(told[1], rel=1e-9)
            if not contention:
                assert told[0] == critical_step_s(model, plan, world)


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen3-30B-A3B", "DeepSeek-V3", "Gemma-2-9B"])
def test_published_shapes_of_all_kinds_have_a_step(name):
    model = spec(name)
    plan = TrainingPlan(dp=8, ep=8 if model.experts else 1, global_batch=8, sequence=1024)
    found = estimate(model, plan, worlds.h100_pod(1, rank_per_gpu=True))
    assert 0.05 < found.mfu < found.hfu * 1.0001 < 0.75
    assert any("A100" in note for note in found.notes)
    assert found.dollars > 0 and math.isfinite(found.tokens_per_s)


def test_any_topology_may_carry_it():
    rank = pod(1).machines["rank"]
    ring = World.ring(8, machine="rank", machines={"rank": rank})
    found = estimate(TINY, TrainingPlan(tp=2, pp=2, dp=2, global_batch=4), ring)
    assert found.seconds > 0


# -- faults


def test_a_slow_rank_holds_up_its_tensor_group_and_all_others():
    plan = TrainingPlan(tp=2, pp=2, dp=2, global_batch=8)
    world = still(8)
    even = estimate(EVEN, plan, world, efficiency=IDEAL_TRAINING)
    slow = estimate(EVEN, plan, world.with_faults(Slow(node=1, factor=3.0)),
                    efficiency=IDEAL_TRAINING)  # fmt: skip
    # Four micro-batches on two stages. The first stage is slow, so it never waits for the second:
    # three times its work and its update is all there is.
    work_s, update_s = even.parts["compute_s"], even.parts["update_s"]
    assert even.seconds == pytest.approx(work_s * 1.25 + update_s, rel=1e-3)
    assert slow.seconds == pytest.approx(3 * work_s + 3 * update_s, rel=1e-3)
    with pytest.raises(SpecError, match="name the slow ranks"):
        estimate(EVEN, plan, world.with_faults(Slow(node="random", factor=3.0)))
    crashed = estimate(EVEN, plan, world.with_faults(Crash(node=0, at_s=1.0)))
    assert any("Crash" in note for note in crashed.notes)


def test_a_slow_nic_costs_what_its_ring_loses():
    plan = TrainingPlan(tp=8, dp=2, global_batch=2, overlap_gradients=False)
    even = pod(2)
    slow = slow_nic(even, 3)
    share = IDEAL_TRAINING
    told = [estimate(TINY, plan, w, efficiency=share).seconds for w in (even, slow)]
    # Rank 3 and rank 11 exchange gradients over two NICs; at half rate that takes twice as long.
    size_B = 4 * sum(params_of(TINY, plan, 0).values())
    assert told[1] - told[0] == pytest.approx(size_B / 12.5e9 - size_B / 25e9, rel=1e-9)
    paths = [critical_step_s(TINY, plan, w, efficiency=share) for w in (even, slow)]
    assert told[1] - told[0] == pytest.approx(paths[1] - paths[0])
    # The same NIC in a job of one node changes nothing.
    alone = TrainingPlan(tp=8)
    both = [estimate(TINY, alone, w).seconds for w in (even, slow)]
    assert both[0] == both[1]


@pytest.mark.parametrize("node, share, names", [
    (16, 0.5, "node"), (-1, 0.5, "node"), (True, 0.5, "node"), (1, 0.0, "share"), (1, 2, "share"),
    (1, math.nan, "share"),
])  # fmt: skip
def test_bad_slow_nics_are_refused(node, share, names):
    with pytest.raises(SpecError, match=names):
        slow_nic(pod(2), node, share)


def drawn_run_s(trouble, interval_s, segments, seed):
    """The same run, failure by failure."""
    rng = Stream(seed, "training", "failures")
    now = 0.0
    for _ in range(segments):
        while True:
            fails = rng.expovariate(trouble.rate_per_s)
            if fails >= interval_s + trouble.checkpoint_s:
                now += interval_s + trouble.checkpoint_s
                break
            now += fails
            # A failure while it restarts begins the restart anew.
            while (again := rng.expovariate(trouble.rate_per_s)) < trouble.restart_s:
                now += again
            now += trouble.restart_s
    return now


def test_lost_nodes_cost_what_drawn_failures_cost():
    trouble = Trouble(mtbf_h=100, nodes=64, checkpoint_s=60, restart_s=600, interval_s=1800)
    told = expected_run(1800.0, 4000, trouble)
    drawn = drawn_run_s(trouble, 1800.0, 4000, 1)
    assert told.seconds == pytest.approx(drawn, rel=0.03)
    assert told.goodput == pytest.approx(1800 * 4000 / told.seconds)
    assert told.failures == pytest.approx(told.seconds * 64 / 100 / 3600)


def test_the_best_interval_is_better_than_its_neighbours_and_near_youngs():
    trouble = Trouble(mtbf_h=50_000, nodes=512, checkpoint_s=60, restart_s=600)
    best_s = best_interval_s(trouble)
    assert best_s == pytest.approx(math.sqrt(2 * 60 / trouble.rate_per_s), rel=0.05)
    least = expected_run(10.0, 1_000_000, trouble, dollars_per_h=1000.0)
    for factor in (0.5, 0.9, 1.1, 2.0):
        other = trouble.replace(interval_s=best_s * factor)
        assert expected_run(10.0, 1_000_000, other).seconds > least.seconds
    assert least.dollars == pytest.approx(least.seconds / 3.6)
    more = expected_run(10.0, 1_000_000, trouble.replace(nodes=4096))
    assert more.goodput < least.goodput < 1


@pytest.mark.parametrize("bad, names", [
    (lambda: Trouble(mtbf_h=0), "mtbf_h"), (lambda: Trouble(mtbf_h=1, nodes=0), "nodes"),
    (lambda: Trouble(mtbf_h=1, checkpoint_s=0), "interval_s"),
    (lambda: Trouble(mtbf_h=math.nan), "mtbf_h"),
    (lambda: expected_run(0.0, 1, Trouble(mtbf_h=1)), "step_s"),
    (lambda: expected_run(1.0, -1, Trouble(mtbf_h=1)), "steps"),
    (lambda: expected_run(1e6, 10, Trouble(mtbf_h=1, nodes=1000, interval_s=1e6)), "no time"),
])  # fmt: skip
def test_bad_trouble_is_refused(bad, names):
    with pytest.raises(SpecError, match=names):
        bad()


# -- worlds that do not suit


def test_worlds_that_do_not_suit_are_refused():
    plan = TrainingPlan(dp=16, global_batch=16)
    for world, names in (
        (pod(1), "16 devices where the world has 8"), (worlds.a100_pod(2), "rank_per_gpu"),
        (World.lan(16), "no accelerator"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=names):
            estimate(TINY, plan, world)


def test_every_constant_says_what_it_is_and_where_it_is_from():
    rows = constants()
    assert {row["kind"] for row in rows.values()} == {"fitted", "table", "assumed"}
    assert [name for name, row in rows.items() if row["kind"] == "fitted"] == ["gemm"]
    for name, row in rows.items():
        assert row["means"] and row["source"], name
        assert getattr(default_efficiency(), name) == row["value"]
    with pytest.raises(SpecError, match="gemm"):
        default_efficiency().replace(gemm=0.0)
    assert hardware.accelerator("A100-80-SXM").name == default_efficiency().device
