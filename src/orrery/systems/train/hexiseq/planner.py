"""The plan of HexiSeq: the outer search over groupings, the inner one over rows and heads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from orrery.base.errors import KnobError
from orrery.systems.train.hexiseq.inner import Inner
from orrery.systems.train.hexiseq.outer import first_groupings, search
from orrery.systems.train.problems.layer_attention import LayerJob
from orrery.systems.train.problems.mixed_cluster_attention import meshes
from orrery.systems.train.problems.split_costs import Cluster
from orrery.systems.train.problems.splits import Groups, Split, in_proportion
from orrery.world import World

# A plan that gains less than this over a plainer one is not worth its oddness.
WORTH = 1e-3


class DoesNotFit(KnobError):
    """A sequence that the devices cannot hold; `shortfall_B` says by how much, for each."""

    shortfall_B: tuple[float, ...] = ()


def plan(cluster: Cluster, *, unit_tokens: int = 0, tries: int = 60) -> Split:
    """The fastest split that was found, by the time model, and never one that does not fit."""
    if not cluster.job.tokens:
        return best_mesh(cluster)
    unit = unit_tokens or max(1, cluster.job.tokens // (64 * cluster.size))
    inner = Inner(cluster, unit)
    solved: dict[Groups, Split] = {}

    def solve(groups: Groups) -> float:
        found = inner.solve(groups)
        if found is None:
            return math.inf
        solved[groups] = found[1]
        return found[0]

    best: tuple[float, Split] | None = None
    for groups in search(cluster, solve, tries):
        if groups in solved:
            polished = inner.polish(inner.best_order(solved[groups]), thorough=True)
            if best is None or polished[0] < best[0]:
                best = polished
    for usual in (best_mesh(cluster, by_rate(cluster)), best_mesh(cluster)):
        in_units = not unit_tokens or all(count % unit == 0 for count in usual.rows)
        if in_units and cluster.fits(usual):
            took = inner.time(usual)
            if best is None or took <= best[0] * (1 + WORTH):
                best = (took, usual)
    if best is None:
        raise refused(cluster)
    return best[1]


def by_rate(cluster: Cluster) -> list[int]:
    """Rows in proportion to what the devices compute."""
    return in_proportion(cluster.job.tokens, cluster.rate.tolist())


def best_mesh(cluster: Cluster, rows: Sequence[int] | None = None) -> Split:
    """The fastest mesh of equal groups, of those that fit; of all where none does.

    With `rows` these are the rows of the ranks, and only the heads are even.
    """
    every = meshes(cluster.job, cluster.size)
    if rows is not None:
        every = [split._replace(rows=tuple(rows)) for split in every]
    fitting = [split for split in every if cluster.fits(split)]
    return min(fitting or every, key=cluster.step_s)


def refused(cluster: Cluster) -> DoesNotFit:
    """The error that says what each device lacks, in the split that comes nearest to fitting."""
    short_B = min((_shortfall(cluster, groups) for groups in first_groupings(cluster)),
                  key=lambda short: float(np.maximum(short, 0).sum()))  # fmt: skip
    job = cluster.job
    where = "; ".join(_ranges(short_B))
    error = DoesNotFit(
        "HexiSeq", f"{job.tokens} tokens do not fit: short by {where}",
        "shorten the sequence, add devices, or take a smaller model",
    )  # fmt: skip
    error.shortfall_B = tuple(float(value) for value in np.maximum(short_B, 0))
    return error


def _shortfall(cluster: Cluster, groups: Groups) -> np.ndarray:
    """What each device lacks when rows and heads go by memory."""
    job, room = cluster.job, np.maximum(cluster.room_B, 1.0)
    heads = [0] * cluster.size
    for group in groups:
        counts = in_proportion(job.heads, [float(room[rank]) for rank in group])
        for rank, count in zip(group, counts, strict=True):
            heads[rank] = count
    rows = tuple(in_proportion(job.tokens, room.tolist()))
    return cluster.shortfall_B(Split(groups, rows, tuple(heads)))


def _ranges(short_B: np.ndarray) -> list[str]:
    """Runs of ranks that lack the same, in words."""
    found = []
    gib = [f"{max(value, 0.0) / 2**30:.2f} GiB" for value in short_B.tolist()]
    for amount, run in itertools.groupby(enumerate(gib), key=lambda item: item[1]):
        ranks = [rank for rank, _ in run]
        one = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
        found.append(f"{amount} on {one}" + ("" if len(ranks) == 1 else " each"))
    return found


# Every rank of a run asks for the same plan, and every plan of a run for the same cluster.
_plans: dict[Hashable, Split] = {}
_clusters: dict[Hashable, Cluster] = {}
T = TypeVar("T")


def kept(key: Hashable, make: Callable[[], Split]) -> Split:
    """The plan under a key, made once."""
    return _once(_plans, key, make, 64)


def cluster_of(world: World, job: LayerJob) -> Cluster:
    """The cluster of a world and a job, made once."""
    return _once(_clusters, (world.hash, job), lambda: Cluster(world, job), 3)


def _once(book: dict[Hashable, T], key: Hashable, make: Callable[[], T], most: int) -> T:
    """What a book has under a key, or what is made for it; the oldest leave a full book."""
    if key not in book:
        while len(book) >= most:
            del book[next(iter(book))]
        book[key] = make()
    return book[key]


__all__ = ["DoesNotFit", "best_mesh", "by_rate", "cluster_of", "kept", "plan", "refused"]
