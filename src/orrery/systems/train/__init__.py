"""Training: how many machines make one model, with little talk, mixed hardware and stale weights.

The room's problems with their ports, the classics that answer them, and the published systems. The
names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HOMES = {
    "ADOMPlus": "orrery.systems.train.baselines.adom_plus",
    "CO2": "orrery.systems.train.co2",
    "Continuized": "orrery.systems.train.baselines.continuized",
    "DADAO": "orrery.systems.train.dadao",
    "DataParallel": "orrery.systems.train.problems.data_parallel",
    "DecentralisedGD": "orrery.systems.train.baselines.decentralised_gd",
    "DecentralisedOptimum": "orrery.systems.train.problems.decentralised_optimum",
    "DiLoCo": "orrery.systems.train.baselines.diloco",
    "EDiT": "orrery.systems.train.edit",
    "EvenContext": "orrery.systems.train.baselines.even_context",
    "EvenHeads": "orrery.systems.train.baselines.even_heads",
    "EvenMesh": "orrery.systems.train.baselines.even_mesh",
    "FCP": "orrery.systems.train.fcp",
    "FixedGroups": "orrery.systems.train.baselines.fixed_groups",
    "FlopsShards": "orrery.systems.train.baselines.flops_shards",
    "FullySharded": "orrery.systems.train.baselines.fully_sharded",
    "GPipe": "orrery.systems.train.baselines.gpipe",
    "GossipSGD": "orrery.systems.train.baselines.gossip_sgd",
    "GradientTracking": "orrery.systems.train.baselines.gradient_tracking",
    "HexiSeq": "orrery.systems.train.hexiseq",
    "LayerAttention": "orrery.systems.train.problems.layer_attention",
    "LocalSGD": "orrery.systems.train.baselines.local_sgd",
    "MSDA": "orrery.systems.train.baselines.msda",
    "Minimiser": "orrery.systems.train.problems.minimiser",
    "MixedClusterAttention": "orrery.systems.train.problems.mixed_cluster_attention",
    "NoLoCo": "orrery.systems.train.noloco",
    "NoTalk": "orrery.systems.train.baselines.no_talk",
    "OneFOneB": "orrery.systems.train.baselines.one_f_one_b",
    "OneWorkerSGD": "orrery.systems.train.baselines.one_worker_sgd",
    "OverlapLocalSGD": "orrery.systems.train.baselines.overlap_local_sgd",
    "PipeDream": "orrery.systems.train.baselines.pipedream",
    "PipeDreamUnstashed": "orrery.systems.train.baselines.pipedream_unstashed",
    "PipelineTraining": "orrery.systems.train.problems.pipeline_training",
    "PipelinedLocalSGD": "orrery.systems.train.baselines.pipelined_local_sgd",
    "RandomizedPipeDream": "orrery.systems.train.randomized_pipedream",
    "SPES": "orrery.systems.train.spes",
    "ShortLongApart": "orrery.systems.train.baselines.short_long_apart",
    "SlowMo": "orrery.systems.train.baselines.slowmo",
    "Stage": "orrery.systems.train.problems.stage",
    "Synchronous": "orrery.systems.train.baselines.synchronous",
    "Trainer": "orrery.systems.train.problems.trainer",
}

__all__ = [
    "CO2",
    "DADAO",
    "FCP",
    "MSDA",
    "SPES",
    "ADOMPlus",
    "Continuized",
    "DataParallel",
    "DecentralisedGD",
    "DecentralisedOptimum",
    "DiLoCo",
    "EDiT",
    "EvenContext",
    "EvenHeads",
    "EvenMesh",
    "FixedGroups",
    "FlopsShards",
    "FullySharded",
    "GPipe",
    "GossipSGD",
    "GradientTracking",
    "HexiSeq",
    "LayerAttention",
    "LocalSGD",
    "Minimiser",
    "MixedClusterAttention",
    "NoLoCo",
    "NoTalk",
    "OneFOneB",
    "OneWorkerSGD",
    "OverlapLocalSGD",
    "PipeDream",
    "PipeDreamUnstashed",
    "PipelineTraining",
    "PipelinedLocalSGD",
    "RandomizedPipeDream",
    "ShortLongApart",
    "SlowMo",
    "Stage",
    "Synchronous",
    "Trainer",
]

if TYPE_CHECKING:
    from orrery.systems.train.baselines.adom_plus import ADOMPlus
    from orrery.systems.train.baselines.continuized import Continuized
    from orrery.systems.train.baselines.decentralised_gd import DecentralisedGD
    from orrery.systems.train.baselines.diloco import DiLoCo
    from orrery.systems.train.baselines.even_context import EvenContext
    from orrery.systems.train.baselines.even_heads import EvenHeads
    from orrery.systems.train.baselines.even_mesh import EvenMesh
    from orrery.systems.train.baselines.fixed_groups import FixedGroups
    from orrery.systems.train.baselines.flops_shards import FlopsShards
    from orrery.systems.train.baselines.fully_sharded import FullySharded
    from orrery.systems.train.baselines.gossip_sgd import GossipSGD
    from orrery.systems.train.baselines.gpipe import GPipe
    from orrery.systems.train.baselines.gradient_tracking import GradientTracking
    from orrery.systems.train.baselines.local_sgd import LocalSGD
    from orrery.systems.train.baselines.msda import MSDA
    from orrery.systems.train.baselines.no_talk import NoTalk
    from orrery.systems.train.baselines.one_f_one_b import OneFOneB
    from orrery.systems.train.baselines.one_worker_sgd import OneWorkerSGD
    from orrery.systems.train.baselines.overlap_local_sgd import OverlapLocalSGD
    from orrery.systems.train.baselines.pipedream import PipeDream
    from orrery.systems.train.baselines.pipedream_unstashed import PipeDreamUnstashed
    from orrery.systems.train.baselines.pipelined_local_sgd import PipelinedLocalSGD
    from orrery.systems.train.baselines.short_long_apart import ShortLongApart
    from orrery.systems.train.baselines.slowmo import SlowMo
    from orrery.systems.train.baselines.synchronous import Synchronous
    from orrery.systems.train.co2 import CO2
    from orrery.systems.train.dadao import DADAO
    from orrery.systems.train.edit import EDiT
    from orrery.systems.train.fcp import FCP
    from orrery.systems.train.hexiseq import HexiSeq
    from orrery.systems.train.noloco import NoLoCo
    from orrery.systems.train.problems.data_parallel import DataParallel
    from orrery.systems.train.problems.decentralised_optimum import DecentralisedOptimum
    from orrery.systems.train.problems.layer_attention import LayerAttention
    from orrery.systems.train.problems.minimiser import Minimiser
    from orrery.systems.train.problems.mixed_cluster_attention import MixedClusterAttention
    from orrery.systems.train.problems.pipeline_training import PipelineTraining
    from orrery.systems.train.problems.stage import Stage
    from orrery.systems.train.problems.trainer import Trainer
    from orrery.systems.train.randomized_pipedream import RandomizedPipeDream
    from orrery.systems.train.spes import SPES


__getattr__, __dir__ = door(__name__, _HOMES)
