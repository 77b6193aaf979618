"""The classics of linear attention over many ranks: values, and the known figure of each."""

from __future__ import annotations

import math

import pytest

from orrery import World, run
from orrery.base.errors import PartError
from orrery.base.rand import Stream
from orrery.systems.collectives.baselines.lasp import LASP
from orrery.systems.collectives.baselines.lasp2 import LASP2
from orrery.systems.collectives.baselines.linear_ring import LinearRing
from orrery.systems.collectives.baselines.linear_single import LinearSingle
from orrery.systems.collectives.baselines.linear_ulysses import LinearUlysses
from orrery.systems.collectives.problems.long_linear_attention import (
    LongLinearAttention,
    SequenceLinearAttention,
)
from orrery.world.hardware import Machine

CLASSICS = (LASP(), LASP2(), LASP2(gathering="doubling"), LinearRing(), LinearUlysses(),
            LinearSingle())  # fmt: skip
ALPHA_S, LINK_BPS = 1e-4, 1e9
# A state of one mebibyte.
MEBI = {"heads": 16, "key_dim": 128, "value_dim": 128, "sized": True, "chunk": 64}
T_S = (1 << 20) / LINK_BPS


def lan(n):
    gpu = Machine(accelerators=("H100-SXM",))
    return World.lan(n, machine=gpu, latency_s=ALPHA_S, bandwidth_Bps=LINK_BPS, jitter=0.0,
                     model="flows")  # fmt: skip


def play(part, world, **knobs):
    made = run(part, problem=LongLinearAttention(**knobs), world=world)
    assert made.violations == []
    return made.metrics


@pytest.mark.parametrize("part", CLASSICS, ids=repr)
def test_random_shapes_give_the_values_of_one_process(part):
    for seed in range(8):
        rng = Stream(seed, "shapes", "linear classics")
        knobs = {
            "tokens": rng.below(130), "heads": 1 + rng.below(4), "key_dim": 1 + rng.below(9),
            "value_dim": 1 + rng.below(9), "chunk": 1 + rng.below(20),
            "decay": ("none", "fixed", "data")[seed % 3],
            "dtype": "bf16" if seed % 4 == 3 else "fp32",
        }  # fmt: skip
        play(part, World.lan(1 + rng.below(6)), **knobs)


@pytest.mark.parametrize("part", CLASSICS, ids=repr)
def test_real_processes_give_the_values_of_one(part):
    made = run(part, problem=LongLinearAttention(tokens=77), world=World.lan(3),
               engine="processes", nodes_per_process=1, until_s=60.0)  # fmt: skip
    assert made.violations == []


# -- what is known of each


@pytest.mark.parametrize("n", [2, 5, 32])
def test_a_chain_waits_for_every_rank_before(n):
    metrics = play(LASP(), lan(n), tokens=0, backward=False, **MEBI)
    assert metrics["scan_s"] == pytest.approx((n - 1) * (ALPHA_S + T_S), rel=0.01)
    assert metrics["sent_states"] == 1.0


@pytest.mark.parametrize("n", [2, 5, 32])
def test_a_ring_gathers_in_the_textbook_time(n):
    metrics = play(LASP2(), lan(n), tokens=0, backward=False, **MEBI)
    with_decay_s = T_S * (1 + 1 / 128)
    assert metrics["scan_s"] == pytest.approx((n - 1) * (ALPHA_S + with_decay_s), rel=0.01)
    assert metrics["sent_states"] == pytest.approx((n - 1) * (1 + 1 / 128))


@pytest.mark.parametrize("n", [2, 5, 32])
def test_doubling_saves_latencies_and_no_bytes(n):
    metrics = play(LASP2(gathering="doubling"), lan(n), tokens=0, backward=False, **MEBI)
    steps = math.ceil(math.log2(n))
    with_decay_s = T_S * (1 + 1 / 128)
    assert metrics["scan_s"] == pytest.approx(steps * ALPHA_S + (n - 1) * with_decay_s, rel=0.01)
    assert metrics["sent_states"] == pytest.approx((n - 1) * (1 + 1 / 128))


def test_a_ring_of_rows_pays_with_bytes_and_the_square_of_the_length():
    knobs = {**MEBI, "tokens": 1 << 16, "dtype": "bf16", "backward": False}
    ring, chain = (play(part, lan(4), **knobs) for part in (LinearRing(), LASP()))
    # K and V in bf16 and the log decay in fp32, three hops; the chain sends one state.
    assert ring["egress_B"] == 3 * (2 * 2 + 4) * (1 << 14) * 16 * 128
    assert chain["egress_B"] == 1 << 20
    link_s = ring["egress_B"] / LINK_BPS + 3 * ALPHA_S
    assert ring["forward_s"] == pytest.approx(link_s, rel=0.05)
    # The last rank pairs its rows with three blocks of as many.
    fast = World.lan(4, machine=Machine(accelerators=("H100-SXM",)), latency_s=1e-9,
                     bandwidth_Bps=1e15, jitter=0.0, model="flows")  # fmt: skip
    pairs_s = 3 * 2.0 * (1 << 28) * 16 * 256 / (989.4e12 * 0.6)
    assert play(LinearRing(), fast, **knobs)["forward_s"] == pytest.approx(pairs_s, rel=0.1)


def test_ulysses_sends_rows_and_no_states():
    knobs = {**MEBI, "tokens": 4096, "dtype": "bf16", "backward": False}
    metrics = play(LinearUlysses(), lan(4), **knobs)
    # Q, K, V and the output in bf16 and the log decay in fp32, all but the own heads of them.
    assert metrics["egress_B"] == (4 * 2 + 4) * 1024 * 16 * 128 * 3 / 4
    assert metrics["scan_s"] == 0.0


def test_a_single_device_takes_its_flops_and_bytes():
    knobs = {**MEBI, "tokens": 1 << 16, "dtype": "bf16", "backward": False, "chunk": 4096}
    metrics = play(LinearSingle(), lan(3), **knobs)
    rows, peak, memory = 1 << 16, 989.4e12 * 0.6, 3.35e12
    dense = 2.0 * rows * 16 * 4096 * 256 / peak  # inside chunks this large, flops bind
    states = 3 * rows * 16 * 128 * 2 / memory  # with the states, bytes do
    # Ranks leave the barrier before a round up to one latency apart.
    assert metrics["forward_s"] == pytest.approx(dense + 2 * states, abs=1.1 * ALPHA_S)
    assert metrics["stretch"] == pytest.approx(1.0, abs=1.1 * ALPHA_S / metrics["alone_s"])


# -- the port and the problem


def test_sized_runs_take_the_time_and_bytes_of_real_ones():
    for part in CLASSICS:
        knobs = {"tokens": 100, "heads": 3}
        true, sized = (play(part, lan(4), **knobs, sized=sized) for sized in (False, True))
        for metric in ("time_s", "egress_B", "link_B", "imbalance", "scan_s", "alone_s"):
            assert sized[metric] == true[metric], (part, metric)


def test_the_rest_of_the_layer_takes_its_time():
    flops = 1e12
    plain, more = (play(LASP(), lan(2), tokens=2048, dense_flops=f, dtype="bf16", **MEBI)
                   for f in (0.0, flops / 1024))  # fmt: skip
    took_s = 3 * flops / (989.4e12 * 0.6)
    assert more["time_s"] - plain["time_s"] == pytest.approx(took_s, rel=0.05)
    assert more["alone_s"] - plain["alone_s"] == pytest.approx(took_s, rel=0.05)


def test_a_port_without_algorithm_says_so():
    with pytest.raises(PartError, match="has no incoming"):
        run(SequenceLinearAttention(), problem=LongLinearAttention(), world=World.lan(2))
