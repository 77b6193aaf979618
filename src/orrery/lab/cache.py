"""A folder of things worked out before; a help that may be thrown away at any time."""

from __future__ import annotations

import os

from orrery.base.errors import OrreryError
from orrery.lab.ledger import home


def read_cache(name: str) -> bytes:
    """A cached file, or nothing."""
    try:
        return (home() / "cache" / name).read_bytes()
    except (OSError, OrreryError):
        return b""


def write_cache(name: str, data: bytes) -> None:
    """Keep a file for the next time, whole or not at all; failing to is no error."""
    try:
        folder = home() / "cache"
        folder.mkdir(parents=True, exist_ok=True)
        temp = folder / f".{name}-{os.getpid()}"
        try:
            temp.write_bytes(data)
            os.replace(temp, folder / name)
        finally:
            temp.unlink(missing_ok=True)
    except (OSError, OrreryError):
        pass
