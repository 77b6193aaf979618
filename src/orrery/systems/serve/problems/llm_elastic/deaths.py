"""What becomes of jobs when an instance dies: noticed within a bound, continued elsewhere."""

from __future__ import annotations

from typing import Any

from orrery.models.replica import NEVER
from orrery.models.requests import Request, Running
from orrery.systems.serve.problems.llm_elastic.audit import Crashed, Log
from orrery.systems.serve.problems.llm_elastic.instance import Instance, Left
from orrery.systems.serve.problems.llm_elastic.ports import ElasticPolicy, Job, PoolView


class Life:
    """How a job fares: its stage (E, P, D or W for the whole rest), and what it has made."""

    __slots__ = ("base", "first_s", "hits", "instance", "job", "resent", "stage", "started_s")

    def __init__(self, job: Job) -> None:
        self.job, self.stage, self.instance = job, "", -1
        self.base = self.hits = self.resent = 0  # base: tokens made in earlier lives
        self.first_s = self.started_s = -1.0

    @property
    def request(self) -> Request:
        """What is left of the job: tokens made before a crash count as prompt."""
        job = self.job
        return Request(
            job.id, job.arrival_s, job.prompt_tokens + self.base,
            max(job._output_tokens - self.base, 1), blocks=job.blocks, session=job.session,
            kind=job.kind, priority=job.priority, target=job.target,
        )  # fmt: skip


class Deaths:
    """The part of a pool that deals with crashes; `Pool` has the rest."""

    plan: Any
    part: ElasticPolicy
    view: PoolView
    log: Log
    now_s: float
    instances: list[Instance]
    lives: dict[int, Life]
    limbo: dict[int, list[Life]]  # dead instance, not yet noticed -> jobs that were there

    def _at(self, when_s: float, what: str, thing: Any) -> None:
        raise TypeError("a pool has a clock")

    def _route(self, life: Life, phase: str, carried: Left | None = None) -> None:
        raise TypeError("a pool places jobs")

    def _set_roles(self) -> None:
        raise TypeError("a pool has roles")

    def _crash(self, thing: tuple[int, float]) -> None:
        """An instance dies; nobody knows it yet."""
        node, until_s = thing
        instance, plan = self.instances[node], self.plan
        if not instance.alive:
            return
        here = [self._stopped(seq) for seq in instance.die()]
        self.limbo[node] = here
        # Its last sign of life came at the last multiple of the period. The service looks at every
        # multiple, and takes for dead who has been silent for all but one period of the bound.
        beat_s = plan.heartbeat_s
        silent = max(int(plan.detect_s / beat_s) - 1, 1)
        seen_s = (int(self.now_s / beat_s) + silent) * beat_s
        self._at(max(seen_s, self.now_s), "notice", (node, self.now_s))
        if until_s < NEVER:
            self._at(max(until_s, seen_s) + plan.restart_s, "return", node)

    def _stopped(self, seq: Running) -> Life:
        """What a job had made when its instance died."""
        life = self.lives[seq.request.id]
        if life.stage in ("W", "D"):
            life.base += seq.generated
        if seq.generated and life.first_s < 0:
            life.first_s = seq.first_s
        if seq.generated and life.started_s < 0:
            life.started_s = seq.started_s
        if not life.base:
            life.started_s = -1.0
        return life

    def _notice(self, thing: tuple[int, float]) -> None:
        node, died_s = thing
        self.log.crashes.append(Crashed(node, died_s, self.now_s, len(self.limbo[node])))
        self.view.instances = [each for each in self.view.instances if each.index != node]
        self.part.died(node)
        self._set_roles()
        for life in self.limbo.pop(node):
            self._resend(life)

    def _lost(self, life: Life, node: int) -> None:
        """A job was on its way to a dead instance: it waits until the death is noticed."""
        if node in self.limbo:
            self.limbo[node].append(life)
        else:
            self._resend(life)

    def _restart(self, life: Life, left: Left | None) -> None:
        """A cache is gone; what its request had made counts as prompt from now on."""
        if left is not None:
            life.base += left.generated

    def _resend(self, life: Life) -> None:
        life.resent += 1
        self.log.resent += 1
        if not life.job.online:  # offline jobs go back to the backlog, which has no end
            del self.lives[life.job.id]
            return
        self._route(life, "E" if life.job.image_tokens and not life.base else "P")

    def _return(self, node: int) -> None:
        instance = self.instances[node]
        instance.alive = True
        known = [*self.view.instances, instance.view]
        self.view.instances = sorted(known, key=lambda each: each.index)
        instance.view.role = ""
        self.part.revived(node)
        self._set_roles()


__all__ = ["Deaths", "Life"]
