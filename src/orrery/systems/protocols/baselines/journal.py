"""A journal: what a node must remember before it speaks, on disk, many records at a time.

A record is framed by its length and a checksum. Each life of a node writes a file of its own, so
the torn end that a crash may leave never stands in front of new records. What depends on a record
is done only when the record is safe: `note(record, then)` calls `then()` after the fsync.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

from orrery.base.codec import decode, encode
from orrery.base.errors import CodecError, DiskError
from orrery.parts import Node

_FRAME = struct.Struct("<II")


def frame(record: Any) -> bytes:
    """A record as bytes: length, checksum, content."""
    data = encode(record)
    return _FRAME.pack(len(data), zlib.crc32(data)) + data


def unframe(data: bytes, kind: Any) -> list[Any]:
    """The records up to the first damaged one; what follows it was never promised to anyone.

    >>> unframe(frame(1) + frame(2) + frame(3)[:-1], int)
    [1, 2]
    """
    records: list[Any] = []
    at = 0
    while at + _FRAME.size <= len(data):
        size, check = _FRAME.unpack_from(data, at)
        content = data[at + _FRAME.size : at + _FRAME.size + size]
        if len(content) != size or zlib.crc32(content) != check:
            break
        try:
            records.append(decode(content, kind))
        except CodecError:
            break
        at += _FRAME.size + size
    return records


class Journal:
    """The files of one node under one prefix; records have one type.

    `node` gives disk, events and sleep; `retry_s` is the pause after a disk has refused a write.
    """

    def __init__(self, node: Node, prefix: str, kind: Any, retry_s: float = 0.1) -> None:
        self._node = node
        self._prefix = f"{prefix}."
        self._kind = kind
        self._retry_s = retry_s
        self._name = ""
        self._noted: list[tuple[bytes, Callable[[], None]]] = []
        self._wake = node.event()

    def is_new(self) -> bool:
        """Whether nothing was ever written, so that there is nothing to load."""
        return not self._files()

    def _files(self) -> list[str]:
        # Names end in numbers of fixed width, so the order of names is that of lives.
        return sorted(name for name in self._node.disk.names() if name.startswith(self._prefix))

    async def load(self) -> list[Any]:
        """Every record that earlier lives made safe, in order."""
        records: list[Any] = []
        for name in self._files():
            records += unframe(await self._node.disk.read(name), self._kind)
        return records

    def note(self, record: Any, then: Callable[[], None]) -> None:
        """Write a record soon; `then()` is called when it is safe."""
        self._noted.append((frame(record), then))
        self._wake.set()

    async def keep(self) -> None:
        """The task that writes: one append and one fsync for all that has been noted meanwhile."""
        files = self._files()
        life = int(files[-1].removeprefix(self._prefix)) + 1 if files else 0
        self._name = f"{self._prefix}{life:09d}"
        while True:
            await self._wake.wait()
            self._wake.clear()
            noted, self._noted = self._noted, []
            data = b"".join(each for each, _ in noted)
            while not await self._is_safe(data):
                await self._node.sleep(self._retry_s)
            for _, then in noted:
                then()

    async def _is_safe(self, data: bytes) -> bool:
        """Try to write; a full disk may have room later, and until then nothing is promised."""
        try:
            await self._node.disk.append(self._name, data)
            await self._node.disk.fsync(self._name)
        except DiskError:
            return False
        return True
