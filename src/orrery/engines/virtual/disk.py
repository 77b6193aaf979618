"""Disks in virtual time: real bytes, modelled time, and the losses of a crash.

Each node has one disk, which outlives its crashes. A disk does one thing at a time: an operation
waits for the earlier ones, then takes its latency and its bytes over the bandwidth.

What a crash leaves. A write is seen at once by later reads, as with a page cache, but it is safe
only when a later `fsync` of the same file has returned. Of the operations of a file that were not
yet safe, a crash keeps a prefix, whose length the seed draws for each file on its own: files are
not kept in step with one another, as on a real file system. An operation survives whole or not at
all, unless a `TornWrite` fault is on; then the first one lost may leave some of its pages. Creating
and deleting a file are such operations too. The system writes back by itself what is more than
`WRITE_BACK` operations old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orrery.base.errors import DiskError, did_you_mean
from orrery.base.rand import Stream
from orrery.base.units import to_ns
from orrery.engines.virtual.tally import Chance

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine

WRITE_BACK = 1024

# One operation on a file: its place in the order of all, and (offset, bytes), where the offset is
# -1 for "replace the whole", or None for a deletion.
Operation = tuple[int, tuple[int, bytes] | None]


def _apply(content: bytearray | None, change: tuple[int, bytes] | None) -> bytearray | None:
    """The content of a file after one operation; None is "no such file"."""
    if change is None:
        return None
    offset, data = change
    if offset < 0 or content is None:
        content = bytearray()
        offset = max(offset, 0)
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
    return content


class _File:
    """What readers see, what is safe, and the operations in between."""

    __slots__ = ("live", "pending", "safe")

    def __init__(self) -> None:
        self.live: bytearray | None = None
        self.safe: bytearray | None = None
        self.pending: list[Operation] = []

    def make_safe(self, up_to: int) -> None:
        """Every operation with a number up to this one survives a crash from now on."""
        done = 0
        for number, change in self.pending:
            if number > up_to:
                break
            self.safe = _apply(self.safe, change)
            done += 1
        del self.pending[:done]


class VirtualDisk:
    """The disk of one node, as the part sees it through `self.disk`."""

    def __init__(self, engine: Engine, index: int, key: int | str) -> None:
        machine = engine.world.machine_of(min(index, engine.world.size - 1))
        self._kernel = engine.kernel
        self._index = index
        self._spec = machine.disk
        self._where = f"disk of node {index}" if index < engine.size else "disk of the driver"
        self._files: dict[str, _File] = {}
        self._free_ns = 0
        self._number = 0
        self._used_B = 0
        self._crashes = Stream(engine.seed, key, "disk crash")
        # What faults have done to this disk; each is a stack, as faults may overlap.
        self.full: list[Chance] = []
        self.torn: list[Chance] = []
        self.misdirected: list[Chance] = []
        self.flips: list[Chance] = []

    # -- what a part calls

    async def read(self, name: str) -> bytes:
        """The whole file; `DiskError` when there is none."""
        file = self._existing(name)
        assert file.live is not None
        await self._busy(self._spec.latency_s + len(file.live) / self._spec.read_Bps)
        if file.live is None:
            raise DiskError(f"{self._where}: {name!r} was deleted during the read; read it again")
        for chance in self.flips:
            if file.live and chance.hits():
                self._flip(file, chance.rng)
        return bytes(file.live)

    async def write(self, name: str, data: bytes) -> None:
        """Replace the whole file; it is safe after `fsync`."""
        await self._store(name, data, append=False)

    async def append(self, name: str, data: bytes) -> None:
        """Add to the end of the file, which is made where there is none."""
        await self._store(name, data, append=True)

    async def fsync(self, name: str) -> None:
        """What was written (or deleted) under this name survives a crash from now on."""
        self._check_name(name)
        file = self._files.get(name)
        if file is None or (file.live is None and not file.pending):
            self._existing(name)
        up_to = self._number
        await self._busy(self._spec.fsync_s)
        file = self._files.get(name)
        if file is not None:
            file.make_safe(up_to)
            self._forget_if_gone(name, file)

    async def delete(self, name: str) -> None:
        """Remove a file; like a write, this is safe after `fsync` of the same name."""
        file = self._existing(name)
        self._log(file, None)
        await self._busy(self._spec.latency_s)

    def exists(self, name: str) -> bool:
        self._check_name(name)
        file = self._files.get(name)
        return file is not None and file.live is not None

    def names(self) -> list[str]:
        """The files there are, in order of name."""
        return sorted(name for name, file in self._files.items() if file.live is not None)

    # -- how it works

    async def _busy(self, seconds: float) -> None:
        now = self._kernel.now
        start = max(now, self._free_ns)
        self._free_ns = start + to_ns(seconds)
        host: Any = self._kernel.hosts[self._index]
        await host.sleep((self._free_ns - now) / 1e9)

    async def _store(self, name: str, data: bytes, append: bool) -> None:
        self._check_name(name)
        if not isinstance(data, bytes | bytearray | memoryview):
            kind = type(data).__name__
            raise DiskError(f"{self._where}: {name!r} was given a {kind}; give bytes")
        data = bytes(data)
        file = self._files.get(name)
        before = file.live if file is not None and file.live is not None else b""
        self._check_room(name, len(data) if append else len(data) - len(before))
        if file is None:
            file = self._files[name] = _File()
        self._log(file, (self._aim(len(before), len(data), append), data))
        await self._busy(self._spec.latency_s + len(data) / self._spec.write_Bps)

    def _check_room(self, name: str, more_B: int) -> None:
        for chance in self.full:
            if chance.hits():
                raise DiskError(f"{self._where} is full: {name!r} was not written; delete files")
        if more_B > 0 and self._used_B + more_B > self._spec.capacity_B:
            raise DiskError(
                f"{self._where} is full: {self._used_B} of {self._spec.capacity_B} bytes are used "
                f"and {name!r} needs {more_B} more; delete files or give machine.disk.capacity_B"
            )

    def _aim(self, size_B: int, data_B: int, append: bool) -> int:
        """Where the bytes land: where they should, or on another page when a fault says so."""
        offset = size_B if append else -1
        page_B = self._spec.page_B
        for chance in self.misdirected:
            if data_B and chance.hits():
                pages = max(size_B, data_B) // page_B + 1
                wanted = max(offset, 0)
                # Shifting by 1 to `pages` whole pages, around the file, never hits the right place.
                shift = (1 + chance.rng.below(pages)) * page_B
                offset = (wanted + shift) % ((pages + 1) * page_B)
        return offset

    def _log(self, file: _File, change: tuple[int, bytes] | None) -> None:
        self._number += 1
        self._used_B -= len(file.live or b"")
        file.live = _apply(file.live, change)
        self._used_B += len(file.live or b"")
        file.pending.append((self._number, change))
        if len(file.pending) > WRITE_BACK:
            file.make_safe(file.pending[-WRITE_BACK][0] - 1)

    def _check_name(self, name: str) -> None:
        if not isinstance(name, str) or not name or "\0" in name or len(name) > 255:
            raise DiskError(
                f"{self._where}: {name!r:.80} is not a file name; give 1 to 255 characters"
            )

    def _existing(self, name: str) -> _File:
        self._check_name(name)
        file = self._files.get(name)
        if file is None or file.live is None:
            known = did_you_mean(name, self.names())
            raise DiskError(f"{self._where}: there is no file {name!r}; {known}")
        return file

    def _forget_if_gone(self, name: str, file: _File) -> None:
        if file.live is None and file.safe is None and not file.pending:
            del self._files[name]

    # -- what faults do

    def crash(self) -> None:
        """Keep what is safe and, of the rest, a prefix for each file."""
        self._free_ns = 0
        for name in sorted(self._files):
            file = self._files[name]
            if file.pending:
                kept = self._crashes.below(len(file.pending) + 1)
                lost = file.pending[kept:]
                if kept:
                    file.make_safe(file.pending[kept - 1][0])
                if lost:
                    self._tear(file, lost[0][1])
            file.pending = []
            file.live = None if file.safe is None else bytearray(file.safe)
            self._forget_if_gone(name, file)
        self._used_B = sum(len(file.live or b"") for file in self._files.values())

    def _tear(self, file: _File, change: tuple[int, bytes] | None) -> None:
        """Let some pages of the first lost write survive, when a fault says so."""
        if change is None or len(change[1]) < 2:
            return  # nothing of it can survive in part
        offset, data = change
        page_B = self._spec.page_B
        for chance in self.torn:
            if chance.hits():
                start = max(offset, 0)
                pages = (start + len(data) - 1) // page_B - start // page_B + 1
                # Pages are written whole in order; a write within one page is torn inside it.
                if pages == 1:
                    end = start + 1 + chance.rng.below(len(data) - 1)
                else:
                    end = (start // page_B + 1 + chance.rng.below(pages - 1)) * page_B
                # Beyond the torn part the old bytes stay, so this is a change at an offset.
                file.safe = _apply(file.safe, (start, data[: end - start]))
                return

    def flip_once(self, rng: Stream) -> bool:
        """Flip one bit of the data at rest; False when the disk is empty."""
        filled = [self._files[name] for name in self.names() if self._files[name].live]
        if not filled:
            return False
        self._flip(rng.choice(filled), rng)
        return True

    def _flip(self, file: _File, rng: Stream) -> None:
        assert file.live
        at, bit = rng.below(len(file.live)), 1 << rng.below(8)
        file.live[at] ^= bit
        if file.safe is not None and at < len(file.safe):
            file.safe[at] ^= bit


class Disks:
    """Every disk of a run, made when first used."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._disks: dict[int, VirtualDisk] = {}
        self._twins: dict[int, VirtualDisk] = {}

    def of(self, host: Any) -> VirtualDisk:
        return self.at(host._index)

    def at(self, index: int) -> VirtualDisk:
        disk = self._disks.get(index)
        if disk is None:
            disk = self._disks[index] = VirtualDisk(self._engine, index, index)
        return disk

    def twin_of(self, index: int) -> VirtualDisk:
        """The disk of the second copy of a Byzantine node, so that the copies do not meet there."""
        disk = self._twins.get(index)
        if disk is None:
            disk = self._twins[index] = VirtualDisk(self._engine, index, f"{index} twin")
        return disk

    def crash(self, index: int) -> None:
        """The node stopped: what was not safe is at risk."""
        for disks in (self._disks, self._twins):
            if index in disks:
                disks[index].crash()
