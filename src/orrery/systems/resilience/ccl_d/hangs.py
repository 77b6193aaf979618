"""The hang rules of CCL-D: from any blocked rank to the first cause, across communicators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import msgspec

from orrery.systems.resilience.problems.flight import Dump, Op
from orrery.systems.resilience.problems.watcher import Ailment, Report

# What is asked of each rank on the way: enough to see the pattern of its operations.
LAST = 32
MOST_HOPS = 64
Signature = tuple[str, int]


class Source(Protocol):
    """Who gives dumps: the watcher at the root."""

    gone: set[int]

    async def dumps_of(self, ranks: list[int], last: int) -> dict[int, Dump | None]: ...


class Scene(msgspec.Struct):
    """The ranks of one communicator at one operation, as their dumps tell."""

    comm: str
    seq: int
    dumps: dict[int, Dump | None]

    def signatures(self) -> dict[int, Signature]:
        """What each rank that enqueued the operation believes it to be."""
        found: dict[int, Signature] = {}
        for rank, dump in self.dumps.items():
            op = None if dump is None else op_at(dump, self.comm, self.seq)
            if op is not None:
                found[rank] = (op.kind, op.nbytes)
        return found

    def missing(self) -> list[int]:
        """The ranks that answered and have not enqueued it."""
        return [
            rank for rank, dump in self.dumps.items()
            if dump is not None and dump.seqs.get(self.comm, 0) <= self.seq
        ]  # fmt: skip

    def silent(self) -> list[int]:
        """The ranks that gave no answer."""
        return [rank for rank, dump in self.dumps.items() if dump is None]


def op_at(dump: Dump, comm: str, seq: int) -> Op | None:
    """An operation in a dump."""
    return next((op for op in (*dump.open, *dump.ring) if op.comm == comm and op.seq == seq), None)


def pattern(dump: Dump, comm: str, before: int) -> dict[int, Signature]:
    """What a rank's operations in a communicator were, by sequence number, before one of them."""
    return {
        op.seq: (op.kind, op.nbytes) for op in (*dump.ring, *dump.open)
        if op.comm == comm and op.seq < before
    }  # fmt: skip


def expected(known: Mapping[int, Signature], seq: int) -> Signature | None:
    """What should come at a place, if the latest operations repeat themselves.

    >>> expected({0: ("a", 1), 1: ("b", 2), 2: ("a", 1), 3: ("b", 2)}, 4)
    ('a', 1)
    """
    for period in range(1, len(known)):
        places = [place for place in known if place - period in known]
        if places and all(known[place] == known[place - period] for place in places):
            at = seq - period
            while at not in known and at >= min(known):
                at -= period
            return known.get(at)
    return None


def mismatch(scene: Scene) -> Report | None:
    """Somebody enqueued another operation, or another size, than the rest."""
    said = scene.signatures()
    if len(set(said.values())) < 2:
        return None
    counts = Counter(said.values()).most_common()
    (usual, most), second = counts[0], counts[1][1]
    if most == second:  # as many on either side: who does as before is right
        kept = [
            rank for rank, sign in said.items()
            if sign == expected(pattern(_dump(scene, rank), scene.comm, scene.seq), scene.seq)
        ]  # fmt: skip
        if not kept or len({said[rank] for rank in kept}) > 1:
            return Report("insufficient_data", (), f"{scene.comm}#{scene.seq}: two equal parties")
        usual = said[kept[0]]
    odd = sorted(rank for rank, sign in said.items() if sign != usual)
    other = said[odd[0]]
    witness = next(rank for rank, sign in said.items() if sign == usual)
    known = pattern(_dump(scene, witness), scene.comm, scene.seq) | {scene.seq: usual}
    ailment: Ailment = "op_mismatch" if other[0] != usual[0] else "size_mismatch"
    if expected(known, scene.seq + 1) == other:
        ailment = "skipped"
    why = f"{scene.comm}#{scene.seq}: {other[0]} of {other[1]} B, others {usual[0]} of {usual[1]} B"
    return Report(ailment, tuple(odd), why)


def _dump(scene: Scene, rank: int) -> Dump:
    found = scene.dumps[rank]
    assert found is not None  # only ranks that answered have a signature
    return found


def went_past(scene: Scene, rank: int) -> bool:
    """Whether a rank that is missing has gone on to what comes after, elsewhere."""
    mine = _dump(scene, rank)
    waiting = [
        (dump, op)
        for other, dump in scene.dumps.items() if dump is not None and other != rank
        for op in dump.open if op.comm == scene.comm and op.seq == scene.seq
    ]  # fmt: skip
    # The two ends of a pipe have different programmes, so nothing can be said of their order.
    if not waiting or not mine.open or waiting[0][1].kind == "p2p":
        return False
    slot = waiting[0][1].slot
    return any(
        count > max(dump.counts.get(name, 0) for dump, _ in waiting)
        for name, count in mine.counts.items()
        if name != slot
    )


def stopped_transport(scene: Scene, least_s: float) -> Report | None:
    """An array that left one rank long ago and has not arrived at another."""
    members = set(scene.dumps)
    under_way = [
        (channel.oldest_s, rank, channel.peer)
        for rank, dump in scene.dumps.items() if dump is not None
        for channel in dump.channels
        if channel.peer in members and channel.posted > channel.shipped
    ]  # fmt: skip
    if not under_way or max(under_way)[0] < least_s:
        return None
    age_s, source, target = max(under_way)
    why = f"{scene.comm}#{scene.seq}: an array from {source} to {target} is {age_s:.0f} s under way"
    return Report("hung_link", tuple(sorted((source, target))), why)


async def first_cause(source: Source, start: int, hang_s: float, follow: bool) -> Report | None:
    """The cause of a hang, followed from a blocked rank; None when it has dissolved meanwhile."""
    rank, seen = start, set[int]()
    for _ in range(MOST_HOPS):
        dump = (await source.dumps_of([rank], LAST))[rank]
        if dump is None:
            return silent(source, rank, "on the way to the cause")
        if not dump.open:
            if dump.idle_s < hang_s / 2:
                return None
            return Report("stuck", (rank,), f"{dump.idle_s:.0f} s outside of any communication")
        op = dump.open[0]
        members = dump.comms[op.comm]
        others = await source.dumps_of([each for each in members if each != rank], LAST)
        scene = Scene(op.comm, op.seq, {rank: dump, **others})
        found = at_the_scene(source, scene, hang_s)
        if found is not None:
            return found
        missing = scene.missing()
        if not missing:
            return None if dump.now_s - op.enqueued_s < hang_s / 2 else Report(
                "insufficient_data", (), f"{op.comm}#{op.seq}: all are in it and nothing is stuck"
            )  # fmt: skip
        if not follow:
            return Report("unknown", tuple(missing), f"{op.comm}#{op.seq}: not enqueued there")
        # Who has waited longest is nearest to the cause; who does not wait at all is the cause.
        following = max(missing, key=lambda each: (_age(scene, each), -each))
        if following in seen:
            return Report("insufficient_data", (), f"ranks wait for one another: {sorted(seen)}")
        seen.add(following)
        rank = following
    return Report("insufficient_data", (), f"no cause within {MOST_HOPS} communicators")


def at_the_scene(source: Source, scene: Scene, hang_s: float) -> Report | None:
    """What the ranks of one communicator tell together, before anything is followed."""
    for rank in scene.silent():
        return silent(source, rank, f"missing in {scene.comm}#{scene.seq}")
    found = mismatch(scene)
    if found is not None:
        return found
    past = [rank for rank in scene.missing() if went_past(scene, rank)]
    if past:
        why = f"{scene.comm}#{scene.seq}: not enqueued, though what follows was"
        return Report("skipped", tuple(past), why)
    # An array may have been under way for as long as the operation waits, and no longer.
    return stopped_transport(scene, hang_s / 2)


def silent(source: Source, rank: int, why: str) -> Report:
    """The report of a rank that gives no answer."""
    return Report("crashed" if rank in source.gone else "stopped", (rank,), why)


def _age(scene: Scene, rank: int) -> float:
    dump = _dump(scene, rank)
    return dump.now_s - dump.open[0].enqueued_s if dump.open else float("inf")
