"""Clears up after a local Ray: a small process that outlives its owner, however that one ends.

It is run as a script, without Orrery, and waits for the end of its input, which the system brings
about when the owner dies. Ray's own processes mostly end with the owner, but its helpers may stay
for a minute and its files for ever.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time

# All processes of a local Ray, and no others, carry the name of its folder in their environment.
TAG = "ORRERY_RAY"
LINGER_S = 1.0
_ROUNDS = 100


def members(name: str) -> list[int]:
    """The processes of the local Ray with this folder (where /proc tells, on Linux)."""
    tag, found = f"{TAG}={name}\0".encode(), []
    numbers = [each for each in os.listdir("/proc") if each.isdigit()] if _PROC else []
    for number in numbers:
        with contextlib.suppress(OSError), open(f"/proc/{number}/environ", "rb") as file:
            if tag in file.read():
                found.append(int(number))
    return found


_PROC = os.path.isdir("/proc")


def end_all(name: str, linger_s: float = 0.0) -> None:
    """See the processes of a local Ray gone; what is still there after a while is killed."""
    give_up_s = time.monotonic() + linger_s
    for _ in range(_ROUNDS):
        left = members(name)
        if not left:
            return
        if time.monotonic() >= give_up_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def watch(folder: str) -> None:
    """Wait for the owner's end, then clear up.

    The owner says `+path` when a run begins to use a folder, and `-path` when it has removed it.
    """
    left = {folder}
    for line in sys.stdin:
        sign, path = line[0], line[1:].rstrip("\n")
        if os.path.basename(path).startswith("orrery-"):
            left = left | {path} if sign == "+" else left - {path}
    end_all(os.path.basename(folder), LINGER_S)
    for path in left:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    watch(sys.argv[1])
