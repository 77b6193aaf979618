"""Points that were found before, kept so that the same command goes on where it was killed.

One file for each question (claim, axes and the code they rest on), one JSON line for each point,
written at once and synced. A kill leaves at most one torn last line, which is skipped.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec

from orrery.base.errors import StoreError
from orrery.lab.ledger import home
from orrery.lab.when.points import Point

SCHEMA = 1


class Book:
    """The file of one question."""

    def __init__(self, question: dict[str, Any], folder: Path | None = None) -> None:
        text = msgspec.json.encode({"schema": SCHEMA, **question}, order="deterministic")
        self.key = hashlib.sha256(text).hexdigest()[:24]
        self.path = (folder if folder is not None else home() / "when") / f"{self.key}.jsonl"
        self.points: dict[tuple[float, float], Point] = {}
        self._load()

    def _load(self) -> None:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as failure:
            fix = "check its permissions"
            raise StoreError(f"{self.path}: cannot be read: {failure.strerror}; {fix}") from None
        for line in data.split(b"\n"):
            try:
                point = msgspec.json.decode(line, type=Point)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                continue  # torn by a kill; the point will be found again
            self.points[(point.x, point.y)] = point

    def put(self, point: Point) -> None:
        """Keep a point; returns when it is safe on the disk."""
        self.points[(point.x, point.y)] = point
        data = msgspec.json.encode(point) + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                size = os.fstat(handle).st_size
                if size and os.pread(handle, 1, size - 1) != b"\n":
                    data = b"\n" + data  # a writer before us was killed: its torn line ends here
                if os.write(handle, data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as failure:
            why = failure.strerror or str(failure)
            fix = "free some space, or check its permissions"
            raise StoreError(f"{self.path}: cannot be written: {why}; {fix}") from None
