"""Laws of `Worker`s and of the collectives that they use."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import numpy as np

from orrery.lab.laws.common import Law, Subject
from orrery.lab.run import run
from orrery.parts.collectives import KINDS, Collective, part_items
from orrery.parts.knobs import Positive
from orrery.parts.worker import RankLost, Worker
from orrery.world import Crash, World

SIZES = (1, 2, 3, 5)
ARRAYS = ((0, "float32"), (1, "int64"), (7, "float16"), (12, "float64"))


class AllKinds(Worker):
    """Does every kind of collective once, on small whole numbers so that no sum rounds."""

    items: int = 0
    dtype: str = "float64"
    nan: bool = False

    async def main(self) -> None:
        x = numbers(self.rank, self.items, self.dtype, self.nan)
        root = 1 % self.size
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "all_reduce": lambda: self.sum(x),
            "reduce_scatter": lambda: self.reduce_scatter(x),
            "all_gather": lambda: self.all_gather(x),
            "broadcast": lambda: self.broadcast(x, root=root),
            "reduce": lambda: self.reduce(x, root=root),
            "gather": lambda: self.gather(x, root=root),
            "scatter": lambda: self.scatter(x, root=root),
            "all_to_all": lambda: self.all_to_all(x),
            "scan": lambda: self.scan(x),
            "barrier": self.barrier,
        }
        for kind in KINDS:
            before_B = self.sent_B
            result = await calls[kind]()
            self.emit(kind=kind, result=result, sent_B=self.sent_B - before_B)
        again = numbers(self.rank, self.items, self.dtype, self.nan)
        self.emit(unharmed=x.tobytes() == again.tobytes())


def numbers(rank: int, items: int, dtype: str, nan: bool) -> Any:
    """The array of a rank: whole numbers below 17, and perhaps one that is none."""
    array = (np.arange(items) * (rank + 3) % 17 - 5).astype(dtype)
    if nan and items and rank == 0:
        array[items // 2] = np.nan
    return array


def reference(kind: str, rank: int, size: int, items: int, dtype: str, nan: bool) -> Any:
    """What a rank must get, computed without any message."""
    given = [numbers(r, items, dtype, nan) for r in range(size)]
    root = 1 % size
    total = np.sum(given, axis=0, dtype=dtype)
    match kind:
        case "all_reduce":
            return total
        case "reduce_scatter":
            return np.array_split(total, size)[rank]
        case "all_gather":
            return given
        case "broadcast":
            return given[root]
        case "reduce":
            return total if rank == root else None
        case "gather":
            return given if rank == root else None
        case "scatter":
            return np.array_split(given[root], size)[rank]
        case "all_to_all":
            return [np.array_split(each, size)[rank] for each in given]
        case "scan":
            return np.sum(given[: rank + 1], axis=0, dtype=dtype)
        case _:
            return None


def equals_the_sequential_reference(subject: Subject) -> Iterable[str]:
    """Every kind, for one rank and for several, empty and odd arrays, several types, NaN."""
    trials = [(*array, False) for array in ARRAYS] + [(7, "float32", True)]
    for size in SIZES:
        for items, dtype, nan in trials:
            made = _all_kinds(subject, size, items, dtype, nan)
            where = f"{size} ranks, {items} x {dtype}"
            for record in made.records:
                values = record.values
                if "unharmed" in values:
                    if not values["unharmed"]:
                        yield f"{where}: the array that rank {record.node} gave was changed"
                    continue
                want = reference(values["kind"], record.node, size, items, dtype, nan)
                if not _close(values["result"], want, _tolerance(subject.part)):
                    yield f"{where}: {values['kind']} at rank {record.node} differs from NumPy"


def bytes_are_counted_exactly(subject: Subject) -> Iterable[str]:
    """What each rank sends equals `sent_B`, and all of it together what the engine carried."""
    for size in SIZES:
        for items, dtype in ARRAYS:
            made = _all_kinds(subject, size, items, dtype, False)
            counted = 0
            for record in made.records:
                values = record.values
                if "kind" not in values:
                    continue
                kind = values["kind"]
                counted += values["sent_B"]
                blocks = [items] * size if "gather" in kind else part_items(items, size)
                told = subject.part.sent_B(
                    kind, record.node, blocks, np.dtype(dtype).itemsize, 1 % size
                )
                if told is not None and told != values["sent_B"]:
                    yield (
                        f"{size} ranks, {items} x {dtype}: rank {record.node} sends "
                        f"{values['sent_B']} bytes in {kind} and declares {told}"
                    )
            carried = made.extra["transfer_bytes"]
            if counted != carried:
                yield f"{size} ranks: {counted} bytes counted, {carried} carried"


@functools.lru_cache(maxsize=len(SIZES) * (len(ARRAYS) + 1))
def _all_kinds(subject: Subject, size: int, items: int, dtype: str, nan: bool) -> Any:
    """One run serves the law of values and that of bytes."""
    probe = AllKinds(collective=subject.part, items=items, dtype=dtype, nan=nan)
    return run(probe, world=World.lan(size), seed=subject.seeds[0])


class Interrupted(Worker):
    """Sums until a rank is lost."""

    patience_s: Positive = 0.5

    async def main(self) -> None:
        try:
            for _ in range(1000):
                total = await self.sum(np.ones(1001))
                if not (np.abs(total - self.size) <= 1e-2 * self.size).all():
                    self.emit(wrong=float(total[0]))
                await self.sleep(1e-3)
        except RankLost:
            self.emit(noticed=True)


def a_lost_rank_is_noticed(subject: Subject) -> Iterable[str]:
    """When a rank crashes, every other rank raises `RankLost`; none goes on, none gets a sum."""
    size = 5
    for lost in (0, 2, size - 1):
        world = World.lan(size).with_faults(Crash(node=lost, at_s=0.03))
        made = run(Interrupted(collective=subject.part), world=world, until_s=60.0)
        wrong = sorted(r.node for r in made.records if "wrong" in r.values)
        if wrong:
            yield f"rank {lost} crashes: ranks {wrong} got a wrong sum"
        noticed = sorted(r.node for r in made.records if "noticed" in r.values)
        if noticed != [rank for rank in range(size) if rank != lost]:
            yield f"rank {lost} crashes: only ranks {noticed} raise RankLost"


def one_rank_is_sequential(subject: Subject) -> Iterable[str]:
    """A worker alone sends nothing and, where the problem has `sequential(part)`, equals it."""
    world = subject.problem.world().scale(1)
    made = run(subject.part, problem=subject.problem, world=world, seed=subject.seeds[0])
    for violation in made.violations:
        yield f"alone: {violation.kind}: {violation.message}"
    if made.extra["transfer_bytes"]:
        yield f"alone, it sends {made.extra['transfer_bytes']} bytes"
    sequential = getattr(subject.problem, "sequential", None)
    if sequential is not None and sequential(subject.part) != made.decisions:
        yield "alone, it decides otherwise than problem.sequential(part)"


def _tolerance(part: Any) -> float:
    return float(getattr(part, "tolerance", 0.0)) if isinstance(part, Collective) else 0.0


def _close(got: Any, want: Any, tolerance: float) -> bool:
    if isinstance(want, list):
        return (
            isinstance(got, list)
            and len(got) == len(want)
            and all(_close(g, w, tolerance) for g, w in zip(got, want, strict=True))
        )
    if want is None or got is None:
        return got is want
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    return bool(
        np.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=want.dtype.kind == "f")
    )


COLLECTIVE_LAWS: tuple[Law, ...] = (
    equals_the_sequential_reference, bytes_are_counted_exactly, a_lost_rank_is_noticed,
)  # fmt: skip
WORKER_LAWS: tuple[Law, ...] = (one_rank_is_sequential,)
