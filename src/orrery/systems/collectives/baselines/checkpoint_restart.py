"""Restart from a checkpoint whenever the group changes, as jobs on fixed communicators do."""

from __future__ import annotations

from orrery.parts import Count, NonNegative
from orrery.parts.collectives import Array
from orrery.systems.collectives.pccl import PCCL
from orrery.systems.collectives.pccl.coordinator import Topology
from orrery.systems.collectives.problems.elastic_peer import Attempt


class CheckpointRestart(PCCL):
    """All-reduce whose every change of members throws the group back to its last checkpoint.

    Peers keep their state after every `every` operations. When anybody dies, leaves or comes, all
    wait `restart_s` (a new launch, new connections), load the checkpoint and do again what came
    after it. This is what a training job on a fixed communicator does; how often to keep the state
    is Young's question ("A first order approximation to the optimum checkpoint interval", 1974).

    Knobs: `every`, in operations; `restart_s`; and those of `PCCL`.
    Differs from practice: checkpoints stay in the memory of those who live, so writing and reading
    them costs nothing, and a peer that died gets it from another.

    >>> CheckpointRestart(every=5).every
    5
    """

    every: Count = 10
    restart_s: NonNegative = 1.0

    def start(self) -> None:
        super().start()
        self.kept: tuple[dict[str, Array], int] = (self.state, self.revision)
        self.inside = False

    async def attempt(self, array: Array, tag: str = "") -> Attempt:
        if self.revision % self.every == 0:
            self.kept = (self.state, self.revision)
        return await super().attempt(array, tag)

    async def regroup(self, topology: Topology) -> None:
        if self.inside:
            lost = self.revision - self.kept[1]
            self.state, self.revision = self.kept
            self.emit(rolled_back=self.revision, redone=lost)
            await self.sleep(self.restart_s)
        self.inside = True

    async def renew(self) -> None:
        changes = self.stale
        await super().renew()
        if changes:  # all have the state of the checkpoint now, newcomers too
            self.kept = (self.state, self.revision)
