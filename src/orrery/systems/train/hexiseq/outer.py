"""The outer level: which devices form groups, and in which order the groups form the ring.

Heads are swapped within a group, so its links should be good: groupings begin from the tree of
bandwidths, cut to several widths. K and V go from group to group, so each next group is the one
that the last reaches best. From the best few, groups are split, joined and reordered and devices
moved, as long as that helps and tries are left.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from orrery.systems.train.problems.split_costs import Cluster
from orrery.systems.train.problems.splits import Groups

# Up to so many devices every grouping of the tree is looked at.
FEW = 6
# From so many of the best first groupings the search goes on, if each needs its share of tries.
KEEP = 3

Solve = Callable[[Groups], float]


def levels(cluster: Cluster) -> list[Groups]:
    """Devices that reach each other at some bandwidth or more, for every bandwidth there is."""
    width = np.minimum(cluster.bandwidth_Bps, cluster.bandwidth_Bps.T)
    steps = sorted({float(x) for x in np.unique(width) if np.isfinite(x)}, reverse=True)
    if len(steps) > 8:  # a world of many different cables: some of them tell enough
        steps = [steps[round(i * (len(steps) - 1) / 7)] for i in range(8)]
    alone = tuple((rank,) for rank in range(cluster.size))
    joined = [_components(width >= least * (1 - 1e-9)) for least in steps]
    return list(dict.fromkeys([alone, *joined]))


def _components(joined: np.ndarray) -> Groups:
    left, found = set(range(len(joined))), list[tuple[int, ...]]()
    for first in range(len(joined)):
        if first not in left:
            continue
        group, stack = [], [first]
        left.discard(first)
        while stack:
            here = stack.pop()
            group.append(here)
            for other in np.flatnonzero(joined[here]).tolist():
                if other in left:
                    left.discard(other)
                    stack.append(other)
        found.append(tuple(sorted(group)))
    return tuple(found)


def first_groupings(cluster: Cluster) -> list[Groups]:
    """Every level of the tree, whole and cut to widths 1, 2, 4 …: like with like, or mixed."""
    found: list[Groups] = []
    rate = cluster.rate
    for level in levels(cluster):
        # With more members than heads most would have none.
        if cluster.size <= FEW or max(map(len, level)) <= cluster.job.heads:
            found.append(level)
        widest = max(len(group) for group in level)
        wide = 1
        while wide < widest and wide <= cluster.job.heads:
            like, mixed = [], []
            for group in level:
                order = sorted(group, key=lambda rank: (-rate[rank], rank))
                count = -(-len(order) // wide)
                like += [tuple(order[at : at + wide]) for at in range(0, len(order), wide)]
                mixed += [tuple(order[at::count]) for at in range(count)]
            found += [tuple(like), tuple(mixed)]
            wide *= 2
    return list(dict.fromkeys(ring_order(cluster, groups) for groups in found))


def ring_order(cluster: Cluster, groups: Groups) -> Groups:
    """The groups so that each is followed by the one that it reaches best."""
    groups = tuple(tuple(sorted(group)) for group in sorted(groups))
    if len(groups) < 3:
        return groups
    member = np.zeros((len(groups), cluster.size))
    for place, group in enumerate(groups):
        member[place, list(group)] = 1 / len(group)
    finite = np.where(np.isfinite(cluster.bandwidth_Bps), cluster.bandwidth_Bps, 0.0)
    reach = member @ finite @ member.T
    order, left = [0], list(range(1, len(groups)))
    while left:
        nearest = max(left, key=lambda place: (round(float(reach[order[-1], place])), -place))
        order.append(nearest)
        left.remove(nearest)
    return tuple(groups[place] for place in order)


def neighbours(cluster: Cluster, groups: Groups) -> Iterator[Groups]:
    """Groupings one move away, the kinds of moves in turn."""
    kinds = [_split(cluster, groups), _joined(cluster, groups), _moved(groups), _exchanged(groups)]
    while kinds:
        for kind in list(kinds):
            found = next(kind, None)
            if found is None:
                kinds.remove(kind)
            else:
                yield found


def _split(cluster: Cluster, groups: Groups) -> Iterator[Groups]:
    """One group in halves: like with like, or mixed."""
    for a, group in enumerate(groups):
        if len(group) > 1:
            order = sorted(group, key=lambda rank: (-cluster.rate[rank], rank))
            rest, half = groups[:a] + groups[a + 1 :], len(order) // 2
            yield ring_order(cluster, (*rest, tuple(order[:half]), tuple(order[half:])))
            if len(order) > 2:
                yield ring_order(cluster, (*rest, tuple(order[::2]), tuple(order[1::2])))


def _joined(cluster: Cluster, groups: Groups) -> Iterator[Groups]:
    """Two groups as one."""
    for a, b in itertools.combinations(range(len(groups)), 2):
        rest = tuple(group for place, group in enumerate(groups) if place not in (a, b))
        yield ring_order(cluster, (*rest, tuple(sorted(groups[a] + groups[b]))))


def _moved(groups: Groups) -> Iterator[Groups]:
    """One device in another group, or in one of its own."""
    for a, group in enumerate(groups):
        for rank in group if len(group) > 1 else ():
            less = tuple(one for one in group if one != rank)
            for b in range(len(groups)):
                if b != a:
                    made = list(groups)
                    made[a], made[b] = less, tuple(sorted((*groups[b], rank)))
                    yield tuple(made)
            yield (*groups[:a], less, (rank,), *groups[a + 1 :])


def _exchanged(groups: Groups) -> Iterator[Groups]:
    """Two groups in each other's place of the ring."""
    for a, b in itertools.combinations(range(1, len(groups)), 2):
        made = list(groups)
        made[a], made[b] = made[b], made[a]
        yield tuple(made)


def search(cluster: Cluster, solve: Solve, tries: int, keep: int = KEEP) -> list[Groups]:
    """The best groupings found, fastest first; `solve` gives a time, infinite where none fits.

    First groupings are all solved; then the moves from the best of them, first improvement first,
    then from the next best, at most a share of the tries from each, until none are left.
    """
    times = {groups: solve(groups) for groups in first_groupings(cluster)}
    for start in sorted(times, key=lambda groups: (times[groups], groups)):
        here, left = start, min(tries, -(-tries // keep))
        tries -= left
        while left > 0:
            better = None
            for near in neighbours(cluster, here):
                if near in times:
                    continue
                if left <= 0:
                    break
                left -= 1
                times[near] = solve(near)
                if times[near] < times[here] * (1 - 1e-6):
                    better = near
                    break
            if better is None:
                break
            here = better
        tries += left  # what one start does not need, the next may use
    return sorted(times, key=lambda groups: (times[groups], groups))[: 2 * keep]


__all__ = ["first_groupings", "levels", "neighbours", "ring_order", "search"]
