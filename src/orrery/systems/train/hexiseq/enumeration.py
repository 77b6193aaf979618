"""The true optimum of the time model for few devices: every grouping, order, head and row count.

What cannot beat the best so far is left out: first by how fast each group could be if rows were
divisible and nothing had to be sent, then by the same for each count of rows, then without the
ring. All are bounds from below of the model, so what is left out is never better.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np

from orrery.base.errors import KnobError
from orrery.models.attention import BACKWARD_FLOPS, FORWARD_FLOPS
from orrery.systems.train.problems.layer_attention import LayerJob
from orrery.systems.train.problems.split_costs import Cluster, Floats, Ints, combine
from orrery.systems.train.problems.splits import Groups, Split

MOST_DEVICES = 7
MOST_ROW_CASES = 200_000


def optimum(cluster: Cluster, units: int, below_s: float = math.inf) -> tuple[float, Split | None]:
    """The least time of one layer's step over all splits in so many equal units, and the split.

    With `below_s`, only what is faster than that is looked for; (below_s, None) if nothing is.
    """
    job, size = cluster.job, cluster.size
    if size > MOST_DEVICES or math.comb(units + size - 1, size - 1) > MOST_ROW_CASES:
        problem = f"{size} devices and {units} units are too many to try all splits"
        raise KnobError("optimum.units", problem, "give fewer, or ask the planner")
    if units < 1 or job.tokens % units:
        problem = f"{units} does not divide {job.tokens} tokens"
        raise KnobError("optimum.units", problem, "give a divisor")
    rows = compositions(units, size) * (job.tokens / units)
    best_s, best = below_s, None
    for groups in partitions(size):
        bound = Bound(cluster, groups, rows)
        for heads in _heads(cluster, groups, best_s):
            cases = rows[bound.least_s(heads) < best_s]
            if len(cases):
                # Memory does not depend on the order of the ring.
                use_B = cluster.model(groups, heads).memory(cases)
                cases = cases[(use_B <= cluster.room_B).all(axis=1)]
            if len(cases):
                cases = cases[_without_ring(cluster, groups, heads, cases) < best_s]
            if not len(cases):
                continue
            for order in itertools.permutations(groups[1:]):
                ring = (groups[0], *order)
                times = cluster.model(ring, heads).times(cases).max(axis=1)
                at = int(times.argmin())
                if times[at] < best_s:
                    best_s = float(times[at])
                    best = Split(ring, tuple(int(x) for x in cases[at]), heads)
    return best_s, best


def partitions(size: int) -> Iterator[Groups]:
    """All ways to put ranks in groups, in no order.

    >>> len(list(partitions(4)))
    15
    """
    if size == 0:
        yield ()
        return
    for groups in partitions(size - 1):
        for at, group in enumerate(groups):
            yield (*groups[:at], (*group, size - 1), *groups[at + 1 :])
        yield (*groups, (size - 1,))


@functools.lru_cache(maxsize=64)
def compositions(total: int, parts: int) -> Ints:
    """All ways to write a total as so many whole numbers, a row each.

    >>> compositions(2, 2).tolist()
    [[0, 2], [1, 1], [2, 0]]
    """
    if parts == 1:
        return np.array([[total]])
    bars = itertools.combinations(range(total + parts - 1), parts - 1)
    table = np.array(list(bars), np.int64).reshape(-1, parts - 1)
    ends = np.full((len(table), 1), total + parts - 1)
    return np.diff(np.hstack([np.full((len(table), 1), -1), table, ends]), axis=1) - 1


def _pair_flops(job: LayerJob) -> float:
    """The flops of attention for a row and a head, in all passes."""
    seen = (job.tokens + 1) / 2 if job.causal else job.tokens
    return (_again(job) * FORWARD_FLOPS + BACKWARD_FLOPS) * seen * job.head_dim


def _again(job: LayerJob) -> float:
    """How often a step goes forwards."""
    return 2.0 if job.recompute else 1.0


def _slopes(cluster: Cluster, group: tuple[int, ...], heads: Ints) -> Floats:
    """The least seconds that a row costs a group, for each count of heads, without transfers."""
    job, here = cluster.job, list(group)
    matrices = (_again(job) + 2) * job.linear_flops / cluster.rate[here].sum()
    return np.asarray(matrices + _pair_flops(job) * (heads / cluster.rate[here]).max(axis=1))


def _heads(cluster: Cluster, groups: Groups, best_s: float) -> Iterator[tuple[int, ...]]:
    """Head counts of all ranks that could be faster than the best so far."""
    job = cluster.job
    every = [compositions(job.heads, len(group)) for group in groups]
    speeds = [1 / _slopes(cluster, group, heads)
              for group, heads in zip(groups, every, strict=True)]  # fmt: skip
    total = functools.reduce(np.add.outer, speeds)
    for place in np.argwhere(total > job.tokens / best_s * (1 - 1e-9)):
        found = [0] * cluster.size
        for group, heads, at in zip(groups, every, place, strict=True):
            for rank, count in zip(group, heads[at].tolist(), strict=True):
                found[rank] = count
        yield tuple(found)


class Bound:
    """How fast a grouping could be for each count of rows, if no transfer took time."""

    def __init__(self, cluster: Cluster, groups: Groups, rows: Floats) -> None:
        job, rate = cluster.job, cluster.rate
        self._groups, self._rate = groups, rate
        members = [list(group) for group in groups]
        spent = (_again(job) + 2) * job.linear_flops / rate
        self._matrices_s = [(rows[:, here] * spent[here]).max(axis=1) for here in members]
        self._pair_flops = [_pair_flops(job) * rows[:, here].sum(axis=1) for here in members]

    def least_s(self, heads: tuple[int, ...]) -> Floats:
        """For each count of rows, with these heads: the slowest group's arithmetic."""
        least = np.zeros(len(self._matrices_s[0]))
        for group, matrices_s, flops in zip(
            self._groups, self._matrices_s, self._pair_flops, strict=True
        ):
            slowest = max(heads[rank] / self._rate[rank] for rank in group)
            np.maximum(least, matrices_s + slowest * flops, out=least)
        return least


def _without_ring(
    cluster: Cluster, groups: Groups, heads: tuple[int, ...], cases: Floats
) -> Floats:
    """The time if K and V were everywhere: the same for every order of the ring."""
    model = cluster.model(groups, heads)
    return combine(model.parts(cases, ring=False), model.again).max(axis=1)


__all__ = ["compositions", "optimum", "partitions"]
