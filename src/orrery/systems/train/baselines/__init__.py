"""The classics of this room, one file each: the rivals that newer systems are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HOMES = {
    "ADOMPlus": "orrery.systems.train.baselines.adom_plus",
    "Continuized": "orrery.systems.train.baselines.continuized",
    "DecentralisedGD": "orrery.systems.train.baselines.decentralised_gd",
    "DiLoCo": "orrery.systems.train.baselines.diloco",
    "EvenContext": "orrery.systems.train.baselines.even_context",
    "EvenHeads": "orrery.systems.train.baselines.even_heads",
    "EvenMesh": "orrery.systems.train.baselines.even_mesh",
    "FixedGroups": "orrery.systems.train.baselines.fixed_groups",
    "FlopsShards": "orrery.systems.train.baselines.flops_shards",
    "FullySharded": "orrery.systems.train.baselines.fully_sharded",
    "GPipe": "orrery.systems.train.baselines.gpipe",
    "GossipSGD": "orrery.systems.train.baselines.gossip_sgd",
    "GradientTracking": "orrery.systems.train.baselines.gradient_tracking",
    "LocalSGD": "orrery.systems.train.baselines.local_sgd",
    "MSDA": "orrery.systems.train.baselines.msda",
    "NoTalk": "orrery.systems.train.baselines.no_talk",
    "OneFOneB": "orrery.systems.train.baselines.one_f_one_b",
    "OneWorkerSGD": "orrery.systems.train.baselines.one_worker_sgd",
    "OverlapLocalSGD": "orrery.systems.train.baselines.overlap_local_sgd",
    "PipeDream": "orrery.systems.train.baselines.pipedream",
    "PipeDreamUnstashed": "orrery.systems.train.baselines.pipedream_unstashed",
    "PipelinedLocalSGD": "orrery.systems.train.baselines.pipelined_local_sgd",
    "ShortLongApart": "orrery.systems.train.baselines.short_long_apart",
    "SlowMo": "orrery.systems.train.baselines.slowmo",
    "Synchronous": "orrery.systems.train.baselines.synchronous",
}

__all__ = [
    "MSDA",
    "ADOMPlus",
    "Continuized",
    "DecentralisedGD",
    "DiLoCo",
    "EvenContext",
    "EvenHeads",
    "EvenMesh",
    "FixedGroups",
    "FlopsShards",
    "FullySharded",
    "GPipe",
    "GossipSGD",
    "GradientTracking",
    "LocalSGD",
    "NoTalk",
    "OneFOneB",
    "OneWorkerSGD",
    "OverlapLocalSGD",
    "PipeDream",
    "PipeDreamUnstashed",
    "PipelinedLocalSGD",
    "ShortLongApart",
    "SlowMo",
    "Synchronous",
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


__getattr__, __dir__ = door(__name__, _HOMES)
