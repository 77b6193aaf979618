"""The replicas of a cluster: one on each node of the world, its engine modelled step by step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orrery.base.errors import UsageError
from orrery.models.meters import Meters
from orrery.models.replica import NEVER, Replica
from orrery.models.requests import Request, Served
from orrery.models.specs import ModelSpec, spec
from orrery.models.steps import steps_for
from orrery.models.weights import Layout
from orrery.parts import Node, rpc
from orrery.systems.serve.problems.scaling import Fleet
from orrery.world import Slow, World

if TYPE_CHECKING:
    from orrery.systems.serve.problems.cluster import ServingProblem

WEIGHTS = "weights"


class Tally(NamedTuple):
    """What one life of a replica came to."""

    node: int
    busy_s: float
    made: int
    preemptions: int
    blocks: int
    devices: int
    meters: Meters


class Plan:
    """What all replicas of one run share: the model, what a step takes, and the requests."""

    def __init__(self, problem: ServingProblem, world: World, part: Any) -> None:
        self.problem, self.world, self.part = problem, world, part
        self.model: ModelSpec = spec(problem.model)
        self.requests: list[Request] = []
        self.replicas: dict[int, Replica] = {}
        self.fared: dict[int, Served] = {}
        self.ended: list[Tally] = []  # lives that a crash or a scaler ended
        self.ready: set[int] = set()  # replicas that have their weights
        self.sending: dict[int, int] = {}  # how many copies of its weights a replica sends
        self.fleet = Fleet(
            list(range(world.size)), problem.new_scaler(part), problem.least_on,
            problem.scale_every_s,
        )  # fmt: skip
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
        self.end_life(node)
        self.replicas[node] = made
        return made

    def end_life(self, node: int) -> None:
        """Write down what a replica did that is no more."""
        gone = self.replicas.pop(node, None)
        if gone is not None:
            self.ended.append(self.tally(node, gone))

    def tally(self, node: int, replica: Replica) -> Tally:
        return Tally(
            node, replica.busy_s, replica.made, replica.preemptions, replica.pool.blocks,
            self.tp(node), replica.meters,
        )  # fmt: skip

    def tallies(self) -> list[Tally]:
        """Every life of every replica."""
        return [*self.ended, *(self.tally(node, each) for node, each in self.replicas.items())]

    def weights(self) -> np.ndarray:
        """The weights of a replica: an array that takes their time on a link, and no memory."""
        return np.broadcast_to(np.uint8(0), (int(self.model.weight_bytes()),))

    def source(self, node: int) -> int | None:
        """The replica that can best send its weights: the one that sends the fewest copies."""
        able = [(self.sending.get(other, 0), other) for other in self.ready - {node}]
        return min(able)[1] if able else None

    def from_disk_s(self, node: int) -> float:
        """Seconds to read the weights from the machine's own disk."""
        return self.model.weight_bytes() / self.world.machine_of(node).disk.read_Bps

    @property
    def extrapolated(self) -> int:
        """Steps that went beyond measured tables."""
        return sum(steps.extrapolated for steps in self._steps.values())


class ReplicaNode(Node):
    """One replica: serves what it is sent, and answers when a request is done."""

    plan: Any = None

    def start(self) -> None:
        self.plan.ready.discard(self.id)
        self.replica: Replica = self.plan.replica(self.id)
        self.answers: dict[int, Any] = {}
        self.armed_s = NEVER
        self.ready = False
        if self.now == 0.0 and self.plan.fleet.wanted(self.id):
            self.be_ready()

    def be_ready(self) -> None:
        self.ready = True
        self.plan.ready.add(self.id)

    async def main(self) -> None:
        """A replica that comes back loads its weights before it serves; a slow one is slowed."""
        for fault in self.plan.slow:
            if self.id in self.plan.world.targets(fault):
                self.spawn(self.be_slow(fault))
        if not self.ready and self.plan.fleet.wanted(self.id):
            await self.load()

    async def load(self) -> None:
        """Get the weights: from a replica that has them, over links that others use too, or else
        from the disk. A sender that dies is replaced by another one."""
        plan = self.plan
        while not self.ready:
            source = plan.source(self.id) if plan.problem.weights_from == "peer" else None
            if source is None:
                await self.sleep(plan.from_disk_s(self.id))
                self.be_ready()
                return
            plan.sending[source] = plan.sending.get(source, 0) + 1
            self.tell(source, ReplicaNode.send_weights, self.id)
            place, _ = await self.first(self.receive(source, WEIGHTS), self.lost(source))
            plan.sending[source] -= 1
            if place == 0:
                self.be_ready()

    async def lost(self, source: int) -> None:
        """Returns when a replica no longer has its weights."""
        while source in self.plan.ready:
            await self.sleep(self.plan.problem.detect_s)

    @rpc
    async def send_weights(self, peer: int) -> None:
        """Send the weights to a replica that begins."""
        await self.transfer(peer, self.plan.weights(), WEIGHTS)

    @rpc
    async def wake(self) -> bool:
        """Load the weights; True when this replica can serve."""
        if not self.ready:
            await self.load()
        return True

    @rpc
    def rest(self) -> None:
        """Give up weights and cache; nothing is being served."""
        if self.replica.view.outstanding:
            return  # a request came in the last moment; the next look will see it
        self.ready = False
        self.plan.ready.discard(self.id)
        self.replica = self.plan.replica(self.id)

    async def be_slow(self, fault: Slow) -> None:
        await self.sleep(max(fault.at_s - self.now, 0.0))
        self.set_speed(1.0 / fault.factor)
        if fault.until_s is not None and fault.until_s < math.inf:
            await self.sleep(max(fault.until_s - self.now, 0.0))
            self.set_speed(1.0)

    def set_speed(self, speed: float) -> None:
        self.replica.set_speed(speed, self.now)
        self.arm()

    @rpc
    async def serve(self, number: int) -> bool:
        """Serve a request of the plan, and write down how it fared; False while not ready to.

        How a request fared is for the books alone, so it does not travel with the answer.
        """
        if not self.ready:
            return False
        done = self.answers[number] = self.event()
        self.replica.submit(self.plan.requests[number], self.now)
        self.arm()
        self.plan.fared[number] = await done.wait()
        return True

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


__all__ = ["Plan", "ReplicaNode", "Tally"]
