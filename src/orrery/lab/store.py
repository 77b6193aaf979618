"""The run store: one folder a run under ORRERY_HOME, named by the hash of what was run.

A folder is written beside its place and renamed into it, so it is there whole or not at all; of
two writers the first wins, which is right because equal specs give equal runs. A manifest of
checksums tells a damaged folder from a sound one. No server and no lock is needed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import math
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.base.errors import StoreError, UsageError, did_you_mean
from orrery.lab.files import alive, number, sync_folder, to_json, told, write_file
from orrery.lab.ledger import home

if TYPE_CHECKING:
    from orrery.lab.run import Run

SCHEMA = 1
ID_DIGITS = 20
MANIFEST = "manifest.json"
FILES = ("spec.json", "metrics.json", "violations.json", "environment.json", "digest")
# A temporary folder of a living process is its own; one this old is nobody's.
STALE_S = 3600.0
_ID = re.compile(r"^[0-9a-f]{1,64}$")


class Stored(msgspec.Struct, kw_only=True):
    """A run as it was saved."""

    id: str
    folder: str
    spec: dict[str, Any]
    metrics: dict[str, float]
    units: dict[str, tuple[str, str, str]] = {}
    violations: list[dict[str, Any]] = []
    environment: dict[str, Any] = {}
    digest: str = ""
    seconds: float = 0.0
    events: int = 0
    messages: int = 0
    bytes: int = 0
    ended: str = ""
    kind: str = "modelled"
    partial: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing that must not happen did."""
        return not self.violations and not self.partial

    def row(self) -> dict[str, Any]:
        """The row of `orrery runs ls`."""
        spec = self.spec
        return {
            "id": self.id, "part": name_of(spec.get("part")), "problem": name_of(
                spec.get("problem")), "world": spec.get("world"), "seed": spec.get("seed"),
            "engine": spec.get("engine"), "violations": len(self.violations),
            "partial": self.partial, "date": self.environment.get("date"), "folder": self.folder,
        }  # fmt: skip


def name_of(part: Any) -> str | None:
    """How a spec's part or problem is called in a table."""
    if not isinstance(part, dict):
        return None
    if "roles" in part:
        return ", ".join(f"{role}={name_of(each)}" for role, each in part["roles"].items())
    return str(part.get("name") or part.get("class", "")).rpartition(":")[2]


class Store:
    """The runs of one home folder."""

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = Path(root) if root is not None else home()
        self.runs = self.root / "runs"

    # -- writing

    def save(
        self, run: Run, spec: dict[str, Any], *, partial: bool = False, spans: bool = False
    ) -> str:
        """Write a finished run; returns its id once it is safe on the disk.

        A whole run takes the place of a partial or damaged one of the same spec; otherwise the
        folder that is already there stays.
        """
        from orrery.lab.spec import environment, spec_id

        id = spec_id(spec)
        files = _contents(run, spec, id, partial, environment(run))
        if spans:
            files["spans.json"] = to_json(run.spans)
        manifest = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        files[MANIFEST] = to_json({"schema": SCHEMA, "id": id, "files": manifest})
        try:
            self._put(id, files, partial)
        except OSError as failure:
            raise _store_error(self.runs / id, failure) from None
        return id

    def _put(self, id: str, files: dict[str, bytes], partial: bool) -> None:
        target = self.runs / id
        self.runs.mkdir(parents=True, exist_ok=True)
        if self._stays(id, partial):
            return
        temp = self._temp()
        try:
            os.mkdir(temp)
            for name, data in files.items():
                write_file(temp / name, data)
            sync_folder(temp)
            self._move_in(temp, target, id, partial)
            sync_folder(self.runs)
        finally:
            # After a rename nothing is left here; after an error nothing half-written may stay.
            shutil.rmtree(temp, ignore_errors=True)

    def _move_in(self, temp: Path, target: Path, id: str, partial: bool) -> None:
        for _ in range(3):
            try:
                os.rename(temp, target)
                return
            except OSError as failure:
                if failure.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.EACCES):
                    raise
                if failure.errno == errno.EACCES and not target.exists():
                    raise
            if self._stays(id, partial):
                with contextlib.suppress(OSError):
                    os.utime(target)  # made again just now: it is the last one
                return
            self._discard(target)
        raise OSError(errno.EBUSY, "other writers keep replacing it")

    def _stays(self, id: str, partial: bool) -> bool:
        """Whether the folder that is there is at least as good as the one to be written."""
        try:
            there = self.load(id)
        except StoreError:
            return False
        return partial or not there.partial

    def _discard(self, target: Path) -> None:
        """Take a folder away at once: it is renamed first, so nobody reads a half of it."""
        trash = self._temp()
        with contextlib.suppress(FileNotFoundError):
            os.rename(target, trash)
        shutil.rmtree(trash, ignore_errors=True)

    def _temp(self) -> Path:
        """A name that no other writer has, and from which `gc` can tell whose it is."""
        return self.runs / f".tmp-{_host()}-{os.getpid()}-{os.urandom(6).hex()}"

    # -- reading

    def has(self, id: str) -> bool:
        """Whether a whole, sound run of this id is there."""
        return self._stays(id, partial=False)

    def load(self, id: str) -> Stored:
        """A run by its id (or a prefix that only it has), verified against its manifest."""
        if not isinstance(id, str) or not _ID.match(id):
            raise StoreError(f"run {id!r}: an id is hexadecimal, such as 3fa0c1…")
        if len(id) < ID_DIGITS:
            id = self.find(id)
        folder = self.runs / id
        files = self._verified(folder, id)
        try:
            spec = msgspec.json.decode(files["spec.json"], type=dict[str, Any])
            known = msgspec.json.decode(files["metrics.json"], type=dict[str, Any])
            metrics = {name: number(value) for name, value in known.pop("metrics").items()}
            return msgspec.convert({
                **known, "id": id, "folder": str(folder), "spec": spec["spec"], "metrics": metrics,
                "violations": msgspec.json.decode(files["violations.json"]),
                "environment": msgspec.json.decode(files["environment.json"]),
                "digest": files["digest"].decode().strip(),
            }, Stored)  # fmt: skip
        except (msgspec.MsgspecError, KeyError, ValueError, TypeError, AttributeError) as failure:
            raise StoreError(f"{folder}: is damaged ({failure}); {_remove(id)}") from None

    def _verified(self, folder: Path, id: str) -> dict[str, bytes]:
        try:
            manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=dict[str, Any])
            schema = manifest["schema"]
            if isinstance(schema, int) and schema > SCHEMA:
                fix = "update orrery, or remove the run"
                raise StoreError(f"{folder}: has schema {schema}, newer than {SCHEMA}; {fix}")
            if schema != SCHEMA:
                raise ValueError("no schema was ever called that")
            files = {name: (folder / name).read_bytes() for name in manifest["files"]}
            wrong = [n for n, data in files.items()
                     if hashlib.sha256(data).hexdigest() != manifest["files"][n]]  # fmt: skip
            wrong += [name for name in FILES if name not in files]
            if manifest["id"] != id:
                wrong.append(MANIFEST)
        except FileNotFoundError as failure:
            if not folder.is_dir():
                known = self.ids()
                raise StoreError(f"there is no run {id}; {did_you_mean(id, known[:20])}") from None
            gone = Path(str(failure.filename)).name
            raise StoreError(f"{folder}: is damaged ({gone} is missing); {_remove(id)}") from None
        except OSError as failure:
            raise _store_error(folder, failure) from None
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError):
            raise StoreError(f"{folder}: is damaged ({MANIFEST}); {_remove(id)}") from None
        if wrong:
            raise StoreError(f"{folder}: is damaged ({wrong[0]}); {_remove(id)}")
        return files

    def spans(self, id: str) -> list[Any]:
        """The spans of a run that was saved with them."""
        stored = self.load(id)
        files = self._verified(Path(stored.folder), stored.id)
        if "spans.json" not in files:
            raise StoreError(f"run {stored.id} has no spans; run it again with spans")
        found: list[Any] = msgspec.json.decode(files["spans.json"])
        return found

    def ids(self) -> list[str]:
        """Every id that has a folder, sound or not."""
        try:
            return sorted(name for name in os.listdir(self.runs) if _ID.match(name))
        except FileNotFoundError:
            return []
        except OSError as failure:
            raise _store_error(self.runs, failure) from None

    def ls(self, on_damage: Callable[[StoreError], None] | None = None) -> list[Stored]:
        """Every sound run, newest first; damaged ones are named (on stderr) and skipped."""
        tell = on_damage or (lambda error: print(f"skipped: {error}", file=sys.stderr))
        found: list[Stored] = []
        for id in self.ids():
            try:
                found.append(self.load(id))
            except StoreError as error:
                tell(error)
        found.sort(key=lambda run: (self._made_ns(run.id), run.id), reverse=True)
        return found

    def find(self, prefix: str) -> str:
        """The only id that begins with `prefix`."""
        if not _ID.match(prefix or ""):
            raise StoreError(f"run {prefix!r}: an id is hexadecimal, such as 3fa0c1…")
        known = self.ids()
        fits = [id for id in known if id.startswith(prefix)]
        if len(fits) == 1 or prefix in fits:
            return prefix if prefix in fits else fits[0]
        if fits:
            raise StoreError(f"run {prefix} fits {len(fits)} runs; give more digits, as {fits[0]}")
        raise StoreError(f"there is no run {prefix}; {did_you_mean(prefix, known[:20])}")

    # -- removing

    def rm(self, id: str) -> str:
        """Remove one run, whole or damaged; returns its id."""
        full = self.find(id)
        try:
            self._discard(self.runs / full)
        except OSError as failure:
            raise _store_error(self.runs / full, failure) from None
        return full

    def gc(self, *, older_than_s: float | None = None, keep: int | None = None) -> list[str]:
        """Sweep up what killed writers left, and, if asked, old runs; returns the ids removed.

        `keep` newest runs stay whatever their age; with neither argument only litter goes.
        """
        for name, value in (("older_than_s", older_than_s), ("keep", keep)):
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise UsageError(f"{name}={value!r}: give a number >= 0")
        self._sweep()
        if older_than_s is None and keep is None:
            return []
        aged = [(self._age_s(id), id) for id in self.ids()]
        aged.sort()
        spare = aged[keep or 0 :]
        return [self.rm(id) for age, id in spare if older_than_s is None or age >= older_than_s]

    def _age_s(self, id: str) -> float:
        return (time.time_ns() - self._made_ns(id)) / 1e9

    def _made_ns(self, id: str) -> int:
        """When the run was last made; now for one that has just been taken away."""
        try:
            return (self.runs / id).stat().st_mtime_ns
        except OSError:
            return time.time_ns()

    def _sweep(self) -> None:
        try:
            names = [name for name in os.listdir(self.runs) if name.startswith(".tmp-")]
        except OSError:
            return
        for name in names:
            _, host, pid, *_ = [*name.split("-"), "", ""]
            # Of a writer on another machine only the age can be told.
            living = host != _host() or (pid.isdigit() and alive(int(pid)))
            if not living or self._age_s(name) > STALE_S:
                shutil.rmtree(self.runs / name, ignore_errors=True)


# -- pieces


def _contents(
    run: Run, spec: dict[str, Any], id: str, partial: bool, environment: dict[str, Any]
) -> dict[str, bytes]:
    known = {
        "metrics": {name: told(value) for name, value in run.metrics.items()},
        "units": {name: tuple(metric) for name, metric in run.units.items()},
        "seconds": run.seconds, "events": run.events, "messages": run.messages,
        "bytes": run.bytes, "ended": run.ended, "partial": partial,
        "kind": "modelled" if run.engine == "virtual" else "measured",
    }  # fmt: skip
    return {
        "spec.json": to_json({"schema": SCHEMA, "id": id, "spec": spec}),
        # The spec holds the world's hash; with the world itself a run can be replayed anywhere.
        "world.json": to_json(run.world.to_data()),
        "metrics.json": to_json(known),
        "violations.json": _violations(run),
        "environment.json": to_json(environment),
        "digest": run.digest.encode() + b"\n",
    }


def _violations(run: Run) -> bytes:
    try:
        return to_json(run.violations)
    except StoreError:
        # Evidence may be anything a problem thought of; where it is not JSON, its text is kept.
        plain = [msgspec.structs.replace(v, evidence=repr(v.evidence)) for v in run.violations]
        return to_json(plain)


@functools.lru_cache(maxsize=1)
def _host() -> str:
    """A few digits for this machine's name, so that homes may be shared over a network."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _remove(id: str) -> str:
    return f"remove it: orrery runs rm {id}"


def _store_error(path: Path, failure: OSError) -> StoreError:
    why = failure.strerror or str(failure)
    fix = "free some space" if failure.errno in (errno.ENOSPC, errno.EDQUOT) else (
        "check its permissions, or set ORRERY_HOME to another folder")  # fmt: skip
    return StoreError(f"{path}: {why}; {fix}")


# -- the store of ORRERY_HOME, by function


def save(run: Run, spec: dict[str, Any], *, partial: bool = False, spans: bool = False) -> str:
    """Save a run in ORRERY_HOME; see `Store.save`."""
    return Store().save(run, spec, partial=partial, spans=spans)


def load(id: str) -> Stored:
    """Load a run from ORRERY_HOME."""
    return Store().load(id)


def ls() -> list[Stored]:
    """Every sound run of ORRERY_HOME, newest first."""
    return Store().ls()


def rm(id: str) -> str:
    """Remove a run from ORRERY_HOME."""
    return Store().rm(id)


def gc(*, older_than_s: float | None = None, keep: int | None = None) -> list[str]:
    """Sweep ORRERY_HOME; see `Store.gc`."""
    return Store().gc(older_than_s=older_than_s, keep=keep)


def find(prefix: str) -> str:
    """The only run id of ORRERY_HOME that begins with `prefix`."""
    return Store().find(prefix)
