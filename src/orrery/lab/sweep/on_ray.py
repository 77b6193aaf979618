"""Sweeps on Ray: a cell is a task of a local Ray or of a cluster.

The workers of a cluster do not share our disk. So a worker sends a finished run back as the bytes
of its files; this process checks them against their manifest, puts them into the store, and only
then is the run acknowledged. A worker that dies costs its cell another try. When this process dies,
its tasks die with it, and the same command goes on from the store.
"""

from __future__ import annotations

import errno
import hashlib
import pickle
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from orrery.base.errors import OrreryError, PartError, StoreError, UsageError
from orrery.engines.ray import boot, code
from orrery.engines.ray.cluster import Cluster, connect, environment, need_ray, quiet_errors
from orrery.lab.cells import Cell, attempt, pack, run_cell
from orrery.lab.spec import spec_id
from orrery.lab.store import MANIFEST, Store, Stored

TRIES = 5
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PERFORM = "orrery.lab.sweep.on_ray:perform"
_NAME = re.compile(r"^[a-z][a-z0-9_]*(\.[a-z]+)?$")
_Answer = tuple[str, str, dict[str, bytes]]  # ("run", id, files) or (kind of error, its text, {})


class RayRunner:
    """Runs cells as tasks of Ray, so many at a time; use it in `with`.

    `jobs` = 0 means as many as the cluster has processors. A cell that cannot travel (its part was
    made in a function) is run in this process.
    """

    def __init__(self, store: Store, jobs: int = 0, address: str | None = None) -> None:
        if isinstance(jobs, bool) or not isinstance(jobs, int) or not 0 <= jobs <= 1024:
            raise UsageError(f"jobs={jobs!r}: give a whole number from 0 (all) to 1024")
        need_ray()
        self.store = store
        self.jobs = jobs
        self._shelf = _Shelf(store.root)
        self._address = address
        self._cluster: Cluster | None = None
        self._waiting: dict[Any, Cell] = {}
        self._tries: dict[int, int] = {}
        self._codes: dict[bytes, Any] = {}
        self._paths: list[str] = []

    def __enter__(self) -> RayRunner:
        return self

    def __exit__(self, *error: object) -> None:
        # What is under way counts for nothing until it is in the store; it is begun anew later.
        if self._cluster is not None:
            for task in self._waiting:
                with quiet_errors():
                    self._cluster.ray.cancel(task, force=True)
        self._waiting = {}

    def run(self, cells: Iterable[Cell]) -> Iterator[tuple[Cell, Stored]]:
        """Every cell with its stored run, each as soon as it is safe in the store."""
        rest = list(reversed(list(cells)))
        while rest or self._waiting:
            while rest and len(self._waiting) < self._most():
                cell = rest.pop()
                if self.store.has(id := spec_id(cell.spec())):
                    yield cell, self.store.load(id)
                elif (parcel := _parcel(cell)) is None:
                    yield cell, run_cell(cell, self.store)
                else:
                    self._submit(cell, parcel)
            if self._waiting:
                yield from self._finished()

    def _most(self) -> int:
        if self._cluster is None:
            return self.jobs or 1
        return self.jobs or self._cluster.cpus

    def _submit(self, cell: Cell, parcel: bytes) -> None:
        if self._cluster is None:
            self._cluster = connect(self._address, self.jobs or None)
            self._paths = code.search_path()
        classes = code.classes_of([cell.part, cell.problem])
        sources = code.pack(classes, far=not self._cluster.here)
        if sources not in self._codes:
            self._codes[sources] = self._cluster.ray.put(sources)
        options: dict[str, Any] = {"num_cpus": 1, "max_retries": 0}
        carried = environment(self._cluster, classes)
        if carried is not None:
            options["runtime_env"] = carried
        task = self._cluster.ray.remote(boot.call).options(**options)
        asked = task.remote(self._paths, self._codes[sources], _PERFORM, parcel)
        self._waiting[asked] = cell

    def _finished(self) -> Iterator[tuple[Cell, Stored]]:
        assert self._cluster is not None
        ray = self._cluster.ray
        done, _ = ray.wait(list(self._waiting), num_returns=1)
        for task in done:
            cell = self._waiting.pop(task)
            try:
                answer = ray.get(task)
            except ray.exceptions.RayTaskError as failure:
                why = str(failure.cause if failure.cause is not None else failure).strip()
                raise PartError(f"{cell.name} failed on a Ray worker: {why[-2000:]}") from None
            except ray.exceptions.RayError as failure:
                self._again(cell, failure)
                continue
            yield cell, self.store.load(self._keep(answer))

    def _again(self, cell: Cell, failure: Any) -> None:
        """A worker died, and the cell with it: it is tried again, for a while."""
        tries = self._tries[id(cell)] = self._tries.get(id(cell), 1) + 1
        if tries > TRIES:
            why = str(failure).strip().partition("\n")[0]
            fix = "finished runs are saved; use fewer jobs if memory ran out"
            raise PartError(f"{TRIES} Ray workers died at {cell.name} ({why}); {fix}") from None
        parcel = _parcel(cell)
        assert parcel is not None
        self._submit(cell, parcel)

    def _keep(self, answer: bytes) -> str:
        kind, told, files = msgspec.msgpack.decode(answer, type=_Answer)
        if kind == "run":
            return self._shelf.take(told, files)
        raise (UsageError if kind == "UsageError" else StoreError)(told)


class _Shelf(Store):
    """A store that takes runs which were packed elsewhere."""

    def take(self, id: str, files: dict[str, bytes]) -> str:
        """Keep the files of a run once they are seen to be whole; returns its id."""
        try:
            manifest = msgspec.json.decode(files[MANIFEST], type=dict[str, Any])
            sums = {name: hashlib.sha256(files[name]).hexdigest() for name in manifest["files"]}
        except (KeyError, TypeError, msgspec.MsgspecError):
            raise StoreError(f"run {id} came back damaged ({MANIFEST}); try again") from None
        whole = manifest["id"] == id and set(files) == {*sums, MANIFEST}
        if not whole or sums != manifest["files"] or not all(map(_NAME.match, files)):
            raise StoreError(f"run {id} came back damaged from its worker; try again")
        try:
            self._put(id, files, partial=False)
        except OSError as failure:
            why = failure.strerror or str(failure)
            fix = "free some space" if failure.errno in _FULL else "check its permissions"
            raise StoreError(f"{self.runs / id}: {why}; {fix}") from None
        return id


class _Parcel(Store):
    """Packs a run instead of writing it."""

    files: dict[str, bytes]

    def _put(self, id: str, files: dict[str, bytes], partial: bool) -> None:
        self.files = files


def _parcel(cell: Cell) -> bytes | None:
    """A cell as bytes for a worker, or None where its part cannot travel."""
    try:
        return pickle.dumps(pack(cell))
    except (pickle.PicklingError, TypeError, AttributeError):
        return None


def perform(data: bytes) -> bytes:
    """In a worker: make the run of a cell, and pack its files."""
    from orrery.world import World

    packed = pickle.loads(data)
    cell = Cell(**{**packed, "world": World.from_data(packed["world"])})
    spec = cell.spec()
    parcel = _Parcel(Path("."))
    try:
        id = parcel.save(attempt(cell), spec)
    except OrreryError as refusal:
        return msgspec.msgpack.encode((type(refusal).__name__, str(refusal), {}))
    return msgspec.msgpack.encode(("run", id, parcel.files))
