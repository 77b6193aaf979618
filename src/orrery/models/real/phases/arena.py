"""`Arena`: memory that processes of one machine share, and that goes when the last of them does.

It is a file without a name (a memfd, or a temporary file that was unlinked), so nothing is left
behind even if every process is killed. Children get its descriptor; a lock on one of its bytes
belongs to a process, and the kernel takes it back when that process dies.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from types import TracebackType

import numpy as np
import numpy.typing as npt

from orrery.base.errors import PlatformLacks, UsageError

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

MOST_B = 1 << 34


class Arena:
    """Shared memory by descriptor: `Arena.create(size)` here, `Arena(fd, size)` in a child.

    >>> with Arena.create("demo", 4096) as arena:
    ...     arena.words(0, 2)[:] = 7
    ...     Arena(os.dup(arena.fd), 4096).words(0, 2).tolist()
    [7, 7]
    """

    def __init__(self, fd: int, size: int, *, read_only: bool = False) -> None:
        if not 1 <= size <= MOST_B:
            raise UsageError(f"an arena of {size} bytes is refused; give 1 to {MOST_B}")
        self.fd, self.size = fd, size
        self.memory = mmap.mmap(
            fd, size, access=mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
        )

    @classmethod
    def create(cls, name: str, size: int) -> Arena:
        """A new one, all zero."""
        if fcntl is None:
            raise PlatformLacks("phases in processes need POSIX file locks; use Linux or macOS")
        if not 1 <= size <= MOST_B:
            raise UsageError(f"an arena of {size} bytes is refused; give 1 to {MOST_B}")
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create(f"orrery-{name}")
        else:  # pragma: no cover
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, size)
        return cls(fd, size)

    def words(self, start_B: int, count: int) -> npt.NDArray[np.int64]:
        """Some of the memory as whole numbers."""
        return np.frombuffer(self.memory, np.int64, count, start_B)

    def lock(self) -> ArenaLock:
        """The lock of this arena; one for each process."""
        return ArenaLock(self.fd)

    def close(self) -> None:
        """Unmap it here; arrays over it may outlive this and keep the mapping until they go."""
        try:
            self.memory.close()
        except BufferError:
            pass  # an array still looks at it: the mapping goes with the array
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


class ArenaLock:
    """Keeps other processes out; the process that has it may take it again inside.

    One for each process and arena, used by one thread.
    """

    def __init__(self, fd: int) -> None:
        self.fd, self.depth = fd, 0

    def __enter__(self) -> ArenaLock:
        if not self.depth:
            fcntl.lockf(self.fd, fcntl.LOCK_EX, 1)
        self.depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.depth -= 1
        if not self.depth:
            fcntl.lockf(self.fd, fcntl.LOCK_UN, 1)


def resident_B(pid: int, name: str) -> tuple[int, int]:
    """(proportional, whole) bytes of the pages that a process has of a named arena."""
    pss = rss = 0
    inside = False
    with open(f"/proc/{pid}/smaps", encoding="ascii", errors="replace") as file:
        for line in file:
            head = line.split(None, 1)
            if head and "-" in head[0] and ":" not in head[0]:
                inside = f"orrery-{name}" in line
            elif inside and line.startswith("Pss:"):
                pss += int(line.split()[1]) * 1024
            elif inside and line.startswith("Rss:"):
                rss += int(line.split()[1]) * 1024
    return pss, rss


__all__ = ["Arena", "ArenaLock", "resident_B"]
