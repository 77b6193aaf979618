"""Moving the caches of running requests to new instances: who goes when, over which links.

Keys and values are cut anew by heads and go from GPU to GPU in layer order. A GPU sends and
receives one request's share at a time; a request goes on as soon as its last layer has landed. No
GPU takes in what does not fit beside what it still has, so a request may have to wait until others
have left; one that can never be taken in loses its cache and is computed again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from orrery.systems.serve.problems.llm_parallelism.engine import Instance, Seq
from orrery.systems.serve.problems.llm_parallelism.plans import Placed
from orrery.systems.serve.problems.llm_parallelism.rig import Cut, Rig, recut

# Room for so many further tokens is kept for each request that has moved while others still move.
GROWTH_TOKENS = 64

cut_of = functools.lru_cache(maxsize=4096)(recut)


class Trip(NamedTuple):
    """One request's way: from where to where, when its first and last layer travel."""

    seq: Seq
    old: Placed
    target: Instance
    start_s: float
    land_s: float
    moved_B: float


class Ledger:
    """Bytes on each GPU of a component: weights, caches that are there, caches that come."""

    def __init__(self, rig: Rig, weights: dict[int, float]) -> None:
        self.rig, self.limit_B = rig, rig.memory_B
        self.used = dict(weights)

    def put(self, placed: Placed, size_B: float) -> None:
        """A cache lies on an instance, cut evenly."""
        for p in placed.positions:
            if p in self.used:
                self.used[p] += size_B / placed.tp

    def fits(self, cut: Cut, size_B: float) -> bool:
        """Whether a cache can land while everything else is still there."""
        return all(
            self.used[p] + share * size_B <= self.limit_B
            for p, share in cut.come.items() if p in self.used
        )  # fmt: skip

    def land(self, cut: Cut, size_B: float) -> None:
        """Room for what comes is taken before it comes."""
        for p, share in cut.come.items():
            if p in self.used:
                self.used[p] += share * size_B

    def leave(self, cut: Cut, size_B: float) -> None:
        """What others have now is dropped here."""
        for p, share in cut.free.items():
            if p in self.used:
                self.used[p] -= share * size_B

    def drop(self, placed: Placed, size_B: float) -> None:
        """A cache is given up."""
        self.put(placed, -size_B)


def schedule(
    rig: Rig, carried: Sequence[tuple[Seq, Placed]], ledger: Ledger, now_s: float,
    choose: Callable[[Seq], Instance | None],
) -> tuple[list[Trip], list[Seq]]:  # fmt: skip
    """(trips in order of landing, requests that lose their cache).

    `choose` names a target with room for a request and reserves it, or None.
    """
    for seq, old in carried:
        ledger.put(old, seq.need * rig.kv_B)
    trips: list[Trip] = []
    lost: list[Seq] = []
    link: dict[int, float] = {}  # when a GPU's link is free again
    leaving: list[tuple[float, int, Cut, float]] = []
    floor_s = now_s
    for number, (seq, old) in enumerate(
        sorted(carried, key=lambda c: (c[0].rank, c[0].request.id))
    ):
        size_B = float(seq.need * rig.kv_B)
        target = choose(seq)
        if target is None:
            ledger.drop(old, size_B)
            lost.append(seq)
            continue
        cut = cut_of(old, target.placed)
        grown_B = size_B + (GROWTH_TOKENS * rig.kv_B if cut.moved else 0.0)
        while not ledger.fits(cut, grown_B) and leaving:
            floor_s, _, gone, gone_B = heappop(leaving)
            ledger.leave(gone, gone_B)
        if not ledger.fits(cut, grown_B):
            target.unreserve(seq.need)
            ledger.drop(old, size_B)
            lost.append(seq)
            continue
        ledger.land(cut, size_B)
        near = old.first // rig.per_machine == target.placed.first // rig.per_machine
        rate_Bps = rig.link_Bps if near else rig.nic_Bps
        busy = [p for p, share in (*cut.come.items(), *cut.send.items()) if share]
        start_s = max([floor_s, *(link.get(p, now_s) for p in busy)])
        most = max([0.0, *cut.come.values(), *cut.send.values()])
        land_s = start_s + most * size_B / rate_Bps
        for p in busy:
            link[p] = land_s
        heappush(leaving, (land_s, number, cut, size_B))
        trips.append(Trip(seq, old, target, start_s, land_s, cut.moved * size_B))
    trips.sort(key=lambda trip: (trip.land_s, trip.seq.request.id))
    return trips, lost


__all__ = ["GROWTH_TOKENS", "Ledger", "Trip", "cut_of", "schedule"]
