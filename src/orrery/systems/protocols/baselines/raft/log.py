"""The replicated log in memory: a snapshot of the beginning, then the entries after it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from orrery.systems.protocols.problems.replicated_store import Op


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One place of the log: a client's operation, a new membership, or (with neither) a no-op."""

    term: int
    client: int = -1
    number: int = 0
    op: Op | None = None
    members: tuple[int, ...] | None = None


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """All that the log said up to `index`: the state of the store, and who the members were."""

    index: int = 0
    term: int = 0
    members: tuple[int, ...] = ()
    state: bytes = b""


class Log:
    """Entries by index from 1; those up to `snapshot.index` are known only by their sum."""

    def __init__(self, snapshot: Snapshot, entries: Sequence[Entry] = ()) -> None:
        self.snapshot = snapshot
        self.entries: list[Entry] = []
        # Who the members are since which index; the last one counts, committed or not.
        self._changes: list[tuple[int, tuple[int, ...]]] = [(snapshot.index, snapshot.members)]
        self.put(snapshot.index + 1, entries)

    @property
    def last_index(self) -> int:
        return self.snapshot.index + len(self.entries)

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.snapshot.term

    @property
    def members(self) -> tuple[int, ...]:
        """The members by the newest membership in the log."""
        return self._changes[-1][1]

    @property
    def members_since(self) -> int:
        """The index of the newest membership."""
        return self._changes[-1][0]

    def members_at(self, index: int) -> tuple[int, ...]:
        """The members by the newest membership up to an index."""
        return next(members for since, members in reversed(self._changes) if since <= index)

    def at(self, index: int) -> Entry:
        return self.entries[index - self.snapshot.index - 1]

    def term_at(self, index: int) -> int | None:
        """The term of an entry; None where there is none, or only the snapshot knows it."""
        place = index - self.snapshot.index - 1
        if place == -1:
            return self.snapshot.term
        return self.entries[place].term if 0 <= place < len(self.entries) else None

    def part(self, index: int, count: int) -> tuple[Entry, ...]:
        """Up to `count` entries from `index` on."""
        place = index - self.snapshot.index - 1
        return tuple(self.entries[place : place + count])

    def put(self, index: int, entries: Sequence[Entry]) -> None:
        """Let `entries` stand from `index` on; whatever stood there or later goes."""
        del self.entries[index - self.snapshot.index - 1 :]
        while self._changes[-1][0] >= index:
            self._changes.pop()
        self.entries.extend(entries)
        for place, entry in enumerate(entries, index):
            if entry.members is not None:
                self._changes.append((place, entry.members))

    def news(self, index: int, entries: Sequence[Entry]) -> tuple[int, Sequence[Entry]]:
        """Of entries offered from `index` on, those from the first that is not in the log.

        Entries that the log has already are passed over, not put again: an old message that comes
        late must not cut off what newer ones have brought.
        """
        for place, entry in enumerate(entries):
            at = index + place
            if at > self.snapshot.index and self.term_at(at) != entry.term:
                return at, entries[place:]
        return index + len(entries), ()

    def conflict(self, index: int, term: int) -> tuple[int, int] | None:
        """Why a leader's (index, term) does not match; None when it does.

        The answer is where the leader should go back to: (first index of the term that stands
        there, that term), or (end of the log, -1) when nothing stands there.
        """
        if index <= self.snapshot.index:
            return None  # all of the snapshot is committed, so every leader has it
        mine = self.term_at(index)
        if mine == term:
            return None
        if mine is None:
            return self.last_index + 1, -1
        first = index
        while self.term_at(first - 1) == mine and first - 1 > self.snapshot.index:
            first -= 1
        return first, mine

    def after_term(self, term: int, before: int) -> int | None:
        """The index after the last entry of a term among those below `before`; None: no such."""
        for index in range(min(before - 1, self.last_index), self.snapshot.index, -1):
            found = self.at(index).term
            if found == term:
                return index + 1
            if found < term:
                break
        return None

    def compact(self, snapshot: Snapshot) -> None:
        """Let a snapshot stand for the beginning; keep what follows it, where that matches."""
        keep: Sequence[Entry] = ()
        if self.term_at(snapshot.index) == snapshot.term:
            keep = self.part(snapshot.index + 1, len(self.entries))
        self.__init__(snapshot, keep)  # type: ignore[misc]
