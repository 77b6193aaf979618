"""Splits, worlds and runs that the tests of HexiSeq and its rivals share."""

from __future__ import annotations

import itertools

import numpy as np

from orrery import World, run
from orrery.base.rand import Stream
from orrery.systems.train.baselines.even_context import EvenContext
from orrery.systems.train.baselines.even_heads import EvenHeads
from orrery.systems.train.baselines.even_mesh import EvenMesh
from orrery.systems.train.baselines.flops_shards import FlopsShards
from orrery.systems.train.hexiseq import SplitAttention
from orrery.systems.train.problems.layer_attention import LayerJob
from orrery.systems.train.problems.mixed_cluster_attention import (
    MixedClusterAttention,
    mixed_cluster,
)
from orrery.systems.train.problems.splits import Split
from orrery.world.hardware import Accelerator, Machine, accelerator
from orrery.world.network import Edge, Network, Topology
from orrery.world.world import Group

EVEN = {"even-context": EvenContext(), "even-heads": EvenHeads(), "even-mesh": EvenMesh()}
RIVALS = {**EVEN, "flops-shards": FlopsShards()}
SIZED = {"dtype": "bf16", "sized": True, "gpus": 8}
SMALL = {"tokens": 61, "heads": 6, "kv_heads": 2, "head_dim": 4, "hidden": 8, "rounds": 2}


class Given(SplitAttention):
    """Runs a split that is told to it."""

    groups: tuple[tuple[int, ...], ...] = ()
    rows: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()

    def split(self, job, size, world):
        return Split(self.groups, self.rows, self.heads)


def given(split):
    return Given(groups=split[0], rows=split[1], heads=split[2])


def scattered(rng, total, parts):
    counts = [0] * parts
    for _ in range(total):
        counts[rng.below(parts)] += 1
    return counts


def random_split(seed, tokens, heads, size):
    """Any groups, rows and heads; with an odd seed some rank has no row."""
    rng = Stream(seed, "split", "hexiseq")
    ranks, groups, counts = list(range(size)), [], [0] * size
    rng.shuffle(ranks)
    while ranks:
        wide = 1 + rng.below(len(ranks))
        groups.append(tuple(ranks[:wide]))
        ranks = ranks[wide:]
    rows = scattered(rng, tokens, size)
    if seed % 2 and size > 1:
        idle = rng.below(size)
        rows[(idle + 1) % size] += rows[idle]
        rows[idle] = 0
    for group in groups:
        for rank, count in zip(group, scattered(rng, heads, len(group)), strict=True):
            counts[rank] = count
    return Split(tuple(groups), tuple(rows), tuple(counts))


def play(part, world=None, engine="virtual", **knobs):
    """A run of the layer; on processes, one for each rank."""
    more = {} if engine == "virtual" else {"nodes_per_process": 1, "until_s": 60.0}
    return run(part, problem=MixedClusterAttention(**knobs), world=world, engine=engine, **more)


def figures(part, nodes, **knobs):
    """The metrics of a model on a cluster of whole nodes, in virtual time."""
    made = play(part, mixed_cluster(nodes), cluster=tuple(nodes), **{**SIZED, **knobs})
    return made.metrics


# -- random worlds for which all splits can be tried


def random_job(seed, heads, units):
    """A layer of up to so many heads, and a sequence of so many units."""
    rng = Stream(seed, "job", "hexiseq")
    heads = 1 + rng.below(heads)
    divisors = [count for count in range(1, heads + 1) if heads % count == 0]
    return LayerJob(
        tokens=units * (1024, 4096, 16384)[rng.below(3)], heads=heads, head_dim=128,
        kv_heads=divisors[rng.below(len(divisors))], hidden=128 * heads, dtype="bf16", sized=True,
        causal=rng.below(4) > 0,
    )  # fmt: skip


def random_world(seed, size, job):
    """Devices of 100 to 1,000 Tflop/s, links of 3 to 300 GB/s, and memory that may be short."""
    rng = Stream(seed, "world", "hexiseq")
    held_B = job.row_B + 4 * job.head_dim * job.item_B * (job.heads + 2 * job.groups)
    need_B = (job.tokens / size * held_B + job.state_B(size)) / job.memory_share
    machines, groups = {}, []
    for i in range(size):
        device = Accelerator(name=f"device {i}", peak_flops={"bf16": 1e14 * (1 + 9 * rng.random())},
                             memory_B=int((0.6 + 2 * rng.random()) * need_B) + 1,
                             memory_Bps=2e12)  # fmt: skip
        machines[f"m{i}"] = Machine(accelerators=(device,))
        groups.append(Group(name="node", count=1, machine=f"m{i}"))
    edges = [Edge(a=a, b=b, latency_s=5e-6, bandwidth_Bps=10 ** (9.5 + 2 * rng.random()))
             for a, b in itertools.combinations(range(size), 2)]  # fmt: skip
    topology = Topology(kind="graph", edges=tuple(edges))
    network = Network(model="flows", latency_s=5e-6, jitter=0.0, topology=topology)
    return World(groups=tuple(groups), network=network, machines=machines)


# -- clusters whose devices differ in one thing


def scaled(name, speed=1.0, memory=1.0):
    """An H100 that is so many times as fast, with so much of its memory."""
    whole = accelerator("H100-SXM")
    return whole.replace(name=name, memory_B=int(whole.memory_B * memory),
                         peak_flops={"bf16": whole.peak_flops["bf16"] * speed})  # fmt: skip


def two_kinds(nodes, fast, slow, rails_Bps=(50e9, 50e9)):
    """Nodes of 8, half of one kind and half of another, with a rail for each device."""
    machines = {"fast": Machine(accelerators=(fast,), nic_Bps=rails_Bps[0]),
                "slow": Machine(accelerators=(slow,), nic_Bps=rails_Bps[1])}  # fmt: skip
    groups = (Group(name="node", count=4 * nodes, machine="fast"),
              Group(name="node", count=4 * nodes, machine="slow"))  # fmt: skip
    topology = Topology(kind="islands", island=8, island_Bps=300e9, island_latency_s=2e-6)
    network = Network(model="flows", latency_s=5e-6, jitter=0.0, topology=topology)
    return World(groups=groups, network=network, machines=machines)


def unlike_cpus():
    """Two machines of 30 Mflop/s and two of 10, so slow that a small layer is work for them."""
    machines = {"fast": Machine(cpu_flops=3e7), "slow": Machine(cpu_flops=1e7)}
    groups = tuple(Group(name="node", count=2, machine=name) for name in machines)
    return World(groups=groups, machines=machines, network=Network(model="flows", jitter=0.0))


def step_of(cluster, split):
    """The time of a layer's step by the model."""
    rows = np.array([split.rows], float)
    return float(cluster.model(split.groups, split.heads).times(rows).max())
