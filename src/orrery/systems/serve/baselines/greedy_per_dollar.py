"""Buy, again and again, what gives the most throughput for a dollar."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from orrery.systems.serve.problems.llm_fleet.market import Demand, Market, check_demand
from orrery.systems.serve.problems.llm_fleet.port import Plan, Planner, told
from orrery.systems.serve.problems.llm_fleet.program import SLACK, Program, Solution
from orrery.systems.serve.problems.llm_fleet.templates import Templates


class GreedyPerDollar(Planner):
    """Buys one replica after the other: the one with the most throughput still of use a dollar.

    The greedy rule for covering problems (Dobson, 1982): of each template counts only what the
    unmet demand can use, prompts and answers alike, as a share of the model's demand, so that the
    last replica is not larger than it need be. It stops when all is met or nothing more fits.
    """

    def plan(
        self, market: Market, demand: Demand, templates: Templates, running: Mapping[str, int]
    ) -> Plan:
        demand, market = check_demand(demand), market.check()
        program = Program(templates, market, demand)
        owner = {need.model: at for at, need in enumerate(demand)}
        of = np.array([owner.get(model, -1) for model in program.of], int)
        unmet = np.array([[need.rate_per_s] * 2 for need in demand], float).reshape(-1, 2)
        wanted = np.maximum(unmet.copy(), SLACK)
        rest, money = market.caps.copy(), market.budget_per_h
        price = np.maximum(program.price, SLACK)
        counts: dict[str, int] = {}
        while len(of) and (unmet > SLACK * wanted).any():
            use = np.minimum(program.rates, unmet[of]) / wanted[of]
            worth = np.where(of >= 0, use.sum(axis=1), 0.0) / price
            fits = (program.use <= rest + 1e-9).all(axis=1) & (program.price <= money + 1e-9)
            worth = np.where(fits, worth, 0.0)
            best = int(worth.argmax())
            if worth[best] <= 0:
                break
            name = templates[best].id
            counts[name] = counts.get(name, 0) + 1
            unmet[of[best]] = np.maximum(unmet[of[best]] - program.rates[best], 0.0)
            rest -= program.use[best]
            money -= program.price[best]
        met = not (unmet > SLACK * wanted).any()
        found = Solution(counts, 0.0, 0.0, 0, len(templates), False)
        return told(program, found, "cost" if met else "goodput")


__all__ = ["GreedyPerDollar"]
