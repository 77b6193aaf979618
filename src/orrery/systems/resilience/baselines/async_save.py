"""The asynchronous save whose host copy blocks: training waits for the copy, not for storage."""

from __future__ import annotations

from orrery.systems.resilience.problems.host_copies import HostCopies


class AsyncSave(HostCopies):
    """Wait for the copy to the host; serialise and write behind training; one save at a time.

    What PyTorch's distributed checkpoint calls `async_save`. A save that is asked for while the one
    before is still being written waits for it. Blocked per checkpoint: bytes / pageable_Bps, and
    what writing takes beyond an iteration.

    Knobs: none of its own.
    Differs from practice: `async_save` has later learnt to stage in pinned memory; here it copies
    into ordinary memory, as it did when DataStates-LLM was published.

    >>> AsyncSave().keeps
    True
    """

    async def save(self, iteration: int) -> None:
        await self.written()
        file = self.shard_file(await self.pack_small(), iteration)
        copied = await self.copy_all(self.rig.pageable_Bps)
        self.writing = self.run_behind(self.write_all(file, copied))
