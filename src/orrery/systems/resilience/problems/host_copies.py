"""What the classical ways to save share: a whole copy in host memory, then one writer."""

from __future__ import annotations

from typing import Any

from orrery.systems.resilience.problems.checkpointer import Checkpointer
from orrery.systems.resilience.problems.shard_files import ShardFile

# Pieces in which a state is copied, serialised and written; TorchSnapshot's chunks are 512 MB.
CHUNK_B = 512e6


class HostCopies(Checkpointer):
    """Copies the whole state into host memory of its own, then writes it; one save at a time."""

    def start(self) -> None:
        super().start()
        self.writing: Any = None

    async def settle(self) -> None:
        await self.written()

    async def written(self) -> None:
        """Wait until the save before has ended."""
        if self.writing is not None:
            await self.writing

    async def copy_all(self, rate_Bps: float) -> list[bytes]:
        """The state as it is now, in pieces; takes as long as the link does."""
        copied: list[bytes] = []
        held_B = 0
        for tensor, start, stop in self.layout.pieces(self.piece_items(CHUNK_B)):
            await self.link.move((stop - start) * self.scale_B, rate_Bps)
            copied.append(self.device_bytes(tensor.name, start, stop).tobytes())
            held_B += stop - start
            self.high_B = max(self.high_B, held_B * self.scale_B)
        return copied

    async def write_all(self, file: ShardFile, pieces: list[bytes]) -> bool:
        """Serialise and write, piece by piece, as `torch.save` does; then commit."""
        for piece in pieces:
            # The system writes one piece back while the next is being serialised.
            await self.all(
                self.core.move(len(piece) * self.scale_B, self.rig.serialise_Bps),
                file.append(piece),
            )
        return await self.commit(file)
