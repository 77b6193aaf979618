"""The journal of a sweep: one line for each finished trial, safe on the disk before it counts.

A sweep has a folder, named by the hash of its question, with `journal` and `lock`. A line is a
checksum and JSON; a line that a kill or a full disk tore fails its checksum and is skipped, so its
trial is done again (from the stored runs that it has). The lock is the operating system's and goes
with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from orrery.base.errors import PlatformLacks, StoreError
from orrery.lab.files import sync_folder
from orrery.lab.ledger import home

SCHEMA = 1
KEY_DIGITS = 24
SUM_DIGITS = 16


class Trial(msgspec.Struct, kw_only=True):
    """One point of the space and what was found there, with one score for each seed."""

    n: int
    values: dict[str, Any]
    scores: list[float | str | None] = []
    runs: list[str] = []
    violations: int = 0
    note: str = ""

    def numbers(self) -> list[float]:
        """The scores, NaN for a run that gave none; JSON holds infinities and NaN as words."""
        return [math.nan if score is None else float(score) for score in self.scores]


def key_of(question: dict[str, Any]) -> str:
    """The name of a question's folder."""
    text = msgspec.json.encode({"schema": SCHEMA, **question}, order="deterministic")
    return hashlib.sha256(text).hexdigest()[:KEY_DIGITS]


class Journal:
    """The finished trials of one question; use it in `with`, which takes and frees the lock."""

    def __init__(self, question: dict[str, Any], root: Path | None = None) -> None:
        self.question = question
        self.key = key_of(question)
        self.folder = (root if root is not None else home()) / "sweeps" / self.key
        self.path = self.folder / "journal"
        self.trials: dict[int, Trial] = {}
        self.torn = 0
        self._file = self._lock = -1

    def __enter__(self) -> Journal:
        try:
            with self._named():
                self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock()
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        # What a process before us wrote and did not live to sync is trusted from here on, so it is
        # made safe first; so are the names of the folders.
        os.fsync(self._file)
        for folder in (self.folder, self.folder.parent, self.folder.parent.parent):
            sync_folder(folder)
        data = self.path.read_bytes()
        for line in data.split(b"\n"):
            trial = _read(line)
            if isinstance(trial, Trial):
                self.trials[trial.n] = trial
            self.torn += trial is None
        if not data:
            self._append({"question": self.question})

    def _end(self) -> None:
        for handle in (self._file, self._lock):
            if handle >= 0:
                with contextlib.suppress(OSError):
                    os.close(handle)
        self._file = self._lock = -1

    def _take_lock(self) -> int:
        try:
            import fcntl
        except ImportError:
            raise PlatformLacks("orrery sweep needs file locks, which this system lacks") from None
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failure:
            os.close(handle)
            if failure.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            fix = "wait for it, or end it; the same command then goes on"
            raise StoreError(f"{self.folder}: another sweep of this question runs; {fix}") from None
        return handle

    def put(self, trial: Trial) -> None:
        """Keep a trial; returns when it is safe on the disk."""
        with self._named():
            self._append(msgspec.to_builtins(trial))
        self.trials[trial.n] = trial

    def _append(self, record: dict[str, Any]) -> None:
        data = _line(record)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            data = b"\n" + data  # a writer before us was killed: its torn line ends here
        at = 0
        while at < len(data):
            wrote = os.write(self._file, data[at:])
            if wrote <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            at += wrote
        os.fsync(self._file)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            why = failure.strerror or str(failure)
            fix = "free some space, or check its permissions; the same command then goes on"
            raise StoreError(f"{self.path}: cannot be written: {why}; {fix}") from None


def _line(record: dict[str, Any]) -> bytes:
    text = msgspec.json.encode(record)
    return hashlib.sha256(text).hexdigest()[:SUM_DIGITS].encode() + b" " + text + b"\n"


def _read(line: bytes) -> Trial | bool | None:
    """The trial of a line, False for a line that is none, None for one that is torn."""
    if not line:
        return False
    checksum, _, text = line.partition(b" ")
    if hashlib.sha256(text).hexdigest()[:SUM_DIGITS].encode() != checksum:
        return None
    try:
        return msgspec.json.decode(text, type=Trial)
    except msgspec.MsgspecError:
        return False  # sound, and not a trial: the question, or a record of a later version
