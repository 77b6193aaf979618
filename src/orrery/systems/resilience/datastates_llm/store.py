"""`CheckpointStore`: checkpoints of many ranks in a folder, committed by an atomic rename.

    folder/it000000012/rank0000.shard     raw bytes of the tensors, at offsets known beforehand
                       rank0000.record    layout, checksum, small state; renamed into place
                       manifest           names all shards; renamed into place last

A checkpoint without a manifest does not count. Whichever rank finds that all records are there
writes it, so ranks that share the folder need no other word between them.
"""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from orrery.base.errors import UsageError
from orrery.parts.collectives import Array
from orrery.systems.resilience.problems.shards import (
    CheckpointError,
    Entry,
    Layout,
    Manifest,
    MissingManifest,
    Record,
    StorageFull,
    TruncatedShard,
    seal,
    unseal,
)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PARTIAL = ".part"


class ShardWriter:
    """One rank's shard in the making; `append` bytes in the order of the layout, then `finish`."""

    def __init__(self, store: CheckpointStore, iteration: int, layout: Layout) -> None:
        self._store = store
        self._layout = layout
        self.iteration = iteration
        self.folder = store.folder_of(iteration)
        self._crc = self._size_B = 0
        self._shard = self.folder / f"rank{store.rank:04d}.shard"
        self._file: int | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # A record of an earlier try must not vouch for the bytes that come now.
            self._record.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            self._file = os.open(self._shard, flags, 0o644)
        except OSError as failure:
            raise self._failed(failure) from None

    @property
    def _record(self) -> Path:
        return self._shard.with_suffix(".record")

    def append(self, data: Array | bytes | memoryview) -> None:
        """Write the next bytes."""
        view = memoryview(data).cast("B")
        assert self._file is not None
        try:
            self._store.write(self._file, view)
        except OSError as failure:
            raise self._failed(failure) from None
        self._crc = zlib.crc32(view, self._crc)
        self._size_B += len(view)

    def finish(self, small: bytes = b"") -> Record:
        """Make the shard safe and vouch for it."""
        record = Record(
            iteration=self.iteration, rank=self._store.rank, size=self._store.size,
            size_B=self._size_B, crc=self._crc, layout=self._layout, small=small,
        )  # fmt: skip
        assert self._file is not None
        try:
            os.fsync(self._file)
            os.close(self._file)
            self._file = None
            self._store.write_whole(self._record, seal(record))
        except OSError as failure:
            raise self._failed(failure) from None
        return record

    def abandon(self) -> None:
        """Leave nothing behind."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        for path in (self._shard, self._record):
            path.unlink(missing_ok=True)
        _remove_if_empty(self.folder)

    def _failed(self, failure: OSError) -> CheckpointError:
        self.abandon()
        what = f"checkpoint of iteration {self.iteration} in {self.folder.parent}"
        if failure.errno in _FULL:
            return StorageFull(
                f"{what}: no room ({failure.strerror}); free some, or keep fewer checkpoints"
            )
        return CheckpointError(f"{what}: {failure.strerror or failure}; check the folder")


class CheckpointStore:
    """Checkpoints in a folder: write shards, commit, find the newest complete one, read it.

    `rank` of `size` ranks that share the folder; `keep` complete checkpoints stay, older ones and
    leftovers of failed ones are removed when a new one is committed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = CheckpointStore(folder)
    ...     _ = store.save(7, {"w": np.arange(3)}, b"small")
    ...     store.newest(), store.load(7)[0]["w"].tolist()
    (7, [0, 1, 2])
    """

    def __init__(self, folder: str | Path, *, rank: int = 0, size: int = 1, keep: int = 2) -> None:
        for name, value, least in (("rank", rank, 0), ("size", size, 1), ("keep", keep, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"CheckpointStore({name}={value!r}): give a number >= {least}")
        if rank >= size:
            raise UsageError(f"CheckpointStore(rank={rank}): give 0 to size - 1 = {size - 1}")
        self.folder = Path(folder)
        self.rank, self.size, self.keep = rank, size, keep
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise UsageError(f"{self.folder}: {failure.strerror}; give a folder") from None

    # -- writing

    def write(self, file: int, view: memoryview) -> None:
        """Write all of these bytes to an open file."""
        done = 0
        while done < len(view):
            done += os.write(file, view[done:])

    def begin(self, iteration: int, layout: Layout) -> ShardWriter:
        """Begin this rank's shard of an iteration."""
        return ShardWriter(self, _number(iteration), layout)

    def commit(self, iteration: int) -> bool:
        """Write the manifest if the shards of all ranks are safe; False while some are not."""
        folder = self.folder_of(iteration)
        try:
            records = [
                unseal(path.read_bytes(), Record, str(path)) for path in self._records(folder)
            ]
            entries = tuple(Entry(each.rank, each.size_B, each.crc) for each in records)
            manifest = Manifest(iteration=iteration, shards=entries)
            self.write_whole(folder / "manifest", seal(manifest))
            _sync_folder(self.folder)
        except FileNotFoundError:
            return False
        except OSError as failure:
            if failure.errno in _FULL:
                raise StorageFull(
                    f"manifest of iteration {iteration} in {self.folder}: no room; free some"
                ) from None
            raise CheckpointError(f"{folder}: {failure.strerror}; check the folder") from None
        self._collect(iteration)
        return True

    def save(self, iteration: int, arrays: Mapping[str, Array], small: bytes = b"") -> bool:
        """Write and commit NumPy arrays at once; whether all ranks are complete now."""
        writer = self.begin(iteration, Layout.of(arrays))
        for array in arrays.values():
            writer.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        writer.finish(small)
        return self.commit(iteration)

    def write_whole(self, path: Path, data: bytes) -> None:
        """A small file appears under its name only when it is whole and safe."""
        partial = path.with_name(f"{path.name}.{self.rank}{_PARTIAL}")
        try:
            file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                self.write(file, memoryview(data))
                os.fsync(file)
            finally:
                os.close(file)
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    # -- reading

    def complete(self) -> list[int]:
        """The iterations that have a manifest, newest first."""
        return [i for i in self._iterations() if (self.folder_of(i) / "manifest").is_file()]

    def newest(self, damaged: list[tuple[int, CheckpointError]] | None = None) -> int | None:
        """The newest complete checkpoint whose files are all whole; None where there is none.

        What was found damaged on the way is added to `damaged` with its error.
        """
        for iteration in self._iterations():
            try:
                self.verify(iteration)
                return iteration
            except CheckpointError as error:
                if damaged is not None:
                    damaged.append((iteration, error))
        return None

    def manifest(self, iteration: int) -> Manifest:
        """The manifest of an iteration; `MissingManifest` where it was never completed."""
        path = self.folder_of(iteration) / "manifest"
        try:
            data = path.read_bytes()
        except OSError:
            known = ", ".join(map(str, self.complete())) or "none"
            raise MissingManifest(
                f"{path}: is not there, so iteration {iteration} was never completed; complete "
                f"are: {known}"
            ) from None
        return unseal(data, Manifest, str(path))

    def verify(self, iteration: int) -> None:
        """Raise what is wrong with a checkpoint, on any rank."""
        manifest = self.manifest(iteration)
        for rank in range(self.size):
            self._shard(manifest, rank)

    def load(self, iteration: int, rank: int | None = None) -> tuple[dict[str, Array], bytes]:
        """(tensors, small state) of a rank's shard (left out: one's own), checked."""
        record, data = self.read(iteration, rank)
        return record.layout.arrays(data), record.small

    def read(self, iteration: int, rank: int | None = None) -> tuple[Record, memoryview]:
        """The record and the checked bytes of a shard."""
        return self._shard(self.manifest(iteration), self.rank if rank is None else rank)

    def _shard(self, manifest: Manifest, rank: int) -> tuple[Record, memoryview]:
        entry = manifest.entry(rank)
        path = self.folder_of(manifest.iteration) / f"rank{rank:04d}.shard"
        try:
            record = unseal(path.with_suffix(".record").read_bytes(), Record, str(path))
            # A writable copy in one read; who restores may keep it.
            data = memoryview(np.fromfile(path, np.uint8)).cast("B")
        except OSError as failure:
            raise TruncatedShard(
                f"{path}: {failure.strerror or failure}; use the checkpoint before it"
            ) from None
        if (record.crc, record.size_B) != (entry.crc, entry.size_B):
            raise TruncatedShard(f"{path}: its record is not the manifest's; use the one before it")
        record.must_match(data, str(path))
        return record, data

    def drop_newer(self, iteration: int) -> None:
        """Remove this rank's files of later iterations: they are not those of the run that follows.

        All ranks do so before they train on; else one that is ahead could commit the files of
        another's former life.
        """
        for newer in self._iterations():
            if newer > iteration:
                folder = self.folder_of(newer)
                mine = f"rank{self.rank:04d}"
                for name in ("manifest", f"{mine}.record", f"{mine}.shard"):
                    (folder / name).unlink(missing_ok=True)
                for partial in folder.glob(f"*.{self.rank}{_PARTIAL}"):
                    partial.unlink(missing_ok=True)
                _remove_if_empty(folder)

    # -- the folder

    def folder_of(self, iteration: int) -> Path:
        """Where the files of an iteration are."""
        return self.folder / f"it{_number(iteration):09d}"

    def _iterations(self) -> list[int]:
        """All iterations that have a folder, newest first."""
        found = [p.name for p in self.folder.glob("it?????????") if p.name[2:].isdigit()]
        return sorted((int(name[2:]) for name in found), reverse=True)

    def _records(self, folder: Path) -> Iterable[Path]:
        return [folder / f"rank{rank:04d}.record" for rank in range(self.size)]

    def _collect(self, newest: int) -> None:
        """Remove what is older than the checkpoints that stay, and older leftovers."""
        stay = self.complete()[: self.keep]
        for iteration in self._iterations():
            if iteration < newest and iteration not in stay:
                folder = self.folder_of(iteration)
                # Without its manifest it no longer counts, so a half-removed one is none.
                (folder / "manifest").unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)


def _number(iteration: Any) -> int:
    if isinstance(iteration, bool) or not isinstance(iteration, int) or not (
        0 <= iteration < 1_000_000_000
    ):  # fmt: skip
        raise UsageError(f"iteration {iteration!r}: give a whole number from 0 to 999,999,999")
    return iteration


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # other ranks have files there


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
