"""Planted faults in semi-PD's books and phases: each must be noticed."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from orrery.base.errors import PartError
from orrery.models.real.phases.blocks import PREFILL, BlockBook, owner_of
from orrery.systems.serve.baselines.phase_static_split import PhaseStaticSplit
from orrery.systems.serve.problems.llm_phases import LLMPhases, faults_of
from orrery.systems.serve.problems.llm_phases.batch import Decoding
from orrery.systems.serve.semi_pd import SemiPD

SMALL = {"model": "Llama-3.1-8B", "tp": 1, "devices": 1, "tables": "", "requests": 60}


class Dies(Exception):
    """Stands for a death in the middle of a change."""


def cut_off(cls):
    """A book whose author died in the middle of a change, as the next one finds it."""
    book = cls(np.zeros(cls.words(10), np.int64), 10, nullcontext())
    book.take(owner_of(PREFILL, 1), 4)

    def die():
        raise Dies

    book.midway = die
    with pytest.raises(Dies):
        book.give(owner_of(PREFILL, 1), [0, 1, 2, 3])
    book.midway = None
    return book


def test_a_book_without_a_journal_keeps_half_a_change():
    class Forgetful(BlockBook):
        """The planted fault: whoever takes the lock believes that all is well."""

        def recover(self):
            return False

    whole, half = cut_off(BlockBook), cut_off(Forgetful)
    assert whole.reclaim(PREFILL) == 4 and half.reclaim(PREFILL) == 2
    assert whole.undone == 1 and half.undone == 0


def test_who_joins_in_the_middle_of_a_step_breaks_the_books(monkeypatch):
    sound = LLMPhases(**SMALL, rate_per_s=20.0)
    assert faults_of(sound.play(PhaseStaticSplit(), 1)) == []

    def join_at_once(self, live, join=Decoding.join):
        """The planted fault: a token for somebody who was not in the step."""
        under_way, self.under_way = self.under_way, False
        join(self, live)
        self.under_way = under_way

    monkeypatch.setattr(Decoding, "join", join_at_once)
    kinds = {each.kind for each in faults_of(sound.play(PhaseStaticSplit(), 1))}
    assert "cache_books" in kinds


def test_a_lost_request_is_noticed(monkeypatch):
    problem = LLMPhases(**SMALL, rate_per_s=20.0)
    end = Decoding.end
    monkeypatch.setattr(Decoding, "end", lambda self, now_s: end(self, now_s)[1:])
    assert "lost" in {each.kind for each in faults_of(problem.play(SemiPD(), 1))}


def test_a_share_beside_the_grid_is_refused():
    class Odd(SemiPD):
        """The planted fault: a share for which no worker is resident."""

        def share(self, view):
            return 0.123

    with pytest.raises(PartError, match=r"Odd\.share gave 0\.123"):
        LLMPhases(**SMALL, rate_per_s=20.0).play(Odd(), 1)
