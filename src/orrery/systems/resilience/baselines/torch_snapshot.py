"""TorchSnapshot: staged by several threads, written raw in chunks while staging goes on."""

from __future__ import annotations

from typing import Any

from orrery.parts import Count, Positive
from orrery.systems.resilience.problems.checkpointer import Checkpointer
from orrery.systems.resilience.problems.host_copies import CHUNK_B
from orrery.systems.resilience.problems.shard_files import ShardFile


class TorchSnapshot(Checkpointer):
    """Training waits until all chunks are staged in host memory; they are written as they come.

    PyTorch's TorchSnapshot, `Snapshot.async_take`. Tensors are cut into chunks that several threads
    copy to the host at once, so the link and not one thread's pageable copy is the limit; chunks
    are written without serialisation as soon as they are staged. What is staged and not yet written
    is held below a budget. Blocked per checkpoint: bytes / min(copy_Bps, threads x pageable_Bps),
    and what storage takes when the budget is used up.

    Knobs: `threads` that stage; `buffer_B`, the budget of a rank. Both defaults are the library's.
    Differs from the library: chunks of a rank are written in order into one file, with one writer.

    >>> TorchSnapshot().threads
    4
    """

    threads: Count = 4
    buffer_B: Positive = 32.0 * (1 << 30)

    async def begin(self) -> None:
        self.staged_B = 0.0
        self.room = self.event()
        self.chunks = self.queue()
        self.pending: list[Any] = []
        self.run_behind(self._write())

    async def save(self, iteration: int) -> None:
        file = self.shard_file(await self.pack_small(), iteration)
        done = self.event()
        self.pending = [each for each in self.pending if not each.is_set()] + [done]
        rate_Bps = min(self.rig.copy_Bps, self.threads * self.rig.pageable_Bps)
        chunk = self.piece_items(min(CHUNK_B, self.buffer_B))
        for tensor, start, stop in self.layout.pieces(chunk):
            size_B = (stop - start) * self.scale_B
            while self.staged_B and self.staged_B + size_B > self.buffer_B:
                self.room.clear()
                await self.room.wait()
            self.staged_B += size_B
            self.high_B = max(self.high_B, self.staged_B)
            await self.link.move(size_B, rate_Bps)
            copied = self.device_bytes(tensor.name, start, stop).tobytes()
            self.chunks.put((file, copied, None))
        self.chunks.put((file, b"", done))

    async def settle(self) -> None:
        for done in self.pending:
            await done.wait()

    async def _write(self) -> None:
        while True:
            file, copied, done = await self.chunks.get()
            if done is not None:
                self.run_behind(self._conclude(file, done))
                continue
            await file.append(copied)
            self.staged_B -= len(copied) * self.scale_B
            self.room.set()

    async def _conclude(self, file: ShardFile, done: Any) -> None:
        await self.commit(file)
        done.set()
