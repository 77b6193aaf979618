"""The checker of `reliable_broadcast` fails every run that it must fail."""

from __future__ import annotations

import hashlib

import pytest

from orrery import World, run
from orrery.parts import rpc
from orrery.systems.protocols.problems.reliable_broadcast import (
    ReliableBroadcast,
    ReliableBroadcaster,
    correct_nodes,
)
from orrery.world import Byzantine, Crash


class Plain(ReliableBroadcaster):
    """Delivers what it hears at once; right as long as nobody lies or falls."""

    fault: str = ""

    @rpc
    def broadcast(self, payload: bytes) -> None:
        index = self.next_shot()
        self.say_all("payload", Plain.shot, index, payload)
        self.hear(index, payload)

    @rpc
    def shot(self, index: int, payload: bytes) -> None:
        self.hear(index, payload)

    def hear(self, index, payload):
        if self.id == 2 and self.fault == "other" and index == 3:
            payload = payload[::-1]
        if self.id == 2 and self.fault == "swap" and index in (3, 4):
            index = 7 - index
        if self.id == 2 and self.fault == "skip" and index == 3:
            return
        if self.id == 0 and self.fault == "own" and index == 10:
            return
        if self.fault == "none":
            return
        self.deliver(index, payload)
        if self.id == 2 and self.fault == "twice" and index == 3:
            self.deliver(index, payload)


TEN = ReliableBroadcast(shots=10, size_B=16)


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        ("", set()),
        ("other", {"unsafe_apply", "created", "missed"}),
        ("swap", {"gap", "unsafe_apply", "created", "missed", "applied_again"}),
        ("skip", {"gap", "missed"}),
        ("own", {"not_delivered", "missed"}),
        ("none", {"not_delivered"}),
        ("twice", {"applied_again", "duplicated"}),
    ],
)
def test_each_fault_is_called_by_its_names(fault, kinds):
    made = run(Plain(fault=fault), problem=TEN, world=World.lan(4))
    assert {each.kind for each in made.violations} == kinds


def test_liars_and_the_fallen_are_not_held_to_anything():
    for fault in (Crash(node=2, at_s=0.0), Byzantine(node=2, strategies=("silence",))):
        made = run(Plain(fault="skip"), problem=TEN, world=World.lan(4).with_faults(fault))
        assert made.violations == []
        assert 2 not in made.decisions


def test_a_lying_broadcaster_owes_nothing_but_may_not_split():
    lie = Byzantine(node=0, strategies=("equivocate",))
    made = run(Plain(), problem=TEN, world=World.lan(4).with_faults(lie))
    assert "unsafe_apply" in {each.kind for each in made.violations}
    mute = Byzantine(node=0, strategies=("silence",))
    assert run(Plain(), problem=TEN, world=World.lan(4).with_faults(mute)).violations == []


def test_a_run_cut_short_is_judged_only_for_what_it_did():
    made = run(Plain(fault="skip"), problem=TEN, world=World.lan(4), until_s=0.015)
    assert made.ended == "until" and made.violations == []
    assert 0 < made.metrics["delivered_share"] < 1
    assert made.metrics["bytes_per_shot"] == 0.0  # nobody could report


def test_bytes_and_digests_are_those_of_the_run():
    made = run(Plain(), problem=TEN, world=World.lan(4), seed=5)
    assert made.metrics["bytes_per_shot"] == 3 * (64 + 4 + 8 + 4 + 16)
    offered = [r.values["digest"] for r in made.records if "offered" in r.values]
    assert [digest for _, digest in made.decisions[3]] == offered
    assert len({*offered, hashlib.sha256(b"").hexdigest()}) == 11


def test_who_is_correct_follows_from_the_faults():
    class Seen(ReliableBroadcast):
        """Keeps what the checker takes for correct."""

        def check(self, outcome):
            self.__dict__["good"] = correct_nodes(outcome)
            return []

    problem = Seen(shots=2)
    world = World.lan(5).with_faults(
        Crash(node=1, at_s=0.01, until_s=0.02), Byzantine(node=3, strategies=("delay",))
    )
    run(Plain(), problem=problem, world=world)
    assert problem.good == {0, 2, 4}
