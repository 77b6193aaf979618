"""Prompts on some GPUs, answers on the others, for ever."""

from __future__ import annotations

from orrery.base.errors import KnobError
from orrery.parts import Count
from orrery.systems.serve.problems.llm_parallelism.plans import Kind, Plan
from orrery.systems.serve.problems.llm_parallelism.ports import ClusterView, Parallelism


class TPStaticDisaggregated(Parallelism):
    """A fixed split of GPUs into prefill and decode instances (DistServe, Splitwise; 2024).

    Prompts go to the prefill instance that could begin soonest, their caches to the decode
    instance with the emptiest memory.

    prefill_gpus   how many GPUs compute prompts
    prefill_tp, decode_tp   GPUs of an instance of each kind
    """

    prefill_gpus: Count = 4
    prefill_tp: Count = 2
    decode_tp: Count = 2

    def plan(self, view: ClusterView) -> Plan | None:
        if view.plan is not None or not view.plans:
            return None
        gpus = sum(view.blocks)
        decode_gpus = gpus - self.prefill_gpus
        for name in ("prefill", "decode"):
            tp = getattr(self, f"{name}_tp")
            have = self.prefill_gpus if name == "prefill" else decode_gpus
            if tp not in view.costs or have < tp or have % tp:
                problem = f"{tp} with {have} of {gpus} GPUs for it"
                fix = f"give a degree of {', '.join(map(str, view.costs))} that divides them"
                raise KnobError(f"TPStaticDisaggregated.{name}_tp", problem, fix)
        kinds = [Kind("P", self.prefill_tp)] * (self.prefill_gpus // self.prefill_tp)
        kinds += [Kind("D", self.decode_tp)] * (decode_gpus // self.decode_tp)
        found = Plan(tuple(kinds))
        return found if found in view.plans else None


__all__ = ["TPStaticDisaggregated"]
