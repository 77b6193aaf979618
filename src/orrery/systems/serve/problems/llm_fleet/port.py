"""The port of `llm_fleet`: a planner, and the plan that it gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from orrery.base.errors import PartError
from orrery.parts import Policy
from orrery.systems.serve.problems.llm_fleet.market import Demand, Market
from orrery.systems.serve.problems.llm_fleet.program import Program, Solution
from orrery.systems.serve.problems.llm_fleet.templates import Templates


class Plan(msgspec.Struct, frozen=True):
    """What to run: so many replicas of each template.

    counts       by the id of a template
    cost_per_h   dollars an hour, as the planner says
    served       requests a second of each model, as the planner says
    aim          cost: every demand is met; goodput: supply or budget is too small for that
    gap          how much better a plan could be at most, as a share; inf where nothing is proven
    columns      templates in the program that was solved, nodes: what the solve took
    binding      what limits the goodput, tightest first: (offer or "budget", requests a second)
    """

    counts: dict[str, int] = {}
    cost_per_h: float = 0.0
    served: dict[str, float] = {}
    aim: Literal["cost", "goodput"] = "cost"
    gap: float = float("inf")
    columns: int = 0
    nodes: int = 0
    binding: tuple[tuple[str, float], ...] = ()

    @property
    def goodput_per_s(self) -> float:
        """Requests a second that it serves."""
        return sum(self.served.values())


class Planner(Policy):
    """Decides which replicas to run: `plan` gives counts of templates.

    market      offers with prices and supply, and the budget
    demand      requests a second for each model
    templates   what a replica may be, of all models
    running     counts of templates that run now; empty at first
    """

    def plan(
        self, market: Market, demand: Demand, templates: Templates, running: Mapping[str, int]
    ) -> Plan:
        raise PartError(f"{type(self).__name__} has no plan(market, demand, templates, running)")


def told(
    program: Program, found: Solution | None, aim: Any, *, proven: bool = False, **more: Any
) -> Plan:
    """A plan from the counts of a solution, with cost and service computed anew."""
    counts = {} if found is None else found.counts
    ordered = {each.id: counts[each.id] for each in program.templates if counts.get(each.id)}
    facts = {"columns": found.columns, "nodes": found.nodes} if found is not None else {}
    if found is not None and proven:
        facts["gap"] = found.gap
    return Plan(
        counts=ordered, cost_per_h=program.cost_per_h(ordered), served=program.served(ordered),
        aim=aim, **{**facts, **more},
    )  # fmt: skip


__all__ = ["Plan", "Planner", "told"]
