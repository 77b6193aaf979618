"""What the views read: the catalogue, and an index of the runs; kept for a moment, never changed.

Reading every stem takes a third of a second and verifying thousands of runs many seconds, so the
catalogue is kept for a few seconds and the index of a run until its folder changes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import msgspec

from orrery.lab import discover
from orrery.lab.discover import Entry
from orrery.lab.questions import snake
from orrery.lab.store import Store, name_of
from orrery.page.http import HttpError

KEEP_S = 5.0
MOST_SPEC_B = 4 << 20


class Library:
    """The entries of the catalogue, by id and by module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = -1e9
        self._entries: dict[str, Entry] = {}
        self._parts: dict[str, type] = {}

    def entries(self) -> dict[str, Entry]:
        """Every entry by id, at most a few seconds old."""
        with self._lock:
            if time.monotonic() - self._read_at > KEEP_S:
                self._entries = {entry.id: entry for entry in discover.entries()}
                self._read_at = time.monotonic()
            return self._entries

    def entry(self, id: str) -> Entry:
        """One entry by its exact id, or a 404."""
        found = self.entries().get(id)
        if found is None:
            raise HttpError(404, f"there is no system {id!r} in the catalogue")
        return found

    def part(self, id: str) -> Any:
        """The class of a system, loaded once: a module does not change under a running page."""
        if id not in self._parts:
            self._parts[id] = discover.load(self.entry(id).id)
        return self._parts[id]

    def system_of(self, cls: str) -> str:
        """The id of the system that a class `module:Name` belongs to, or an empty text."""
        module = cls.partition(":")[0]
        known = {entry.module: entry.id for entry in self.entries().values() if entry.module}
        while module:
            if module in known:
                return known[module]
            module = module.rpartition(".")[0]
        return ""


class Light(msgspec.Struct, kw_only=True):
    """What a list needs of a run, read without verifying its folder."""

    id: str
    made_ns: int
    part: str
    cls: str
    problem: str
    seed: int | None
    engine: str
    world: str


class RunIndex:
    """Light rows of every run, newest first; a folder is read again only when it has changed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._rows: dict[str, Light] = {}

    def rows(self) -> list[Light]:
        """Every run that has a readable spec, newest first."""
        with self._lock:
            fresh: dict[str, Light] = {}
            for id in self.store.ids():
                with contextlib.suppress(OSError, msgspec.MsgspecError, KeyError, TypeError):
                    made_ns = (self.store.runs / id).stat().st_mtime_ns
                    kept = self._rows.get(id)
                    same = kept is not None and kept.made_ns == made_ns
                    fresh[id] = kept if same and kept is not None else self._read(id, made_ns)
            self._rows = fresh
            return sorted(fresh.values(), key=lambda row: (-row.made_ns, row.id))

    def _read(self, id: str, made_ns: int) -> Light:
        path = self.store.runs / id / "spec.json"
        if path.stat().st_size > MOST_SPEC_B:
            raise KeyError(id)
        spec = msgspec.json.decode(path.read_bytes())["spec"]
        problem = spec.get("problem") or {}
        part = spec.get("part") or {}
        seed = spec.get("seed")
        return Light(
            id=id, made_ns=made_ns, part=name_of(part) or "", cls=str(part.get("class", "")),
            problem=snake(str(problem.get("class", "")).rpartition(":")[2]),
            seed=seed if isinstance(seed, int) else None, engine=str(spec.get("engine", "")),
            world=str(spec.get("world", "")),
        )  # fmt: skip


def library(app: Any) -> Library:
    """The library of a page."""
    found: Library = app.table("library", Library)
    return found


def run_index(app: Any) -> RunIndex:
    """The index of a page's runs."""
    found: RunIndex = app.table("runs", lambda: RunIndex(app.store))
    return found
