"""DataStates: state is copied while it cannot change, and flushed while it is being copied."""

from __future__ import annotations

from typing import Any

from orrery.parts import Positive
from orrery.systems.resilience.datastates_llm.ring import Ring
from orrery.systems.resilience.problems.checkpointer import Checkpointer
from orrery.systems.resilience.problems.shard_files import ShardFile
from orrery.systems.resilience.problems.shards import Tensor


class _Snapshot:
    """One checkpoint on its way: when its copy is whole, and when its fate is known."""

    def __init__(self, node: Checkpointer, file: ShardFile) -> None:
        self.file = file
        self.copied = node.event()
        self.decided = node.event()


class DataStates(Checkpointer):
    """Copy the state piece by piece during forward and backward; let the update wait if it must.

    "DataStates-LLM: Lazy Asynchronous Checkpointing for Large Language Models" (Maurya, Underwood,
    Rafique, Cappello, Nicolae; HPDC 2024). From the end of an update to the start of the next one
    nothing changes parameters and optimiser state. A checkpoint therefore only notes that a copy is
    wanted; a copier moves the tensors to a host buffer piece by piece while the next forward and
    backward run, and the next update waits only where the copy has not ended.

    The buffer is a ring of pinned memory that is allocated once. A flusher writes its pieces in
    order while the copier fills the next ones, so that copy and flush overlap within and across
    checkpoints; when storage is slower than copying, the ring fills, the copier waits for room, and
    in the end the update waits for the copier: back-pressure is seen as stall, and nothing is
    dropped. Offsets and shapes are computed before the first byte, tensors are written raw, and
    only the small rest is serialised. When all ranks have made their shards safe, rank 0 writes the
    manifest, and only then the checkpoint counts.

    Knobs: `lazy`, whether the copy runs behind forward and backward (off: training waits for it);
    `background`, whether flush and commit do (off: training waits for these too); `buffer_B`, the
    host buffer of a rank; `piece_B`, the most that is copied at once.

    **Differs from the paper.** State is sharded evenly over the ranks, as ZeRO does it; there is no
    DeepSpeed or Megatron below. The commit over ranks, the checksums and the layout are our design.
    On a node's disk, which has no rename, a manifest is atomic by its checksum; the library form of
    the same thing, `LazyCheckpointer` on a `CheckpointStore`, renames. Device memory is ordinary
    memory that updates change in place; the time of copying is modelled from a link's speed.

    Cost: one pass over the state for the copy and one for the write with its checksum; memory is
    the buffer, whatever the state's size.

    >>> DataStates(lazy=False).buffer_B
    1000000000.0
    """

    lazy: bool = True
    background: bool = True
    buffer_B: Positive = 1e9
    piece_B: Positive = 256e6

    async def begin(self) -> None:
        # In real bytes: a buffer that stands for a large one is as much smaller as the state is.
        self.piece = self.piece_items(min(self.piece_B, self.buffer_B))
        self.ring = Ring(max(int(self.buffer_B / self.scale_B), self.piece))
        self.room = self.event()
        self.wanted, self.full = self.queue(), self.queue()
        self.under_way: list[_Snapshot] = []
        self.run_behind(self._copy())
        self.run_behind(self._flush())

    async def save(self, iteration: int) -> None:
        file = self.shard_file(await self.pack_small(), iteration)
        snapshot = _Snapshot(self, file)
        self.under_way = [each for each in self.under_way if not each.decided.is_set()]
        self.under_way.append(snapshot)
        self.wanted.put(snapshot)
        if not self.lazy:
            await snapshot.copied.wait()
        if not self.background:
            await snapshot.decided.wait()

    async def before_update(self) -> None:
        if self.under_way:
            await self.under_way[-1].copied.wait()

    async def settle(self) -> None:
        for snapshot in self.under_way:
            await snapshot.decided.wait()

    # -- behind training

    async def _copy(self) -> None:
        """From the device into the ring, piece by piece, one checkpoint after the other."""
        while True:
            snapshot = await self.wanted.get()
            for piece in self.layout.pieces(self.piece):
                await self._copy_piece(snapshot, *piece)
            snapshot.copied.set()
            self.full.put((snapshot, None, 0))

    async def _copy_piece(self, snapshot: _Snapshot, tensor: Tensor, start: int, stop: int) -> None:
        size = stop - start
        while (slot := self.ring.take(size)) is None:
            self.room.clear()
            await self.room.wait()
        self.high_B = max(self.high_B, self.ring.high_B * self.scale_B)
        await self.link.move(size * self.scale_B, self.rig.copy_Bps)
        # Read at the end of its time: had the device changed by then, the copy would be torn.
        self.ring.slot(slot, size)[:] = self.device_bytes(tensor.name, start, stop)
        self.full.put((snapshot, slot, size))

    async def _flush(self) -> None:
        """From the ring to storage, in order; a slot is free when its bytes are written."""
        while True:
            snapshot, slot, size = await self.full.get()
            if slot is None:
                self.run_behind(self._conclude(snapshot))
                continue
            await snapshot.file.append(self.ring.slot(slot, size).tobytes())
            self.ring.give_back()
            self.room.set()

    async def _conclude(self, snapshot: Any) -> None:
        await self.commit(snapshot.file)
        snapshot.decided.set()
