"""Cells: single runs that the lab makes, saves and never makes twice."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import msgspec

from orrery.base.errors import OrreryError, PartError, StoreError, UsageError
from orrery.base.violation import Violation
from orrery.lab.run import Run, run
from orrery.lab.spec import spec_id, spec_of
from orrery.lab.store import Store, Stored
from orrery.parts.problem import Problem


class Cell(msgspec.Struct, kw_only=True):
    """One run to be made: who, on what, where, with which seed."""

    name: str
    part: Any
    problem: Problem | None
    world: Any
    seed: int
    engine: str = "virtual"
    until_s: float | None = None

    def spec(self) -> dict[str, Any]:
        """The spec whose hash names the run."""
        return spec_of(
            self.part, problem=self.problem, world=self.world, seed=self.seed, engine=self.engine,
            until_s=self.until_s, name=self.name,
        )  # fmt: skip


def run_cell(cell: Cell, store: Store) -> Stored:
    """The stored run of a cell: from the store, or made and saved now."""
    spec = cell.spec()
    id = spec_id(spec)
    if store.has(id):
        return store.load(id)
    return store.load(store.save(attempt(cell), spec))


def attempt(cell: Cell) -> Run:
    """Run a cell; a part that breaks gives a run whose violation says so."""
    try:
        return run(
            cell.part, problem=cell.problem, world=cell.world, engine=cell.engine, seed=cell.seed,
            until_s=cell.until_s,
        )  # fmt: skip
    except (StoreError, UsageError):
        raise
    except OrreryError as failure:
        broken = Violation(kind=type(failure).__name__, message=str(failure))
        return Run(
            metrics={}, violations=[broken], digest="", seconds=0.0, events=0, spans=[],
            seed=cell.seed, engine=cell.engine, ended="failed", part=cell.part,
            problem=cell.problem, world=cell.world,
        )  # fmt: skip


class Runner:
    """Runs cells in this process or, with `jobs` > 1, in a pool of others; use it in `with`.

    The pool starts at the first need and serves every batch, as a fresh interpreter takes about a
    second to start.
    """

    def __init__(self, store: Store, jobs: int = 1) -> None:
        if isinstance(jobs, bool) or not isinstance(jobs, int) or not 1 <= jobs <= 1024:
            raise UsageError(f"jobs={jobs!r}: give a whole number from 1 to 1024")
        self.store = store
        self.jobs = jobs
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            # What a worker has begun it finishes and saves; what waits is dropped.
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def run(self, cells: Iterable[Cell]) -> Iterator[tuple[Cell, Stored]]:
        """Every cell with its stored run, each as soon as it is safe on the disk."""
        todo = list(cells)
        if self.jobs > 1 and len(todo) > 1 and _can_travel(todo):
            yield from self._in_pool(todo)
            return
        for cell in todo:
            yield cell, run_cell(cell, self.store)

    def _in_pool(self, cells: list[Cell]) -> Iterator[tuple[Cell, Stored]]:
        waiting: dict[Future[str], Cell] = {}
        rest = list(reversed(cells))
        while rest or waiting:
            while rest and len(waiting) < 2 * self.jobs:
                cell = rest.pop()
                spec = cell.spec()
                if self.store.has(id := spec_id(spec)):
                    yield cell, self.store.load(id)
                    continue
                waiting[self._submit(cell)] = cell
            if not waiting:
                continue
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda f: waiting[f].seed):
                cell = waiting.pop(future)
                try:
                    yield cell, self.store.load(future.result())
                except BrokenProcessPool:
                    fix = "finished runs are saved; use fewer jobs if memory ran out"
                    raise PartError(f"a worker process died at {cell.name}; {fix}") from None

    def _submit(self, cell: Cell) -> Future[str]:
        if self._pool is None:
            import multiprocessing

            # A fresh interpreter for each worker: nothing of this process leaks into a run.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self.jobs, mp_context=context, initializer=_follow_parent
            )
        return self._pool.submit(_remote, pack(cell), str(self.store.root))


def _can_travel(cells: list[Cell]) -> bool:
    """Whether other processes can be given these cells (a part made in a function cannot go)."""
    try:
        for cell in cells:
            pickle.dumps((cell.part, cell.problem))
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
    return not any(_in_main(cell.part) or _in_main(cell.problem) for cell in cells)


def _in_main(part: Any) -> bool:
    return type(part).__module__ == "__main__"


def pack(cell: Cell) -> dict[str, Any]:
    """A cell for another process; the world goes as data."""
    fields = {name: getattr(cell, name) for name in cell.__struct_fields__}
    return {**fields, "world": cell.world.to_data()}


def _remote(packed: dict[str, Any], root: str) -> str:
    from orrery.world import World

    cell = Cell(**{**packed, "world": World.from_data(packed["world"])})
    return run_cell(cell, Store(Path(root))).id


def _follow_parent() -> None:
    """Make a worker end with its parent: a pool's workers would wait for ever after kill -9."""
    import multiprocessing
    import threading

    _ignore_interrupt()
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        # A run that is not saved yet counts for nothing, and a saved one is whole.
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _ignore_interrupt() -> None:
    """Ctrl-C goes to the whole group; the parent decides, so workers finish their run."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
