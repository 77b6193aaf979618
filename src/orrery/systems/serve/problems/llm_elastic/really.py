"""The service before real instances: it places jobs, listens for signs of life, and sends again."""

from __future__ import annotations

from typing import Any

from orrery.base.errors import DeadlineExceeded
from orrery.models.real.jobs import keys_of
from orrery.models.requests import Served, Target
from orrery.parts import Driver
from orrery.systems.serve.problems.llm_elastic.audit import Crashed, Log
from orrery.systems.serve.problems.llm_elastic.node import BLOCK, InstanceNode
from orrery.systems.serve.problems.llm_elastic.ports import (
    ElasticPolicy,
    InstanceView,
    Job,
    PoolView,
    Profile,
)
from orrery.systems.serve.problems.llm_elastic.tiny import TinyModel, greedy, prompt_tokens
from orrery.world import Crash

SHARED, GROUPS = 24, 3  # tokens that jobs of a group begin with, and how many groups there are
# The service itself needs this long between two looks before it can tell anything.
PATIENCE_S = 20.0


class Front:
    """The service of a real pool. Its books are views like those of the modelled one."""

    def __init__(self, driver: Driver, part: ElasticPolicy, problem: Any) -> None:
        self.driver, self.part, self.problem = driver, part, problem
        self.model = TinyModel(part.instance().knobs().get("seed", 1))
        self.views = [InstanceView(node, 1000, BLOCK, "EPD") for node in driver.nodes]
        self.view = PoolView(0.0, list(self.views))
        self.down: dict[int, Any] = {node: driver.event() for node in driver.nodes}
        self.log = Log(jobs=[])
        self.texts: dict[int, list[int]] = {}
        self.left = 0
        self.over = driver.event()

    async def run(self, seed: int) -> Log:
        driver, problem, part = self.driver, self.problem, self.part
        self._make_jobs(seed)
        part.start()
        part.begin(Profile(
            lambda prefill, decodes, kv: 1e-3 + 1e-4 * (decodes + sum(n for n, _ in prefill)),
            lambda tokens: 0.0, lambda tokens: 1e3, lambda tokens: 1e3, len(self.views), 1000,
            BLOCK, Target(problem.ttft_s, problem.tpot_s), None,
        ))  # fmt: skip
        for node in driver.nodes:
            driver.spawn(self._listen(node))
        begin_s = driver.now
        for job in self.log.jobs:
            wait_s = begin_s + job.arrival_s - driver.now
            if wait_s > 0:
                await driver.sleep(wait_s)
            job.arrival_s = driver.now
            driver.spawn(self._one(job))
        await self.over.wait()
        self._judge()
        self.log.seconds = driver.now - begin_s
        self.log.detect_s = problem.detect_s
        return self.log

    def _make_jobs(self, seed: int) -> None:
        """Jobs of a few tokens, of groups that begin alike; sizes go by turns."""
        for number in range(self.problem.requests):
            prompt, output = SHARED + 4 + (7 * number + seed) % 17, 4 + (5 * number + seed) % 21
            text = prompt_tokens(number, prompt, self.model.vocab, SHARED, number % GROUPS)
            self.texts[number] = text
            self.log.jobs.append(Job(
                number, number / self.problem.rate_per_s, prompt, output,
                blocks=keys_of(text, BLOCK), kind="real",
            ))  # fmt: skip
        self.left = len(self.log.jobs)

    # -- one job

    async def _one(self, job: Job) -> None:
        """Have one job answered, however often that takes."""
        driver, began_s = self.driver, self.driver.now
        while True:
            node = self._pick(job)
            if node < 0:
                await driver.sleep(self.problem.heartbeat_s)
                if driver.now - began_s > PATIENCE_S:
                    self.log.failed.append(job.id)
                    break
                continue
            view = self.views[node]
            view.decodes += 1
            view.prefill_tokens += job.prompt_tokens
            sent_s = driver.now
            place, answer = await driver.first(
                driver.ask(node, InstanceNode.serve, job.id, self.texts[job.id],
                           job._output_tokens),
                self.down[node].wait(),
            )  # fmt: skip
            view.decodes -= 1
            view.prefill_tokens -= job.prompt_tokens
            if place == 0:
                self._answered(job, node, answer, sent_s)
                break
            self.log.resent += 1
        self.left -= 1
        if not self.left:
            self.over.set()

    def _pick(self, job: Job) -> int:
        self.view.now_s = self.driver.now
        return self.part.place(job, "P", self.view).instance

    def _answered(self, job: Job, node: int, answer: Any, sent_s: float) -> None:
        said, hits = answer
        now_s = self.driver.now
        self.part.heard(node, list(job.blocks), [])
        self.texts[job.id] += list(said)
        self.log.served.append(Served(
            job.id, job.arrival_s, sent_s, sent_s, now_s, now_s, job.prompt_tokens, len(said), hits,
            0, node, job.kind,
        ))  # fmt: skip

    # -- signs of life

    async def _listen(self, node: int) -> None:
        """Ask for a sign of life again and again; silence for too long is death."""
        driver, problem = self.driver, self.problem
        beat_s, heard_s, dead = problem.heartbeat_s, driver.now, False
        while True:
            asked_s = driver.now
            try:
                async with driver.deadline(beat_s / 2):
                    await driver.ask(node, InstanceNode.beat)
                heard_s = driver.now
                if dead:
                    dead = False
                    self._set_alive(node, True)
            except DeadlineExceeded:
                pass
            if not dead and driver.now - heard_s > problem.detect_s - 1.5 * beat_s:
                dead = True
                self._set_alive(node, False)
            await driver.sleep(max(asked_s + beat_s / 2 - driver.now, 1e-3))

    def _set_alive(self, node: int, alive: bool) -> None:
        known = [each for each in self.view.instances if each.index != node]
        if alive:
            known.append(self.views[node])
            self.part.revived(node)
        else:
            gone, self.down[node] = self.down[node], self.driver.event()
            self.log.crashes.append(
                Crashed(node, self._died_s(node), self.driver.now, self.views[node].decodes)
            )
            self.part.died(node)
            gone.set()
        self.view.instances = sorted(known, key=lambda each: each.index)

    def _died_s(self, node: int) -> float:
        """When the world's faults say that it died; now, if they know nothing of it."""
        times = [
            fault.at_s for fault in self.driver.world.faults
            if isinstance(fault, Crash) and node in self.driver.world.targets(fault)
            and fault.at_s <= self.driver.now
        ]  # fmt: skip
        return max(times, default=self.driver.now)

    def _judge(self) -> None:
        """Every answer is the one that the job gets alone, computed the slow and obvious way."""
        for job in self.log.jobs:
            text = self.texts[job.id]
            said = text[job.prompt_tokens :]
            if said and said != greedy(self.model, text[: job.prompt_tokens], job._output_tokens):
                self.log.wrong.append(job.id)


__all__ = ["Front"]
