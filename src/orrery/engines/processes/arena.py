"""`Arena`: memory that the processes of one machine share, with a lock that survives `kill -9`."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from orrery.base.errors import PartError, PlatformLacks

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

MOST_ARENA_B = 1 << 40


def arena_folder() -> str:
    """Where arenas live: in memory where the machine has such a folder, else on disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else ""


class Arena(mmap.mmap):
    """Shared bytes: index and slice it, or wrap it with `numpy.frombuffer`.

    `with arena.locked():` excludes all other processes. The lock belongs to the open file, so the
    system lets it go when its holder dies, however it dies.
    """

    _fd: int
    _name: str

    @classmethod
    def open(cls, folder: str, name: str, size: int) -> Arena:
        """The arena of that name, made by whoever comes first."""
        if fcntl is None:
            raise PlatformLacks(
                "arena() needs fcntl, which this platform lacks; use Linux or macOS"
            )
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= MOST_ARENA_B:
            raise PartError(f"arena {name!r}: size {size!r} is refused; give 1 to {MOST_ARENA_B}")
        path = Path(folder) / ("a_" + quote(name, safe=""))
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise PartError(f"arena {name!r} cannot be made: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            have = os.fstat(fd).st_size
            if have == 0:
                os.ftruncate(fd, size)
            elif have != size:
                raise PartError(f"arena {name!r} has {have} bytes, not {size}; ask for its size")
            arena = cls(fd, size)
        except BaseException:
            os.close(fd)
            raise
        fcntl.flock(fd, fcntl.LOCK_UN)
        arena._fd = fd
        arena._name = name
        return arena

    def check_size(self, size: int) -> None:
        if len(self) != size:
            raise PartError(
                f"arena {self._name!r} has {len(self)} bytes, not {size}; ask for its size"
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[Arena]:
        """Keep all other processes out; hold it briefly, as the whole process waits for it."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield self
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def shut(self) -> None:
        """Let go of the memory; arrays that still look at it keep it until they go."""
        with contextlib.suppress(BufferError):
            self.close()
        os.close(self._fd)
