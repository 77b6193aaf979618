"""Two clusters: one for online jobs, one for offline jobs."""

from __future__ import annotations

from orrery.models.ports import Scheduler
from orrery.parts import Count, Whole
from orrery.systems.serve.problems.llm_elastic.paced import Paced
from orrery.systems.serve.problems.llm_elastic.ports import (
    ElasticPolicy,
    InstanceView,
    Job,
    Placement,
    PoolView,
    Profile,
    least_loaded,
)


class ElasticSeparate(ElasticPolicy):
    """Gives online jobs the first machines for ever, and offline jobs the others.

    What most operators do: online traffic gets the machines that its peak needs, and batch work a
    cluster of its own. Every instance does all phases, with vLLM's scheduler; an online job goes
    where the least work waits.

    online      instances for online jobs; 0: all of them, which is a cluster dedicated to online
    max_seqs, max_tokens   of vLLM's scheduler
    """

    online: Whole = 0
    max_seqs: Count = 256
    max_tokens: Count = 2048

    def scheduler(self, profile: Profile) -> Scheduler:
        made = Paced(max_seqs=self.max_seqs, max_tokens=self.max_tokens)
        made.profile = profile
        return made

    def _first(self, view: PoolView) -> list[InstanceView]:
        """The online cluster; where all of it is dead, whoever is left."""
        if not self.online:
            return list(view.instances)
        return [each for each in view.instances if each.index < self.online] or list(view.instances)

    def place(self, job: Job, phase: str, view: PoolView) -> Placement:
        able = [each for each in self._first(view) if phase in each.role] or view.able(phase)
        return Placement(min(able, key=least_loaded).index if able else -1)

    def wants_offline(self, instance: InstanceView, view: PoolView) -> bool:
        mine = bool(self.online) and instance.index >= self.online
        return mine and instance.offline_waiting < 2


__all__ = ["ElasticSeparate"]
