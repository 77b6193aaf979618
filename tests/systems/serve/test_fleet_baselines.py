"""The baselines of fleet planning, each against a figure known without it."""

from __future__ import annotations

import math

import pytest
from tests.systems.serve.fleet_cases import brute_force, small_case, tiny_market

from orrery.systems.serve.baselines.best_fleet_rival import BestFleetRival
from orrery.systems.serve.baselines.fixed_strategy import FixedStrategy, usual
from orrery.systems.serve.baselines.greedy_per_dollar import GreedyPerDollar
from orrery.systems.serve.baselines.independent_fleets import IndependentFleets
from orrery.systems.serve.baselines.monolithic_program import MonolithicProgram
from orrery.systems.serve.baselines.single_gpu_type import SingleGpuType
from orrery.systems.serve.problems.llm_fleet import Need, Template, price_list
from orrery.systems.serve.problems.llm_fleet.audit import audit

pytest.importorskip("scipy", reason="planning a fleet needs the extra plan")

A, B = "Llama-3.1-8B", "Llama-3.1-70B"


def made(name, model, gpu, count, rate):
    return Template(name, model, ((gpu, count),), rate, rate)


def test_the_monolithic_program_equals_brute_force():
    tried = 0
    for seed in range(220):
        market, demand, templates = small_case(seed)
        if len(templates) > 12:
            continue
        tried += 1
        plan = MonolithicProgram().plan(market, demand, templates, {})
        best = brute_force(market, demand, templates)
        assert (best is None) == (plan.aim == "goodput")
        if best is not None:
            assert plan.cost_per_h == pytest.approx(best, abs=1e-6)
    assert tried >= 12


def test_a_single_type_costs_what_division_says():
    market = price_list(("L4", "L40S"))
    templates = (made("a", A, "L4", 1, 0.8), made("b", A, "L40S", 1, 7.0),
                 made("c", B, "L40S", 4, 0.7), made("d", B, "L4", 8, 0.2))  # fmt: skip
    demand = (Need(A, 10.0), Need(B, 2.0))
    # 13 + 80 GPUs are more L4 than the market has, so the other type is the only one.
    l40s = math.ceil(10 / 7.0) * 1.86 + math.ceil(2 / 0.7) * 4 * 1.86
    plan = SingleGpuType().plan(market, demand, templates, {})
    assert plan.cost_per_h == pytest.approx(l40s)
    assert set(plan.counts) == {"b", "c"}


def test_independent_fleets_without_caps_are_the_joint_optimum_and_with_them_come_in_order():
    for seed in range(20):
        market, demand, templates = small_case(seed)
        free = market.changed(available=dict.fromkeys(market.names, 1000))
        plans = [p.plan(free, demand, templates, {})
                 for p in (IndependentFleets(), MonolithicProgram())]  # fmt: skip
        assert plans[0].cost_per_h == pytest.approx(plans[1].cost_per_h, abs=1e-6)
    # Two models want the one cheap GPU; the second would have saved more with it.
    market = tiny_market(L4=1, H200=9).changed(prices={"L4": 1.0, "H200": 10.0})
    templates = (made("a1", A, "L4", 1, 1.0), made("a2", A, "H200", 1, 1.0),
                 made("b1", B, "L4", 1, 1.0), made("b2", B, "H200", 2, 1.0))  # fmt: skip
    demand = (Need(A, 1.0), Need(B, 1.0))
    assert IndependentFleets().plan(market, demand, templates, {}).cost_per_h == 21.0
    assert MonolithicProgram().plan(market, demand, templates, {}).cost_per_h == 11.0


def test_a_fixed_strategy_is_the_smallest_that_fits():
    market = price_list(("L4", "L40S"))
    templates = (made("a2", A, "L4", 2, 3.0), made("a1", A, "L4", 1, 0.8),
                 made("b4", A, "L40S", 4, 20.0), made("b2", A, "L40S", 2, 12.0),
                 Template("p", A, (("L40S", 1),), 30.0, 0.0))  # fmt: skip
    assert [each.id for each in usual(templates)] == ["a1", "b2"]
    plan = FixedStrategy().plan(market, (Need(A, 1.6),), templates, {})
    assert plan.counts == {"a1": 2} and plan.cost_per_h == pytest.approx(1.6)


def test_the_greedy_rule_falls_into_its_known_trap():
    # Dobson's example: the better ratio first, and then a dear replica for a small rest.
    market = price_list(("L4", "L40S")).changed(prices={"L4": 1.0, "L40S": 1.9})
    templates = (made("small", A, "L4", 1, 1.0), made("large", A, "L40S", 1, 2.0))
    demand = (Need(A, 3.0),)
    plan = GreedyPerDollar().plan(market, demand, templates, {})
    assert plan.counts == {"large": 1, "small": 1} and plan.cost_per_h == pytest.approx(2.9)
    trap = (made("good", A, "L40S", 1, 2.0), made("exact", A, "L4", 1, 1.5))
    market = market.changed(prices={"L4": 1.45, "L40S": 1.9})
    plan = GreedyPerDollar().plan(market, demand, trap, {})
    assert plan.counts == {"good": 1, "exact": 1} and plan.cost_per_h == pytest.approx(3.35)
    assert MonolithicProgram().plan(market, demand, trap, {}).cost_per_h == pytest.approx(2.9)


def test_greedy_stops_when_nothing_fits():
    templates = (made("a", A, "L4", 1, 1.0),)
    plan = GreedyPerDollar().plan(tiny_market(L4=2), (Need(A, 9.0),), templates, {})
    assert plan.counts == {"a": 2} and plan.aim == "goodput" and plan.goodput_per_s == 2.0


def test_the_best_rival_is_the_best_of_the_four():
    for seed in range(8):
        market, demand, templates = small_case(seed)
        four = [p.plan(market, demand, templates, {}) for p in (
            SingleGpuType(), IndependentFleets(), FixedStrategy(), GreedyPerDollar())]  # fmt: skip
        best = BestFleetRival().plan(market, demand, templates, {})
        full = [plan.cost_per_h for plan in four if plan.aim == "cost"]
        if full:
            assert best.cost_per_h == min(full)
        else:
            assert best.goodput_per_s == max(plan.goodput_per_s for plan in four)
        for plan in (*four, best):
            assert audit(plan, market, demand, templates) == []
