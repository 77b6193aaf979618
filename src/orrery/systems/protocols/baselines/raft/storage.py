"""What a Raft node keeps on its disk: one file of checksummed records, rewritten now and then.

The file begins with a `Base` (everything up to some moment) and goes on with records in the order
in which the state in memory changed. Two rules make that safe:

- nothing that depends on a change leaves the node before `sync` has returned;
- a rewritten file gets a new name, and the old one is deleted only when the new one is safe.

A crash may lose the records after the last sync, or tear one of them. Both are seen when the file
is read: the first record whose length or checksum is wrong, and all that follows, was never
promised to anyone, so it is dropped.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence

import msgspec

from orrery.base.codec import decode, encode
from orrery.base.errors import CodecError
from orrery.parts.node import Disk, Lock
from orrery.systems.protocols.baselines.raft.log import Entry, Snapshot

NOBODY = -1
_FRAME = struct.Struct("<II")
_PREFIX = "raft."


class Base(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Everything that a node must remember."""

    term: int = 0
    voted_for: int = NOBODY
    snapshot: Snapshot = Snapshot()
    entries: tuple[Entry, ...] = ()


class Vote(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The node entered a term, or voted in it."""

    term: int
    voted_for: int


class Put(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Entries now stand from `index` on, and nothing after them."""

    index: int
    entries: tuple[Entry, ...]


def frame(record: Base | Vote | Put) -> bytes:
    """A record as bytes: length, checksum, content."""
    data = encode(record)
    return _FRAME.pack(len(data), zlib.crc32(data)) + data


def unframe(data: bytes) -> tuple[list[Base | Vote | Put], bool]:
    """The records up to the first damaged one, and whether that was the whole file."""
    records: list[Base | Vote | Put] = []
    at = 0
    while at + _FRAME.size <= len(data):
        size, check = _FRAME.unpack_from(data, at)
        content = data[at + _FRAME.size : at + _FRAME.size + size]
        if len(content) != size or zlib.crc32(content) != check:
            break
        try:
            records.append(decode(content, Base | Vote | Put))
        except CodecError:
            break
        at += _FRAME.size + size
    return records, at == len(data)


def replay(records: Sequence[Base | Vote | Put]) -> Base:
    """The state after a base and the changes that follow it; a later base begins anew."""
    term, voted_for, snapshot = 0, NOBODY, Snapshot()
    entries: list[Entry] = []
    for record in records:
        if isinstance(record, Base):
            term, voted_for, snapshot = record.term, record.voted_for, record.snapshot
            entries = list(record.entries)
        elif isinstance(record, Vote):
            term, voted_for = record.term, record.voted_for
        else:
            del entries[record.index - snapshot.index - 1 :]
            entries += record.entries
    return Base(term, voted_for, snapshot, tuple(entries))


class Storage:
    """The file of one node. Changes are noted at once and made safe by `sync`, many at a time."""

    def __init__(self, disk: Disk, lock: Lock) -> None:
        self._disk = disk
        self._lock = lock
        self._name = ""
        self._generation = 0
        self._noted: list[bytes] = []
        self._count = 0
        self._safe = 0

    async def load(self) -> Base:
        """What the node knew when it stopped; the newest file with an intact beginning counts."""
        state = Base()
        names = [name for name in self._disk.names() if name.startswith(_PREFIX)]
        # Names end in numbers of fixed width, so the order of names is that of generations.
        for name in sorted(names, reverse=True):
            self._generation = max(self._generation, int(name.removeprefix(_PREFIX)))
            records, _ = unframe(await self._disk.read(name))
            if records and isinstance(records[0], Base):
                state = replay(records)
                break
        # A torn end must not stay in front of new records, so each life has its own file.
        await self.rewrite(lambda: state)
        for name in names:
            if name != self._name and self._disk.exists(name):
                await self._disk.delete(name)
        return state

    def note_vote(self, term: int, voted_for: int) -> None:
        self._note(Vote(term, voted_for))

    def note_put(self, index: int, entries: Sequence[Entry]) -> None:
        self._note(Put(index, tuple(entries)))

    def note_base(self, base: Base) -> None:
        self._note(base)

    def _note(self, record: Base | Vote | Put) -> None:
        self._noted.append(frame(record))
        self._count += 1

    async def sync(self) -> None:
        """Return when all that was noted before this call is safe from a crash."""
        wanted = self._count
        if self._safe >= wanted:
            return
        async with self._lock:
            if self._safe >= wanted:
                return  # the sync before us took our records along
            upto, data = self._count, b"".join(self._noted)
            self._noted = []
            await self._disk.append(self._name, data)
            await self._disk.fsync(self._name)
            self._safe = upto

    async def rewrite(self, state: Callable[[], Base]) -> None:
        """Begin a new file with the state of this moment, then drop the old one."""
        async with self._lock:
            upto = self._count
            self._noted = []  # the state contains them
            self._generation += 1
            old, name = self._name, f"{_PREFIX}{self._generation:09d}"
            await self._disk.write(name, frame(state()))
            await self._disk.fsync(name)
            self._name, self._safe = name, upto
            if old:
                await self._disk.delete(old)
