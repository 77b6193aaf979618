"""`Bracha` and `BrachaHashes`: their closed forms, three steps, and the cost of lies."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.parts.byzantine import Strategy
from orrery.systems.protocols.baselines.bracha import Bracha
from orrery.systems.protocols.baselines.bracha_hashes import BrachaHashes
from orrery.systems.protocols.problems.reliable_broadcast import ReliableBroadcast
from orrery.world import Byzantine

UNIT = {"latency_s": 1.0, "jitter": 0.0, "bandwidth_Bps": 1e15}
PROBLEM = ReliableBroadcast(shots=5, size_B=1000, pace_s=1.0, settle_s=100.0)
PAYLOAD_B, HASH_B = 64 + 4 + 8 + 4 + 1000, 64 + 4 + 8 + 4 + 32


@pytest.mark.parametrize("n", [4, 7, 13])
@pytest.mark.parametrize("part", [Bracha(), BrachaHashes(recover_s=9.0)], ids=["full", "hashes"])
def test_the_closed_form_of_the_papers(part, n):
    made = run(part, problem=PROBLEM, world=World.lan(n, **UNIT))
    assert made.ok and made.metrics["delivered_share"] == 1.0
    # One initial message to each, then everybody echoes and is ready to everybody.
    echo_B = PAYLOAD_B if isinstance(part, Bracha) else HASH_B
    bytes_ = (n - 1) * PAYLOAD_B + n * (n - 1) * (echo_B + HASH_B)
    assert made.metrics["bytes_per_shot"] == bytes_
    client = 5 + 2 * n  # the shots, and the reports at the end
    assert made.messages == client + 5 * ((n - 1) + 2 * n * (n - 1))
    assert made.metrics["latency_steps_max"] == 3.0
    assert made.metrics["rounds_per_shot"] == 2.0
    assert made.metrics["requests"] == 0


def test_who_is_left_out_asks_everybody_and_gets_a_copy_of_each():
    n = 13
    world = World.lan(n, **UNIT).with_faults(Byzantine(node=0, strategies=("selective",),
                                                       to=tuple(range(1, 10))))  # fmt: skip
    hashes = run(BrachaHashes(recover_s=9.0), problem=PROBLEM, world=world)
    assert hashes.ok and hashes.metrics["delivered_share"] == 1.0
    assert hashes.metrics["requests_max"] == 9
    copies_B = hashes.metrics["payload_bytes_per_shot"]
    assert copies_B == 3 * 9 * PAYLOAD_B  # three were left out
    full = run(Bracha(), problem=PROBLEM, world=world)
    assert full.ok and full.metrics["requests"] == 0


@pytest.mark.parametrize("part", [Bracha(), BrachaHashes()], ids=["full", "hashes"])
def test_an_equivocating_broadcaster_splits_nobody(part):
    for seed in range(20):
        lie = Byzantine(node=(0, 1), strategies=("equivocate",))
        world = World.lan(7, jitter=3.0).with_faults(lie)
        assert run(part, problem=ReliableBroadcast(shots=3), world=world, seed=seed).ok


class Split(Strategy):
    """Tells the last node another payload, in shots and in echoes."""

    def on_send(self, message):
        if message.dst != self.liar.size - 1 or message.method not in ("shot", "echo"):
            return [message]
        index, payload = message.args
        return [message._replace(args=(index, payload[::-1]))]


def test_a_quorum_that_is_too_small_is_noticed():
    class Careful(Bracha):
        """As it is, with one more way to lie."""

        byzantine = {"split": Split}

    class Gullible(Careful):
        """Takes two equal echoes for a quorum, and one ready for certainty."""

        def start(self):
            super().start()
            self.quorum, self.f = 2, 0

    lie = Byzantine(node=0, strategies=("split",))
    world = World.lan(4).with_faults(lie)
    made = run(Gullible(), problem=ReliableBroadcast(shots=3), world=world)
    assert "unsafe_apply" in {each.kind for each in made.violations}
    assert run(Careful(), problem=ReliableBroadcast(shots=3), world=world).ok
