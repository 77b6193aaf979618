"""Training: how many machines make one model, with little talk, mixed hardware and stale weights.

The room's problems with their ports, the classics that answer them, and the published systems. The
names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_PROBLEMS = "orrery.systems.train.problems"
_BASELINES = "orrery.systems.train.baselines"
_HOMES = {
    "CO2": "orrery.systems.train.co2",
    "DataParallel": _PROBLEMS,
    "DiLoCo": _BASELINES,
    "EDiT": "orrery.systems.train.edit",
    "FCP": "orrery.systems.train.fcp",
    "FixedGroups": _BASELINES,
    "FullySharded": _BASELINES,
    "GossipSGD": _BASELINES,
    "LocalSGD": _BASELINES,
    "NoLoCo": "orrery.systems.train.noloco",
    "NoTalk": _BASELINES,
    "OverlapLocalSGD": _BASELINES,
    "ShortLongApart": _BASELINES,
    "SlowMo": _BASELINES,
    "Synchronous": _BASELINES,
    "Trainer": _PROBLEMS,
}

__all__ = [
    "CO2",
    "FCP",
    "DataParallel",
    "DiLoCo",
    "EDiT",
    "FixedGroups",
    "FullySharded",
    "GossipSGD",
    "LocalSGD",
    "NoLoCo",
    "NoTalk",
    "OverlapLocalSGD",
    "ShortLongApart",
    "SlowMo",
    "Synchronous",
    "Trainer",
]

if TYPE_CHECKING:
    from orrery.systems.train.baselines import (
        DiLoCo,
        FixedGroups,
        FullySharded,
        GossipSGD,
        LocalSGD,
        NoTalk,
        OverlapLocalSGD,
        ShortLongApart,
        SlowMo,
        Synchronous,
    )
    from orrery.systems.train.co2 import CO2
    from orrery.systems.train.edit import EDiT
    from orrery.systems.train.fcp import FCP
    from orrery.systems.train.noloco import NoLoCo
    from orrery.systems.train.problems import DataParallel, Trainer


__getattr__, __dir__ = door(__name__, _HOMES)
