"""Fixed roles: so many instances prefill, the others decode, whatever comes."""

from __future__ import annotations

from orrery.models.ports import Scheduler
from orrery.parts import Count, NonNegative
from orrery.systems.serve.problems.llm_elastic.paced import Paced
from orrery.systems.serve.problems.llm_elastic.ports import (
    ElasticPolicy,
    Job,
    Placement,
    PoolView,
    Profile,
    least_loaded,
)


class ElasticStaticSplit(ElasticPolicy):
    """Lets the first instances prefill (and encode), and the others decode, for ever.

    Prefill/decode disaggregation as first published (DistServe, Zhong et al., OSDI 2024; Splitwise,
    Patel et al., ISCA 2024), with the split fixed before the run. A prompt goes where the fewest
    prompt tokens wait, its decode where the fewest tokens are in the cache.

    prefill     instances that prefill
    oracle      (from second, prefill instances) pairs: the split for each window of a load that is
                known beforehand; an upper mark for those who must find it out, not a rival
    max_seqs, max_tokens   of vLLM's scheduler
    """

    prefill: Count = 4
    oracle: tuple[tuple[NonNegative, Count], ...] = ()
    max_seqs: Count = 256
    max_tokens: Count = 2048

    migrates = True  # matters to the oracle only; without one nobody changes

    def scheduler(self, profile: Profile) -> Scheduler:
        made = Paced(max_seqs=self.max_seqs, max_tokens=self.max_tokens)
        made.profile = profile
        return made

    def roles(self, view: PoolView) -> list[str]:
        count, front = len(view), self.prefill
        if count < 2:
            return ["EPD"] * count
        for since_s, wanted in self.oracle:
            if view.now_s >= since_s - 1e-9:
                front = wanted
        front = min(front, count - 1)
        return ["EP"] * front + ["D"] * (count - front)

    def place(self, job: Job, phase: str, view: PoolView) -> Placement:
        able = view.able(phase)
        if not able:
            return Placement(-1)
        if phase == "D":
            return Placement(min(able, key=lambda v: (v.kv_tokens + 64 * v.decodes, v.index)).index)
        return Placement(min(able, key=least_loaded).index)


__all__ = ["ElasticStaticSplit"]
