"""The order of a ring from measured times: the slowest link first, then the sum.

All members of a ring pass parts in step, so one all-reduce takes 2 (n - 1) times as long as the
slowest link needs for a part. The best ring is therefore a travelling salesman's tour whose worst
leg is shortest; among those, the one with the shortest sum. Up to `EXACT` nodes this is solved by
dynamic programming over subsets (Held and Karp, 1962) in O(2^n n^2); beyond that by local search
with 2-opt and or-opt moves from nearest-neighbour starts, O(n^2) moves a round.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from orrery.base.errors import PartError

EXACT = 9
MOST_STARTS = 8

Matrix = Sequence[Sequence[float]]


def ring_cost(cost: Matrix, order: Sequence[int]) -> tuple[float, float]:
    """(the slowest link, the sum of all) of a ring.

    >>> ring_cost([[0, 1, 5], [2, 0, 1], [1, 4, 0]], [0, 1, 2])
    (1, 3)
    """
    legs = [cost[a][b] for a, b in zip(order, [*order[1:], order[0]], strict=True)]
    return max(legs), sum(legs)


def ring_order(cost: Matrix, *, exact: int = EXACT) -> list[int]:
    """The ring with the fastest slowest link; it begins with node 0.

    `cost[a][b]` is how long a part takes from a to b. `exact` is the largest size that is solved
    exactly.

    >>> ring_order([[0, 9, 1, 9], [1, 0, 9, 9], [9, 9, 0, 1], [9, 1, 9, 0]])
    [0, 2, 3, 1]
    """
    n = len(cost)
    for a, row in enumerate(cost):
        if len(row) != n:
            raise PartError(f"cost[{a}] has {len(row)} values for {n} nodes; give a square table")
        for b, value in enumerate(row):
            if not (math.isfinite(value) and value >= 0):
                raise PartError(f"cost[{a}][{b}] = {value} is no time; give a number >= 0")
    if n < 3:
        return list(range(n))
    if n <= exact:
        return _held_karp(cost)
    starts = sorted(range(n), key=lambda node: -max(cost[node]))[:MOST_STARTS]
    tours = [_improve(cost, _nearest(cost, start)) for start in starts]
    best = min(tours, key=lambda tour: ring_cost(cost, tour))
    at = best.index(0)
    return best[at:] + best[:at]


def _held_karp(cost: Matrix) -> list[int]:
    """The best worst leg, then the shortest tour without any leg that is worse."""
    n = len(cost)
    worst, _ = _tour(cost, max)
    allowed = [
        [value if value <= worst else math.inf for value in row] for row in cost
    ]  # fmt: skip
    _, order = _tour(allowed, lambda a, b: a + b)
    return order if len(order) == n else list(range(n))


def _tour(cost: Matrix, join: object) -> tuple[float, list[int]]:
    """The tour from node 0 with the least joined cost, by subsets of the other nodes."""
    n = len(cost)
    plus = join  # type: ignore[assignment]
    best: dict[tuple[int, int], tuple[float, int]] = {
        (1 << b, b): (cost[0][b], 0) for b in range(1, n)
    }
    for size in range(2, n):
        for group in itertools.combinations(range(1, n), size):
            mask = sum(1 << b for b in group)
            for last in group:
                rest = mask ^ (1 << last)
                best[mask, last] = min(
                    (plus(best[rest, b][0], cost[b][last]), b)  # type: ignore[operator]
                    for b in group
                    if b != last
                )
    full = (1 << n) - 2
    value, last = min(
        (plus(best[full, b][0], cost[b][0]), b)  # type: ignore[operator]
        for b in range(1, n)
    )
    order, mask = [last], full
    while len(order) < n - 1:
        last, mask = best[mask, last][1], mask ^ (1 << last)
        order.append(last)
    return value, [0, *reversed(order)]


def _nearest(cost: Matrix, start: int) -> list[int]:
    order, left = [start], set(range(len(cost))) - {start}
    while left:
        here = order[-1]
        order.append(min(left, key=lambda node: (cost[here][node], node)))
        left.remove(order[-1])
    return order


def _improve(cost: Matrix, order: list[int]) -> list[int]:
    """Turn stretches round and move short ones elsewhere, until nothing gets better."""
    n = len(order)
    best = ring_cost(cost, order)
    better = True
    while better:
        better = False
        for i, j in itertools.combinations(range(n), 2):
            turned = order[:i] + order[i : j + 1][::-1] + order[j + 1 :]
            moved = [*order[:i], *order[i + 1 : j + 1], order[i], *order[j + 1 :]]
            back = [*order[:i], order[j], *order[i:j], *order[j + 1 :]]
            swapped = list(order)
            swapped[i], swapped[j] = swapped[j], swapped[i]
            for tour in (turned, moved, back, swapped):
                found = ring_cost(cost, tour)
                if found < best:
                    best, order, better = found, tour, True
    return order


__all__ = ["EXACT", "ring_cost", "ring_order"]
