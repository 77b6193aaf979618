"""A rank's files: shards, records and manifests on its own disk, and the time that they take.

A small state may stand for a large one: real bytes go to the disk of the node, and the bytes that
they stand for take their time, on the node's own disk or, where the world has a role `storage`,
as a flow to it that all ranks share (a parallel file system).
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from orrery.base.errors import DiskError
from orrery.systems.resilience.problems.shards import (
    CheckpointError,
    Layout,
    Manifest,
    Record,
    TruncatedShard,
    seal,
    unseal,
)

if TYPE_CHECKING:
    from orrery.systems.resilience.problems.checkpointer import Checkpointer

SHARD, RECORD, MANIFEST = ".shard", ".record", ".manifest"


def mark_of(arrays: Any) -> str:
    """A mark of these arrays' bytes, in order: equal marks, equal states."""
    found = hashlib.blake2b(digest_size=8)
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def stem(iteration: int) -> str:
    """The name that the files of an iteration begin with; names sort as iterations do."""
    return f"it{iteration:09d}"


class Lane:
    """Something that moves bytes one job after the other: a link, a core, a disk."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._lock = node.lock()

    async def move(self, size_B: float, rate_Bps: float) -> None:
        """Wait until so many bytes have passed."""
        async with self._lock:
            if size_B > 0:
                await self._node.sleep(size_B / rate_Bps)


class Files:
    """All files of one rank."""

    def __init__(self, node: Checkpointer, scale: float) -> None:
        self._node = node
        self._scale = scale
        self._lane = Lane(node)
        world = node.world
        self._spec = world.machine_of(node.id).disk
        self._server = world.members("storage")[0] if "storage" in world.roles else None

    async def append(self, name: str, data: bytes) -> None:
        """Add bytes to a file, in the time of the bytes that they stand for."""
        disk = self._node.disk
        await disk.append(name, data)
        if self._server is not None:
            stands_for = np.broadcast_to(np.uint8(0), (len(data),))
            await self._node.transfer(self._server, stands_for, "shard", self._scale)
        else:
            more_B = len(data) * (self._scale - 1.0)
            await self._lane.move(more_B, self._spec.write_Bps)

    async def read(self, iteration: int) -> tuple[Record, bytes]:
        """The record and the bytes of this rank's shard, checked against one another."""
        name = stem(iteration)
        record = await self._sealed(name + RECORD, Record)
        data = await self._bytes(name + SHARD)
        await self._lane.move(len(data) * (self._scale - 1.0), self._spec.read_Bps)
        record.must_match(data, name + SHARD)
        return record, data

    async def manifests(self) -> tuple[list[Manifest], dict[int, str]]:
        """(whole manifests, newest first; why others do not count, by iteration)."""
        whole, damaged = [], {}
        for name in reversed(self._node.disk.names()):
            if not name.endswith(MANIFEST):
                continue
            try:
                whole.append(await self._sealed(name, Manifest))
            except CheckpointError as error:
                damaged[int(name[2:11])] = str(error)
        return whole, damaged

    async def commit(self, manifest: Manifest) -> None:
        """Write a manifest; the checkpoint counts when this returns."""
        name = stem(manifest.iteration) + MANIFEST
        await self._node.disk.write(name, seal(manifest))
        await self._node.disk.fsync(name)

    def iterations(self, ending: str = SHARD) -> list[int]:
        """The iterations of which this rank has a file with that ending."""
        names = self._node.disk.names()
        return sorted(int(name[2:11]) for name in names if name.endswith(ending))

    async def remove(self, iteration: int) -> None:
        """Delete all files of an iteration, the manifest first, so that it stops to count."""
        for ending in (MANIFEST, RECORD, SHARD):
            name = stem(iteration) + ending
            if self._node.disk.exists(name):
                await self._node.disk.delete(name)

    async def sweep(self, kept: set[int]) -> None:
        """Delete what belongs to no checkpoint that counts."""
        for iteration in sorted({i for end in (MANIFEST, RECORD, SHARD)
                                 for i in self.iterations(end)}):  # fmt: skip
            if iteration not in kept:
                await self.remove(iteration)

    async def _bytes(self, name: str) -> bytes:
        try:
            return await self._node.disk.read(name)
        except DiskError as error:
            raise TruncatedShard(f"{name}: {error}; use the checkpoint before it") from None

    async def _sealed(self, name: str, kind: Any) -> Any:
        return unseal(await self._bytes(name), kind, name)


class ShardFile:
    """One shard in the making: appended piece by piece, sealed by its record at the end."""

    def __init__(self, node: Checkpointer, iteration: int, layout: Layout, small: bytes) -> None:
        self._node = node
        self.iteration = iteration
        self._name = stem(iteration)
        self._layout = layout
        self._small = small
        self._crc = 0
        self._size_B = 0
        self._begun = False
        self._mark = hashlib.blake2b(digest_size=8)
        self.failed = ""

    async def append(self, data: bytes) -> None:
        """Write the next bytes; after a refusal of the disk the rest is left out."""
        if self.failed:
            return
        try:
            await self._begin()
            await self._node.files.append(self._name + SHARD, data)
        except DiskError as error:
            self.failed = str(error)
            return
        self._crc = zlib.crc32(data, self._crc)
        self._mark.update(data)
        self._size_B += len(data)

    async def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            # A torn shard of an earlier life may lie here.
            await self._node.disk.write(self._name + SHARD, b"")

    async def finish(self) -> Record | None:
        """Make the shard safe and seal it; None where the disk refused, which leaves no file."""
        record = Record(
            iteration=self.iteration, rank=self._node.rank, size=self._node.size,
            size_B=self._size_B, crc=self._crc, layout=self._layout, small=self._small,
        )  # fmt: skip
        if not self.failed:
            try:
                await self._begin()
                await self._node.disk.fsync(self._name + SHARD)
                await self._node.disk.write(self._name + RECORD, seal(record))
                await self._node.disk.fsync(self._name + RECORD)
                self._node.emit(flushed=self.iteration, mark=self._mark.hexdigest())
                return record
            except DiskError as error:
                self.failed = str(error)
        await self._node.files.remove(self.iteration)
        return None
