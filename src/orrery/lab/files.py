"""Files that are there whole or not at all: writes with fsync, and JSON that loses nothing."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any

import msgspec

from orrery.base.errors import StoreError


def write_file(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        at = 0
        while at < len(data):
            wrote = os.write(handle, data[at:])
            if wrote <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            at += wrote
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable (a system without folder handles does so by itself)."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:
        if os.name == "nt":
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def to_json(value: Any) -> bytes:
    try:
        encoded = msgspec.json.encode(value, enc_hook=_as_text, order="deterministic")
        return encoded + b"\n"
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as failure:
        raise StoreError(f"a run cannot be written: {failure}; nothing was saved") from None


def _as_text(value: Any) -> Any:
    """Evidence may hold anything: arrays become lists, the rest its text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return repr(value)


def told(value: float) -> float | str:
    """JSON has no infinity and no NaN, so these are written as words."""
    number = float(value)
    return number if math.isfinite(number) else str(number)


def number(value: Any) -> float:
    return float(value)
