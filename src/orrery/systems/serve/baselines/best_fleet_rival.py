"""The best of the plans that were made before there was a joint one."""

from __future__ import annotations

from collections.abc import Mapping

from orrery.parts import Count, Fraction
from orrery.systems.serve.baselines.fixed_strategy import FixedStrategy
from orrery.systems.serve.baselines.greedy_per_dollar import GreedyPerDollar
from orrery.systems.serve.baselines.independent_fleets import IndependentFleets
from orrery.systems.serve.baselines.single_gpu_type import SingleGpuType
from orrery.systems.serve.problems.llm_fleet.market import Demand, Market
from orrery.systems.serve.problems.llm_fleet.port import Plan, Planner
from orrery.systems.serve.problems.llm_fleet.templates import Templates


class BestFleetRival(Planner):
    """Takes the best of four plans: single type, independent fleets, fixed strategy, greedy.

    It is what "the best baseline" of a comparison means, scenario by scenario: the cheapest plan
    that serves all, or, where none does, the one that serves most.

    gap, most_nodes   as in Coral
    """

    gap: Fraction = 0.0
    most_nodes: Count = 100_000

    def plan(
        self, market: Market, demand: Demand, templates: Templates, running: Mapping[str, int]
    ) -> Plan:
        effort = {"gap": self.gap, "most_nodes": self.most_nodes}
        rivals: tuple[Planner, ...] = (
            SingleGpuType(**effort), IndependentFleets(**effort), FixedStrategy(**effort),
            GreedyPerDollar(),
        )  # fmt: skip
        plans = [each.plan(market, demand, templates, running) for each in rivals]
        full = [plan for plan in plans if plan.aim == "cost"]
        if full:
            return min(full, key=lambda plan: plan.cost_per_h)
        return max(plans, key=lambda plan: (plan.goodput_per_s, -plan.cost_per_h))


__all__ = ["BestFleetRival"]
