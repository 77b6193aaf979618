"""Forty and more mechanical mutants of Raft: the checkers find nearly all of them in storms."""

from __future__ import annotations

import pytest
from tests.negative.raft_mutants import MUTANTS, Mutant, edited, load, source_of
from tests.negative.raft_storms import first_found

from orrery.systems.protocols.baselines.raft import Raft

MOST_SEEDS = 500
LEAST_FOUND = 0.9

QUICK: dict[str, range] = {
    "dropped_fsync": range(4),
    "half_is_a_majority": range(22, 23),
    "votes_twice": range(4),
    "own_entry_counts_before_disk": range(12, 16),
    "accepts_old_leaders": range(5, 8),
    "never_replaces_entries": range(4),
    "snapshot_not_restored": range(4),
    "no_sessions": range(12, 14),
}
"""Mutants of every part of the source, each with a short range of seeds in which it is found."""

SURVIVORS: dict[str, str] = {
    "answers_of_old_terms_count": "needs a node that leads twice, and an answer that is late by "
    "more than the leader between, who must have cut off the entries acknowledged",
    "base_forgets_the_vote": "needs a vote, a snapshot and a crash before a second candidate of "
    "the same term is heard",
    "commits_what_it_has_not_checked": "the leader goes back exactly to the first conflict, so "
    "what follows the entries of a message is cut off or matches; only a slower way back shows it",
    "counts_votes_of_old_terms": "needs a vote that is late by a whole election, for a candidate "
    "that runs again without the poll having told it otherwise",
    "votes_in_old_terms": "the candidate of an old term no longer counts the vote; the voter's "
    "term goes back, but it must then meet a second candidate of the newer term",
}
"""Mutants that no checker finds in these storms, each with the reason."""


def named(name: str) -> Mutant:
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def test_there_are_forty_different_mutants_that_all_change_the_source() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
    texts = {edited(mutant) for mutant in MUTANTS}
    assert len(texts) == len(MUTANTS)
    assert not texts & {source_of(mutant.file) for mutant in MUTANTS}
    assert set(QUICK) | set(SURVIVORS) <= {mutant.name for mutant in MUTANTS}
    assert len(SURVIVORS) <= (1 - LEAST_FOUND) * len(MUTANTS)


def test_an_edit_that_fits_nowhere_is_noticed() -> None:
    with pytest.raises(LookupError, match="0 places"):
        edited(Mutant("nowhere", "log", "no such text", ""))


def test_a_mutant_does_not_touch_the_real_module() -> None:
    assert load(named("dropped_fsync")) is not Raft
    assert "await self._disk.fsync(self._name)" in source_of("storage")


@pytest.mark.parametrize("name", QUICK)
def test_quick_mutant_is_found(name: str) -> None:
    assert first_found(load(named(name)), QUICK[name]) is not None


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_found_or_explained(mutant: Mutant) -> None:
    found = first_found(load(mutant), range(MOST_SEEDS))
    assert (found is None) == (mutant.name in SURVIVORS), found
