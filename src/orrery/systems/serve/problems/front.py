"""What stands before the replicas of a cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from orrery.base.errors import UsageError
from orrery.models.ports import ReplicaView
from orrery.models.requests import Request, Served
from orrery.parts import Driver
from orrery.systems.serve.problems.replica_nodes import Plan, ReplicaNode


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
        if plan.fleet.scaler is not None:
            driver.spawn(plan.fleet.run(self))
        for request in plan.requests:
            wait_s = request.arrival_s - driver.now
            if wait_s > 0:
                await driver.sleep(wait_s)
            plan.fleet.arrived += 1
            driver.spawn(self.one(request))
        await self.over.wait()
        faults = [(node, t) for node, each in plan.replicas.items() for t in each.faults()]
        return {
            "requests": len(plan.requests), "served": self.served, "failed": self.failed,
            "resent": self.resent, "seconds": driver.now, "faults": faults,
            "tallies": plan.tallies(), "extrapolated": plan.extrapolated,
            "paid_s": {node: plan.fleet.paid_s(node, driver.now) for node in driver.nodes},
            "starts": plan.fleet.starts,
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
        driver, fared = self.driver, self.plan.fared
        if not self.plan.world.faults:
            if await driver.ask(node, ReplicaNode.serve, request.id):
                return fared.pop(request.id)
            return None
        place, answered = await driver.first(
            driver.ask(node, ReplicaNode.serve, request.id), self.deaths[node].wait()
        )
        if place == 0 and answered:
            return fared.pop(request.id)
        if place == 0:
            await driver.sleep(self.plan.problem.detect_s)
        return None

    def pick(self, request: Request) -> int:
        """The replica that the router names among those alive; -1 when none is."""
        plan, fleet = self.plan, self.plan.fleet
        views = [
            plan.replicas[node].view for node in self.driver.nodes
            if node not in self.down and fleet.serves(node)
        ]  # fmt: skip
        if not views:
            return -1
        node = self.choose(request, views)
        if node in self.down or node not in plan.replicas or not fleet.serves(node):
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

    async def switch_on(self, node: int) -> None:
        """Have a replica load its weights, then let requests go there."""
        driver, fleet = self.driver, self.plan.fleet
        place, _ = await driver.first(
            driver.ask(node, ReplicaNode.wake), self.deaths[node].wait()
        )  # fmt: skip
        if fleet.states[node] == "starting":
            fleet.set(node, "on" if place == 0 else "off", driver.now)

    def switch_off(self, node: int) -> None:
        """Have a replica give up what it has."""
        if node not in self.down:
            self.driver.tell(node, ReplicaNode.rest)

    async def watch(self) -> None:
        """Look at the replicas now and then, as a health check does."""
        driver = self.driver
        while True:
            await driver.sleep(self.plan.problem.detect_s)
            for node in driver.nodes:
                alive = driver.alive(node)
                if not alive and node not in self.down:
                    self.down.add(node)
                    self.plan.ready.discard(node)
                    self.deaths[node].set()
                    self.deaths[node] = driver.event()
                elif alive and node in self.down:
                    self.down.discard(node)


__all__ = ["Front"]
