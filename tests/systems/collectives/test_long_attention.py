"""The classics of long attention: values in both engines, and the known figure of each."""

from __future__ import annotations

import pytest
from tests.systems.collectives.attention_runs import (
    LATENCY_S,
    SLOW_BPS,
    llama,
    mesh,
    play,
    real,
    sent,
    shared_port,
)

from orrery import World, run
from orrery.base.errors import PartError
from orrery.base.rand import Stream
from orrery.systems.collectives.baselines.bidirectional_ring import BidirectionalRing
from orrery.systems.collectives.baselines.ring_attention import RingAttention
from orrery.systems.collectives.baselines.single_device import SingleDevice
from orrery.systems.collectives.baselines.ulysses import Ulysses
from orrery.systems.collectives.baselines.zigzag_ring import ZigzagRing
from orrery.systems.collectives.problems.long_attention import LongAttention, SequenceAttention

CLASSICS = (RingAttention(), ZigzagRing(), BidirectionalRing(), Ulysses(), SingleDevice())
BLOCK_B = 4096 * 4096 * 2  # 4,096 rows of 32 heads of 128 numbers in bf16


def name(part):
    return type(part).__name__


@pytest.mark.parametrize("part", CLASSICS, ids=name)
def test_random_batches_give_the_values_of_one_process(part):
    for seed in range(8):
        rng = Stream(seed, "shapes", "classics")
        groups = 1 + rng.below(3)
        knobs = {
            "documents": tuple(rng.below(50) for _ in range(1 + rng.below(4))), "tokens": 0,
            "kv_heads": groups, "heads": groups * (1 + rng.below(3)), "causal": bool(seed % 2),
            "head_dim": 4 + 4 * rng.below(4), "dtype": "bf16" if seed % 4 == 3 else "fp32",
        }  # fmt: skip
        play(part, World.lan(1 + rng.below(6)), **knobs)


@pytest.mark.parametrize("part", CLASSICS, ids=name)
def test_real_processes_give_the_values_of_one(part):
    made = real(part, 3, documents=(41, 22), kv_heads=2, rounds=2)
    assert made.violations == []


@pytest.mark.slow
@pytest.mark.parametrize("part", CLASSICS, ids=name)
@pytest.mark.parametrize("causal", [True, False])
def test_eight_real_processes(part, causal):
    assert real(part, 8, documents=(301, 77), causal=causal).violations == []


# -- what is known of each


@pytest.mark.parametrize("n", [2, 4, 7])
def test_a_ring_takes_two_blocks_a_step_and_the_textbook_time(n):
    metrics = llama(RingAttention(), mesh(n))
    assert metrics["link_B"] == metrics["egress_B"] == 2 * (n - 1) * BLOCK_B
    step_s = 2 * BLOCK_B / SLOW_BPS + LATENCY_S
    assert metrics["forward_s"] == pytest.approx((n - 1) * step_s, rel=0.05)


def test_gradients_of_a_ring_make_one_hop_more():
    made = play(RingAttention(), mesh(4), tokens=64, heads=2, head_dim=8, causal=False)
    block_B = 16 * 2 * 8 * 4
    assert set(sent(made, "backward").values()) == {2 * 3 * block_B + 2 * 4 * block_B}


def test_a_causal_ring_is_as_uneven_as_its_rows():
    # Of n (n + 1) / 2 visible blocks the last rank has n, where the mean is (n + 1) / 2.
    n = 8
    ring = llama(RingAttention(), shared_port(n), causal=True)
    assert ring["imbalance"] == pytest.approx(2 * n / (n + 1), rel=0.07)
    assert llama(ZigzagRing(), shared_port(n), causal=True)["imbalance"] == pytest.approx(1.0)


def test_zigzag_nearly_halves_the_time_of_a_causal_ring_where_compute_binds():
    time_s = [llama(part, mesh(8, 1e12), causal=True)["forward_s"]
              for part in (ZigzagRing(), RingAttention())]  # fmt: skip
    assert time_s[0] == pytest.approx(time_s[1] * 9 / 16, rel=0.1)


@pytest.mark.parametrize("n", [3, 4, 8])
def test_a_bidirectional_ring_halves_each_direction(n):
    metrics = llama(BidirectionalRing(), mesh(n))
    assert metrics["link_B"] == (n - 1) * BLOCK_B
    assert metrics["egress_B"] == 2 * (n - 1) * BLOCK_B
    ring_s = llama(RingAttention(), mesh(n))["forward_s"]
    assert metrics["forward_s"] == pytest.approx(ring_s / 2, rel=0.05)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_ulysses_sends_less_the_more_ranks_there_are(n):
    metrics = llama(Ulysses(), shared_port(n))
    # Q, K, V and the output, of each all but the own share of the heads.
    assert metrics["egress_B"] == 4 * BLOCK_B * (n - 1) / n
    one_way_s = BLOCK_B * (n - 1) / n / SLOW_BPS
    flops_s = 4 * (4096 * n) ** 2 * 4096 / n / (989.4e12 * 0.6)
    assert metrics["forward_s"] == pytest.approx(4 * one_way_s + flops_s, rel=0.01)


def test_ulysses_has_work_for_as_many_ranks_as_heads():
    made = play(Ulysses(), World.lan(6), tokens=48, heads=4, head_dim=8)
    assert made.metrics["imbalance"] == pytest.approx(6 / 4)


def test_a_single_device_takes_its_flops():
    metrics = llama(SingleDevice(), shared_port(4), tokens=65536, backward=True)
    flops = 65536**2 * 4096 / (989.4e12 * 0.6)
    assert metrics["forward_s"] == pytest.approx(4 * flops, rel=1e-3)
    assert metrics["backward_s"] == pytest.approx(14 * flops, rel=1e-2)  # idle ranks wait for both
    assert metrics["egress_B"] == 0


def test_alone_where_flops_bind_it_reaches_what_a_kernel_reaches():
    metrics = llama(SingleDevice(), shared_port(4), tokens=65536)
    assert metrics["mfu"] == pytest.approx(0.6 / 4, rel=1e-3)


# -- the port and the problem


class Uneven(RingAttention):
    """Shards of unequal size, with blocks of several documents, in no order."""

    def layout(self, job, size, world):
        blocks = [block for blocks in super().layout(job, 7 * size, world) for block in blocks]
        Stream(3, "uneven", "layout").shuffle(blocks)
        first = len(blocks) // 2
        return (tuple(blocks[:first]), *(tuple(blocks[first + r :: size - 1])
                                         for r in range(size - 1)))  # fmt: skip


@pytest.mark.parametrize("causal", [True, False])
def test_any_placement_of_blocks_will_do(causal):
    made = play(Uneven(), World.lan(4), documents=(60, 1, 33, 20), causal=causal)
    assert made.metrics["imbalance"] > 1.3


def test_sized_runs_take_the_time_and_bytes_of_real_ones():
    for part in CLASSICS:
        knobs = {"documents": (96, 45), "kv_heads": 2, "dtype": "bf16"}
        true = play(part, shared_port(4), **knobs).metrics
        sized = play(part, shared_port(4), **knobs, sized=True).metrics
        for metric in ("time_s", "egress_B", "link_B", "imbalance"):
            assert sized[metric] == true[metric], (name(part), metric)


def test_many_devices_and_a_million_rows_fit():
    knobs = {"tokens": 1 << 20, "causal": True, "backward": True}
    metrics = llama(ZigzagRing(), World.lan(32, jitter=0.0, model="flows"), **knobs)
    assert metrics["imbalance"] == pytest.approx(1.0, rel=1e-3)


def test_a_batch_of_a_thousand_documents_is_no_burden():
    documents = tuple(8 + (37 * i) % 1000 for i in range(1000))
    made = play(ZigzagRing(), World.lan(8), documents=documents, sized=True, backward=False)
    assert made.metrics["imbalance"] < 1.05


def test_a_port_without_algorithm_says_so():
    with pytest.raises(PartError, match="has no forward"):
        run(SequenceAttention(), problem=LongAttention(), world=World.lan(2))
