"""Planted bugs: broken Rafts that the checkers must catch, so that their silence means something.

Each bug is one that real implementations had. It must be found by a checker (a violation), not by
a crash of the code. The default test uses the seeds at which the bug is known to show; the slow one
searches from seed 0.
"""

from __future__ import annotations

import pytest
from tests.negative.raft_storms import first_found, verdict

from orrery.parts import rpc
from orrery.systems.protocols.baselines.raft import Raft
from orrery.systems.protocols.baselines.raft.log import Entry, Snapshot
from orrery.systems.protocols.baselines.raft.machine import Machine
from orrery.systems.protocols.baselines.raft.storage import NOBODY
from orrery.systems.protocols.problems.replicated_store import Reply

MOST_SEEDS = 500


class ForgetsVote(Raft):
    """The term is on the disk, but not whom it voted for."""

    def remember_vote(self, term: int, voted_for: int) -> None:
        super().remember_vote(term, NOBODY)
        self.voted_for = voted_for


class CommitsOldTerms(Raft):
    """Counts replicas of an entry of an earlier term and calls it committed."""

    def advance(self) -> None:
        have = sorted(self.match.get(member, 0) for member in self.journal.members)
        index = have[(len(have) - 1) // 2]
        if index > self.commit:
            self.commit_to(index)
            self.serve_reads()


class ReadsStale(Raft):
    """Answers reads at once, without asking whether it still leads."""

    async def read(self, key: str) -> Reply:
        return Reply(True, self.machine.read(key))


class TruncatesAlways(Raft):
    """Cuts its log at every AppendEntries, also at one that comes late and brings nothing new."""

    @rpc
    async def append_entries(
        self, term: int, before: int, before_term: int, entries: tuple[Entry, ...], commit: int,
        round_: int, sender: int,
    ) -> None:  # fmt: skip
        journal = self.journal
        fits = journal.conflict(before, before_term) is None
        inside = journal.snapshot.index <= before < journal.last_index
        if self.ready and term >= self.term and fits and inside:
            self.remember_entries(before + 1, ())
        await super().append_entries(term, before, before_term, entries, commit, round_, sender)


class LosesSessions(Raft):
    """A snapshot has the values, but not which operations were already carried out."""

    async def compact(self) -> None:
        whole = self.machine
        self.machine = Machine(whole.dump())
        self.machine.sessions = {}
        state, self.machine = self.machine.dump(), whole
        log, index = self.journal, self.applied
        term = log.term_at(index)
        assert term is not None
        log.compact(Snapshot(index, term, log.members_at(index), state))
        await self.storage.rewrite(self.everything)
        self.compacting = False


class ForgetsSnapshotTerm(Raft):
    """A snapshot does not say of which term its last entry was."""

    async def compact(self) -> None:
        log, index = self.journal, self.applied
        keep = log.part(index + 1, len(log.entries))
        log.__init__(Snapshot(index, 0, log.members_at(index), self.machine.dump()), keep)
        await self.storage.rewrite(self.everything)
        self.compacting = False


class AnswersBeforeDisk(Raft):
    """Says that entries and votes are safe while they are still on their way to the disk."""

    async def recover(self) -> None:
        await super().recover()
        sync = self.storage.sync

        async def hurried() -> None:
            self.spawn(sync())

        self.storage.sync = hurried


BUGS: dict[type[Raft], range] = {
    ForgetsVote: range(12, 20),
    CommitsOldTerms: range(170, 176),
    ReadsStale: range(6),
    TruncatesAlways: range(6),
    LosesSessions: range(6),
    ForgetsSnapshotTerm: range(6),
    AnswersBeforeDisk: range(12, 18),
}
"""Each bug with a short range of seeds in which it is found."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bug_is_found(bug: type[Raft]) -> None:
    assert first_found(bug, BUGS[bug]) is not None


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_sound_raft_passes_where_the_bug_shows(bug: type[Raft]) -> None:
    found = first_found(bug, BUGS[bug])
    assert found is not None
    assert verdict(Raft, found[0]) == []


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bug_is_found_from_scratch(bug: type[Raft]) -> None:
    assert first_found(bug, range(MOST_SEEDS)) is not None
