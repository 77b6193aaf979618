"""What a checkpoint looks like on storage: layout, record, manifest; and all that can be wrong.

A shard is the raw bytes of a rank's tensors, one after the other, at offsets that are known before
the first byte is copied; nothing in it is serialised. Beside it stands a small record: the layout,
the checksum of the bytes, and the state that is not tensors. A checkpoint counts when a manifest
names the shards of all ranks of one iteration; the manifest is written last.

Records and manifests are sealed: a frame of length and checksum tells a whole one from a torn one,
also where a disk has no rename.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from orrery.base.errors import OrreryError
from orrery.parts.collectives import Array

VERSION = 1
_FRAME = struct.Struct("<4sII")
_MAGIC = b"orck"
T = TypeVar("T", bound="Sealed")


class CheckpointError(OrreryError):
    """A checkpoint could not be written or read."""


class StorageFull(CheckpointError):
    """The storage had no room for a checkpoint; the one before it still counts."""


class TruncatedShard(CheckpointError):
    """A file of a checkpoint is missing or shorter than its record says."""


class DamagedShard(CheckpointError):
    """The bytes of a checkpoint are not those that were written: a checksum differs."""


class MissingManifest(CheckpointError):
    """No manifest says that a checkpoint is complete, so it does not count."""


class WrongShape(CheckpointError):
    """A checkpoint holds other tensors, or of other ranks, than those that are to be restored."""


class UnknownVersion(CheckpointError):
    """A checkpoint was written in a format that this version does not know."""


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """Anything small that is written whole: it carries the version of the format."""

    version: int = VERSION


class Tensor(msgspec.Struct, frozen=True):
    """Where one tensor lies in a shard."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_B: int


class Layout(msgspec.Struct, frozen=True):
    """The tensors of a shard, in order; computed once, before anything is copied."""

    tensors: tuple[Tensor, ...] = ()

    @property
    def size_B(self) -> int:
        """The bytes of the whole shard."""
        return sum(tensor.size_B for tensor in self.tensors)

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> Layout:
        """The layout of NumPy arrays, in the order of the mapping.

        >>> Layout.of({"w": np.zeros((2, 3), np.float32), "b": np.zeros(2)}).tensors[1].offset
        24
        """
        return cls.packed((name, str(a.dtype), a.shape, a.nbytes) for name, a in arrays.items())

    @classmethod
    def packed(cls, tensors: Any) -> Layout:
        """A layout from (name, dtype, shape, bytes) of each tensor, without gaps."""
        found, at = [], 0
        for name, dtype, shape, size_B in tensors:
            found.append(Tensor(name, dtype, tuple(int(n) for n in shape), at, int(size_B)))
            at += int(size_B)
        return cls(tuple(found))

    def pieces(self, piece_B: int) -> Iterator[tuple[Tensor, int, int]]:
        """(tensor, first byte, last byte + 1) of each piece; no piece crosses two tensors."""
        for tensor in self.tensors:
            for start in range(0, tensor.size_B, max(piece_B, 1)):
                yield tensor, start, min(start + max(piece_B, 1), tensor.size_B)

    def arrays(self, data: bytes | memoryview) -> dict[str, Array]:
        """The NumPy arrays of a shard's bytes; they share memory with the bytes."""
        whole = memoryview(data)
        return {
            t.name: np.frombuffer(
                whole[t.offset : t.offset + t.size_B], dtype=np.dtype(t.dtype)
            ).reshape(t.shape)
            for t in self.tensors
        }

    def must_fit(self, wanted: Layout) -> None:
        """Refuse a shard whose tensors are not the wanted ones; the message names the first."""
        theirs = {t.name: (t.dtype, t.shape) for t in self.tensors}
        ours = {t.name: (t.dtype, t.shape) for t in wanted.tensors}
        for name in sorted(theirs.keys() | ours.keys()):
            if theirs.get(name) != ours.get(name):
                raise WrongShape(
                    f"tensor {name!r}: the checkpoint has {_said(theirs.get(name))}, the program "
                    f"wants {_said(ours.get(name))}; restore into the model that was saved"
                )


def _said(kind: tuple[str, tuple[int, ...]] | None) -> str:
    return "none" if kind is None else f"{kind[0]}{list(kind[1])}"


class Record(Sealed, frozen=True, kw_only=True):
    """What stands beside a shard: whose it is, its checksum, its layout, the small state."""

    iteration: int
    rank: int
    size: int
    size_B: int
    crc: int
    layout: Layout
    small: bytes = b""

    def must_match(self, data: bytes | memoryview, name: str) -> None:
        """Refuse bytes that are not those of this record."""
        if len(data) != self.size_B:
            raise TruncatedShard(
                f"{name}: has {len(data)} bytes, its record says {self.size_B}; use the checkpoint "
                "before it"
            )
        if zlib.crc32(data) != self.crc:
            raise DamagedShard(
                f"{name}: the checksum differs from its record; use the checkpoint before it"
            )


class Entry(msgspec.Struct, frozen=True):
    """One rank's shard, as a manifest names it."""

    rank: int
    size_B: int
    crc: int


class Manifest(Sealed, frozen=True, kw_only=True):
    """The commit: all shards of one iteration are safe."""

    iteration: int
    shards: tuple[Entry, ...]

    def entry(self, rank: int) -> Entry:
        """The shard of a rank."""
        for each in self.shards:
            if each.rank == rank:
                return each
        raise WrongShape(
            f"manifest of iteration {self.iteration}: it has {len(self.shards)} ranks and none is "
            f"rank {rank}; restore with as many ranks as saved"
        )


def seal(thing: Sealed) -> bytes:
    """A record or manifest as bytes that tell whether they are whole."""
    data = msgspec.msgpack.encode(thing)
    return _FRAME.pack(_MAGIC, len(data), zlib.crc32(data)) + data


def unseal(data: bytes, kind: type[T], name: str) -> T:
    """What was sealed; a named error where it is torn, damaged, or of another version.

    >>> m = Manifest(iteration=3, shards=())
    >>> unseal(seal(m), Manifest, "m").iteration
    3
    """
    if len(data) < _FRAME.size:
        raise TruncatedShard(f"{name}: has only {len(data)} bytes; use the checkpoint before it")
    magic, size, check = _FRAME.unpack_from(data)
    content = data[_FRAME.size : _FRAME.size + size]
    if magic != _MAGIC:
        raise DamagedShard(f"{name}: is no file of a checkpoint; use the checkpoint before it")
    if len(content) != size:
        raise TruncatedShard(
            f"{name}: {len(content)} of {size} bytes are there; use the checkpoint before it"
        )
    if zlib.crc32(content) != check:
        raise DamagedShard(f"{name}: the checksum differs; use the checkpoint before it")
    try:
        version = msgspec.msgpack.decode(content, type=Sealed).version
        if version != VERSION:
            raise UnknownVersion(
                f"{name}: is of version {version}, this program reads {VERSION}; read it with the "
                "program that wrote it"
            )
        return msgspec.msgpack.decode(content, type=kind)
    except msgspec.DecodeError as failure:
        raise DamagedShard(f"{name}: {failure}; use the checkpoint before it") from None
