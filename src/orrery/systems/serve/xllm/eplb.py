"""Dynamic balance of expert-parallel load: hot experts get copies, and ranks get even loads.

Experts of a mixture live on ranks with a fixed number of slots each. An expert with r copies sends
each of them 1 / r of its tokens. The balancer counts tokens, chooses how many copies each expert
has and where they lie, and says which slots change; `swap.py` changes them while the model serves.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from orrery.base.errors import UsageError

Layout = np.ndarray  # [ranks, slots], the expert in each slot


def check_sizes(loads: Sequence[float], ranks: int, slots: int) -> np.ndarray:
    """The loads as an array; a named error where they cannot be placed."""
    found = np.asarray(loads, float)
    if found.ndim != 1 or not len(found):
        raise UsageError(f"loads of shape {found.shape}: give one number for each expert")
    if not np.isfinite(found).all() or (found < 0).any():
        raise UsageError("loads: a number is negative or not finite; give token counts")
    if ranks < 1 or slots < 1 or ranks * slots < len(found):
        raise UsageError(f"{len(found)} experts do not fit into {ranks} ranks of {slots} slots")
    return found


def copies_for(loads: Sequence[float], ranks: int, slots: int) -> np.ndarray:
    """How many copies each expert gets: the one with the most load a copy gets the next.

    At most one copy a rank. This makes the largest load a copy as small as it can be, so it is
    also what the lower bound rests on. O(slots log experts).

    >>> copies_for([6.0, 1.0, 1.0], 2, 2).tolist()
    [2, 1, 1]
    """
    found = check_sizes(loads, ranks, slots)
    copies = np.ones(len(found), int)
    heap = [(-load, expert) for expert, load in enumerate(found.tolist())]
    heapq.heapify(heap)
    for _ in range(ranks * slots - len(found)):
        while heap and copies[heap[0][1]] >= ranks:
            heapq.heappop(heap)
        if not heap:
            break
        _, expert = heapq.heappop(heap)
        copies[expert] += 1
        heapq.heappush(heap, (-found[expert] / copies[expert], expert))
    return copies


def fractional_bound(loads: Sequence[float], ranks: int, slots: int) -> float:
    """No placement into so many slots has a busiest rank below this load.

    Either all ranks are even, as if experts could be cut at will (the mean), or the largest load
    that a copy must have with the best number of copies is more than that.

    >>> fractional_bound([4.0, 2.0, 2.0], 2, 2), fractional_bound([9.0, 1.0], 2, 1)
    (4.0, 9.0)
    """
    found = check_sizes(loads, ranks, slots)
    largest = (found / copies_for(found, ranks, slots)).max()
    return float(max(found.sum() / ranks, largest))


def static_placement(experts: int, ranks: int, slots: int) -> Layout:
    """Experts in order, the same number on each rank; spare slots repeat them in order.

    What an engine without a balancer does: nothing depends on the load.
    """
    check_sizes(np.ones(experts), ranks, slots)
    copies = np.arange(ranks * slots) % experts
    # Rank by rank, first the experts of their own, then the spare slots.
    own = experts // ranks
    if own * ranks != experts or own > slots:
        return copies.reshape(slots, ranks).T.copy()
    made = np.empty((ranks, slots), int)
    for rank in range(ranks):
        made[rank, :own] = np.arange(rank * own, (rank + 1) * own)
        spare = np.arange(slots - own) + rank * (slots - own)
        made[rank, own:] = (spare + own * (rank + 1)) % experts
    return made


def rank_loads(loads: Sequence[float], layout: Layout) -> np.ndarray:
    """The load of each rank when every copy takes an equal part of its expert's tokens."""
    found = np.asarray(loads, float)
    counts = np.bincount(layout.ravel(), minlength=len(found))
    if (counts[: len(found)] == 0).any():
        lost = int(np.flatnonzero(counts == 0)[0])
        raise UsageError(f"expert {lost} lies on no rank; every expert needs a slot")
    return (found / counts)[layout].sum(axis=1)


def imbalance(loads: Sequence[float], layout: Layout) -> float:
    """The busiest rank's load over the mean."""
    each = rank_loads(loads, layout)
    return float(each.max() / each.mean()) if each.mean() > 0 else 1.0


def balanced(
    loads: Sequence[float], ranks: int, slots: int, old: Layout | None = None
) -> Layout:  # fmt: skip
    """A placement with even ranks that moves few experts away from where they are.

    Copies go, heaviest first, to the lightest rank that has a slot and not yet that expert (longest
    processing time first); then pairs of copies are exchanged between the busiest rank and others
    as long as that helps. Experts that a rank keeps stay in their slots. O(n^2 ranks) at worst.
    """
    found = check_sizes(loads, ranks, slots)
    copies = copies_for(found, ranks, slots)
    weight = found / copies
    have: list[list[int]] = [[] for _ in range(ranks)]
    total = [0.0] * ranks
    order = sorted(
        (expert for expert in range(len(found)) for _ in range(copies[expert])),
        key=lambda expert: (-weight[expert], expert),
    )
    for expert in order:
        free = [rank for rank in range(ranks) if len(have[rank]) < slots]
        fresh = [rank for rank in free if expert not in have[rank]] or free
        rank = min(fresh, key=lambda each: (total[each], each))
        have[rank].append(expert)
        total[rank] += weight[expert]
    _exchange(have, total, weight)
    made = np.array([each + [each[0]] * (slots - len(each)) for each in have])
    return settled(made, old)


def _exchange(have: list[list[int]], total: list[float], weight: np.ndarray) -> None:
    """Exchange copies between the busiest rank and another while its load falls."""
    for _ in range(8 * len(have) * len(have[0])):
        top = max(range(len(have)), key=lambda rank: (total[rank], rank))
        best: tuple[float, int, int, int] | None = None
        for rank in range(len(have)):
            if rank == top:
                continue
            for a, mine in enumerate(have[top]):
                for b, theirs in enumerate(have[rank]):
                    less = weight[mine] - weight[theirs]
                    if less <= 0 or mine in have[rank] or theirs in have[top]:
                        continue
                    peak = max(total[top] - less, total[rank] + less)
                    if peak < total[top] * (1 - 1e-9) and (best is None or peak < best[0]):
                        best = (peak, rank, a, b)
        if best is None:
            return
        _, rank, a, b = best
        mine, theirs = have[top][a], have[rank][b]
        have[top][a], have[rank][b] = theirs, mine
        total[top] -= weight[mine] - weight[theirs]
        total[rank] += weight[mine] - weight[theirs]


def settled(new: Layout, old: Layout | None) -> Layout:
    """The same placement with ranks and slots named so that much of the old one stays.

    Ranks are alike, so a set of experts may lie on any of them: each set goes to the free rank that
    has most of it already, the best match first.
    """
    if old is None or old.shape != new.shape:
        return new
    ranks = len(new)
    common = sorted(
        ((-len(set(new[a].tolist()) & set(old[b].tolist())), a, b)
         for a in range(ranks) for b in range(ranks)),
    )  # fmt: skip
    home: dict[int, int] = {}
    for _, a, b in common:
        if a not in home and b not in home.values():
            home[a] = b
    made = old.copy()
    for a, b in home.items():
        left = new[a].tolist()
        open_slots = []
        for slot, expert in enumerate(old[b].tolist()):
            if expert in left:
                left.remove(expert)
            else:
                open_slots.append(slot)
        for slot, expert in zip(open_slots, left, strict=True):
            made[b, slot] = expert
    return made


class Balancer:
    """Counts tokens of experts, and every `period` steps says how the slots should be filled.

    Counts fade by `keep` at each rebalance, so a hot set that moved is followed; a new placement is
    proposed only if it lowers the busiest rank by `worth` of its load, since moving costs traffic.
    """

    def __init__(
        self, experts: int, ranks: int, slots: int, *, period: int = 100, keep: float = 0.25,
        worth: float = 0.02,
    ) -> None:  # fmt: skip
        if period < 1 or not 0 <= keep < 1 or not 0 <= worth < 1:
            raise UsageError(f"Balancer(period={period}, keep={keep}, worth={worth}): give a "
                             "period of at least 1, and shares in [0, 1)")  # fmt: skip
        self.ranks, self.slots = ranks, slots
        self.period, self.keep, self.worth = period, keep, worth
        self.counts = np.zeros(experts)
        self.layout = static_placement(experts, ranks, slots)
        self.steps = self.rebalances = self.moved = 0

    def count(self, tokens: Sequence[float]) -> Layout | None:
        """Tokens of each expert in one step; the new placement when it is time and worth it."""
        self.counts += np.asarray(tokens, float)
        self.steps += 1
        if self.steps % self.period or not self.counts.sum():
            return None
        self.rebalances += 1
        new = balanced(self.counts, self.ranks, self.slots, self.layout)
        now, then = (rank_loads(self.counts, each).max() for each in (self.layout, new))
        self.counts *= self.keep
        if then > now * (1 - self.worth):
            return None
        self.moved += int((new != self.layout).sum())
        self.layout = new
        return new


__all__ = [
    "Balancer", "balanced", "check_sizes", "copies_for", "fractional_bound", "imbalance",
    "rank_loads", "settled", "static_placement",
]  # fmt: skip
