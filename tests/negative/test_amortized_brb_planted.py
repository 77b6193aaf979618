"""Faults planted in `AmortizedBRB` that the acceptance runs of lines 4 and 5 must bring to light.

Each run here is the one of the acceptance test, with a part that has one thing wrong.
"""

from __future__ import annotations

import pytest
from tests.systems.protocols.broadcast_runs import (
    REAL,
    Battered,
    Shouting,
    forked_in_chosen_order,
    killed,
    restarted,
)

from orrery.parts import rpc
from orrery.systems.protocols.amortized_brb import AmortizedBRB
from orrery.world import Byzantine, Corrupt

MINE = "amortized-brb"
LIES = Byzantine(node=0, strategies=("subset", "garbage"))


class OwnWord(AmortizedBRB):
    """Delivers what it holds at an index, whichever chain the others are certain of."""

    def payload_of(self, index, digest):
        return self.shots.get(index) or super().payload_of(index, digest)

    def lacks(self, index):
        return index not in self.shots and super().lacks(index)


class AsItComes(AmortizedBRB):
    """Delivers whatever is certain, in no order."""

    def settle(self):
        for index in sorted(self.certain, reverse=True):
            payload = self.payload_of(index, self.book.links[self.certain[index]].digest)
            if payload is not None and index not in self.gone:
                self.gone.add(index)
                self.deliver(index, payload)

    def start(self):
        super().start()
        self.gone = set()


class Unanimous(AmortizedBRB):
    """Waits for everybody, so that one dead node stops it."""

    def start(self):
        super().start()
        self.quorum = self.n


class Credulous(AmortizedBRB):
    """Takes any bytes that it is given for the payload."""

    @rpc
    def give(self, index: int, payload: bytes, sender: int) -> None:
        self.spare.setdefault(index, payload)
        self.settle()


class Roomy(Shouting):
    """Has no limit for payloads, and counts nothing that it throws away."""

    @rpc
    def shot(self, index: int, payload: bytes, sender: int) -> None:
        if sender == self.broadcaster and index not in self.shots and index > self.voted:
            self.keep(index, payload)


# -- line 4


@pytest.mark.works_when(MINE, 4)
def test_a_node_that_delivers_its_own_chain_is_found():
    kinds = {each.kind for seed in range(20) for each in forked_in_chosen_order(OwnWord(), seed)}
    assert "unsafe_apply" in kinds


@pytest.mark.works_when(MINE, 4)
@pytest.mark.parametrize("part", [OwnWord(), AsItComes()], ids=["own_word", "as_it_comes"])
def test_a_restarted_broadcaster_shows_the_fault(part):
    found = [restarted(part, 4, seed).violations for seed in range(25)]
    kinds = {each.kind for violations in found for each in violations}
    expected = "gap" if isinstance(part, AsItComes) else "unsafe_apply"
    assert expected in kinds


# -- line 5


def kinds_of(made):
    return {each.kind for each in made.violations}


def check_line_5(engine):
    """Each planted fault is seen in the run that the sound part passes."""
    sound = {"ready_s": 0.1, "recover_s": 0.1}
    assert kinds_of(killed(AmortizedBRB(**sound), REAL, LIES, engine=engine)) == set()
    assert "not_delivered" in kinds_of(killed(Unanimous(**sound), REAL, engine=engine))
    assert "unsafe_apply" in kinds_of(killed(Credulous(**sound), REAL, LIES, engine=engine))


@pytest.mark.works_when(MINE, 5)
def test_waiting_for_the_dead_and_believing_garbage_are_found():
    check_line_5("virtual")


@pytest.mark.slow
@pytest.mark.works_when(MINE, 5)
def test_waiting_for_the_dead_and_believing_garbage_are_found_on_processes():
    check_line_5("processes")


@pytest.mark.slow
@pytest.mark.works_when(MINE, 5)
def test_a_node_that_counts_nothing_is_found_on_processes():
    problem = Battered(**REAL.changed_knobs())
    faults = (Byzantine(node=6, strategies=("mutate",), p=0.9), Corrupt(node=6, p=0.3))
    part = Roomy(ready_s=0.1, recover_s=0.1, most_B=8192)
    made = killed(part, problem, *faults, max_frame_B=1 << 20)
    assert made.metrics["refused_oversized"] == 0  # what the acceptance test asks to be above 0
    assert made.extra["oversize"] == 3  # the frames over the cap are the engine's to count
