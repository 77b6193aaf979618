"""What CCL-D knows of the ranks of an ordinary run: dumps as its rules want them, without asking.

A `Mirror` makes again, from the short records of a rank, what a recorder at that rank would hold:
once by group, tag and sequence number, as the hang rules need it, and once by tag among nodes, as
the slow rules do. A group that has a new name in each round is new to the first each time.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from orrery.systems.resilience.ccl_d.slowness import LEAST_ARRIVALS
from orrery.systems.resilience.ccl_d.tap import forget
from orrery.systems.resilience.problems.flight import Channel, Dump, Op, Recorder

T = TypeVar("T")
# So many groups a mirror remembers; the oldest are forgotten first.
MOST_COMMS = 512


class Place(msgspec.Struct):
    """What a slot of a rank stands for."""

    key: str
    tag: str
    name: str
    nodes: list[int]


class Mirror:
    """One rank as its records tell; `at_s` is the time that it is looked at."""

    def __init__(self, rank: int, began_s: float, ring: int) -> None:
        self.rank = rank
        self.at_s = self.heard_s = began_s
        self.slots: dict[int, Place] = {}
        self.exact = Recorder(rank, lambda: self.at_s, ring)
        self.coarse = Recorder(rank, lambda: self.at_s, ring)
        self.open: dict[str, tuple[Op, Op]] = {}
        self.spent_s = 0.0
        self.calls = 0

    def hear(self, time_s: float) -> None:
        """The rank tells something at a time of its own."""
        self.at_s = self.heard_s = time_s

    def first_use(self, number: int, key: str, tag: str, label: str, nodes: list[int]) -> None:
        """The rank uses a slot that it has not told of."""
        self.slots[number] = Place(key, tag, f"{tag}[{label}]", nodes)

    def comm(self, number: int, key: str) -> str:
        """What a call of a slot is called, the same at all ranks of its group."""
        place = self.slots[number]
        return f"{place.name}#{key or place.key}"

    def enqueue(self, number: int, key: str, kind: str, nbytes: int) -> str:
        """A call begins; gives what it is called."""
        place, comm = self.slots[number], self.comm(number, key)
        tables: tuple[dict[str, Any], ...] = (self.exact.seqs, self.exact.members)
        for table in tables:
            if comm in table:  # what was used last stands last, and is forgotten last
                table[comm] = table.pop(comm)
        # What a group is for a rank, the same at ranks that are in different groups of a kind.
        role = f"{place.tag} of {len(place.nodes)}"
        self.open[comm] = (
            self.exact.enqueue(role, comm, kind, nbytes, place.nodes),
            self.coarse.enqueue(place.name, place.name, kind, nbytes, place.nodes),
        )
        self.calls += 1
        self._prune()
        return comm

    def end(self, comm: str) -> None:
        """A call has ended."""
        exact, coarse = self.open.pop(comm)
        self.exact.end(exact)
        self.coarse.end(coarse)

    def cut(self, comm: str) -> None:
        """A call was cut off."""
        exact, coarse = self.open.pop(comm)
        forget(self.exact, exact)
        forget(self.coarse, coarse)

    def way(self, peer: int, ratio: float, is_slow: bool) -> None:
        """The way to a peer has become slow, or sound again."""
        self.coarse.channels[peer] = Channel(
            peer, shipped=LEAST_ARRIVALS if is_slow else 0, ratio=ratio
        )

    def longest_s(self, slot: str) -> float:
        """The longest that a call of a slot took, of those in the ring."""
        return max(
            (op.took_s for op in self.coarse.ring if op.slot == slot and op.ended_s >= 0.0),
            default=0.0,
        )

    def silent_since_s(self) -> float:
        """Since when the rank has been where it is: in its oldest open call, or outside of any."""
        return self.exact.busy[0].enqueued_s if self.exact.busy else self.exact.idle_since_s

    def _prune(self) -> None:
        tables: tuple[dict[str, Any], ...] = (self.exact.seqs, self.exact.members)
        for table in tables:
            while len(table) > MOST_COMMS:
                oldest = next(iter(table))
                if oldest in self.open:  # a call that hangs is what all this is about
                    break
                table.pop(oldest)


class Board:
    """The mirrors as the rules see them: a source of dumps that answers at once."""

    def __init__(self, mirrors: dict[int, Mirror], gone: set[int], ring: int) -> None:
        self.mirrors, self.gone, self.ring = mirrors, gone, ring
        self.now_s = 0.0
        self.is_exact = True

    def at(self, now_s: float, exact: bool) -> Board:
        """As things are now, by group and tag (exact) or by tag among nodes."""
        self.now_s, self.is_exact = now_s, exact
        return self

    async def dumps_of(self, ranks: Sequence[int], last: int) -> dict[int, Dump | None]:
        """What is known of some ranks; None of those that are gone."""
        return {rank: self.dump(rank, last) for rank in ranks}

    def dump(self, rank: int, last: int) -> Dump | None:
        """What is known of one rank; one that was never heard has been busy since the start."""
        if rank in self.gone:
            return None
        mirror = self.mirrors.get(rank) or Mirror(rank, 0.0, self.ring)
        # What one rank tells may be a little ahead of what another has told so far.
        mirror.at_s = max(self.now_s, mirror.heard_s)
        recorder = mirror.exact if self.is_exact else mirror.coarse
        return recorder.dump(last)


def at_once(answer: Coroutine[Any, Any, T]) -> T:
    """The value of a rule that asks a `Board`, which never has to wait.

    >>> async def rule(): return 7
    >>> at_once(rule())
    7
    """
    try:
        answer.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    answer.close()
    raise AssertionError("a rule waited for something else than dumps")
