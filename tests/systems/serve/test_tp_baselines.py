"""The rivals of adaptive tensor parallelism: each first reproduces a figure of its own."""

from __future__ import annotations

import pytest

from orrery.base.errors import KnobError
from orrery.models.replica import Replica, drain
from orrery.models.requests import Request, Target
from orrery.systems.serve.baselines.tp_adaptive_cold import TPAdaptiveCold
from orrery.systems.serve.baselines.tp_autoscale_reload import TPAutoscaleReload
from orrery.systems.serve.baselines.tp_slo_queue import TPSloQueue
from orrery.systems.serve.baselines.tp_static import TPStatic
from orrery.systems.serve.baselines.tp_static_disaggregated import TPStaticDisaggregated
from orrery.systems.serve.baselines.tp_window_oracle import TPWindowOracle
from orrery.systems.serve.baselines.vllm_v1 import VllmV1
from orrery.systems.serve.nitsum import Nitsum
from orrery.systems.serve.problems.llm_parallelism import LLMParallelism, faults_of, log_of
from orrery.systems.serve.problems.llm_parallelism.plans import Plan


def request(number, at_s=0.0, prompt=1000, answer=50, tier=0, ttft_s=0.5, tpot_s=0.02):
    names = ("interactive", "background")
    return Request(number, at_s, prompt, answer, kind=names[tier], priority=tier, max_tokens=32768,
                   target=Target(ttft_s, tpot_s))  # fmt: skip


def played(problem, part, requests=None, seed=1):
    cluster = problem.cluster(part, seed, requests=requests).play()
    assert faults_of(log_of(cluster)) == []
    return cluster


# -- static


def test_tp_static_on_one_gpu_is_the_replica_with_vllms_scheduler():
    """The limit of one instance: the library's engine, step by step, gives the same times."""
    problem = LLMParallelism(gpus=1, windows=1, window_s=40.0, interactive_per_s=(2.0,),
                             background_per_s=(0.5,), tables="")  # fmt: skip
    cluster = played(problem, TPStatic(tp=1))
    rig = cluster.rig
    replica = Replica(rig.steps[1], VllmV1(), blocks=rig.capacity[1] // 16, caching=False,
                      ahead=False)  # fmt: skip
    theirs = {each.id: each for each in drain(replica, problem.requests(1))}
    assert len(theirs) == len(cluster.fared) > 60
    for each in cluster.fared:
        assert each.first_s == pytest.approx(theirs[each.id].first_s, abs=1e-6)
        assert each.last_s == pytest.approx(theirs[each.id].last_s, abs=1e-6)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_tp_static_alone_takes_the_time_of_its_steps(tp):
    problem = LLMParallelism(tables="")
    cluster = played(problem, TPStatic(tp=tp), [request(0)])
    (fared,) = cluster.fared
    steps = cluster.rig.costs[tp]
    assert fared.ttft_s == pytest.approx(steps.seconds([(1000, 0)], 0, 0))
    assert fared.last_s - fared.first_s == pytest.approx(steps.decode_run(1, 1001, 49))
    assert str(cluster.plan()) == str(Plan.parse(f"M{tp}x{8 // tp}"))


def test_static_knobs_that_do_not_fit_are_refused():
    problem = LLMParallelism(tables="")
    with pytest.raises(KnobError, match=r"TPStatic\.tp"):
        problem.cluster(TPStatic(tp=3), 1)
    with pytest.raises(KnobError, match="decode_tp"):
        problem.cluster(TPStaticDisaggregated(decode_tp=8), 1)
    with pytest.raises(KnobError, match="fast_tp"):
        problem.cluster(TPAutoscaleReload(fast_tp=1, slow_tp=2), 1)


def test_static_disaggregation_takes_prompt_hand_over_and_answer():
    """One request in closed form: its prompt, its cache over the links, its answer."""
    problem = LLMParallelism(tables="")
    part = TPStaticDisaggregated(prefill_gpus=4, prefill_tp=2, decode_tp=4)
    cluster = played(problem, part, [request(0)])
    (fared,), rig = cluster.fared, cluster.rig
    assert fared.ttft_s == pytest.approx(rig.costs[2].seconds([(1000, 0)], 0, 0))
    moved_s = 1000 * rig.kv_B / (2 * rig.link_Bps)
    answer_s = rig.costs[4].decode_run(1, 1001, 49)
    assert fared.last_s - fared.first_s == pytest.approx(moved_s + answer_s)
    assert cluster.handed_B == 1000 * rig.kv_B


# -- queues that know the targets


def test_slo_queue_is_the_plain_queue_where_all_are_promised_the_same():
    problem = LLMParallelism(tables="", gpus=2)
    some = [request(n, 0.3 * n, 600 + 37 * n, 30) for n in range(12)]
    plain, aware = (played(problem, part, some) for part in (TPStatic(tp=2), TPSloQueue(tp=2)))
    assert [each.last_s for each in plain.fared] == [each.last_s for each in aware.fared]


def test_slo_queue_meets_deadlines_that_order_of_arrival_misses():
    """Jackson's rule: at one machine, earliest deadline first is late only if all orders are."""
    problem = LLMParallelism(tables="", gpus=1)
    patient = [request(n, 0.0, 2000, 1, tier=1, ttft_s=10.0, tpot_s=1.0) for n in range(6)]
    urgent = [request(6, 0.001, 500, 1, ttft_s=0.5)]
    plain, aware = (played(problem, part, patient + urgent)
                    for part in (TPStatic(tp=1), TPSloQueue(tp=1)))  # fmt: skip
    assert not next(each for each in plain.fared if each.id == 6).met
    assert all(each.met for each in aware.fared)


# -- reloads


class Twice(TPAdaptiveCold):
    """One change at the second look, with the baseline's way of changing."""

    def plan(self, view):
        return Plan.parse("M2" if view.plan is None else "M1x2")


def test_a_cold_change_takes_regrouping_and_reading_whole_shards():
    problem = LLMParallelism(tables="", gpus=2, control_s=2.0)
    cluster = played(problem, Twice(), [request(0), request(1, 30.0)])
    (took_s,), rig = cluster.transitions.switch_s, cluster.rig
    reading_s = rig.weight_B[1] / rig.disk_Bps + rig.weight_B[1] / rig.link_Bps
    assert took_s == pytest.approx(problem.regroup_s + reading_s)
    assert 9 < took_s < 11, "65.5 GB at 6.9 GB/s"
    warm = played(problem, type("Warm", (Twice,), {"reuse": True, "migrate": True})(),
                  [request(0), request(1, 30.0)])  # fmt: skip
    (quick_s,) = warm.transitions.switch_s
    missing_B = rig.weight_B[1] - rig.weight_B[2]
    assert quick_s == pytest.approx(problem.regroup_s + missing_B / rig.link_Bps, rel=1e-6)
    assert warm.transitions.weight_B == 2 * missing_B


def test_adaptive_cold_is_nitsum_with_the_mechanism_off():
    problem = LLMParallelism(windows=2, window_s=8.0, tables="")
    cold, off = (played(problem, part)
                 for part in (TPAdaptiveCold(), Nitsum(reuse=False, migrate=False)))  # fmt: skip
    assert cold.fared == off.fared


def test_autoscaling_moves_gpus_to_the_pool_that_needs_them():
    problem = LLMParallelism(windows=1, window_s=90.0, interactive_per_s=(10.0,),
                             background_per_s=(0.5,), tables="")  # fmt: skip
    cluster = played(problem, TPAutoscaleReload())
    plans = [plan for _, plan in cluster.transitions.log]
    assert plans[0] == "M4 M1x4"
    if len(plans) > 1:
        assert plans[1] == "M4x2" and cluster.transitions.disk_B > 0
    crowded = problem.with_knobs(interactive_per_s=(0.0,), background_per_s=(33.0,))
    assert "M1x8" in [plan for _, plan in played(crowded, TPAutoscaleReload()).transitions.log]


# -- the oracle


def test_the_oracle_of_one_window_is_the_best_static_plan():
    problem = LLMParallelism(gpus=2, windows=1, window_s=30.0, interactive_per_s=(6.0,),
                             background_per_s=(1.0,), tables="")  # fmt: skip
    met = {
        str(plan): sum(e.met for e in played(problem, Nitsum(fixed=str(plan), adapt=False)).fared)
        for plan in problem.cluster_plans()
    }  # fmt: skip
    oracle = played(problem, TPWindowOracle(candidates=0))
    assert sum(each.met for each in oracle.fared) == max(met.values())


def test_the_oracle_changes_at_once_and_for_nothing():
    problem = LLMParallelism(gpus=2, windows=2, window_s=20.0, interactive_per_s=(6.0, 0.2),
                             background_per_s=(0.2, 9.0), tables="")  # fmt: skip
    cluster = played(problem, TPWindowOracle(candidates=0))
    moves = cluster.transitions
    assert moves.weight_B == moves.disk_B == moves.kv_B == 0.0
    assert moves.gpu_down_s == 0.0 and TPWindowOracle.foresees
    assert all(when_s in (0.0, 20.0) for when_s, _ in moves.log)
