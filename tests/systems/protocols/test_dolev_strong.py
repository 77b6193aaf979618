"""`DolevStrong`: f + 1 rounds, its message count, and more liars than others bear."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.base.errors import KnobError
from orrery.systems.protocols.baselines.dolev_strong import DolevStrong, sign, signed, text_of
from orrery.systems.protocols.problems.reliable_broadcast import ReliableBroadcast
from orrery.world import Byzantine

PROBLEM = ReliableBroadcast(shots=3, size_B=100, pace_s=1.0, settle_s=5.0)


@pytest.mark.parametrize(("n", "f"), [(4, 1), (7, 2), (7, 5)])
def test_messages_and_rounds_of_the_paper(n, f):
    part = DolevStrong(round_s=0.1, tolerated=f)
    made = run(part, problem=PROBLEM, world=World.lan(n))
    assert made.ok and made.metrics["delivered_share"] == 1.0
    # The broadcaster tells all; each other node signs and tells all who have not signed.
    assert made.messages == 3 + 2 * n + 3 * ((n - 1) + (n - 1) * (n - 2))
    delivered = [r.time_s for r in made.records if "delivered" in r.values]
    slot_s = (f + 1) * 0.1
    assert all(abs(time_s / slot_s - round(time_s / slot_s)) < 1e-6 for time_s in delivered)


@pytest.mark.parametrize("habit", ["equivocate", "silence", "mutate", "replay"])
def test_any_number_of_liars_is_borne(habit):
    part = DolevStrong(round_s=0.1, tolerated=4)
    for seed in range(5):
        world = World.lan(6).with_faults(Byzantine(node=(0, 2, 3, 5), strategies=(habit,)))
        made = run(part, problem=PROBLEM, world=world, seed=seed)
        assert made.violations == []


def test_an_equivocator_is_found_out_and_nothing_is_delivered():
    world = World.lan(5).with_faults(Byzantine(node=0, strategies=("equivocate",)))
    honest = run(DolevStrong(round_s=0.1), problem=PROBLEM, world=world)
    assert honest.violations == []
    assert honest.metrics["refused"] > 0


def test_delays_beyond_the_round_break_it():
    world = World.lan(7, latency_s=0.4, jitter=0.5)
    made = run(DolevStrong(round_s=0.1), problem=PROBLEM, world=world)
    assert not made.ok


def test_signatures_are_of_one_node_and_one_text():
    text = text_of(1, 1, (b"a",))
    assert len({text, text_of(1, 2, (b"a",)), text_of(2, 1, (b"a",)), text_of(1, 1, (b"b",))}) == 4
    assert signed(3, text, sign(3, text)) and len(sign(3, text)) == 64
    assert not signed(2, text, sign(3, text)) and not signed(-1, text, sign(3, text))
    assert not signed(3, text + b"x", sign(3, text))


def test_all_liars_are_too_many():
    with pytest.raises(KnobError, match=r"DolevStrong.tolerated: 4 liars among 5 nodes"):
        run(DolevStrong(tolerated=4), problem=PROBLEM, world=World.lan(5))
