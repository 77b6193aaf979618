"""The elastic pool: instances, the service before them, and the way of a job through its phases.

A host moves the clock: `next_s` tells when something is due, `step` does it. One event is one
change of an instance's batch, an arrival, a cache that lands, or a tick of the service.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from orrery.base.errors import PartError
from orrery.models.replica import NEVER
from orrery.models.requests import Request, Served
from orrery.systems.serve.problems.llm_elastic.audit import Log
from orrery.systems.serve.problems.llm_elastic.deaths import Deaths, Life
from orrery.systems.serve.problems.llm_elastic.device import DeviceWork
from orrery.systems.serve.problems.llm_elastic.instance import Encode, Instance, Left
from orrery.systems.serve.problems.llm_elastic.ports import (
    ElasticPolicy,
    Job,
    PoolView,
    Profile,
    check_roles,
)

MOST_FED = 64  # offline jobs that an instance may take at one moment


class Plan(NamedTuple):
    """What a pool is made of: sizes, rates and periods."""

    count: int
    device: DeviceWork
    blocks: int
    block_tokens: int
    host_blocks: int
    link_Bps: float
    host_Bps: float
    latency_s: float
    tick_s: float
    report_s: float
    heartbeat_s: float
    detect_s: float
    restart_s: float
    offline_until_s: float

    def move_s(self, tokens: int) -> float:
        """Seconds to send the cache of so many tokens over a free link."""
        return self.latency_s + tokens * self.kv_B / self.link_Bps

    def load_s(self, tokens: int) -> float:
        """Seconds to load the cache of so many tokens from host memory."""
        return tokens * self.kv_B / self.host_Bps

    @property
    def kv_B(self) -> int:
        layout = self.device.layout
        return self.device.model.kv_bytes_per_token(layout) * layout.tp


class Pool(Deaths):
    """Serves jobs on instances as a policy tells."""

    def __init__(
        self, plan: Plan, part: ElasticPolicy, jobs: Sequence[Job], profile: Profile, *,
        backlog: Iterator[Job] | None = None,
        crashes: Sequence[tuple[float, int, float]] = (),
    ) -> None:  # fmt: skip
        self.plan, self.part, self.jobs, self.backlog = plan, part, jobs, backlog
        steps = part.steps(plan.device)
        self.instances = [
            Instance(
                steps, part.scheduler(profile), blocks=plan.blocks, index=index,
                block_tokens=plan.block_tokens, host_blocks=plan.host_blocks,
            )
            for index in range(plan.count)
        ]  # fmt: skip
        self.view = PoolView(0.0, [each.view for each in self.instances])
        self.lives: dict[int, Life] = {}
        self.due: list[tuple[float, int, str, Any]] = []
        self.number = self.place_at = 0
        self.now_s = 0.0
        self.left = len(jobs)
        self.parked: list[tuple[Life, str]] = []
        self.limbo: dict[int, list[Life]] = {}
        self.link_free_s = [0.0] * plan.count
        self.fresh: dict[int, tuple[float, str]] = {}  # instance -> (since, phases new to it)
        self.log = Log(jobs=list(jobs))
        for at_s, node, until_s in crashes:
            self._at(at_s, "crash", (node, until_s))
        self._set_roles()
        self._at(plan.tick_s, "tick", None)
        if any(job.blocks for job in jobs):
            self._at(plan.report_s, "report", None)
        self._feed(self.instances)

    # -- the clock

    def _at(self, when_s: float, what: str, thing: Any) -> None:
        self.number += 1
        heapq.heappush(self.due, (when_s, self.number, what, thing))

    @property
    def over(self) -> bool:
        """Whether every online job has ended and offline ones have had their time."""
        return not self.left and (
            self.backlog is None or self.now_s >= self.plan.offline_until_s
        )  # fmt: skip

    def next_s(self) -> float:
        """When the next thing happens."""
        if self.over:
            return NEVER
        jobs, at = self.jobs, self.place_at
        come_s = jobs[at].arrival_s if at < len(jobs) else NEVER
        busy_s = min([each.next_s for each in self.instances])
        return min(come_s, busy_s, self.due[0][0] if self.due else NEVER)

    def step(self, now_s: float) -> None:
        """Do what is due: steps that end, what lands or ticks, jobs that come."""
        self.now_s = self.view.now_s = now_s
        touched = []
        for instance in self.instances:
            if instance.next_s <= now_s:
                touched.append(instance)
                for served in instance.advance(instance.next_s):
                    self._ended(instance, served)
                if instance.left:
                    self._send_on(instance)
        while self.due and self.due[0][0] <= now_s:
            _, _, what, thing = heapq.heappop(self.due)
            getattr(self, f"_{what}")(thing)
        while self.place_at < len(self.jobs) and self.jobs[self.place_at].arrival_s <= now_s:
            self._come(self.jobs[self.place_at])
            self.place_at += 1
        if self.backlog is not None:
            self._feed(touched)

    def play(self) -> Log:
        """Everything to the end, without an engine."""
        while (due_s := self.next_s()) < NEVER:
            self.step(due_s)
        return self.end()

    # -- the way of a job

    def _come(self, job: Job) -> None:
        life = self.lives[job.id] = Life(job)
        self.view.prompt_tokens += job.prompt_tokens
        if job.image_tokens:
            self.view.encode_s += self.plan.device.encode_s(job.image_tokens)
        self._route(life, "E" if job.image_tokens else "P")

    def _route(self, life: Life, phase: str, carried: Left | None = None) -> None:
        """Give the next phase of a job to an instance; a cache that it has travels there."""
        placed = self.part.place(life.job, phase, self.view)
        index = placed.instance
        shown = {view.index for view in self.view.instances}
        if index < 0 or not shown:
            self.parked.append((life, "P" if phase == "D" else phase))
            life.stage, life.instance = "", -1
            if phase == "D":
                self._restart(life, carried)
            return
        if index not in shown:
            raise PartError(
                f"{type(self.part).__name__}.place sent job {life.job.id} to instance {index}, "
                "which is not among those shown; give the index of one of them, or -1"
            )
        if carried is not None:
            self._send(life, carried, index)
            return
        role = self.instances[index].view.role
        if phase == "P":
            life.stage = "W" if "D" in role else "P"
        else:
            life.stage = "E" if "P" not in role else "W" if "D" in role else "P"
        delay_s = self._fetched(life, index, placed.fetch)
        life.instance = index
        if delay_s > 0:
            self._at(self.now_s + delay_s, "enter", (life, index, placed.fetch))
        else:
            self._enter((life, index, -1))

    def _fetched(self, life: Life, index: int, source: int) -> float:
        """Seconds until blocks from host memory or another instance are at this one."""
        keys = life.job.blocks
        if not keys or life.stage == "E":
            return 0.0
        here, loads = self.instances[index].pool.here(keys)
        delay_s = self.plan.load_s(loads * self.plan.block_tokens) if loads else 0.0
        if source >= 0 and source != index and self.instances[source].alive:
            there, _ = self.instances[source].pool.here(keys)
            if there > here:
                delay_s += self._occupy(source, (there - here) * self.plan.block_tokens)
        return delay_s

    def _occupy(self, source: int, tokens: int) -> float:
        """Send so many tokens of cache from an instance; seconds until they have arrived."""
        plan = self.plan
        begin_s = max(self.now_s, self.link_free_s[source])
        self.link_free_s[source] = begin_s + tokens * plan.kv_B / plan.link_Bps
        self.log.moved_B += tokens * plan.kv_B
        return self.link_free_s[source] + plan.latency_s - self.now_s

    def _enter(self, thing: tuple[Life, int, int]) -> None:
        """A job enters the queue of an instance, after what was fetched for it."""
        life, index, source = thing
        instance = self.instances[index]
        if not instance.alive:
            self._lost(life, index)
            return
        job = life.job
        if job.blocks and life.stage != "E":
            loaded = instance.pool.here(job.blocks)[0]
            if source >= 0 and self.instances[source].alive:
                loaded = max(loaded, self.instances[source].pool.here(job.blocks)[0])
            instance.pool.bring(job.blocks[:loaded])
        self._note_effect(instance, "E" if life.stage == "E" else "P")
        if life.stage == "E":
            encode = Encode(job.id, job.arrival_s, job.image_tokens, 1, priority=job.priority)
            instance.submit(encode, self.now_s, self.plan.device.encode_s(job.image_tokens))
            return
        request = life.request
        if life.stage == "P":
            request = Request(
                job.id, job.arrival_s, request.prompt_tokens, 1, blocks=job.blocks, kind=job.kind,
                priority=job.priority,
            )  # fmt: skip
        # Images that nobody has encoded yet are encoded here, in the step of the first chunk.
        inline = job.image_tokens and "E" in instance.view.role and not life.base
        here_s = self.plan.device.encode_s(job.image_tokens) if inline else 0.0
        instance.submit(request, self.now_s, here_s if not self._encoded(life) else 0.0)

    def _encoded(self, life: Life) -> bool:
        return life.started_s >= 0 and life.job.image_tokens > 0

    def _ended(self, instance: Instance, served: Served) -> None:
        """A phase of a job is done."""
        life = self.lives[served.id]
        if life.started_s < 0:
            life.started_s = served.started_s
        if life.stage == "E":
            self._route(life, "P")
            return
        if life.stage in ("P", "W"):
            life.hits += served.hit_tokens
        if life.first_s < 0:
            life.first_s = served.first_s
        request = life.request
        if life.stage == "P" and request._output_tokens > 1:
            self._route(life, "D", Left(
                request, 1, request.prompt_tokens, served.first_s, life.started_s
            ))  # fmt: skip
            return
        self._finish(life, served)

    def _finish(self, life: Life, served: Served) -> None:
        job, log = life.job, self.log
        ended = Served(
            job.id, job.arrival_s, served.queued_s, life.started_s, life.first_s, self.now_s,
            job.prompt_tokens, life.base + served.output_tokens, life.hits, served.preempted,
            served.replica, job.kind,
        )  # fmt: skip
        if job.online:
            log.served.append(ended)
            self.left -= 1
            self.view.made_tokens += ended.output_tokens
        else:
            log.offline.append(ended)
        del self.lives[job.id]

    def _send_on(self, instance: Instance) -> None:
        """Those who leave an instance go on elsewhere, with their caches."""
        gone, instance.left = instance.left, []
        for left in gone:
            life = self.lives[left.request.id]
            if life.started_s < 0:
                life.started_s = left.started_s
            if life.first_s < 0:
                life.first_s = left.first_s
            self._route(life, "D", left)

    def _send(self, life: Life, left: Left, index: int) -> None:
        """A cache travels to where its request decodes."""
        source = life.instance
        life.stage, life.instance = "D", index
        after_s = 0.0 if source == index else self._occupy(source, left.computed)
        self._at(self.now_s + after_s, "land", (life, left, source, index))

    def _land(self, thing: tuple[Life, Left, int, int]) -> None:
        life, left, source, index = thing
        if not self.instances[source].alive or not self.instances[index].alive:
            self._restart(life, left)
            self._lost(life, index if self.instances[source].alive else source)
            return
        self._note_effect(self.instances[index], "D")
        self.instances[index].adopt(left, self.now_s)

    # -- offline jobs

    def _feed(self, instances: Sequence[Instance]) -> None:
        """Give offline jobs to the instances that want some."""
        if self.backlog is None or self.now_s >= self.plan.offline_until_s:
            return
        for instance in instances:
            if not instance.alive or not instance.view.role:
                continue
            for _ in range(MOST_FED):
                if not self.part.wants_offline(instance.view, self.view):
                    break
                job = next(self.backlog, None)
                if job is None:
                    return
                life = self.lives[job.id] = Life(job)
                life.stage, life.instance = "W", instance.index
                instance.submit(life.request, self.now_s)

    # -- roles

    def _tick(self, _: None) -> None:
        self._set_roles()
        waiting, self.parked = self.parked, []
        for life, phase in waiting:
            self._route(life, phase)
        self._feed(self.instances)
        self._at(self.now_s + self.plan.tick_s, "tick", None)

    def _set_roles(self) -> None:
        roles = self.part.roles(self.view)
        check_roles(self.part, roles, self.view)
        for view, role in zip(list(self.view.instances), roles, strict=True):
            if view.role != role:
                self._switch(self.instances[view.index], role)

    def _switch(self, instance: Instance, role: str) -> None:
        """An instance changes its role at once; who only waits there goes elsewhere."""
        old, instance.view.role = instance.view.role, role
        if not old:
            return
        self.log.switches.append((self.now_s, instance.index, old, role))
        new = "".join(phase for phase in role if phase not in old)
        if new:
            self.fresh[instance.index] = (self.now_s, new)
        for phase in "EP":
            if phase in old and phase not in role:
                for seq in instance.withdraw(images=phase == "E"):
                    life = self.lives[seq.request.id]
                    again = life.job.image_tokens and not self._encoded(life) and not life.base
                    self._route(life, "E" if again else "P")
        if "D" in old and "D" not in role and self.part.migrates:
            instance.hand_over(self.now_s)
            if instance.left:
                self._send_on(instance)

    def _note_effect(self, instance: Instance, phase: str) -> None:
        """Work of a phase that is new to an instance came: when will it compute it?"""
        since = self.fresh.get(instance.index)
        if since is not None and phase in since[1]:
            del self.fresh[instance.index]
            free_s = instance.next_s if instance.next_s < NEVER else self.now_s
            self.log.effects.append(max(free_s, self.now_s) - since[0])

    # -- caches

    def _report(self, _: None) -> None:
        for view in self.view.instances:
            got, lost = self.instances[view.index].pool.reports()
            if got or lost:
                self.part.heard(view.index, got, lost)
        self._at(self.now_s + self.plan.report_s, "report", None)

    # -- the end

    def end(self) -> Log:
        """The log, with the books of the instances."""
        log = self.log
        log.seconds = max(self.now_s, 1e-9)
        log.faults = [
            f"instance {each.index}: {text}" for each in self.instances for text in each.faults()
        ]
        log.busy_s = [each.busy_s for each in self.instances]
        log.preemptions = sum(each.preemptions for each in self.instances)
        log.open = sorted(
            number for number, life in self.lives.items() if life.job.online
        ) + [job.id for job in self.jobs[self.place_at :]]  # fmt: skip
        log.offline_until_s = self.plan.offline_until_s
        return log


__all__ = ["Plan", "Pool"]
