"""A node's disk: real files in a folder of the run that outlives the node's process.

SIGKILL ends a process, not the machine, so what was written stays even without `fsync`; a part must
not rely on it. The fault `TornWrite` plays the power cut: the files that were not synced are cut to
whole pages before the node starts again. The disk's speed is the machine's own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from orrery.base import codec
from orrery.base.errors import DiskError, did_you_mean
from orrery.base.rand import Stream
from orrery.engines.processes.kernel import Kernel
from orrery.engines.processes.spec import Counters, RunSpec
from orrery.engines.processes.tasks import Call, Throw
from orrery.world import BitFlip, Crash, DiskFull, MisdirectedWrite, SpotReclaim, TornWrite

_FAULTS = (DiskFull, TornWrite, MisdirectedWrite, BitFlip)
_MOST_NAME_B = 240


class RealDisk:
    """The files of one node."""

    def __init__(
        self, spec: RunSpec, index: int, kernel: Kernel, counters: Counters, again: int
    ) -> None:
        self._spec = spec
        self._index = index
        self._kernel = kernel
        self._counters = counters
        self._folder = Path(spec.folder) / f"disk-{index}"
        self._folder.mkdir(exist_ok=True)
        self._page_B = 4096
        if index < spec.size:
            self._page_B = max(spec.world.machine_of(index).disk.page_B, 1)
        self._faults: list[tuple[int, Any, Stream]] = [
            (place, fault, Stream(spec.seed, f"{place}:{index}:{again}", "disk"))
            for place, fault in enumerate(spec.faults)
            if isinstance(fault, _FAULTS) and index in _nodes(fault)
        ]
        self._tears = any(isinstance(fault, TornWrite) for _, fault, _ in self._faults)
        self._pending_path = self._folder / "pending"
        # For each file that has unsynced bytes: how many of its first bytes are safe.
        self._pending: dict[str, int] = {}
        if self._tears and self._pending_path.exists():
            self._pending = codec.decode(self._pending_path.read_bytes(), dict[str, int])
            self._tear()

    # -- what a node calls

    async def read(self, name: str) -> bytes:
        """The whole file."""
        path = self._existing(name)
        self._flip_once(path)
        return self._flip_read(path.read_bytes())

    async def write(self, name: str, data: bytes) -> None:
        """Replace the whole file."""
        path = self._path(name)
        self._refuse(name, data)
        place = self._misdirect(path.stat().st_size if path.exists() else len(data))
        self._note(name, 0)
        with path.open("wb" if place is None else "r+b" if path.exists() else "wb") as file:
            if place is not None:
                file.seek(place)
            file.write(data)

    async def append(self, name: str, data: bytes) -> None:
        """Add to the end of the file, or begin it."""
        path = self._path(name)
        self._refuse(name, data)
        size = path.stat().st_size if path.exists() else 0
        place = self._misdirect(size)
        self._note(name, size)
        if place is None:
            with path.open("ab") as file:
                file.write(data)
            return
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.seek(place)
            file.write(data)

    async def fsync(self, name: str) -> None:
        """Wait until the file is safe from a crash."""
        path = self._existing(name)
        call = Call(self._kernel, busy=True)

        def done(future: Any) -> None:
            error = future.exception()
            call.resolve(None if error is None else Throw(self._named(name, error)))

        self._kernel.loop.run_in_executor(None, _sync, path).add_done_callback(done)
        await call.wait()
        if self._pending.pop(name, None) is not None:
            self._save_pending()

    async def delete(self, name: str) -> None:
        self._existing(name).unlink()
        if self._pending.pop(name, None) is not None:
            self._save_pending()

    def exists(self, name: str) -> bool:
        return self._path(name).exists()

    def names(self) -> list[str]:
        return sorted(unquote(path.name[2:]) for path in self._folder.glob("f_*"))

    def close(self) -> None:
        """Nothing stays open between calls."""

    # -- inside

    def _path(self, name: str) -> Path:
        if not isinstance(name, str) or not name:
            raise DiskError(f"{name!r} is not a file name; give text")
        safe = "f_" + quote(name, safe="")
        if len(safe) > _MOST_NAME_B:
            raise DiskError(f"the file name {name[:40]!r}… is too long; use at most 200 characters")
        return self._folder / safe

    def _existing(self, name: str) -> Path:
        path = self._path(name)
        if not path.exists():
            known = did_you_mean(name, self.names())
            raise DiskError(f"disk of node {self._index}: there is no file {name!r}; {known}")
        return path

    def _named(self, name: str, error: BaseException) -> DiskError:
        return DiskError(f"fsync of {name!r} on node {self._index} failed: {error}")

    def _active(self, kind: Any) -> list[tuple[int, Any, Stream]]:
        if not self._faults:
            return []
        now_s = self._kernel.now_ns() / 1e9
        return [
            (place, fault, rng) for place, fault, rng in self._faults
            if type(fault) is kind and fault.during(now_s)
        ]  # fmt: skip

    def _refuse(self, name: str, data: Any) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            kind = type(data).__name__
            raise DiskError(f"disk of node {self._index}: {name!r} was given a {kind}; give bytes")
        for place, _, _ in self._active(DiskFull):
            self._counters.fire(place)
            raise DiskError(f"the disk of node {self._index} is full; {name!r} was not written")

    def _misdirect(self, size: int) -> int | None:
        """The wrong offset at which a write lands, or None."""
        for place, fault, rng in self._active(MisdirectedWrite):
            if rng.random() < fault.p:
                self._counters.fire(place)
                return self._page_B * rng.below(max(size // self._page_B, 1) + 1)
        return None

    def _flip_read(self, data: bytes) -> bytes:
        for place, fault, rng in self._active(BitFlip):
            if fault.where == "disk" and fault.p is not None and data and rng.random() < fault.p:
                self._counters.fire(place)
                data = _flipped(data, rng)
        return data

    def _flip_once(self, path: Path) -> None:
        """A flip at rest happens to the first file that is read after its time, once."""
        for place, fault, rng in self._active(BitFlip):
            marker = self._folder / f"flipped-{place}"
            if fault.where != "disk" or fault.p is not None or marker.exists():
                continue
            if path.exists() and path.stat().st_size:
                path.write_bytes(_flipped(path.read_bytes(), rng))
                marker.touch()
                self._counters.fire(place)

    # -- torn writes

    def _note(self, name: str, safe_B: int) -> None:
        if self._tears and self._pending.get(name, safe_B + 1) > safe_B:
            self._pending[name] = safe_B
            self._save_pending()

    def _save_pending(self) -> None:
        if self._tears:
            fresh = self._pending_path.with_suffix(".new")
            fresh.write_bytes(codec.encode(self._pending))
            fresh.replace(self._pending_path)

    def _tear(self) -> None:
        """Cut what was not synced when the node crashed, if a fault was on at that time."""
        now_s = self._kernel.now_ns() / 1e9
        crashes = [
            f.at_s for f in self._spec.faults
            if isinstance(f, (Crash, SpotReclaim)) and self._index in _nodes(f) and f.at_s <= now_s
        ]  # fmt: skip
        crashed_s = max(crashes, default=now_s)
        for place, fault, rng in self._faults:
            if not isinstance(fault, TornWrite) or not fault.during(crashed_s):
                continue
            for name, safe_B in sorted(self._pending.items()):
                path = self._path(name)
                if path.exists() and rng.random() < fault.p:
                    self._counters.fire(place)
                    first = -(-safe_B // self._page_B)
                    last = path.stat().st_size // self._page_B
                    pages = first + rng.below(max(last - first, 0) + 1)
                    os.truncate(path, min(max(pages * self._page_B, safe_B), path.stat().st_size))
        self._pending = {}
        self._save_pending()


def _sync(path: Path) -> None:
    for each, flags in ((path, os.O_RDONLY), (path.parent, os.O_RDONLY)):
        fd = os.open(each, flags)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _flipped(data: bytes, rng: Stream) -> bytes:
    changed = bytearray(data)
    bit = rng.below(8 * len(changed))
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


def _nodes(fault: Any) -> tuple[int, ...]:
    node = fault.node
    return node if isinstance(node, tuple) else (node,)
