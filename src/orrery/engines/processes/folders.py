"""The folders of a run, gone when it ends, and those of runs that were killed with all they had.

The zygote clears up after a parent that is killed. Where it is killed too, nobody is left to do so;
the next run finds the folders, by a lock that the system let go when their owner died.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from orrery.engines.processes.arena import arena_folder

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

PREFIX = "orrery-run-"
LOCK = "owner"
# A folder this young may not have its lock yet.
YOUNG_S = 60.0


@contextlib.contextmanager
def run_folders() -> Iterator[tuple[str, str]]:
    """(a folder for files, one for shared memory) of a run."""
    places = [tempfile.gettempdir(), arena_folder() or tempfile.gettempdir()]
    for place in dict.fromkeys(places):
        sweep(place)
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(_owned(place)) for place in places]
        yield made[0], made[1]


@contextlib.contextmanager
def _owned(place: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place, ignore_cleanup_errors=True) as made:
        lock = os.open(os.path.join(made, LOCK), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield made
        finally:
            os.close(lock)


def sweep(place: str, young_s: float = YOUNG_S) -> list[str]:
    """Remove folders of this user's runs that nobody owns any more; gives their names."""
    removed = []
    for path in Path(place).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it went by itself meanwhile
            seen = path.lstat()
            mine = seen.st_uid == os.getuid() and path.is_dir() and not path.is_symlink()
            if mine and time.time() - seen.st_mtime > young_s and _ownerless(path):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path.name)
    return sorted(removed)


def _ownerless(path: Path) -> bool:
    if fcntl is None:
        return False
    try:
        lock = os.open(path / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


__all__ = ["run_folders", "sweep"]
