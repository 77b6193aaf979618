"""Plans made model by model on a shared market, each for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orrery.systems.serve.problems.llm_fleet.market import Demand, Market
from orrery.systems.serve.problems.llm_fleet.port import Plan, told
from orrery.systems.serve.problems.llm_fleet.program import Charges, Effort, Program, Solution
from orrery.systems.serve.problems.llm_fleet.templates import Template


def one_by_one(
    templates: Sequence[Template], market: Market, demand: Demand, running: Mapping[str, int],
    charges: Charges = Charges(), effort: Effort = Effort(),
) -> Plan:  # fmt: skip
    """Each model in turn buys what is best for it alone, from what those before it have left.

    Where the rest is too small for all of its demand, it serves as much of it as it can.
    """
    counts: dict[str, int] = {}
    rest, met, nodes, columns = market, True, 0, 0
    for need in demand:
        mine = [each for each in templates if each.model == need.model]
        held = {each.id: running[each.id] for each in mine if running.get(each.id)}
        program = Program(mine, rest, (need,), held, charges)
        found = program.cheapest(effort)
        if found is None:
            found, met = program.most_served(effort), False
        counts |= found.counts
        nodes, columns = nodes + found.nodes, max(columns, found.columns)
        rest = left(rest, mine, found.counts)
    whole = Program(templates, market, demand)
    plan = Solution(counts, 0.0, 0.0, nodes, columns, False)
    return told(whole, plan, "cost" if met else "goodput")


def left(market: Market, templates: Sequence[Template], counts: Mapping[str, int]) -> Market:
    """What a market has after so many replicas were bought on it."""
    taken: dict[str, int] = {}
    spent = 0.0
    for each in templates:
        count = counts.get(each.id, 0)
        if count:
            spent += each.price_per_h(market) * count
        for name, gpus in each.gpus:
            taken[name] = taken.get(name, 0) + gpus * count
    rest = {o.name: o.available - taken[o.name] for o in market.offers if taken.get(o.name)}
    return market.changed(available=rest, budget_per_h=max(market.budget_per_h - spent, 0.0))


__all__ = ["left", "one_by_one"]
