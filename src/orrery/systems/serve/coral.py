"""Coral: the cheapest mix of cloud GPUs for several models, by a lossless plan in two stages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from orrery.parts import Count, Fraction, NonNegative, Positive
from orrery.systems.serve.problems.llm_fleet.market import Demand, Market, check_demand
from orrery.systems.serve.problems.llm_fleet.port import Plan, Planner, told
from orrery.systems.serve.problems.llm_fleet.program import Charges, Effort, Program, binding
from orrery.systems.serve.problems.llm_fleet.shares import one_by_one
from orrery.systems.serve.problems.llm_fleet.templates import (
    Template,
    Templates,
    check_templates,
    rates,
    usage,
)

# Rows of templates that are compared with all others at once.
ROWS = 512


class Coral(Planner):
    """Finds the least expensive counts of replica templates for all models together.

    Paper: Coral: Cost-Efficient Multi-LLM Serving over Heterogeneous Cloud GPUs (2026).

    Stage 1 keeps, of each model's templates, those that no other one dominates: none that takes a
    sub-multiset of its GPUs has both rates (prompts, answers) at least as high. As prices are per
    GPU and not negative, whatever a dominated template does in a plan, the other one does at the
    same or a lower price, so the optimum stays: the decomposition is lossless. Where no switch is
    charged, a template also goes if two others on a part of its GPUs give as much together. Stage 2
    is an integer program over the counts of what is left, for all models at once, with supply,
    demand, prices and a charge for each replica started or stopped. When supply or budget is too
    small, the aim becomes the most requests a second, and the plan names what limits it.

    joint         one program for all models; off: one model after the other on what is left
    prune         stage 1; off: the program has all templates (the monolithic program)
    gap           the relative gap at which a solve may stop; 0: the optimum
    most_nodes    branch-and-bound nodes of a solve at most; the gap that is left is reported
    switch_usd    dollars for each replica started or stopped
    horizon_h     hours that a plan is expected to last, over which a switch must pay off

    Cost: stage 1 compares the n templates of a model in pairs, n^2 x (offers + 2) operations in
    NumPy; stage 2 is a HiGHS solve with as many columns as templates are left.

    **Differs from the paper.** Of the paper only the abstract was at hand, so the decomposition
    (templates, dominance, the program), the switching charge and the goodput objective are our
    design. Throughput comes from replays of modelled replicas (rooflines with measured
    efficiencies, or op tables), not from profiled GPUs; a pipeline has at most two stages; prices
    are a dated table of our own. The solver is HiGHS, whose presolve drops dominated columns too:
    stage 1 makes the program smaller but, with 3 models on 8 types of GPU, not faster. A plan is
    for the mean mix of lengths: a long stretch of longer requests breaks its promise.

    >>> from orrery.systems.serve.problems.llm_fleet import Need, Template, price_list
    >>> slow = Template("slow", "Llama-3.1-8B", (("L4", 1),), 2.0, 2.0)
    >>> fast = Template("fast", "Llama-3.1-8B", (("H100-SXM", 1),), 25.0, 25.0)
    >>> need = (Need("Llama-3.1-8B", 5.0),)
    >>> Coral().plan(price_list(), need, (slow, fast), {}).counts
    {'slow': 3}
    """

    joint: bool = True
    prune: bool = True
    gap: Fraction = 0.0
    most_nodes: Count = 100_000
    switch_usd: NonNegative = 0.0
    horizon_h: Positive = 1.0

    def plan(
        self, market: Market, demand: Demand, templates: Templates, running: Mapping[str, int]
    ) -> Plan:
        demand, market = check_demand(demand), market.check()
        check_templates(templates)  # before stage 1, which would drop a bad one in silence
        kept: Sequence[Template] = templates
        if self.prune:
            kept = front(templates, market, keep=running)
            if not (running and self.switch_usd):
                # Two replicas in place of one are two switches, so this holds only without charge.
                kept = without_sums(kept, market, keep=running)
        effort = Effort(self.gap, self.most_nodes)
        charges = Charges(self.switch_usd, self.horizon_h)
        if not self.joint:
            return one_by_one(kept, market, demand, running, charges, effort)
        program = Program(kept, market, demand, running, charges)
        found = program.cheapest(effort)
        if found is not None:
            return told(program, found, "cost", proven=True)
        served = program.most_served(effort)
        limits = binding(kept, market, demand)
        return told(program, served, "goodput", proven=True, binding=limits)


# -- stage 1


def front(
    templates: Sequence[Template], market: Market, *, keep: Collection[str] = ()
) -> Templates:
    """The templates that no other one of their model dominates, and those of `keep`.

    Of equal templates the first one stays, or those of them that are to be kept.
    """
    stays = np.zeros(len(templates), bool)
    taken, gives = usage(templates, market), rates(templates)
    held = np.array([each.id in keep for each in templates], bool)
    places: dict[str, list[int]] = {}
    for at, each in enumerate(templates):
        places.setdefault(each.model, []).append(at)
    for mine in places.values():
        rows = np.array(mine)
        stays[rows] = non_dominated(taken[rows], gives[rows], held[rows])
    stays |= held
    return tuple(each for each, stay in zip(templates, stays, strict=True) if stay)


def without_sums(
    templates: Sequence[Template], market: Market, *, keep: Collection[str] = ()
) -> Templates:
    """The templates that no two others of their model replace, and those of `keep`.

    Two replace one if together they take no more of any GPU and give no less. Both are then smaller
    than it, so that whatever replaces them in turn is smaller still, and none is lost in a circle.
    """
    taken, gives = usage(templates, market), rates(templates)
    models = np.array([each.model for each in templates], dtype=object)
    found = []
    for at, each in enumerate(templates):
        fits = (models == each.model) & (taken <= taken[at]).all(axis=1)
        fits &= (taken.sum(axis=1) > 0) & (taken.sum(axis=1) < taken[at].sum())
        use, give = taken[fits], gives[fits]
        less = (use[:, None, :] + use[None, :, :] <= taken[at]).all(axis=2)
        more = (give[:, None, :] + give[None, :, :] >= gives[at]).all(axis=2)
        if each.id in keep or not (less & more).any():
            found.append(each)
    return tuple(found)


def non_dominated(
    taken: np.ndarray, gives: np.ndarray, first: np.ndarray | None = None
) -> np.ndarray:
    """Which rows no other row dominates: one that takes no more of anything and gives no less.

    Of rows that are equal in all, one stays: the earliest, those of `first` before others.

    >>> non_dominated(np.array([[1, 0], [1, 1], [2, 0]]), np.array([[3.0], [3.0], [5.0]])).tolist()
    [True, False, True]
    """
    count = len(taken)
    late = np.arange(count) + (0 if first is None else np.where(first, 0, count))
    stays = np.ones(count, bool)
    for start in range(0, count, ROWS):
        part = slice(start, start + ROWS)
        # better[i, j]: row j does all that row i of this part does, with no more GPUs.
        better = np.ones((len(taken[part]), count), bool)
        for column in taken.T:
            better &= column[None, :] <= column[part, None]
        for column in gives.T:
            better &= column[None, :] >= column[part, None]
        equal = better.copy()
        for column in (*taken.T, *gives.T):
            equal &= column[None, :] == column[part, None]
        better &= ~equal | (late[None, :] < late[part, None])
        stays[part] = ~better.any(axis=1)
    return stays


__all__ = ["Coral", "front", "non_dominated", "without_sums"]
