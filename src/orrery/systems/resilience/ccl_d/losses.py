"""Who is behind a hang in which all ranks are, by what ranks say that gave up.

A rank that gives up says whom it waited for. Who waited first is nearest to the cause: if the one
it waited for is heard no more, that one stands still; if all of them gave up in turn, each waiting
for the next, the first wait names a link.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from orrery.systems.resilience.problems.watcher import Report


class Loss(msgspec.Struct, frozen=True):
    """A rank gave up: when, who, whom it had waited for, and how long its call was open."""

    time_s: float
    witness: int
    named: int
    waited_s: float = 0.0


def behind_losses(losses: Sequence[Loss]) -> Report | None:
    """The node or the link that is behind some losses; None where there are none.

    >>> behind_losses([Loss(9.0, 2, 1, 8.0), Loss(9.1, 3, 2, 8.0), Loss(9.2, 0, 3, 8.0)]).ranks
    (1,)
    >>> behind_losses([Loss(9.0, 1, 0, 8.0), Loss(9.1, 0, 1, 8.0)]).ailment
    'hung_link'
    >>> behind_losses([Loss(9.0, 1, 0, 8.0), Loss(99.1, 0, 1, 98.0)]).ranks
    (0,)
    """
    if not losses:
        return None
    first = min(losses, key=lambda loss: (loss.time_s, loss.witness))
    waits: dict[int, int] = {}
    for loss in losses:
        # All who can run give up soon after the first; who does so much later had stood still.
        if loss.time_s <= first.time_s + first.waited_s / 2:
            waits.setdefault(loss.witness, loss.named)
    rank, seen = first.named, {first.witness}
    while rank in waits and rank not in seen:
        seen.add(rank)
        rank = waits[rank]
    if rank in waits:
        ends = tuple(sorted((first.witness, first.named)))
        why = f"node {first.witness} was the first to give up waiting for node {first.named}"
        return Report("hung_link", ends, why)
    why = f"{len(waits)} nodes gave up, and what they say leads to it; it says nothing"
    return Report("stopped", (rank,), why)
