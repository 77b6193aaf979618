"""Push gossip: the published number of rounds, determinism, wire mode."""

from __future__ import annotations

import math

import pytest

from orrery import World, run
from orrery.base.errors import KnobError
from orrery.systems.protocols import Broadcast, PushGossip


def rounds_to_all(n: int, seed: int) -> float:
    """How many synchronous rounds one value needs to reach all n nodes, one call a round."""
    part = PushGossip(fanout=1, period_s=1.0)
    problem = Broadcast(values=1, spread_s=0.0, settle_s=math.log2(n) + math.log(n) + 14)
    made = run(part, problem=problem, world=World.rounds(n), seed=seed)
    assert made.violations == []
    return made.metrics["time_to_100_s"]


def test_all_know_after_log2_n_plus_ln_n_rounds():
    # Pittel (1987): log2 n + ln n + O(1). The mean over seeds is within two rounds of it, and what
    # is left over does not grow with n.
    beyond = []
    for n, seeds in ((64, 16), (256, 12), (1024, 8)):
        mean = sum(rounds_to_all(n, seed) for seed in range(seeds)) / seeds
        beyond.append(mean - (math.log2(n) + math.log(n)))
    assert all(-1.0 < rest < 2.0 for rest in beyond), beyond
    assert abs(beyond[-1] - beyond[0]) < 1.5


def test_more_fanout_is_faster_and_costs_more():
    world = World.lan(100)
    by_fanout = {
        fanout: run(PushGossip(fanout=fanout), problem=Broadcast(), world=world).metrics
        for fanout in (1, 3, 6)
    }
    times = [metrics["time_to_99_s"] for metrics in by_fanout.values()]
    messages = [metrics["messages_per_value"] for metrics in by_fanout.values()]
    assert times == sorted(times, reverse=True)
    assert messages == sorted(messages)


def test_same_seed_same_digest_in_both_kernels_and_on_the_wire():
    world = World.lan(40, drop=0.1)
    first = run(PushGossip(), problem=Broadcast(), world=world, seed=3)
    again = run(PushGossip(), problem=Broadcast(), world=world, seed=3, kernel="python")
    assert first.digest == again.digest
    assert first.metrics == again.metrics
    wired = run(PushGossip(), problem=Broadcast(), world=world, seed=3, wire=True)
    assert wired.violations == []
    assert wired.decisions == first.decisions
    assert run(PushGossip(), problem=Broadcast(), world=world, seed=4).digest != first.digest


@pytest.mark.parametrize("knobs", [{"fanout": 0}, {"period_s": 0.0}, {"period_s": float("nan")}])
def test_bad_knobs_are_named(knobs):
    with pytest.raises(KnobError, match=rf"PushGossip\.{next(iter(knobs))}"):
        PushGossip(**knobs)
