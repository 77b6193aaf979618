"""One degree of tensor parallelism for everybody, for ever."""

from __future__ import annotations

from orrery.base.errors import KnobError
from orrery.parts import Count
from orrery.systems.serve.problems.llm_parallelism.plans import Kind, Plan
from orrery.systems.serve.problems.llm_parallelism.ports import ClusterView, Parallelism


class TPStatic(Parallelism):
    """Equal mixed instances of `tp` GPUs each, in order of arrival: what is mostly deployed.

    Requests go to the instance that could begin soonest, as a good load balancer would have it. If
    GPUs die, instances of that degree stay where they still fit, and the rest stands idle.

    tp    GPUs of an instance: 1, 2, 4 or 8
    """

    tp: Count = 2

    def plan(self, view: ClusterView) -> Plan | None:
        if view.plan is not None or not view.plans:
            return None
        found = fill(view, self.tp, type(self).__name__)
        return found if found in view.plans else None


def fill(view: ClusterView, tp: int, name: str) -> Plan:
    """As many mixed instances of a degree as there is room for, and smaller ones in the rest."""
    if tp & (tp - 1) or tp not in view.costs:
        fix = f"give one of {', '.join(str(each) for each in view.costs)}"
        raise KnobError(f"{name}.tp", f"{tp} is refused", fix)
    kinds: list[Kind] = []
    for block in view.blocks:
        each = min(tp, block)
        kinds += [Kind("M", each)] * (block // each)
    return Plan(tuple(kinds))


__all__ = ["TPStatic", "fill"]
