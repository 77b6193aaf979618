"""A mix of GPU types, with one strategy for each model on each type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orrery.parts import Count, Fraction
from orrery.systems.serve.problems.llm_fleet.market import Demand, Market, check_demand
from orrery.systems.serve.problems.llm_fleet.port import Plan, Planner, told
from orrery.systems.serve.problems.llm_fleet.program import Effort, Program
from orrery.systems.serve.problems.llm_fleet.templates import Template, Templates


class FixedStrategy(Planner):
    """Mixes GPU types by an integer program, but runs a model in one way on each type.

    As Mélange (Griggs et al., 2024) does: heterogeneity-aware allocation with the parallelism of
    each replica given. The given strategy is the common rule: one stage, whole requests, the
    fewest GPUs on which the model keeps its promise.

    gap, most_nodes   as in Coral
    """

    gap: Fraction = 0.0
    most_nodes: Count = 100_000

    def plan(
        self, market: Market, demand: Demand, templates: Templates, running: Mapping[str, int]
    ) -> Plan:
        demand, market = check_demand(demand), market.check()
        effort = Effort(self.gap, self.most_nodes)
        program = Program(usual(templates), market, demand)
        found = program.cheapest(effort)
        if found is not None:
            return told(program, found, "cost")
        return told(program, program.most_served(effort), "goodput")


def usual(templates: Sequence[Template]) -> Templates:
    """For each model and offer the mixed template of one stage with the fewest GPUs."""
    best: dict[tuple[str, str], Template] = {}
    for each in templates:
        stages = 1 if each.strategy is None else len(each.strategy.stages)
        if len(each.gpus) != 1 or stages > 1 or min(each.prompts_per_s, each.answers_per_s) <= 0:
            continue
        ((name, count),) = each.gpus
        have = best.get((each.model, name))
        if have is None or (count, _limit(have)) < (have.gpus[0][1], _limit(each)):
            best[each.model, name] = each
    return tuple(best.values())


def _limit(template: Template) -> int:
    """The limit of the batch: engines come with the larger one."""
    return 0 if template.strategy is None else template.strategy.max_seqs


__all__ = ["FixedStrategy", "usual"]
