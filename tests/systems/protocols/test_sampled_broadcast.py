"""`SampledBroadcast`: its message counts, how they grow, and where its chances end."""

from __future__ import annotations

import math

import pytest

from orrery import World, run
from orrery.systems.protocols.baselines.sampled_broadcast import SampledBroadcast
from orrery.systems.protocols.problems.reliable_broadcast import ReliableBroadcast
from orrery.world import Byzantine

PROBLEM = ReliableBroadcast(shots=4, size_B=200)


@pytest.mark.parametrize("n", [40, 100])
def test_the_message_count_of_the_paper(n):
    part = SampledBroadcast(factor=4.0)
    made = run(part, problem=PROBLEM, world=World.lan(n), seed=2)
    assert made.ok and made.metrics["delivered_share"] == 1.0
    size = math.ceil(4.0 * math.log(n + 1))
    assert size < n - 1
    # Every node gossips each payload to `size` others.
    assert made.metrics["payload_bytes_per_shot"] == n * size * (64 + 4 + 8 + 204 + 68)
    # It listens to `size` echoes, and to the readies of two samples, which may share members.
    client = 4 + 2 * n
    votes = (made.messages - client - 4 * n * size) / n
    assert (1 + 4) * 2 * size <= votes <= (1 + 4) * 3 * size


def test_bytes_grow_as_n_log_n_and_those_of_all_to_all_as_its_square():
    def votes(factor, n):
        made = run(SampledBroadcast(factor=factor), problem=PROBLEM, world=World.lan(n), seed=1)
        assert made.ok
        return made.metrics["vote_bytes_per_shot"]

    growth = math.log(votes(3.0, 80) / votes(3.0, 20)) / math.log(4)
    square = math.log(votes(99.0, 80) / votes(99.0, 20)) / math.log(4)
    assert 1.0 < growth < 1.5 < 1.9 < square < 2.1


def test_samples_of_all_bear_a_third_of_liars():
    for seed in range(10):
        for habit in ("silence", "equivocate", "mutate"):
            lie = Byzantine(node=(0, 4), strategies=(habit,))
            world = World.lan(7, jitter=3.0).with_faults(lie)
            assert run(SampledBroadcast(), problem=PROBLEM, world=world, seed=seed).ok


def test_small_samples_fail_at_times_and_large_ones_do_not():
    lie = Byzantine(node=tuple(range(20, 29)), strategies=("silence",))
    world = World.lan(30).with_faults(lie)

    def failures(factor):
        runs = (run(SampledBroadcast(factor=factor), problem=PROBLEM, world=world, seed=seed)
                for seed in range(8))  # fmt: skip
        return sum(not made.ok for made in runs)

    assert failures(0.7) > 0
    assert failures(99.0) == 0
