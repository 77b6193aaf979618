"""The classics of this room, one file each: the rivals that newer systems are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HOMES = {
    "DiLoCo": "orrery.systems.train.baselines.diloco",
    "FixedGroups": "orrery.systems.train.baselines.fixed_groups",
    "FullySharded": "orrery.systems.train.baselines.fully_sharded",
    "GossipSGD": "orrery.systems.train.baselines.gossip_sgd",
    "LocalSGD": "orrery.systems.train.baselines.local_sgd",
    "NoTalk": "orrery.systems.train.baselines.no_talk",
    "OverlapLocalSGD": "orrery.systems.train.baselines.overlap_local_sgd",
    "ShortLongApart": "orrery.systems.train.baselines.short_long_apart",
    "SlowMo": "orrery.systems.train.baselines.slowmo",
    "Synchronous": "orrery.systems.train.baselines.synchronous",
}

__all__ = [
    "DiLoCo",
    "FixedGroups",
    "FullySharded",
    "GossipSGD",
    "LocalSGD",
    "NoTalk",
    "OverlapLocalSGD",
    "ShortLongApart",
    "SlowMo",
    "Synchronous",
]

if TYPE_CHECKING:
    from orrery.systems.train.baselines.diloco import DiLoCo
    from orrery.systems.train.baselines.fixed_groups import FixedGroups
    from orrery.systems.train.baselines.fully_sharded import FullySharded
    from orrery.systems.train.baselines.gossip_sgd import GossipSGD
    from orrery.systems.train.baselines.local_sgd import LocalSGD
    from orrery.systems.train.baselines.no_talk import NoTalk
    from orrery.systems.train.baselines.overlap_local_sgd import OverlapLocalSGD
    from orrery.systems.train.baselines.short_long_apart import ShortLongApart
    from orrery.systems.train.baselines.slowmo import SlowMo
    from orrery.systems.train.baselines.synchronous import Synchronous


__getattr__, __dir__ = door(__name__, _HOMES)
