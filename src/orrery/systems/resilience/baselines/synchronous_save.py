"""The synchronous save: training stands still until the checkpoint is on storage."""

from __future__ import annotations

from orrery.systems.resilience.problems.host_copies import HostCopies


class SynchronousSave(HostCopies):
    """Copy the state to the host, serialise and write it, commit it; then train on.

    What `torch.save` and DeepSpeed's default engine do, on each rank for its own shard. Blocked per
    checkpoint: bytes / pageable_Bps + bytes / min(serialise_Bps, storage).

    Knobs: none of its own.
    Differs from practice: while one piece is serialised the one before is being written, which a
    page cache gives; the commit over ranks is ours.

    >>> SynchronousSave().keeps
    True
    """

    async def save(self, iteration: int) -> None:
        file = self.shard_file(await self.pack_small(), iteration)
        await self.write_all(file, await self.copy_all(self.rig.pageable_Bps))
