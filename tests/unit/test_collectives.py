"""The collectives: every kind of every classic against NumPy, exact bytes, the checker."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import Worker, World, run
from orrery.base.errors import PartError
from orrery.parts.collectives import KINDS, Collective, Ring, part_items, split
from orrery.systems.collectives import (
    AllReduce,
    Direct,
    RecursiveDoubling,
    RecursiveHalving,
    Star,
    Tree,
)

CLASSICS = [Direct, Ring, Star, Tree, RecursiveDoubling, RecursiveHalving]
SIZES = [1, 2, 3, 5, 8]
ROOT = 1


def data_of(rank: int, items: int, dtype: str) -> np.ndarray:
    values = np.arange(items) * (rank + 3) % 17 - 5
    return values.astype(dtype)


class Everything(Worker):
    """Does every collective once and reports what came out and what it sent."""

    items: int = 10
    dtype: str = "float64"

    async def main(self):
        x = data_of(self.rank, self.items, self.dtype)
        root = ROOT % self.size
        parts = np.array_split(x, self.size)
        calls = {
            "all_reduce": lambda: self.sum(x),
            "reduce_scatter": lambda: self.reduce_scatter(x),
            "all_gather": lambda: self.all_gather(x),
            "broadcast": lambda: self.broadcast(x, root=root),
            "reduce": lambda: self.reduce(x, "max", root=root),
            "gather": lambda: self.gather(x, root=root),
            "scatter": lambda: self.scatter(x, root=root),
            "all_to_all": lambda: self.all_to_all(parts),
            "scan": lambda: self.scan(x),
            "barrier": lambda: self.barrier(),
        }
        for kind, call in calls.items():
            before = self.sent_B
            result = await call()
            self.emit(kind=kind, rank=self.rank, result=result, sent_B=self.sent_B - before)


def results(made) -> dict[tuple[str, int], dict]:
    return {(r.values["kind"], r.values["rank"]): r.values for r in made.records}


def expected(kind: str, rank: int, size: int, items: int, dtype: str):
    all_data = [data_of(r, items, dtype) for r in range(size)]
    root = ROOT % size
    total = np.sum(all_data, axis=0, dtype=dtype)
    match kind:
        case "all_reduce":
            return total
        case "reduce_scatter":
            return np.array_split(total, size)[rank]
        case "all_gather":
            return all_data
        case "broadcast":
            return all_data[root]
        case "reduce":
            return np.max(all_data, axis=0) if rank == root else None
        case "gather":
            return all_data if rank == root else None
        case "scatter":
            return np.array_split(all_data[root], size)[rank]
        case "all_to_all":
            return [np.array_split(each, size)[rank] for each in all_data]
        case "scan":
            return np.sum(all_data[: rank + 1], axis=0, dtype=dtype)
    return None


def same(got, want) -> bool:
    if isinstance(want, list):
        return len(got) == len(want) and all(map(same, got, want))
    if want is None:
        return got is None
    return got.dtype == want.dtype and np.array_equal(got, want)


@pytest.mark.parametrize("classic", CLASSICS)
@pytest.mark.parametrize("size", SIZES)
def test_every_kind_gives_the_reference_and_sends_the_declared_bytes(classic, size):
    # Small whole numbers, so that no order of adding rounds and equality is exact.
    for items, dtype in [(0, "float32"), (1, "int16"), (11, "float16"), (40, "float64")]:
        made = run(Everything(collective=classic(), items=items, dtype=dtype),
                   world=World.lan(size))  # fmt: skip
        found = results(made)
        assert len(found) == size * len(KINDS)
        itemsize = np.dtype(dtype).itemsize
        for (kind, rank), values in found.items():
            assert same(values["result"], expected(kind, rank, size, items, dtype)), (kind, rank)
            whole = kind in ("all_gather", "gather")
            blocks = [items] * size if whole else part_items(items, size)
            told = classic().sent_B(kind, rank, blocks, itemsize, ROOT % size)
            assert values["sent_B"] == told, (kind, rank)
        counted = sum(values["sent_B"] for values in found.values())
        assert counted == made.extra["transfer_bytes"]


@pytest.mark.parametrize("classic", CLASSICS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_all_ranks_hold_the_same_bits(classic, dtype):
    for size in (3, 6):
        made = run(classic(), problem=AllReduce(items=777, dtype=dtype), world=World.lan(size))
        assert made.violations == []
        assert all(len(set(digests.values())) == 1 for digests in made.decisions)


def test_overriding_one_method_is_enough():
    class Backwards(Ring):
        """A ring whose all-gather is direct."""

        async def all_gather(self, ranks, array):
            return await Collective.all_gather(self, ranks, array)

        def sent_B(self, kind, rank, items, itemsize, root=0):
            if kind == "all_gather":
                return Collective.sent_B(self, kind, rank, items, itemsize, root)
            return super().sent_B(kind, rank, items, itemsize, root)

    made = run(Backwards(), problem=AllReduce(items=1001), world=World.lan(5))
    assert made.violations == []


class Wrong(Ring):
    """Gets one element wrong."""

    async def all_reduce(self, ranks, array, combine):
        total = await super().all_reduce(ranks, array, combine)
        total[3] += 1e-3
        return total


class Split(Ring):
    """Gives rank 1 other bits than the rest."""

    async def all_reduce(self, ranks, array, combine):
        total = await super().all_reduce(ranks, array, combine)
        if ranks.rank == 1:
            total[0] = np.nextafter(total[0], np.float32(np.inf))
        return total


class Chatty(Ring):
    """Sends more than it declares."""

    async def all_reduce(self, ranks, array, combine):
        ranks.post((ranks.rank + 1) % ranks.size, array[:1])
        await ranks.take((ranks.rank - 1) % ranks.size)
        return await super().all_reduce(ranks, array, combine)


@pytest.mark.parametrize(
    "broken, kind", [(Wrong, "wrong_sum"), (Split, "ranks_differ"), (Chatty, "bytes_differ")]
)
def test_the_checker_of_all_reduce_finds_what_is_wrong(broken, kind):
    made = run(broken(), problem=AllReduce(items=100), world=World.lan(4))
    assert {violation.kind for violation in made.violations} == {kind}


def test_a_lossy_collective_is_judged_by_the_tolerance():
    made = run(Wrong(), problem=AllReduce(items=100, tolerance=1e-2), world=World.lan(4))
    assert made.violations == []
    assert made.metrics["error"] > 1e-5


def test_bad_words_are_named():
    with pytest.raises(PartError, match="no such collective"):
        Ring().sent_B("all_reduze", 0, [1, 2], 4)


def test_split_covers_everything():
    for items in range(12):
        for size in range(1, 6):
            parts = split(np.arange(items), size)
            assert [part.size for part in parts] == part_items(items, size)
            assert np.concatenate(parts).tolist() == list(range(items))
