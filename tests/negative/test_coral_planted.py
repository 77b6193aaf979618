"""Planted faults in fleet planning: rules that prune too much, plans that lie; all are caught."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.systems.serve.fleet_cases import small_case

from orrery.systems.serve.baselines.monolithic_program import MonolithicProgram
from orrery.systems.serve.coral import Coral, non_dominated, without_sums
from orrery.systems.serve.problems.llm_fleet import (
    Epoch,
    LLMFleet,
    Log,
    Need,
    Plan,
    Template,
    faults_of,
    price_list,
)
from orrery.systems.serve.problems.llm_fleet.audit import audit, memory_faults
from orrery.systems.serve.problems.llm_fleet.replay import Fared
from orrery.systems.serve.problems.llm_fleet.strategy import Stage, Strategy
from orrery.systems.serve.problems.llm_fleet.templates import rates, usage

pytest.importorskip("scipy", reason="planning a fleet needs the extra plan")


def pruned_by(measure, templates, market):
    """What is left when dominance looks at one number of a template instead of its GPUs."""
    kept = []
    for model in dict.fromkeys(each.model for each in templates):
        mine = [each for each in templates if each.model == model]
        taken = measure(usage(mine, market), market)[:, None]
        stays = non_dominated(taken, rates(mine))
        kept += [each for each, stay in zip(mine, stays, strict=True) if stay]
    return tuple(kept)


def worse_than_the_truth(measure, seeds):
    """On how many cases a rule loses the optimum, by more than 1e-6."""
    lost = 0
    for seed in seeds:
        market, demand, templates = small_case(seed)
        few = pruned_by(measure, templates, market)
        ours = Coral(prune=False).plan(market, demand, few, {})
        truth = MonolithicProgram().plan(market, demand, templates, {})
        if truth.aim == "cost":
            lost += ours.aim != "cost" or ours.cost_per_h > truth.cost_per_h + 1e-6
        else:
            lost += ours.goodput_per_s < truth.goodput_per_s - 1e-6
    return lost


@pytest.mark.works_when("coral", 1)
@pytest.mark.parametrize(
    "measure",
    [lambda use, market: use.sum(axis=1), lambda use, market: use @ market.prices],
    ids=["by the number of GPUs", "by price"],
)
def test_an_over_eager_rule_loses_the_optimum_and_is_caught(measure):
    assert worse_than_the_truth(measure, range(24)) >= 3


@pytest.mark.works_when("coral", 1)
def test_dominance_in_the_sum_of_the_rates_is_over_eager_too():
    # A prefill template with a high rate must not push out the decode template that it needs.
    prefill = Template("p", "Llama-3.1-8B", (("L4", 1),), 9.0, 0.0)
    decode = Template("d", "Llama-3.1-8B", (("L4", 1),), 0.0, 5.0)
    pair = np.array([[1.0], [1.0]])
    both = rates([prefill, decode])
    assert non_dominated(pair, both).tolist() == [True, True]
    assert non_dominated(pair, both.sum(axis=1)[:, None]).tolist() == [True, False]
    plan = Coral().plan(price_list(("L4",)), (Need("Llama-3.1-8B", 5.0),), (prefill, decode), {})
    assert plan.counts == {"p": 1, "d": 1}


def test_pruning_by_supply_only_seen_now_would_lose_what_runs():
    # A dominated template that runs is kept when switching is charged, and then stays in use.
    good = Template("good", "Llama-3.1-8B", (("L4", 1),), 1.0, 1.0)
    runs = Template("runs", "Llama-3.1-8B", (("L4", 1),), 0.9, 0.9)
    market, need = price_list(("L4",)), (Need("Llama-3.1-8B", 0.9),)
    planner = Coral(switch_usd=1.0)
    assert planner.plan(market, need, (good, runs), {"runs": 1}).counts == {"runs": 1}
    assert planner.plan(market, need, (good, runs), {}).counts == {"good": 1}


def test_two_for_one_is_not_lossless_where_a_switch_is_charged():
    # Two small replicas do what the large one does, but starting them is charged twice.
    small = Template("small", "Llama-3.1-8B", (("L4", 1),), 1.0, 1.0)
    large = Template("large", "Llama-3.1-8B", (("L4", 2),), 2.0, 2.0)
    other = Template("other", "Llama-3.1-8B", (("A10", 1),), 0.1, 0.1)
    market, need = price_list(("L4", "A10")), (Need("Llama-3.1-8B", 2.0),)
    assert [each.id for each in without_sums((small, large), market)] == ["small"]
    listed, running = (small, large, other), {"other": 1}
    assert Coral().plan(market, need, listed, running).counts == {"small": 2}
    assert Coral(switch_usd=1.0).plan(market, need, listed, running).counts == {"large": 1}


# -- plans that lie


CASE = small_case(5)


def kinds(plan):
    market, demand, templates = CASE
    return {each.kind for each in audit(plan, market, demand, templates)}


def honest():
    market, demand, templates = CASE
    plan = Coral().plan(market, demand, templates, {})
    assert plan.aim == "cost" and not kinds(plan)
    return plan


@pytest.mark.works_when("coral", 2)
def test_the_validator_catches_every_kind_of_lie():
    plan, replace = honest(), msgspec.structs.replace
    first = next(iter(plan.counts))
    assert kinds(replace(plan, counts={**plan.counts, "nobody": 1})) == {"unknown_template"}
    assert kinds(replace(plan, counts={**plan.counts, first: 0})) == {"bad_count"}
    assert kinds(replace(plan, counts={**plan.counts, first: 1.5})) == {"bad_count"}
    assert "oversold" in kinds(replace(plan, counts={**plan.counts, first: 99}))
    assert kinds(replace(plan, cost_per_h=plan.cost_per_h - 0.01)) == {"wrong_cost"}
    assert "unmet_demand" in kinds(Plan(counts={}, aim="cost"))
    more = {model: rate + 1 for model, rate in plan.served.items()}
    assert kinds(replace(plan, served=more)) == {"boast"}
    market, demand, templates = CASE
    poor = market.changed(budget_per_h=plan.cost_per_h / 2)
    assert "over_budget" in {each.kind for each in audit(plan, poor, demand, templates)}


@pytest.mark.works_when("coral", 2)
def test_the_validator_catches_what_does_not_fit_the_memory():
    fits = Strategy("Llama-3.1-8B", (Stage("L4", 1, 32),))
    assert memory_faults(fits, 12_767) == []
    large = Strategy("Llama-3.1-70B", (Stage("L4", 4, 80),))
    assert {each.kind for each in memory_faults(large, 12_767)} == {"out_of_memory"}
    cut = Strategy("Llama-3.1-8B", (Stage("L4", 1, 20), Stage("L4", 1, 10)))
    assert {each.kind for each in memory_faults(cut, 1000)} == {"wrong_layers"}
    odd = Strategy("Llama-3.1-8B", (Stage("L4", 3, 32),))
    assert {each.kind for each in memory_faults(odd, 1000)} == {"wrong_split"}


@pytest.mark.works_when("coral", 2)
def test_the_validator_catches_a_rate_that_breaks_the_promise():
    strategy = Strategy("Llama-3.1-8B", (Stage("L4", 1, 32),))
    boast = Template("b", "Llama-3.1-8B", (("L4", 1),), 3.0, 3.0, strategy)
    market, need = price_list(("L4",)), (Need("Llama-3.1-8B", 2.0),)
    plan = Coral().plan(market, need, (boast,), {})
    assert {each.kind for each in audit(plan, market, need, (boast,))} == {"slo_missed"}


def test_lost_requests_and_broken_books_are_violations():
    market, demand, templates = CASE
    plan = honest()
    for fared, kind in (
        (Fared("Llama-3.1-8B", 10, 9, 10, 9, 1.0), "lost_requests"),
        (Fared("Llama-3.1-8B", 10, 10, 10, 9, 1.0, ("a block is gone",)), "cache_books"),
    ):
        log = Log(templates, (Epoch(market, demand, {}, plan, (fared,)),))
        assert {each.kind for each in faults_of(log)} == {kind}


def test_a_policy_that_buys_what_is_not_there_breaks_a_law():
    from orrery.lab import laws

    class Dreamer(Coral):
        """Plans for a market without caps."""

        def plan(self, market, demand, templates, running):
            free = market.changed(available=dict.fromkeys(market.names, 1000))
            return super().plan(free, demand, templates, running)

    broken = laws.check(Dreamer(), LLMFleet(replays=0, factors=(1.0,)))
    assert any(each.law == "chooses_legally" for each in broken)
