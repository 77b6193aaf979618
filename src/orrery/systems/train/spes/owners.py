"""Which node trains which experts: every expert has an owner, and loads are even.

An assignment maps a rank to the experts that it trains, in rising order. All nodes work it out for
themselves from the same numbers, so ties are broken by number and never by chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from orrery.base.errors import KnobError

Owned = dict[int, tuple[int, ...]]


def assign(loads: Sequence[float], ranks: Sequence[int], copies: int = 1) -> Owned:
    """Give each expert to `copies` ranks, with even numbers of experts and even token loads.

    The heaviest expert goes first, each to the rank with the least load among those that have room
    (Graham's longest processing time rule, with a bound on the number that keeps memory even). A
    rank that is left with nothing helps with the heaviest expert.

    >>> assign([5, 1, 3, 3], [0, 1])
    {0: (0, 1), 1: (2, 3)}
    """
    copies = min(copies, len(ranks))
    owned: dict[int, set[int]] = {rank: set() for rank in ranks}
    room = math.ceil(len(loads) * copies / len(ranks))
    for _ in range(copies):
        _give(owned, range(len(loads)), loads, copies, room)
    _help(owned, loads)
    return _sorted(owned)


def take_over(owned: Owned, ranks: Sequence[int], loads: Sequence[float]) -> Owned:
    """The assignment when only these ranks are there: what somebody has, stays with it.

    Experts without an owner go to the ranks with the least load; a rank that has come anew gets
    experts from those that have most.

    >>> take_over({0: (0,), 1: (1,), 2: (2,)}, [0, 2], [1, 1, 1])
    {0: (0, 1), 2: (2,)}
    """
    kept = {rank: set(owned.get(rank, ())) for rank in ranks}
    taken = {expert for experts in kept.values() for expert in experts}
    orphans = [expert for expert in range(len(loads)) if expert not in taken]
    _give(kept, orphans, loads, 1, math.ceil(len(loads) / len(ranks)))
    fair = len(loads) // len(ranks)
    for rank in ranks:
        while len(kept[rank]) < fair:
            giver = max(ranks, key=lambda other: (len(kept[other]), -other))
            spare = kept[giver] - kept[rank]
            if len(kept[giver]) <= fair or not spare:
                break
            moved = min(spare, key=lambda expert: (loads[expert], expert))
            kept[giver].remove(moved)
            kept[rank].add(moved)
    _help(kept, loads)
    return _sorted(kept)


def given(rows: Sequence[Sequence[int]], experts: int, ranks: int) -> Owned:
    """An assignment by hand, one row of experts for each rank; refused if an expert has no owner.

    >>> given([[0, 1], [1, 2]], experts=3, ranks=2)
    {0: (0, 1), 1: (1, 2)}
    """
    if len(rows) != ranks:
        raise KnobError(
            "SPES.owned", f"{len(rows)} rows for {ranks} nodes",
            "give each node a row of the experts that it trains",
        )  # fmt: skip
    for rank, row in enumerate(rows):
        strange = [expert for expert in row if not 0 <= expert < experts]
        if strange or len(set(row)) != len(row):
            raise KnobError(
                f"SPES.owned[{rank}]", f"{list(row)!r:.80}: experts are 0..{experts - 1}",
                "name each of them once",
            )  # fmt: skip
    nobody = sorted(set(range(experts)) - {expert for row in rows for expert in row})
    if nobody:
        raise KnobError(
            "SPES.owned", f"experts {nobody!r:.80} are owned by nobody and would never be trained",
            "give every expert to at least one node",
        )  # fmt: skip
    return {rank: tuple(sorted(row)) for rank, row in enumerate(rows)}


def owners_of(owned: Owned, expert: int) -> list[int]:
    """The ranks that train an expert, in rising order.

    >>> owners_of({0: (0, 1), 1: (1, 2)}, 1)
    [0, 1]
    """
    return sorted(rank for rank, experts in owned.items() if expert in experts)


def carried(owned: Owned, loads: Sequence[float]) -> dict[int, float]:
    """The token load of each rank; the owners of an expert share its load."""
    sharing = [max(len(owners_of(owned, expert)), 1) for expert in range(len(loads))]
    return {
        rank: sum(loads[expert] / sharing[expert] for expert in experts)
        for rank, experts in owned.items()
    }


def _give(
    owned: dict[int, set[int]], experts: Iterable[int], loads: Sequence[float], copies: int,
    room: int,
) -> None:  # fmt: skip
    """Give each of these experts to one more rank."""
    load = {rank: sum(loads[e] for e in kept) / copies for rank, kept in owned.items()}
    for expert in sorted(experts, key=lambda expert: (-loads[expert], expert)):
        free = [rank for rank in owned if expert not in owned[rank]]
        roomy = [rank for rank in free if len(owned[rank]) < room] or free
        rank = min(roomy, key=lambda rank: (load[rank], rank))
        owned[rank].add(expert)
        load[rank] += loads[expert] / copies


def _help(owned: dict[int, set[int]], loads: Sequence[float]) -> None:
    """Ranks without an expert train the one with the largest load for each of its owners."""
    for rank in owned:
        if not owned[rank] and len(loads):
            sharing = [sum(e in kept for kept in owned.values()) for e in range(len(loads))]
            heaviest = max(
                range(len(loads)), key=lambda e: (loads[e] / sharing[e], -sharing[e], -e)
            )
            owned[rank].add(heaviest)


def _sorted(owned: dict[int, set[int]]) -> Owned:
    return {rank: tuple(sorted(experts)) for rank, experts in owned.items()}
