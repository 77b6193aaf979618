"""The best static plan of every window, known in advance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from orrery.models.requests import Request
from orrery.parts import Whole
from orrery.systems.serve.nitsum.estimate import Demand, levels
from orrery.systems.serve.nitsum.goodput import Model
from orrery.systems.serve.nitsum.policy import Nitsum
from orrery.systems.serve.problems.llm_parallelism.plans import Plan
from orrery.systems.serve.problems.llm_parallelism.ports import ClusterView, Moves

_FOUND: dict[Any, tuple[list[Plan], float]] = {}


class TPWindowOracle(Nitsum):
    """Runs in each window the plan that is best for its requests, found by trying plans offline.

    It may do what no system can: it sees the requests of the future with their answers (`foresees`)
    and its changes cost nothing. Within a window it schedules requests as Nitsum does. It is an
    upper bound for systems that keep one plan in a window, not for all systems.

    candidates   plans tried in each window, the likeliest by Nitsum's model first; 0: all of them
    """

    candidates: Whole = 10

    foresees: ClassVar[bool] = True

    def how(self) -> Moves:
        return Moves(free=True)

    def foresee(self, problem: Any, requests: Sequence[Request], rig: Any) -> None:
        """Take the hidden knowledge: try plans on the requests of each window by themselves."""
        first = requests[0] if requests else None
        key = (repr(problem), self.candidates, len(requests), first and first.arrival_s,
               sum(each._output_tokens for each in requests))  # fmt: skip
        if key not in _FOUND:
            if len(_FOUND) > 64:
                _FOUND.clear()
            _FOUND[key] = (self._best(problem, requests, rig), problem.window_s)
        self.__dict__["known"] = _FOUND[key]

    def _best(self, problem: Any, requests: Sequence[Request], rig: Any) -> list[Plan]:
        found = []
        for window in range(problem.windows):
            low, high = window * problem.window_s, (window + 1) * problem.window_s
            mine = [each for each in requests if low <= each.arrival_s < high]
            plans = self._likely(problem, mine, rig)
            goods = [_goodput(problem, plan, mine, rig) for plan in plans]
            found.append(plans[max(range(len(plans)), key=lambda at: (goods[at], -at))])
        return found

    def _likely(self, problem: Any, mine: Sequence[Request], rig: Any) -> list[Plan]:
        least = min(rig.weight_B)
        plans = [p for p in problem.cluster_plans() if min(tp for _, tp in p.kinds) >= least]
        if not self.candidates or not mine:
            return plans if mine else plans[:1]
        demands = []
        for tier in problem.tiers():
            of = [each for each in mine if each.priority == tier.priority]
            demands.append(Demand(
                len(of) / problem.window_s, levels([e.prompt_tokens for e in of]) or (1.0,),
                levels([e._output_tokens for e in of]) or (1.0,)))  # fmt: skip
        model = Model(problem.tiers(), demands, rig.costs, rig.capacity, problem.chunk_tokens,
                      problem.most_seqs)  # fmt: skip
        return sorted(plans, key=lambda plan: -model.total(plan))[: self.candidates]

    def plan(self, view: ClusterView) -> Plan | None:
        known = self.__dict__.get("known")
        if known is None:  # nobody told it anything: it decides as Nitsum does
            return super().plan(view)
        self.demand(view)
        plans, window_s = known
        wanted = plans[min(int((view.now_s + 1e-9) // window_s), len(plans) - 1)]
        return wanted if wanted in view.plans and wanted != view.plan else None


def _goodput(problem: Any, plan: Plan, mine: Sequence[Request], rig: Any) -> int:
    policy = Nitsum(fixed=str(plan), adapt=False)
    played = problem.cluster(policy, 0, requests=list(mine), rig=rig).play()
    return sum(each.met for each in played.fared)


__all__ = ["TPWindowOracle"]
