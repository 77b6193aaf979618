"""The knob `jitter` of data_parallel reaches every trainer, also those that go layer by layer."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.systems.train import DataParallel, DiLoCo, EDiT, FullySharded, Synchronous
from orrery.systems.train.problems.data_parallel import final

PARTS = {
    "one pass": DiLoCo(every=4),
    "layers overlapped": Synchronous(),
    "layers gathered": FullySharded(),
    "shards": EDiT(every=4, shard=2),
    "replicas": EDiT(every=4),
}


def trained(part, jitter, seed=1):
    problem = DataParallel(task="digits", steps=8, scale=1e6, jitter=jitter)
    world = World.lan(4, latency_s=1e-6, jitter=0.0, bandwidth_Bps=1e15)
    made = run(part, problem=problem, world=world, seed=seed)
    assert made.ok
    return made.metrics["loss"], [v["busy_s"] for _, v in sorted(final(made).items())]


@pytest.mark.parametrize("name", PARTS)
def test_steps_take_times_that_differ_and_the_weights_do_not(name):
    loss, even = trained(PARTS[name], 0.0)
    same_loss, uneven = trained(PARTS[name], 0.5)
    assert max(even) - min(even) < 1e-3 * max(even)
    assert max(uneven) - min(uneven) > 0.1 * max(even)
    assert same_loss == loss


@pytest.mark.parametrize("name", PARTS)
def test_every_step_is_drawn_anew_from_the_seed(name):
    first = trained(PARTS[name], 0.3)[1]
    assert trained(PARTS[name], 0.3)[1] == first
    assert trained(PARTS[name], 0.3, seed=2)[1] != first
