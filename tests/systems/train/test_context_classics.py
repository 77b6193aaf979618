"""`ShortLongApart` and `FixedGroups`: values in both engines, and the known figure of each."""

from __future__ import annotations

import pytest
from tests.systems.collectives.attention_runs import play, real
from tests.systems.train.fcp_runs import figures, ports

from orrery import World
from orrery.base.errors import KnobError
from orrery.base.rand import Stream
from orrery.models.shards import rows
from orrery.systems.collectives import AttentionJob, ZigzagRing
from orrery.systems.train.baselines.fixed_groups import FixedGroups
from orrery.systems.train.baselines.group_ring import lightest_first
from orrery.systems.train.baselines.short_long_apart import ShortLongApart

CLASSICS = (ShortLongApart(), FixedGroups(), FixedGroups(group_size=2))
SAME = ("time_s", "forward_s", "egress_B", "link_B", "imbalance", "mfu")


@pytest.mark.parametrize("part", CLASSICS, ids=repr)
def test_random_batches_give_the_values_of_one_process(part):
    for seed in range(8):
        rng = Stream(seed, "shapes", "context")
        groups = 1 + rng.below(3)
        knobs = {
            "documents": tuple(rng.below(60) for _ in range(1 + rng.below(6))), "tokens": 0,
            "kv_heads": groups, "heads": groups * (1 + rng.below(3)), "causal": bool(seed % 2),
            "head_dim": 8, "dtype": "bf16" if seed % 4 == 3 else "fp32",
        }  # fmt: skip
        play(part, World.lan(1 + rng.below(6)), **knobs)


@pytest.mark.parametrize("part", CLASSICS, ids=repr)
def test_real_processes_give_the_values_of_one(part):
    assert real(part, 4, documents=(80, 22, 7, 7), kv_heads=2).violations == []


@pytest.mark.parametrize("part", [ShortLongApart(), FixedGroups(group_size=8)], ids=repr)
def test_a_single_long_sequence_takes_the_time_and_bytes_of_a_zigzag_ring(part):
    world = ports(8, 50e9)
    ours, ring = (figures(p, (65_536,), world) for p in (part, ZigzagRing()))
    for metric in SAME:
        assert ours[metric] == pytest.approx(ring[metric], rel=1e-3), metric


def test_short_sequences_alone_send_nothing_and_reach_what_a_kernel_reaches():
    metrics = figures(ShortLongApart(), (16_384,) * 16, ports(8, 1e9))
    assert metrics["egress_B"] == 0
    assert metrics["imbalance"] == 1.0
    assert metrics["mfu"] == pytest.approx(0.6, rel=0.02)


def test_short_ones_stay_whole_and_long_ones_are_cut_over_all():
    shards = ShortLongApart().layout(AttentionJob(documents=(800, 100, 100, 30)), 4, World.lan(4))
    holders = [sum(any(b.document == d for b in blocks) for blocks in shards) for d in range(4)]
    assert holders == [4, 1, 1, 1]


@pytest.mark.parametrize("group", [1, 2, 4])
def test_a_group_passes_its_keys_round_once(group):
    # Of 8 workers with one sequence a group, each sends (g - 1) of its own size forwards.
    made = figures(FixedGroups(group_size=group), (4096 * group,) * (8 // group), ports(8, 50e9),
                   backward=False)  # fmt: skip
    assert made["egress_B"] == (group - 1) * 4096 * 8 * 128 * 2 * 2
    assert made["imbalance"] == pytest.approx(1.0)


def test_the_group_is_as_large_as_the_longest_sequence_needs():
    part, world = FixedGroups(), World.lan(8)
    for longest, held_by in ((100, 1), (200, 2), (400, 4), (2000, 8)):
        job = AttentionJob(documents=(longest, *[100] * 7))
        shards = part.layout(job, 8, world)
        found = sum(any(b.document == 0 for b in blocks) for blocks in shards)
        assert found >= held_by
        assert sum(rows(blocks) for blocks in shards) == longest + 700


def test_dealing_is_longest_first():
    # Graham (1969): the worst case of this rule, 4/3 - 1/(3 m) of the best: 11 where 9 is possible.
    jobs = [(work, 0) for work in (5, 5, 4, 4, 3, 3, 3)]
    dealt = lightest_first(jobs, 3, 1.0)
    assert max(sum(jobs[i][0] for i in items) for items in dealt) == 11


@pytest.mark.parametrize(
    ("part", "knobs"),
    [(ShortLongApart, {"short_tokens": -1}), (FixedGroups, {"group_size": 1.5})],
)
def test_bad_knobs_are_named(part, knobs):
    with pytest.raises(KnobError, match=next(iter(knobs))):
        part(**knobs)
