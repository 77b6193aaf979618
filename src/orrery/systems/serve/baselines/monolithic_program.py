"""One integer program over all templates of all models."""

from __future__ import annotations

from collections.abc import Mapping

from orrery.parts import Count, Fraction, NonNegative, Positive
from orrery.systems.serve.problems.llm_fleet.market import Demand, Market, check_demand
from orrery.systems.serve.problems.llm_fleet.port import Plan, Planner, told
from orrery.systems.serve.problems.llm_fleet.program import Charges, Effort, Program
from orrery.systems.serve.problems.llm_fleet.templates import Templates


class MonolithicProgram(Planner):
    """Solves the joint program over ALL templates, with nothing left out: the ground truth.

    gap, most_nodes, switch_usd, horizon_h   as in Coral
    """

    gap: Fraction = 0.0
    most_nodes: Count = 100_000
    switch_usd: NonNegative = 0.0
    horizon_h: Positive = 1.0

    def plan(
        self, market: Market, demand: Demand, templates: Templates, running: Mapping[str, int]
    ) -> Plan:
        demand, market = check_demand(demand), market.check()
        effort = Effort(self.gap, self.most_nodes)
        charges = Charges(self.switch_usd, self.horizon_h)
        program = Program(templates, market, demand, running, charges)
        found = program.cheapest(effort)
        if found is not None:
            return told(program, found, "cost", proven=True)
        return told(program, program.most_served(effort), "goodput", proven=True)


__all__ = ["MonolithicProgram"]
