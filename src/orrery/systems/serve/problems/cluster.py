"""A cluster that serves one model: replicas on the world's machines, and a front before them.

What the serving problems share. Each node of the world is one replica (`ReplicaNode`), whose engine
is modelled step by step; the driver is the front: requests come to it, a router chooses a replica,
and it sees to it that every request is answered once, or reported as failed. A crash takes a
replica's queue and cache; the front notices after `detect_s` and sends its requests elsewhere. A
replica that comes back, or is switched on by an autoscaler, gets its weights first from one that
has them, over links that several such loads share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from orrery.base.violation import Violation
from orrery.inputs.workload import Workload
from orrery.models.ports import Autoscaler, ReplicaView, Scheduler
from orrery.models.requests import Request, Target
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
)
from orrery.systems.serve.baselines.target_tracking import TargetTracking
from orrery.systems.serve.baselines.vllm_v1 import VllmV1
from orrery.systems.serve.problems.figures import METRICS, figures
from orrery.systems.serve.problems.front import Front
from orrery.systems.serve.problems.loads import Targets, requests_of, workload_of
from orrery.systems.serve.problems.replica_nodes import Plan, ReplicaNode
from orrery.world import World


class ServingProblem(Problem):
    """The base of the serving problems: a model, a workload, targets, and the front.

    model           by its name in the catalogue of models
    tp              devices of one replica; 0: all that a machine has
    tables          measured op tables (a path, or "auto"); empty: rooflines of the data sheets
    trace           a workload trace; empty: the generator `workload`
    workload        what is generated: azure-conv, azure-code, mooncake, reasoning, sharegpt
    requests        how many
    rate_per_s      how often they come, on average; 0: as in the trace
    ttft_s, tpot_s  what users expect
    memory_share    of a device's memory that weights and cache may use
    blocks          blocks of the cache; 0: as many as fit
    prefix_cache    whether equal beginnings share blocks
    detect_s        how long the front takes to see that a replica is dead, or back
    patience        other targets for some classes, each "class=ttft_s:tpot_s"
    scaler          an autoscaler: target-tracking, or none; `least_on` replicas are on to begin
                    with, and it is asked again each `scale_every_s`
    weights_from    where a replica that begins gets its weights: from a peer, or its disk
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
    patience: tuple[str, ...] = ()
    scaler: Literal["", "target-tracking"] = ""
    least_on: Count = 1
    scale_every_s: Positive = 5.0
    weights_from: Literal["peer", "disk"] = "peer"

    base_only: ClassVar[bool] = True
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

    def new_scaler(self, part: Any) -> Autoscaler | None:
        """The autoscaler of the cluster; problems that ask for one give the part under test."""
        return TargetTracking() if self.scaler else None

    def targets(self) -> Targets:
        """What users expect, by class of traffic."""
        return Targets(Target(self.ttft_s, self.tpot_s), self.patience)

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        self.targets()  # a bad one is refused before anything runs
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
        plan.requests = requests_of(load, self.block_tokens, self.targets())
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
        return figures(outcome, self.targets()) if outcome.driven else {}


__all__ = ["Front", "Plan", "ReplicaNode", "ServingProblem"]
