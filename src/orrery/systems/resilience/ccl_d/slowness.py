"""The slow rules of CCL-D: a rank that computes too long, or a NIC or link that carries too little.

A rank that arrives late makes the others wait and waits least itself; what it computed between two
operations of one kind is then longer than what the others did. Where all arrive alike and the
arrays take too long, the slow ways between ranks have one rank in common, or are one link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from orrery.systems.resilience.ccl_d.hangs import Source
from orrery.systems.resilience.ccl_d.probe import MAD
from orrery.systems.resilience.problems.flight import Dump, Op
from orrery.systems.resilience.problems.watcher import RING, Ailment, Report, Sign

LEAST_ARRIVALS = 4
# Who is late for reasons of its own waits at most this part of what its fellows wait.
LESS = 0.75
# The part of the time between two operations that a rank was away at least.
SLIVER = 0.05
# So many deviations among sound ranks are chance.
FAR = 3.0


class Bounds(msgspec.Struct, frozen=True):
    """What counts as slow: `confirm` of the last `window`, longer by `least`, sends by `way`.

    Ranks that have the same data differ by less than `tight`, replicas with other batches by more;
    there chance looks like slowness by turns, so nearly all of the latest operations must be slow.
    """

    window: int
    confirm: int
    least: float
    way: float
    tight: float = 0.1


def works(dump: Dump, comm: str) -> dict[tuple[str, int, int], float]:
    """What a rank computed before each operation, since the one before it there."""
    found: dict[tuple[str, int, int], float] = {}
    before_s: float | None = None
    for op in (*dump.ring, *dump.open):
        if op.comm != comm or op.kind == "p2p":  # the ends of a pipe differ in their work
            continue
        if before_s is not None:
            found[op.kind, op.nbytes, op.seq] = op.work_s - before_s
        before_s = op.work_s
    return found


def absences(dump: Dump, comm: str) -> dict[tuple[str, int, int], float]:
    """How long a rank stayed away before each operation, since the end of the one before it there.

    Where computing and communicating overlap, a rank is nearly always in some operation, and what
    it computes outside of all of them tells nothing. A rank that comes again at once has stayed
    away for a sliver, so that there is something to compare with.
    """
    found: dict[tuple[str, int, int], float] = {}
    before: Op | None = None
    for op in dump.ring:
        if op.comm == comm:
            if before is not None:
                least_s = SLIVER * (op.enqueued_s - before.enqueued_s)
                away_s = op.enqueued_s - before.ended_s
                found[op.kind, op.nbytes, op.seq] = max(away_s, least_s)
            before = op
    return found


def middle(values: Sequence[float]) -> float:
    """The median; the upper one of two."""
    return sorted(values)[len(values) // 2]


Row = dict[int, float]
Measure = Callable[[Dump, str], dict[tuple[str, int, int], float]]


def rows_of(
    dumps: dict[int, Dump], comm: str, measure: Measure = works
) -> dict[tuple[str, int], list[Row]]:
    """By kind of operation, for each in order: what every rank computed before it."""
    tables = {rank: measure(dump, comm) for rank, dump in dumps.items()}
    common = set.intersection(*(set(table) for table in tables.values())) if tables else set()
    found: dict[tuple[str, int], list[Row]] = {}
    for key in sorted(common, key=lambda each: each[2]):
        row = {rank: table[key] for rank, table in tables.items()}
        if all(value > 0 for value in row.values()):
            found.setdefault(key[:2], []).append(row)
    return found


def ratio(row: Row, rank: int) -> float:
    """What a rank computed, over what the others did in the middle.

    >>> ratio({0: 2.0, 1: 1.0, 2: 1.0}, 0)
    2.0
    """
    return row[rank] / middle([row[other] for other in row if other != rank])


def spread_of(table: Sequence[Row], suspect: int) -> float:
    """By how much ranks differ that are not under suspicion; with two ranks, by how much both do.

    >>> spread_of([{0: 9.0, 1: 1.0, 2: 1.0}, {0: 9.0, 1: 2.0, 2: 2.0}], 0)
    0.0
    """
    few = len(table[0]) < 3
    found: list[float] = []
    for row in table:
        ranked = sorted(value for rank, value in row.items() if few or rank != suspect)
        half = (len(ranked) - 1) // 2
        # What lies in the middle when one is left out: the next one, if it is of the lower half.
        found += [abs(value / ranked[half + (place <= half)] - 1.0)
                  for place, value in enumerate(ranked)]  # fmt: skip
    return MAD * middle(found)


class Straggler(msgspec.Struct):
    """A rank that computes too long, and how much sound ranks differ where it was seen."""

    spread: float
    report: Report


def straggler(dumps: dict[int, Dump], comm: str, bounds: Bounds) -> Straggler | None:
    """The rank of a communicator that computes longer than the others, again and again."""
    if len(dumps) < 2:
        return None
    for _, table in sorted(rows_of(dumps, comm).items()):
        found = stands_out(table, f"{comm}: ", bounds)
        if found is not None:
            return found
    return None


def _suspects(rows: Sequence[Row], bounds: Bounds) -> list[int]:
    """The ranks that lie above the least bound often enough: no other can stand out."""
    often: dict[int, int] = {}
    for row in rows:
        # Above it, this is the middle of the others, whichever of the upper half is left out.
        usual = sorted(row.values())[(len(row) - 1) // 2]
        for rank, value in row.items():
            if value > (1.0 + bounds.least) * usual:
                often[rank] = often.get(rank, 0) + 1
    enough = min(bounds.confirm, bounds.window - 2)
    return sorted(rank for rank, count in often.items() if count >= enough)


def stands_out(table: Sequence[Row], where: str, bounds: Bounds) -> Straggler | None:
    """The rank that is behind in the latest rows of one kind, all of which have the same ranks."""
    for rank in _suspects(table[-bounds.window :], bounds):
        spread = spread_of(table, rank)
        bound = 1.0 + max(bounds.least, FAR * spread)
        latest = [ratio(row, rank) for row in table[-bounds.window :]]
        flags = [each > bound for each in latest]
        if sum(flags) < (bounds.confirm if spread < bounds.tight else bounds.window - 2):
            continue
        sick = [each for each, flag in zip(latest, flags, strict=True) if flag]
        periodic = regular([place for place, flag in enumerate(flags) if flag])
        why = f"{where}computes {middle(sick):.2f} times as long as its fellows"
        ailment: Ailment = "periodic_compute" if periodic else "slow_compute"
        return Straggler(spread, Report(ailment, (rank,), why))
    return None


async def latecomer(source: Source, comm: str, rank: int, bounds: Bounds) -> Report | None:
    """The rank that stays away longer than its fellows, and waits least of all, everywhere.

    For ranks that compute behind their communication. Whoever is late only because it waits for
    others elsewhere waits as long as they do, and is not blamed.
    """
    mine = (await _answered(source, [rank], RING)).get(rank)
    if mine is None or comm not in mine.comms:
        return None
    dumps = await _answered(source, mine.comms[comm], RING)
    if len(dumps) < 3:
        return None
    waits = {each: sum(op.took_s for op in dump.ring[-bounds.window :])
             for each, dump in dumps.items()}  # fmt: skip
    for _, table in sorted(rows_of(dumps, comm, absences).items()):
        found = stands_out(table, f"{comm}: ", bounds)
        if found is None:
            continue
        (late,) = found.report.ranks
        others = [wait_s for each, wait_s in waits.items() if each != late]
        if waits[late] < LESS * middle(others):
            why = found.report.why.replace("computes", "stays away")
            return Report(found.report.ailment, (late,), why)
    return None


def regular(places: Sequence[int]) -> bool:
    """Whether places lie equally far apart, with others between them.

    >>> regular([0, 3, 6]), regular([0, 1, 2]), regular([0, 3, 4])
    (True, False, False)
    """
    gaps = {after - before for before, after in pairwise(places)}
    return len(gaps) == 1 and min(gaps) > 1


def slow_ways(dumps: dict[int, Dump], least: float) -> set[tuple[int, int]]:
    """The ways (from, to) on which arrays take too long."""
    return {
        (rank, channel.peer)
        for rank, dump in dumps.items()
        for channel in dump.channels
        if channel.shipped >= LEAST_ARRIVALS and channel.ratio >= least
    }


def sick_way(dumps: dict[int, Dump], sign: Sign, least: float) -> Report | None:
    """The NIC that slow ways have in common, or the one link that is slow."""
    ways = slow_ways(dumps, least)
    if (sign.rank, sign.peer) not in ways:
        return None
    peers: dict[int, set[int]] = {}
    for one, other in ways:
        peers.setdefault(one, set()).add(other)
        peers.setdefault(other, set()).add(one)
    times = next(each.ratio for each in dumps[sign.rank].channels if each.peer == sign.peer)
    ends = sorted((sign.rank, sign.peer), key=lambda end: (-len(peers[end]), end))
    first, second = len(peers[ends[0]]), len(peers[ends[1]])
    if first >= 2 and first > second:
        why = f"arrays between it and {sorted(peers[ends[0]])} take {times:.1f} times as long"
        return Report("slow_nic", (ends[0],), why)
    if first == second == 1:
        why = f"arrays on this way take {times:.1f} times as long as usual"
        return Report("slow_link", tuple(sorted(ends)), why)
    return None


async def cause_of(source: Source, sign: Sign, bounds: Bounds) -> Report | None:
    """What is behind a sign of slowness; None where nobody stands out."""
    if sign.hint == "send":
        return await _behind_sends(source, sign, bounds)
    mine = (await _answered(source, [sign.rank], RING)).get(sign.rank)
    if mine is None or sign.comm not in mine.comms:
        return None
    dumps = await _answered(source, mine.comms[sign.comm], RING)
    found = straggler(dumps, sign.comm, bounds)
    if found is not None and found.spread < bounds.tight:
        return found.report
    # Who waits least there is late for a reason that may lie in any stage of its pipe.
    late = _waits_least(dumps, sign.comm)
    if late is None:
        return None
    beside = await _along_the_pipe(source, late, sign.comm, bounds)
    best = min((each for each in (found, *beside) if each is not None),
               key=lambda each: (each.spread, each.report.ranks), default=None)  # fmt: skip
    return None if best is None else best.report


async def _along_the_pipe(
    source: Source, rank: int, known: str, bounds: Bounds
) -> list[Straggler | None]:
    """The stragglers in the groups of a rank and of all stages before and after it."""
    stages, tested = [rank], {known}
    found: list[Straggler | None] = []
    for stage in stages:  # grows while it is walked along
        dump = (await _answered(source, [stage], RING)).get(stage)
        if dump is None:
            continue
        pipes = {op.comm for op in dump.ring if op.kind == "p2p"}
        for comm, members in sorted(dump.comms.items()):
            if comm in pipes:
                stages += [each for each in members if each not in stages]
            elif comm not in tested and len(members) > 1:
                tested.add(comm)
                found.append(straggler(await _answered(source, members, RING), comm, bounds))
    return found


def _waits_least(dumps: dict[int, Dump], comm: str) -> int | None:
    """The rank that has waited least in a communicator, lately."""
    waits: dict[int, float] = {}
    for rank, dump in dumps.items():
        took = [op.took_s for op in dump.ring if op.comm == comm]
        if took:
            waits[rank] = middle(took[-3:])
    return min(waits, key=lambda each: (waits[each], each)) if waits else None


async def _behind_sends(source: Source, sign: Sign, bounds: Bounds) -> Report | None:
    ends = await _answered(source, [sign.rank, sign.peer], 0)
    around = {sign.rank, sign.peer}
    for dump in ends.values():
        around |= {channel.peer for channel in dump.channels}
    dumps = await _answered(source, sorted(around), 0)
    found = sick_way(dumps, sign, bounds.way)
    if found is None:
        return None
    # A rank whose processor is busy is slow to send as well; its computing tells.
    for rank in found.ranks:
        mine = (await _answered(source, [rank], 1)).get(rank)
        for comm, members in sorted(mine.comms.items()) if mine is not None else ():
            fellows = await _answered(source, members, RING)
            busy = straggler(fellows, comm, bounds)
            if busy is not None and busy.report.ranks == (rank,):
                return busy.report
            if seems_busy(fellows, comm, rank, bounds):
                return None  # it is too early to say
    return found


def seems_busy(dumps: dict[int, Dump], comm: str, rank: int, bounds: Bounds) -> bool:
    """Whether a rank computed long before one of its latest operations."""
    if rank not in dumps or len(dumps) < 2:
        return False
    latest = [row for table in rows_of(dumps, comm).values() for row in table[-2:]]
    return any(ratio(row, rank) > 1.0 + bounds.least for row in latest)


async def _answered(source: Source, ranks: Sequence[int], last: int) -> dict[int, Dump]:
    found = await source.dumps_of(list(ranks), last)
    return {rank: dump for rank, dump in found.items() if dump is not None}
