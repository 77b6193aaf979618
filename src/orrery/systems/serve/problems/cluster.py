"""A cluster that serves one model: replicas on the world's machines, and a front before them.

What the serving problems share. Each node of the world is one replica (`ReplicaNode`), whose engine
is modelled step by step; the driver is the front: requests come to it, a router chooses a replica,
and it sees to it that every request is answered once, or reported as failed. A crash takes a
replica's queue and cache; the front notices after `detect_s` and sends its requests elsewhere; a
replica that comes back loads its weights first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from orrery.base.errors import UsageError
from orrery.base.violation import Violation
from orrery.inputs.workload import Workload
from orrery.models.ports import ReplicaView, Scheduler
from orrery.models.replica import NEVER, Replica
from orrery.models.requests import Request, Served, Target
from orrery.models.specs import ModelSpec, spec
from orrery.models.steps import steps_for
from orrery.models.weights import Layout
from orrery.parts import (
    Count,
    Driver,
    Fraction,
    Metric,
    Node,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    Whole,
    rpc,
)
from orrery.systems.serve.baselines.vllm_v1 import VllmV1
from orrery.systems.serve.problems.figures import METRICS, figures
from orrery.systems.serve.problems.loads import requests_of, workload_of
from orrery.world import Slow, World


class Plan:
    """What all replicas of one run share: the model, what a step takes, and the requests."""

    def __init__(self, problem: ServingProblem, world: World, part: Any) -> None:
        self.problem, self.world, self.part = problem, world, part
        self.model: ModelSpec = spec(problem.model)
        self.requests: list[Request] = []
        self.replicas: dict[int, Replica] = {}
        self.slow = [fault for fault in world.faults if isinstance(fault, Slow)]
        self._steps: dict[str, Any] = {}

    def tp(self, node: int) -> int:
        """Devices of the replica on a node."""
        devices = len(self.world.machine_of(node).accelerators)
        if not devices:
            raise UsageError(
                f"node {node} of {self.world.title or 'the world'} has no accelerator to serve on; "
                "take a world such as h100_pod:8"
            )
        return self.problem.tp or devices

    def replica(self, node: int) -> Replica:
        """A new, empty replica for a node."""
        problem, machine = self.problem, self.world.machine_of(node)
        tp, device = self.tp(node), machine.accelerators[0]
        steps = self._steps.get(device.name)
        if steps is None:
            tables = problem.tables or None
            steps = steps_for(problem.model, device, tp, tables=tables)
            self._steps[device.name] = steps
        tokens = self.model.kv_tokens_that_fit(
            device.memory_B, Layout(tp=tp), share=problem.memory_share
        )
        blocks = problem.blocks or tokens // problem.block_tokens
        scheduler = problem.new_scheduler(node)
        made = Replica(
            steps, scheduler, blocks=blocks, block_tokens=problem.block_tokens,
            caching=problem.prefix_cache, index=node,
        )  # fmt: skip
        self.replicas[node] = made
        return made

    def load_s(self, node: int) -> float:
        """Seconds to load the weights: over the machine's network card, or from its disk."""
        machine = self.world.machine_of(node)
        rate_Bps = machine.nic_Bps or machine.disk.read_Bps
        return self.model.weight_bytes() / rate_Bps

    @property
    def extrapolated(self) -> int:
        """Steps that went beyond measured tables."""
        return sum(steps.extrapolated for steps in self._steps.values())


class ReplicaNode(Node):
    """One replica: serves what it is sent, and answers when a request is done."""

    plan: Any = None

    def start(self) -> None:
        self.replica: Replica = self.plan.replica(self.id)
        self.answers: dict[int, Any] = {}
        self.armed_s = NEVER
        self.ready = self.now == 0.0

    async def main(self) -> None:
        """A replica that comes back loads its weights before it serves; a slow one is slowed."""
        if not self.ready:
            await self.sleep(self.plan.load_s(self.id))
            self.ready = True
        for fault in self.plan.slow:
            if self.id in self.plan.world.targets(fault):
                self.spawn(self.be_slow(fault))

    async def be_slow(self, fault: Slow) -> None:
        await self.sleep(max(fault.at_s - self.now, 0.0))
        self.set_speed(1.0 / fault.factor)
        if fault.until_s is not None and fault.until_s < math.inf:
            await self.sleep(fault.until_s - self.now)
            self.set_speed(1.0)

    def set_speed(self, speed: float) -> None:
        self.replica.set_speed(speed, self.now)
        self.arm()

    @rpc
    async def serve(self, number: int) -> Served | None:
        """Serve a request of the plan; None while this replica is not ready to."""
        if not self.ready:
            return None
        done = self.answers[number] = self.event()
        self.replica.submit(self.plan.requests[number], self.now)
        self.arm()
        return await done.wait()

    @rpc
    def cancel(self, number: int) -> None:
        """The client does not want the answer any more."""
        self.replica.cancel(number, self.now)
        self.arm()

    def arm(self) -> None:
        """See to it that the replica's next event happens."""
        due_s = self.replica.next_s
        if due_s != self.armed_s and due_s < NEVER:
            self.armed_s = due_s
            self.spawn(self.tick(due_s))

    async def tick(self, due_s: float) -> None:
        wait_s = due_s - self.now
        if wait_s > 0:
            await self.sleep(wait_s)
        if due_s == self.armed_s:
            self.armed_s = NEVER
            for served in self.replica.advance(due_s):
                self.answers.pop(served.id).set(served)
            self.arm()


class ServingProblem(Problem):
    """The base of the serving problems: a model, a workload, targets, and the front.

    model           by its name in the catalogue of models
    tp              devices of one replica; 0: all that a machine has
    tables          measured op tables (a path, or "auto"); empty: rooflines of the data sheets
    trace           a workload trace; empty: the generator `workload`
    workload        what is generated: azure-conv, azure-code, mooncake, reasoning, sharegpt
    requests        how many
    rate_per_s      how often they come, on average; 0: as in the trace
    ttft_s, tpot_s  what users expect; `patience` sets it for each class of traffic
    memory_share    of a device's memory that weights and cache may use
    blocks          blocks of the cache; 0: as many as fit
    prefix_cache    whether equal beginnings share blocks
    detect_s        how long the front takes to see that a replica is dead, or back
    """

    model: str = "Llama-3.1-70B"
    tp: Whole = 0
    tables: str = ""
    trace: str = ""
    workload: str = "azure-conv"
    requests: Count = 1000
    rate_per_s: NonNegative = 0.0
    ttft_s: Positive = 1.0
    tpot_s: Positive = 0.05
    memory_share: Fraction = 0.9
    blocks: Whole = 0
    block_tokens: Count = 16
    prefix_cache: bool = True
    detect_s: Positive = 0.5

    metrics: ClassVar[Mapping[str, Metric]] = METRICS
    engines: ClassVar[tuple[str, ...]] = ("virtual",)

    def world(self) -> World:
        from orrery.world import worlds

        return worlds.get("h100_pod:8")

    def axes(self, by: str) -> Mapping[str, Sequence[float]]:
        """More and fewer requests; where targets count, also stricter and laxer ones."""
        found: dict[str, list[float]] = {}
        if self.rate_per_s:
            found["rate_per_s"] = [self.rate_per_s * factor for factor in (0.25, 0.5, 1.5, 3)]
        if by in ("goodput_per_s", "attainment"):
            found["ttft_s"] = [self.ttft_s * factor for factor in (0.25, 4)]
            found["tpot_s"] = [self.tpot_s * factor for factor in (0.5, 2)]
        return found

    def new_scheduler(self, node: int) -> Scheduler:
        """The scheduler of a replica; problems that ask for one give the part under test."""
        return VllmV1(max_tokens=8192)

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        self.__dict__["plan"] = plan = Plan(self, world, part)
        return {"node": ReplicaNode(plan=plan)}

    def load(self, seed: int) -> Workload:
        """The requests that come, for a seed."""
        return workload_of(self.trace, self.workload, self.requests, self.rate_per_s, seed)

    # -- the front

    async def drive(self, driver: Driver) -> dict[str, Any]:
        """Send every request somewhere when it comes; how each of them fared."""
        plan: Plan = self.__dict__["plan"]
        load = self.load(driver.rng.randrange(1 << 30))
        plan.requests = requests_of(load, self.block_tokens, Target(self.ttft_s, self.tpot_s))
        front = Front(driver, plan, self.choose_of(driver))
        return await front.run()

    def choose_of(self, driver: Driver) -> Callable[[Request, Sequence[ReplicaView]], int]:
        """How the front chooses: in turn, unless the part under test is a router."""
        turn = iter(range(1 << 60))
        return lambda request, replicas: replicas[next(turn) % len(replicas)].index

    def check(self, outcome: Outcome) -> list[Violation]:
        """Every request is answered once or reported failed, and no block is lost."""
        driven = outcome.driven
        if driven is None:
            return [Violation(kind="unfinished", message="requests were still open at the end")]
        found = []
        times = np.zeros(driven["requests"], int)
        for served in driven["served"]:
            times[served.id] += 1
        for number in driven["failed"]:
            times[number] += 1
        if (times != 1).any():
            wrong = np.flatnonzero(times != 1)
            found.append(Violation(
                kind="not_once", message=f"{len(wrong)} requests were not answered exactly once, "
                f"first {wrong[0]} ({times[wrong[0]]} times)"))  # fmt: skip
        found += [Violation(kind="cache_books", message=f"replica {node}: {text}")
                  for node, text in driven["faults"]]  # fmt: skip
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        return figures(outcome, Target(self.ttft_s, self.tpot_s)) if outcome.driven else {}


class Front:
    """What stands before the replicas: it routes, notices deaths, and sends again."""

    def __init__(
        self, driver: Driver, plan: Plan, choose: Callable[[Request, Sequence[ReplicaView]], int]
    ) -> None:
        self.driver, self.plan, self.choose = driver, plan, choose
        self.served: list[Served] = []
        self.failed: list[int] = []
        self.down: set[int] = set()
        self.deaths = {node: driver.event() for node in driver.nodes}
        self.left = len(plan.requests)
        self.over = driver.event()
        self.resent = 0

    async def run(self) -> dict[str, Any]:
        driver, plan = self.driver, self.plan
        if plan.world.faults:
            driver.spawn(self.watch())
        for request in plan.requests:
            wait_s = request.arrival_s - driver.now
            if wait_s > 0:
                await driver.sleep(wait_s)
            driver.spawn(self.one(request))
        await self.over.wait()
        replicas = plan.replicas
        return {
            "requests": len(plan.requests), "served": self.served, "failed": self.failed,
            "resent": self.resent, "seconds": driver.now,
            "faults": [(node, text) for node, each in replicas.items() for text in each.faults()],
            "busy_s": {node: each.busy_s for node, each in replicas.items()},
            "preemptions": sum(each.preemptions for each in replicas.values()),
            "made": {node: each.made for node, each in replicas.items()},
            "extrapolated": plan.extrapolated,
        }  # fmt: skip

    async def one(self, request: Request) -> None:
        """Have one request served, however often that takes."""
        while True:
            node = self.pick(request)
            if node < 0:
                await self.driver.sleep(self.plan.problem.detect_s)
                if not self.may_come_back():
                    self.failed.append(request.id)
                    break
                continue
            served = await self.ask(node, request)
            if served is not None:
                self.served.append(served)
                self.driver.emit(served=served)
                break
            self.resent += 1
        self.left -= 1
        if not self.left:
            self.over.set()

    async def ask(self, node: int, request: Request) -> Served | None:
        """The answer of a replica, or None when it dies first or is not ready."""
        driver = self.driver
        if not self.plan.world.faults:
            return await driver.ask(node, ReplicaNode.serve, request.id)
        place, served = await driver.first(
            driver.ask(node, ReplicaNode.serve, request.id), self.deaths[node].wait()
        )
        if place == 0 and served is None:
            await driver.sleep(self.plan.problem.detect_s)
        return served if place == 0 else None

    def pick(self, request: Request) -> int:
        """The replica that the router names among those alive; -1 when none is."""
        views = [
            self.plan.replicas[node].view for node in self.driver.nodes if node not in self.down
        ]
        if not views:
            return -1
        node = self.choose(request, views)
        if node in self.down or node not in self.plan.replicas:
            raise UsageError(
                f"the router sent request {request.id} to replica {node}, which is not among the "
                f"{len(views)} that it was shown; return the index of one of them"
            )
        return node

    def may_come_back(self) -> bool:
        """Whether any replica is alive, or will be by the world's faults."""
        return any(
            self.driver.alive(node) for node in self.driver.nodes
        ) or any(
            getattr(fault, "until_s", None) is not None and fault.until_s < math.inf
            and fault.until_s > self.driver.now for fault in self.plan.world.faults
        )  # fmt: skip

    async def watch(self) -> None:
        """Look at the replicas now and then, as a health check does."""
        driver = self.driver
        while True:
            await driver.sleep(self.plan.problem.detect_s)
            for node in driver.nodes:
                alive = driver.alive(node)
                if not alive and node not in self.down:
                    self.down.add(node)
                    self.deaths[node].set()
                    self.deaths[node] = driver.event()
                elif alive and node in self.down:
                    self.down.discard(node)


__all__ = ["Front", "Plan", "ReplicaNode", "ServingProblem"]
