"""One type of GPU for everything, and the best one."""

from __future__ import annotations

from collections.abc import Mapping

from orrery.parts import Count, Fraction
from orrery.systems.serve.problems.llm_fleet.market import Demand, Market, check_demand
from orrery.systems.serve.problems.llm_fleet.port import Plan, Planner, told
from orrery.systems.serve.problems.llm_fleet.program import Effort, Program
from orrery.systems.serve.problems.llm_fleet.templates import Templates


class SingleGpuType(Planner):
    """Serves all models on one type of GPU: the one on which that costs least.

    A fleet of one type is what most deployments are. On each type the counts of templates are the
    optimum of an integer program, so the choice of a strategy is as good as Coral's; what it lacks
    is the mix. Where no single type suffices it takes the one that serves most.

    gap, most_nodes   as in Coral
    """

    gap: Fraction = 0.0
    most_nodes: Count = 100_000

    def plan(
        self, market: Market, demand: Demand, templates: Templates, running: Mapping[str, int]
    ) -> Plan:
        demand, market = check_demand(demand), market.check()
        effort = Effort(self.gap, self.most_nodes)
        programs = [
            Program([t for t in templates if {gpu for gpu, _ in t.gpus} == {name}], market, demand)
            for name in market.names
        ] or [Program((), market, demand)]
        plans = [
            told(program, found, "cost") for program in programs
            if (found := program.cheapest(effort)) is not None
        ]  # fmt: skip
        if plans:
            return min(plans, key=lambda plan: plan.cost_per_h)
        plans = [told(program, program.most_served(effort), "goodput") for program in programs]
        return max(plans, key=lambda plan: (plan.goodput_per_s, -plan.cost_per_h))


__all__ = ["SingleGpuType"]
