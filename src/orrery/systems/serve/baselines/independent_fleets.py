"""Every model's own optimum on a market that all share."""

from __future__ import annotations

from collections.abc import Mapping

from orrery.parts import Count, Fraction
from orrery.systems.serve.problems.llm_fleet.market import Demand, Market, check_demand
from orrery.systems.serve.problems.llm_fleet.port import Plan, Planner
from orrery.systems.serve.problems.llm_fleet.program import Effort
from orrery.systems.serve.problems.llm_fleet.shares import one_by_one
from orrery.systems.serve.problems.llm_fleet.templates import Templates


class IndependentFleets(Planner):
    """Lets each model buy its own optimum, in the order of the demand, from what is left.

    Every team runs its own planner, which is optimal for its own model (an integer program over the
    same templates). Where GPUs are short, who comes first takes them, also where another model
    would have saved more with them. Without caps this is the joint optimum.

    gap, most_nodes   as in Coral
    """

    gap: Fraction = 0.0
    most_nodes: Count = 100_000

    def plan(
        self, market: Market, demand: Demand, templates: Templates, running: Mapping[str, int]
    ) -> Plan:
        effort = Effort(self.gap, self.most_nodes)
        return one_by_one(templates, market.check(), check_demand(demand), {}, effort=effort)


__all__ = ["IndependentFleets"]
