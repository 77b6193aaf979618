"""CheckFreq: snapshot behind the next forward and backward, then persist; one at a time."""

from __future__ import annotations

from typing import Any

from orrery.systems.resilience.problems.host_copies import HostCopies
from orrery.systems.resilience.problems.shard_files import ShardFile


class CheckFreq(HostCopies):
    """Take the snapshot while the next iteration computes, persist it when it is whole.

    "CheckFreq: Frequent, Fine-Grained DNN Checkpointing" (Mohan, Phanishayee, Chidambaram; FAST
    2021). The snapshot runs behind forward and backward, and the update waits for it; persisting
    follows behind training. There is one snapshot: the next one waits until the last is persisted.
    Blocked per checkpoint: what the snapshot takes beyond forward and backward, and what snapshot
    and persist together take beyond an iteration.

    Knobs: none of its own.
    Differs from the paper: the interval is given by the problem and not tuned by a profile; the
    snapshot goes to host memory and not, where there is room, to the device's own.

    >>> CheckFreq().keeps
    True
    """

    def start(self) -> None:
        super().start()
        self.snapshot: Any = None

    async def save(self, iteration: int) -> None:
        await self.written()
        file = self.shard_file(await self.pack_small(), iteration)
        self.snapshot = self.event()
        self.writing = self.run_behind(self._snapshot_then_persist(file, self.snapshot))

    async def before_update(self) -> None:
        if self.snapshot is not None:
            await self.snapshot.wait()

    async def _snapshot_then_persist(self, file: ShardFile, whole: Any) -> None:
        copied = await self.copy_all(self.rig.pageable_Bps)
        whole.set()
        await self.write_all(file, copied)
