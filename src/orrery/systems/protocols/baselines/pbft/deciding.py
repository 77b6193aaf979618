"""What a new view begins with: the rules by which view changes are turned into proposals.

These are the rules for links that are authenticated but give no proof to third parties (Castro and
Liskov, "Practical Byzantine fault tolerance and proactive recovery", ACM TOCS 20(4), 2002, section
4.4 and figure 4). All correct replicas apply them to the same view changes, so all find the same.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from orrery.systems.protocols.baselines.pbft.messages import (
    NOTHING,
    Batch,
    Prepared,
    ViewChange,
    digest_of,
)


class Beginning(msgspec.Struct, frozen=True):
    """Where a view begins: a checkpoint, and a proposal for each number after it."""

    stable: int
    digest: bytes
    batches: tuple[Batch, ...]


def begin(changes: Collection[ViewChange], quorum: int, weak: int, span: int) -> Beginning | None:
    """The beginning that these view changes give; None where more of them are needed.

    The cost is O(changes^2 x entries), which is small: entries lie between two watermarks.
    """
    checkpoint = _checkpoint(changes, quorum, weak)
    if checkpoint is None:
        return None
    stable, digest = checkpoint
    last = max((e.number for c in changes for e in c.prepared), default=stable)
    batches = []
    for number in range(stable + 1, min(last, stable + span) + 1):
        batch = _batch(changes, number, quorum, weak)
        if batch is None:
            return None
        batches.append(batch)
    return Beginning(stable, digest, tuple(batches))


def _checkpoint(
    changes: Collection[ViewChange], quorum: int, weak: int
) -> tuple[int, bytes] | None:
    """The highest checkpoint that a correct replica vouches for and a quorum can begin from."""
    known = sorted({mark for change in changes for mark in change.checkpoints}, reverse=True)
    for number, digest in known:
        reach = sum(change.stable <= number for change in changes)
        vouch = sum((number, digest) in change.checkpoints for change in changes)
        if reach >= quorum and vouch >= weak:
            return number, digest
    return None


def _batch(changes: Collection[ViewChange], number: int, quorum: int, weak: int) -> Batch | None:
    """What must be proposed at a number: what may have been committed, else nothing."""
    claims = [e for change in changes for e in change.prepared if e.number == number]
    for claim in sorted(claims, key=lambda e: e.view, reverse=True):
        if _may_be_committed(changes, claim, quorum, weak):
            return claim.batch
    free = sum(
        change.stable < number and all(e.number != number for e in change.prepared)
        for change in changes
    )
    return NOTHING if free >= quorum else None


def _may_be_committed(
    changes: Collection[ViewChange], claim: Prepared, quorum: int, weak: int
) -> bool:
    """Nobody in a quorum prepared otherwise since, and a correct replica spoke for it."""
    digest = digest_of(claim.batch)
    bearing = sum(
        change.stable < claim.number
        and all(
            e.view < claim.view or (e.view == claim.view and e.batch == claim.batch)
            for e in change.prepared
            if e.number == claim.number
        )
        for change in changes
    )
    spoken = sum(
        any(
            e.number == claim.number and e.view >= claim.view and e.digest == digest
            for e in change.seen
        )
        for change in changes
    )
    return bearing >= quorum and spoken >= weak
