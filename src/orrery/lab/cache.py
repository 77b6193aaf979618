"""A folder of things worked out before; a help that may be thrown away at any time.

It is ORRERY_CACHE, or `cache` in ORRERY_HOME. What is kept there says itself what it was made from,
so many homes may share one.
"""

from __future__ import annotations

import os
from pathlib import Path

from orrery.base.errors import OrreryError
from orrery.lab.ledger import home


def folder() -> Path:
    """Where it is kept."""
    given = os.environ.get("ORRERY_CACHE", "").strip()
    return Path(given).expanduser() if given else home() / "cache"


def read_cache(name: str) -> bytes:
    """A cached file, or nothing."""
    try:
        return (folder() / name).read_bytes()
    except (OSError, RuntimeError, OrreryError):
        return b""


def write_cache(name: str, data: bytes) -> None:
    """Keep a file for the next time, whole or not at all; failing to is no error."""
    try:
        kept = folder()
        kept.mkdir(parents=True, exist_ok=True)
        temp = kept / f".{name}-{os.getpid()}"
        try:
            temp.write_bytes(data)
            os.replace(temp, kept / name)
        finally:
            temp.unlink(missing_ok=True)
    except (OSError, RuntimeError, OrreryError):
        pass
