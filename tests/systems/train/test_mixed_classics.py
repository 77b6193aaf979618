"""The classics of mixed clusters: values in both engines, and the known figure of each."""

from __future__ import annotations

import pytest
from tests.systems.train.hexiseq_runs import EVEN, RIVALS, SIZED, SMALL, figures, play

from orrery import World, run
from orrery.systems.collectives import LongAttention, Ulysses, ZigzagRing
from orrery.systems.train.baselines.even_context import EvenContext
from orrery.systems.train.baselines.even_heads import EvenHeads
from orrery.systems.train.baselines.even_mesh import EvenMesh
from orrery.systems.train.baselines.flops_shards import FlopsShards
from orrery.systems.train.problems.mixed_cluster_attention import (
    MixedClusterAttention,
    mixed_cluster,
)

LAYER = {"model": "Llama-3.2-3B", "tokens": 1 << 17}
SHAPE = {"heads": 24, "kv_heads": 8, "head_dim": 128, "tokens": 1 << 17, "dtype": "bf16",
         "sized": True}  # fmt: skip
TWO = ("H100-SXM", "A100-80-SXM")
H100, A100 = 989.4, 312.0


@pytest.mark.parametrize("name", RIVALS)
def test_each_trains_as_one_process_in_both_engines(name):
    for engine in ("virtual", "processes"):
        made = play(RIVALS[name], World.lan(4), engine, **SMALL)
        assert made.violations == []
        assert max(made.metrics["error"], made.metrics["grad_error"]) <= 1e-5


@pytest.mark.parametrize(("layer", "alone"), [(EvenContext(), ZigzagRing()),
                                              (EvenHeads(), Ulysses())])  # fmt: skip
def test_a_layer_sends_what_its_attention_alone_sends(layer, alone):
    theirs = run(alone, problem=LongAttention(**SHAPE), world=mixed_cluster(TWO)).metrics
    ours = figures(layer, TWO, **LAYER)
    for metric in ("egress_B", "link_B"):
        assert ours[metric] == theirs[metric]


@pytest.mark.parametrize("nodes", [("A100-80-SXM",), TWO])
def test_the_ends_of_a_mesh_are_ring_and_ulysses(nodes):
    # The mesh is run by the uneven executor: with even splits it must be as good as the classics.
    size = 8 * len(nodes)
    for wide, classic in ((1, EvenContext()), (size, EvenHeads())):
        mesh, usual = (figures(part, nodes, **LAYER) for part in (EvenMesh(wide=wide), classic))
        assert mesh["egress_B"] == usual["egress_B"]
        assert mesh["time_s"] == pytest.approx(usual["time_s"], rel=0.02)


def test_on_equal_devices_a_mesh_reaches_what_kernels_reach():
    # Four passes of flops, of which three count, at 0.6 of the peak; attention has 4 and 10 of 14.
    made = figures(EvenMesh(wide=8), ("H100-SXM",), model="Llama-3.1-8B", tokens=1 << 20)
    # Nearly all is attention at this length: (4 + 10) / (2 x 4 + 10).
    assert made["mfu"] == pytest.approx(0.6 * 14 / 18, rel=0.03)


@pytest.mark.parametrize("name", EVEN)
def test_an_even_split_is_as_slow_as_its_slowest_device(name):
    knobs = {"model": "Llama-3.1-8B", "tokens": 1 << 20}
    mixed, slow = (figures(EVEN[name], nodes, **knobs) for nodes in (TWO, ("A100-80-SXM",) * 2))
    assert mixed["tokens_per_s"] == pytest.approx(slow["tokens_per_s"], rel=0.02)


def test_heads_feed_as_many_devices_as_there_are():
    made = figures(EvenHeads(), ("H100-SXM",) * 4, model="Llama-3.2-3B", tokens=1 << 18)
    # 24 heads on 32 devices: the others have only their rows.
    assert made["imbalance"] > 1.25
    ours = figures(EvenMesh(), ("H100-SXM",) * 4, model="Llama-3.2-3B", tokens=1 << 18)
    assert ours["tokens_per_s"] > made["tokens_per_s"]


def test_shards_by_flops_use_all_flops_where_nothing_else_binds():
    asked = MixedClusterAttention(cluster=TWO, model="Llama-3.1-8B", tokens=1 << 20, **SIZED)
    split = FlopsShards().split(asked.batch(), 16, asked.world())
    assert split.rows[0] / split.rows[-1] == pytest.approx(H100 / A100, rel=1e-3)
    knobs = {"model": "Llama-3.1-8B", "tokens": 1 << 20}
    flops, even = (figures(part, TWO, **knobs) for part in (FlopsShards(), EvenMesh()))
    gain = flops["tokens_per_s"] / even["tokens_per_s"]
    assert gain == pytest.approx((H100 + A100) / (2 * A100), rel=0.02)


def test_shards_by_flops_break_caps_where_the_fast_have_little_memory():
    asked = {**SIZED, "model": "Llama-3.1-8B", "tokens": 1 << 21, "cluster": TWO}
    assert play(EvenMesh(), None, **asked).violations == []
    made = play(FlopsShards(), None, **asked)
    assert {violation.kind for violation in made.violations} == {"out_of_memory"}
    assert {violation.node for violation in made.violations} == set(range(8))
