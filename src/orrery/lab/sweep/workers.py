"""Who does the work of a sweep: a kind of worker is a name here and a class with `run`.

A kind is made with the store and the number of workers, is used in `with`, and its `run` takes
cells and gives each back with its stored run, in any order, once the run is safe in that store. A
cell that the store has is not run again. Nothing else of a sweep knows where the work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from orrery.base.errors import UsageError, did_you_mean
from orrery.lab.cells import Cell, Runner
from orrery.lab.store import Store, Stored


class Workers(Protocol):
    """What a sweep asks of its workers."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: object) -> None: ...

    def run(self, cells: Iterable[Cell], /) -> Iterator[tuple[Cell, Stored]]:
        """Every cell with its stored run, each as soon as it is safe."""
        ...


def _on_ray(store: Store, jobs: int, address: str = "") -> Workers:
    from orrery.lab.sweep.on_ray import RayRunner

    return RayRunner(store, jobs, address or None)


KINDS: dict[str, Callable[..., Workers]] = {"processes": Runner, "ray": _on_ray}


def make_workers(on: str, store: Store, jobs: int) -> Workers:
    """Workers by the name of their kind; "ray:host:port" are those of a cluster at an address."""
    kind, _, address = str(on).partition(":")
    if kind not in KINDS or (address and kind != "ray"):
        raise UsageError(f"on {on!r}: no such workers; {did_you_mean(str(on), KINDS)}")
    return KINDS[kind](store, jobs, address) if address else KINDS[kind](store, jobs)
