"""The problem `mixed_cluster_attention`: a long sequence trained on devices of several models.

The port is `LayerAttention`. A part says which rows and which heads every rank has, and moves what
must be moved. Values are checked against one process; no device may hold more than its memory. In
sized mode a layer of a named model stands for the whole of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from orrery.base.errors import KnobError
from orrery.base.violation import Violation
from orrery.models import attention
from orrery.models.attention import Block
from orrery.parts import Count, Metric, Node, NonNegative, Outcome, Positive
from orrery.systems.collectives import LongAttention
from orrery.systems.train.problems.layer_attention import LayerAttention, LayerJob
from orrery.systems.train.problems.split_costs import Cluster
from orrery.systems.train.problems.splits import Split, check_split, even_split
from orrery.world import World, hardware, worlds
from orrery.world.hardware import Machine
from orrery.world.network import Network, Topology
from orrery.world.world import Group

# The machine that an accelerator comes in, and the rail that each one has to the others; those not
# named are taken to sit eight in a server with 200 Gb/s each.
HOSTS = {
    "H100-SXM": ("dgx_h100", worlds.NDR_RAIL_BPS), "H200": ("dgx_h200", worlds.NDR_RAIL_BPS),
    "B200": ("dgx_b200", worlds.NDR_RAIL_BPS), "A100-80-SXM": ("dgx_a100", worlds.HDR_RAIL_BPS),
    "A100-40-SXM": ("dgx_a100", worlds.HDR_RAIL_BPS),
}  # fmt: skip
OTHER = ("server", worlds.HDR_RAIL_BPS)
GPUS_OF_HOST = 8


def mixed_cluster(nodes: Sequence[str], gpus: int = 8) -> World:
    """Nodes of `gpus` equal accelerators each, one rank a GPU; `nodes` names their models.

    Figures are those of data sheets. A node's fast links are those of the slowest model in the
    cluster, since islands have one figure; rails are each model's own.

    >>> mixed_cluster(["H100-SXM", "A100-80-SXM"], 2).size
    4
    """
    path = "MixedClusterAttention.cluster"
    if not nodes:
        raise KnobError(path, "is empty", 'name the model of each node, as ["H100-SXM"]')
    made = {name: _rank(name) for name in dict.fromkeys(nodes)}
    links = [machine.accelerators[0].link_Bps or OTHER[1] for machine in made.values()]
    groups: list[Group] = []
    for name in nodes:
        label = name.lower()
        if groups and groups[-1].machine == label:
            groups[-1] = groups[-1].replace(count=groups[-1].count + gpus)
        else:
            groups.append(Group(name="node", count=gpus, machine=label))
    topology = Topology(kind="islands", island=gpus, island_Bps=min(links),
                        island_latency_s=worlds.NVLINK_S)  # fmt: skip
    network = Network(model="flows", latency_s=worlds.INFINIBAND_S, jitter=0.0, topology=topology,
                      bandwidth_Bps=worlds.HDR_RAIL_BPS)  # fmt: skip
    return World(title=f"mixed_cluster({', '.join(nodes)})", groups=tuple(groups), network=network,
                 machines={name.lower(): machine for name, machine in made.items()})  # fmt: skip


def _rank(name: str) -> Machine:
    """One GPU with its share of the machine that it comes in."""
    host, rail_Bps = HOSTS.get(name, OTHER)
    whole, share = hardware.machine(host), GPUS_OF_HOST
    return whole.replace(
        accelerators=(hardware.accelerator(name),), nic_Bps=rail_Bps,
        cores=max(whole.cores // share, 1), cpu_flops=whole.cpu_flops / share,
        memory_B=whole.memory_B // share, memory_Bps=whole.memory_Bps / share,
        idle_W=whole.idle_W / share, active_W=whole.active_W / share,
        price_per_h=None if whole.price_per_h is None else whole.price_per_h / share,
    )  # fmt: skip


class MixedClusterAttention(LayerJob, LongAttention):
    """Train a layer on one long sequence over devices that differ: right, fast, within memory.

    Knobs beside those of the layer: `cluster`, the model of each node, and `gpus`, how many each
    has; `against`, a cluster of equal devices to compare with (empty: none); `tolerance` and
    `patience_s` as in `long_attention`.

    Time is that of one layer forwards and backwards, with attention and matrices; `step_s` counts
    it for all layers of the model, and its forward pass twice where layers are recomputed. The sum
    of gradients over the ranks and the optimiser's step, equal for all parts, are not in it.

    >>> MixedClusterAttention(cluster=("H100-SXM", "A100-80-SXM"), gpus=2).world().size
    4
    """

    # One model only: a world of one group can be made smaller, down to a rank alone.
    cluster: tuple[str, ...] = ("H100-SXM",)
    gpus: Count = 4
    against: tuple[str, ...] = ()
    tolerance: NonNegative = 0.0
    patience_s: Positive = 60.0

    trial: ClassVar[Mapping[str, Any]] = {"tokens": 96}
    port: ClassVar[type] = LayerAttention
    metrics: ClassVar[Mapping[str, Metric]] = {
        **LongAttention.metrics,
        "tokens_per_s": Metric("1/s", "higher", "rows of the sequence over step_s"),
        "mfu": Metric("", "higher", "flops of visible pairs and matrices over what all devices "
                                    "could do in step_s, at their peak; a second pass counts not"),
        "step_s": Metric("s", "lower", "time of all layers, with the pass that is repeated"),
        "model_s": Metric("s", "lower", "what the time model says of step_s"),
        "memory": Metric("", "lower", "of the fullest device, what it needs over what it has"),
        "loss": Metric("", "lower", "loss of the last round; 0 in sized mode"),
        "of_uniform": Metric(
            "", "higher", "tokens_per_s for each peak flop, over that of the best even split on "
            "the cluster of equal devices, as the time model has it; 0 where none is named",
        ),
    }  # fmt: skip

    def world(self) -> World:
        return mixed_cluster(self.cluster, self.gpus)

    def batch(self) -> LayerJob:
        """The layer that every rank knows, with the shape of the model where one is named."""
        job = LayerJob(**{name: getattr(self, name) for name in LayerJob().knobs()})
        if job.shape is None:
            return job
        of = job.shape
        return job.with_knobs(heads=of.heads, kv_heads=of.kv_heads, head_dim=of.head_dim,
                              hidden=of.hidden)  # fmt: skip

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        job = self.batch()
        job.check_job()
        split = part.split(job, world.size, world)
        check_split(split, job.tokens, job.heads, world.size)
        attention.check_layout(part.layout(job, world.size, world), job.lengths, world.size)
        return {"node": part.with_knobs(job=job, patience_s=self.patience_s)}

    def check(self, outcome: Outcome) -> list[Violation]:
        found = super().check(outcome)
        job, world = self.batch(), outcome.world
        short_B = Cluster(world, job).shortfall_B(outcome.part.split(job, world.size, world))
        for rank, more_B in enumerate(short_B.tolist()):
            if more_B > 0:
                found.append(Violation(
                    kind="out_of_memory", node=rank, evidence=more_B,
                    message=f"rank {rank} needs {more_B / 2**30:.2f} GiB more than it has",
                ))  # fmt: skip
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        job, world = self.batch(), outcome.world
        found = super().measure(outcome)
        again_s = found["forward_s"] if job.recompute else 0.0
        step_s = job.layers * (found["time_s"] + again_s)
        cluster = Cluster(world, job)
        split = outcome.part.split(job, world.size, world)
        use_B = cluster.shortfall_B(split) + cluster.room_B
        told = [record.values["loss"] for record in outcome.records if "loss" in record.values]
        peak = float(cluster.rate.sum()) / job.efficiency
        every = (Block(0, 0, job.tokens),)
        pairs = attention.visible_pairs(every, every, job.causal)
        per_pair = attention.FORWARD_FLOPS + attention.BACKWARD_FLOPS
        flops = pairs * per_pair * job.heads * job.head_dim + 3 * job.tokens * job.linear_flops
        found |= {
            "step_s": step_s, "model_s": cluster.step_s(split),
            "tokens_per_s": job.tokens / step_s if step_s > 0 else 0.0,
            "mfu": flops * job.layers / (step_s * peak) if step_s > 0 else 0.0,
            "memory": float((use_B / cluster.room_B).max()) if (cluster.room_B > 0).all() else
                      float("inf"),
            "loss": float(told[-1]) if told else 0.0, "of_uniform": 0.0,
        }  # fmt: skip
        if self.against:
            even = Cluster(mixed_cluster(self.against, self.gpus), job)
            even_s = min(even.step_s(split) for split in meshes(job, even.size))
            theirs = job.tokens / even_s / (float(even.rate.sum()) / job.efficiency)
            found["of_uniform"] = found["tokens_per_s"] / peak / theirs
        return found


def meshes(job: LayerJob, size: int) -> list[Split]:
    """All even splits: groups of each width that divides the ranks."""
    wides = [wide for wide in range(1, size + 1) if size % wide == 0]
    return [even_split(job.tokens, job.heads, size, wide) for wide in wides]


__all__ = ["MixedClusterAttention", "meshes", "mixed_cluster"]
